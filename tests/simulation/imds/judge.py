"""The judge: it knows what is true in EC2 and of every Node, and looks at each change that is sent.

What the operator has been told does not interest it. Three things it takes from what stands in the API server
at that moment: the spec, which instances the status names as canaries, and which changes it says have passed.
Whether they had a right to pass, it has looked at itself when that was written.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import msgspec

from simulation.imds.clock import Clock
from simulation.imds.cluster import Cluster, Measured
from simulation.imds.ec2 import Ec2, Instance
from simulation.imds.told import Change, as_expected, changes_of, failed, named, passed, typed, watched
from simulation.imds.truth import LABELS, WATCH_SECONDS, Asked, Group, group_of, groups_of, meant, winners

FRESH: Final = 5.0  # a change is made from a reading that is no older
DETECTION: Final = 60.0  # until a change that was set back, or an end that no Node tells of, is seen
SEEN: Final = 30.0  # until it is read at the latest that a change is in force
SLACK: Final = 2.0  # times in status have no fractions
PENDING_TIMEOUT: Final = 60.0
HOPS: Final = "HttpPutResponseHopLimit"
RESYNC: Final = 600.0  # until what another client changes is read
# Until the tag of another Auto Scaling group is read: once a minute, and its lack is confirmed after 30 s.
MOVED: Final = DETECTION + 30.0

Held = dict[tuple[Group, str, str], set[str]]


class Breach(AssertionError):  # noqa: N818 - as a rule has it
    """A rule is broken. `rule` names it."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Sent(msgspec.Struct):
    """A change that EC2 has taken. `ready`: whether its Node was, when it was sent; `group`: of its canary;
    `watched`: by a policy with canaries; `over`: what happens afterwards is seen only if it would be of one
    that follows."""

    at: float
    instance: str
    before: Mapping[str, Any]
    options: Mapping[str, Any]
    ready: bool
    canary: bool
    group: Group
    watched: bool
    forgiven: float = 0.0  # what happened before was settled by a person
    restored: bool = False
    over: float = math.inf

    @property
    def changes(self) -> list[Change]:
        """Of its canary."""
        return [
            (self.group, name, str(self.before[name]), str(value)) for name, value in self.options.items()
        ]


class Stay(msgspec.Struct):
    """An instance in a group, until it moved to the next one."""

    group: Group
    since: float
    until: float = math.inf
    by_tag: bool = False


class Judge:
    """`breaches` counts instead of ending the history where `counts` is set."""

    def __init__(self, cluster: Cluster, ec2: Ec2, clock: Clock) -> None:
        self._cluster, self._ec2, self._clock, self._now = cluster, ec2, clock, clock.monotonic
        self.counts = False
        self.edited = 0.0  # when a spec or a label was changed last
        self.retagged = -math.inf  # when an instance came to another Auto Scaling group, or to none
        self.breaches: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.harmful: set[tuple[Group, str, Any]] = set()
        self.harmed: list[
            tuple[str, bool]
        ] = []  # (instance, whether as a canary) that a harmful change reached
        self.sends: list[tuple[float, str, str]] = []  # (at, policy, instance) by this process
        # instance -> policy -> the last one, this process
        self.answered: dict[str, dict[str, tuple[float, dict[str, Any]]]] = defaultdict(dict)
        self.taken: dict[str, dict[str, Sent]] = defaultdict(dict)  # policy's uid -> instance -> the last one
        self.tries: dict[str, dict[Change, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.proofs: dict[str, dict[Change, str]] = defaultdict(dict)  # "" = proved, else what it lacks
        self.provers: dict[str, dict[Change, set[str]]] = defaultdict(dict)  # the canaries that have passed
        self.expected: dict[str, dict[Change, str]] = defaultdict(dict)  # of their probe; "" = there was none
        self.proved_at: dict[str, dict[Change, float]] = defaultdict(dict)
        self.refused: set[str] = set()  # instances that EC2 did not change, or was asked about in a dry run
        self.began: dict[str, tuple[float, Asked]] = {}  # the pass of each policy
        self.passes: dict[str, list[float]] = defaultdict(list)  # those that read
        self.idle: dict[str, list[tuple[float, float]]] = defaultdict(list)  # when its instances are not read
        self.ended: dict[str, list[float]] = defaultdict(list)  # when the status of a pass was stored
        self.settled: dict[
            str, float
        ] = {}  # policy's uid -> when a person last resumed it or changed its spec
        self.opened: dict[str, float] = {}  # policy's uid -> when its breaker opened
        self.closed: dict[str, float] = {}  # and when it was closed
        self.expects: dict[
            str, tuple[str, float]
        ] = {}  # policy's uid -> what its probe should find, since when
        self.held: dict[
            str, tuple[float, Held]
        ] = {}  # policy's uid -> when a status was stored, and Held then
        self.refusing: dict[str, set[str]] = defaultdict(set)  # policy -> what of the probe it may not use
        self.serves = True  # whether this process runs DaemonTasks
        self.led_since = 0.0  # when it began to lead: of what was before, it knows numbers alone
        self.stays: dict[str, list[Stay]] = {}  # of instances that have moved to another group

    def breach(self, rule: str, message: str) -> None:
        """It is one."""
        if not self.counts:
            raise Breach(rule, f"{message} (at {self._now():.1f})")
        self.breaches[rule] += 1
        self.examples.setdefault(rule, f"{message} (at {self._now():.1f})")

    # ------------------------------------------------------------ what happens

    def restarted(self) -> None:
        """Another process leads."""
        self.sends.clear()
        self.answered.clear()

    def begins(self, name: str) -> None:
        """A pass of a policy begins."""
        asked = self._cluster.policy(name)
        self.began[name] = (self._now(), asked)
        self.refusing[name].clear()
        if asked.enforces:
            self.passes[asked.uid].append(self._now())

    def ends(self, name: str) -> None:
        """Its status is stored, and its changes are sent."""
        began, asked = self.began[name]
        if asked.enforces:
            self.ended[asked.uid].append(began)
            for sent in self.taken[asked.uid].values():
                if began > _watch_ends(asked, sent) and not self._followed(asked, sent, began):
                    self._ends(sent, began)

    def used(self, name: str, what: str, refused: bool) -> None:
        """A pass of a policy uses the task of the probe."""
        (self.refusing[name].add if refused else self.refusing[name].discard)(what)

    def acted(self, name: str, *, edits: bool = False) -> None:
        """A person resumes it, or changes its spec."""
        asked = self._cluster.policy(name)
        self.settled[asked.uid] = now = self._now()
        idle = self.idle[asked.uid]
        if idle and idle[-1][1] == math.inf:
            idle[-1] = idle[-1][0], now
        if not asked.enforces:
            idle.append((now, math.inf))
        if self.expects.get(asked.uid, ("", 0.0))[0] != asked.expect:
            self.expects[asked.uid] = asked.expect, now
        self.tries[asked.uid].clear()
        for sent in self.taken[asked.uid].values():
            sent.forgiven = self._now()
            one = self._ec2.instances[sent.instance]
            # After an edit a canary may end without a result; one that is gone as it is resumed may return.
            if edits or not one.runs or one.node not in self._cluster.nodes:
                self._ends(sent, self._now())

    def strays(self) -> None:
        """A person has edited policies or labels: what is another's to decide now is no canary's any more."""
        self.edited = self._now()
        for asked in self._cluster.asked():
            for change, tried in self.tries[asked.uid].items():
                left = tried - self._ended(asked, change)
                tried &= {name for name in left if self._decides(asked, change, self._ec2.instances[name])}
            for sent in self.taken[asked.uid].values():
                if self._taken_over(asked, sent):
                    self._ends(sent, self._now())

    def _ends(self, sent: Sent, at: float) -> None:
        """It may have been read for the last time a minute before."""
        sent.over = min(sent.over, at - DETECTION - self._ec2.longest_lag)

    @contextmanager
    def moving(self, one: Instance, *, by_tag: bool = False) -> Iterator[None]:
        """It may be of another group afterwards."""
        before = self.group(one)
        yield
        self.retagged = self._now() if by_tag else self.retagged
        if self.group(one) != before:
            stays = self.stays.setdefault(one.name, [Stay(before, -math.inf)])
            stays[-1].until, stays[-1].by_tag = self._now(), by_tag
            stays.append(Stay(self.group(one), self._now()))

    def _taken_for(self, asked: Asked, one: Instance) -> set[Group]:
        """The groups in which a pass may have read it: its own, and those that it left just now."""
        late = self._now() - MOVED - self._ec2.longest_lag
        late = -math.inf if self._ec2.lacked_at > late else late  # the last known tags are used
        began = self.began[asked.name][0]
        stays = self.stays.get(one.name, ())
        left = {stay.group for stay in stays if stay.until > (late if stay.by_tag else began)}
        # Without changes, EC2 is read each resyncInterval; that a tag is gone is confirmed.
        for stay in (one for one in stays if one.by_tag):
            reads = [at for at in self._ec2.reads.get(one.name, ()) if at > stay.until]
            left |= {stay.group} if not reads or began - reads[0] < MOVED else set()
        return left | {self.group(one)}

    def _ended(self, asked: Asked, change: Change) -> set[str]:
        """The canary of a change, if any of its changes is not the policy's any more on any instance."""
        status, group = msgspec.json.decode(self._cluster.policies[asked.name].status), change[0]
        canaries, changes = named(status, group), changes_of(status, group)
        goes_on = all(
            self._decides(asked, (group, *one), self._ec2.instances[name])
            for one in changes
            for name in canaries
        )
        return set() if goes_on or change[1:] not in changes else canaries

    def _taken_over(self, asked: Asked, sent: Sent) -> bool:
        """Whether another policy wants a value of one that was changed: its canary ends without a result."""
        one = self._ec2.instances[sent.instance]
        labels = self._cluster.labels[one.node]
        wins = winners(self._cluster.asked(), labels, groups_of(labels, one.asg))
        return any(wins.get(name, (None,))[0] != asked for name in sent.options.keys() & self._claimed(sent))

    def _claimed(self, sent: Sent) -> set[str]:
        """The options that policies which mean its instance, and enforce, want to have a value."""
        one = self._ec2.instances[sent.instance]
        labels = self._cluster.labels[one.node]
        groups = groups_of(labels, one.asg)
        return {
            name
            for other in self._cluster.asked()
            if other.spec.get("mode") == "Enforce" and meant(other.spec.get("selector", {}), labels, groups)
            for name in other.options()
        }

    def _followed(self, asked: Asked, sent: Sent, began: float) -> bool:
        """Whether others of its group are known to be left for a change that has never passed. Tags may be
        read late: groups are those of labels, in all policies."""
        selectors = [one.spec.get("selector", {}) for one in self._cluster.asked()]
        if any(term["kind"] not in LABELS for one in selectors for term in one.get("groups", ())):
            return False
        late = began - self._ec2.longest_lag
        if not sent.canary or sent.group[0] not in LABELS or self._ec2.lacked_at > late - RESYNC:
            return False
        every = [(node, self._cluster.instance(node)) for node in self._cluster.nodes]
        known = [
            node
            for node, one in every
            if one.last.in_force < late - (RESYNC if len(one.past) > 1 else DETECTION)
        ]
        # A probe may measure that a hop limit is too low.
        unproven = [
            change
            for change in sent.changes
            if change not in self.proved_at[asked.uid]
            and asked.allows(change[1], sent.before[change[1]], sent.options[change[1]])
            and (change[1] != HOPS or asked.expect != "PodReachable")
        ]
        return any(self._has(asked, change, node) for change in unproven for node in known)

    def _decides(self, asked: Asked, change: Change, one: Instance) -> bool:
        group, name, _, after = change
        labels = self._cluster.labels[one.node]
        winner, value = winners(self._cluster.asked(), labels, groups_of(labels, one.asg)).get(
            name, (asked, "")
        )
        return self.group(one) == group and winner.uid == asked.uid and str(value) == after

    def stored(self, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """A status: has what it says to have passed stood?"""
        asked = self._cluster.policy(name)
        if asked.spec.get("mode") != "Enforce":
            self.proofs[asked.uid].clear()
        if after.get("breaker") and not before.get("breaker"):
            self.opened[asked.uid] = self._now()
        elif before.get("breaker"):
            self.closed[asked.uid] = self._now()
        closes = before.get("breaker") and not after.get("breaker")
        if closes and self.settled.get(asked.uid, 0.0) < self.opened[asked.uid]:
            self.breach("breaker", f"that of {name} is closed without a resume or another spec")
        self._judge_dropped(asked, before, after)
        if passed(after):
            self._release(asked)
        else:
            self.held.pop(asked.uid, None)
        known = passed(before)
        for change, at in passed(after).items():
            if known.get(change) != at:
                self.proved_at[asked.uid][change] = self._now()
                self.tries[asked.uid].pop(change, None)
                canaries = named(before, change[0])
                self.proofs[asked.uid][change] = self._lacks(asked, change, canaries)
                self.provers[asked.uid][change] = canaries
                self.expected[asked.uid][change] = asked.expect
                self._judge_count(name, change[0], changes_of(before, change[0]), canaries)

    def _judge_dropped(self, asked: Asked, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """A failed canary is kept, or watched, while it has the change and its Node is not Ready."""
        began = self.began[asked.name][0]
        if not asked.enforces or not asked.canary or not self._steady(asked):
            return
        for group in failed(before):
            kept = named(after, group) | watched(after) | self._cluster.shared.keys()
            for name in named(before, group) - kept:
                one, sent = self._ec2.instances[name], self.taken[asked.uid].get(name)
                read = one.last.in_force < began - DETECTION - self._ec2.longest_lag
                has = all(
                    str(one.last.options[change[0]]) == change[2]
                    and self._decides(asked, (group, *change), one)
                    for change in changes_of(before, group)
                )
                if sent is None or not (one.runs and read and has) or self._clock.jumped > sent.at:
                    continue
                if any(rule == "not ready" and at < began for rule, at, _ in self._worse(asked, sent, one)):
                    self.breach("dropped", f"{name} has its change, is NotReady, and is a canary no more")

    def group(self, one: Instance) -> Group:
        """The first of its groups."""
        return group_of(self._cluster.labels[one.node], one.asg)

    def _lacks(self, asked: Asked, change: Change, canaries: set[str]) -> str:
        if not canaries:
            return "no instance is named as its canary"
        found = (self._stands(asked, change, self._ec2.instances[one]) for one in sorted(canaries))
        return next((why for why in found if why), "")

    def _stands(self, asked: Asked, change: Change, one: Instance) -> str:
        """What a canary lacks; "" = nothing."""
        _, name, before, after = change
        now, value = self._now(), one.last.options[name]
        soak = asked.soak(name, typed(before, value), typed(after, value))
        until = now - FRESH - self._ec2.longest_lag
        told = f"{one.name} of {change}"
        if not self._undergone(one, name, before, after):
            return f"{told} was never changed so"
        if not one.runs and one.last.at < until:
            return f"{told} has ended"
        if change[0] not in self._taken_for(asked, one):
            return f"{told} is of {self.group(one)} now"
        if self._named_by_several(one, self.began[asked.name][0]):
            return f"{told} is named by several Nodes"
        return self._has_not_stood(asked, one, name, typed(after, value), soak, told)

    def _judge_count(
        self, name: str, group: Group, changes: set[tuple[str, str, str]], canaries: set[str]
    ) -> None:
        """A canary has as many instances as its policy asks for, if there are as many."""
        began, asked = self.began[name]
        if asked.verification.get("probe") or not self._steady(asked) or len(canaries) >= asked.canary:
            return
        for one in self._ec2.instances.values():
            read = max(one.last.in_force, self._ec2.lacked_at) < began - RESYNC
            stays = read and self._cluster.ready_throughout(one.node, began) and one.stopped == math.inf
            known = one.name in canaries | self.refused | self._cluster.shared.keys()
            alike = self.group(one) == group and self._lacking(asked, one) == changes
            if stays and one.runs and not known and alike:
                self.breach("count", f"the change of {sorted(canaries)} passes without {one.name}")

    def _lacking(self, asked: Asked, one: Instance) -> set[tuple[str, str, str]]:
        """(EC2's name of the field, from, to) of what the policy may change on an instance."""
        labels = self._cluster.labels[one.node]
        wins = winners(self._cluster.asked(), labels, groups_of(labels, one.asg))
        return {
            (field, str(one.last.options[field]), str(value))
            for field, (winner, value) in wins.items()
            if winner.uid == asked.uid
            and one.last.options[field] != value
            and asked.allows(field, one.last.options[field], value)
        }

    def _undergone(self, one: Instance, name: str, before: str, after: str) -> bool:
        """Whether it was ever changed so. What another client sets between a reading and the call is not told
        to anybody."""
        unread = FRESH + self._ec2.longest_lag
        return any(
            str(then.options[name]) == after
            and any(
                str(was.options[name]) == before and until.at >= then.at - unread
                for was, until in pairwise(one.past[: at + 1])
            )
            for at, then in enumerate(one.past)
        )

    def _has_not_stood(
        self, asked: Asked, one: Instance, name: str, value: Any, soak: float, told: str
    ) -> str:
        now = self._now()
        # What happened in the last seconds may be read by nobody yet; what soaks shortly is read at its end.
        until = now - FRESH - self._ec2.longest_lag
        since = min(now - soak + SLACK, until)
        # The operator reads once a minute: a change that is reverted in between may stay unseen.
        one = one.read(name, value, DETECTION + self._ec2.longest_lag, self.idle[asked.uid])
        if soak and not one.held(name, value, since, until):
            return f"{told} has not stood for {soak:g} s"
        if not self._cluster.ready_throughout(one.node, since):
            return f"{told} was not on a Node that was Ready all the time"
        if asked.verification.get("probe") and not self._proved(asked, one, name, value):
            return f"{told} was not proved by a probe"
        return ""

    def _proved(self, asked: Asked, one: Instance, name: str, value: Any) -> bool:
        since = one.in_force(name, value)
        found = [
            m for m in self._cluster.measured[one.node] if m.instance == one.name and m.shown <= self._now()
        ]
        if not any(m.at >= since for m in found):
            return False
        # A disabled endpoint shows what disables it, and nothing of another change.
        shut = self._shut(one) and one.in_force("HttpEndpoint", "disabled") == since
        shows = shut or found[-1].verdict != "EndpointDisabled"
        return shows and not as_expected(asked, found[-1], shut)

    def _shut(self, one: Instance) -> bool:
        labels = self._cluster.labels[one.node]
        decided = winners(self._cluster.asked(), labels, groups_of(labels, one.asg)).get("HttpEndpoint")
        return decided is not None and decided[1] == "disabled"

    # ------------------------------------------------------------ what is sent

    def sent(self, policy: str, one: Instance, options: dict[str, Any], taken: bool) -> None:
        """A change on its way to EC2; {} is a dry run."""
        began, asked = self.began[policy]
        if not asked.enforces:
            self.breach("mode", f"{policy} only audits, or is suspended")
        if not taken:
            self.refused.add(one.name)
        if not options:
            return
        if policy not in self._cluster.policies:
            if self._now() - began > FRESH:
                self.breach("mode", f"{policy} is gone")
            return
        status = msgspec.json.decode(self._cluster.policies[policy].status)
        self.sends.append((self._now(), policy, one.name))
        self._judge_pace(policy, asked)
        if self._named_by_several(one, began):
            self.breach("twins", f"{one.name} is changed though several Nodes name it")
        restores = bool(status.get("breaker")) and self._restores(asked, one, options)
        if not restores:
            self._judge_stopped(asked, status)
            self._judge_drift(asked, began)
            self._judge_twice(policy, one, options, began)
            self._judge_values(asked, one, options)
        if self._canaries(asked) and not restores:
            self._judge_canary(asked, one, options, status, taken)
            self._judge_watch(asked, one, began, status)
            self._judge_probes(asked, began)
        if taken:
            self._take(asked, one, options, status, restores)

    def _take(
        self, asked: Asked, one: Instance, options: dict[str, Any], status: Any, restores: bool
    ) -> None:
        node, before = self._cluster.nodes.get(one.node), one.last.options
        known = self.taken[asked.uid].get(one.name)
        self.answered[one.name][asked.name] = (self._now(), options)
        if restores and known is not None:
            left = known.options.items() & before.items() - known.before.items()
            if left := {name: value for name, value in left if name not in options}:
                known.options = left  # the rest by another call
                return
        groups = [group for group in self._taken_for(asked, one) if one.name in named(status, group)]
        canary = bool(groups)
        # A repeated call has the options of the first that the policy still decides.
        if (
            known is not None
            and options.items() <= known.options.items()
            and options.items() <= before.items()
            and one.pending(self._now())
        ):
            before = {**before, **{name: known.before[name] for name in options}}
        self.taken[asked.uid][one.name] = Sent(
            *(self._now(), one.name, dict(before), options, node is not None and node.ready, canary),
            groups[0] if canary else self.group(one),
            self._canaries(asked) > 0,
            restored=restores,
            over=math.inf if canary else -math.inf,
            forgiven=known.forgiven if known is not None else 0.0,
        )
        for name, value in options.items():
            if self._kills(one, name, value) and before[name] != value:
                self.harmed.append((one.name, canary))
                change = self.group(one), name, str(before[name]), str(value)
                if self._canaries(asked) and not canary and not self._immune(asked, change, value):
                    self.breach("blast", f"{one.name} is reached by {name}={value} outside a canary")

    def _canaries(self, asked: Asked) -> int:
        """How many it asks for: a pass may have read a newer spec than that with which it began."""
        return min(asked.canary, self._cluster.policy(asked.name).canary)

    def _kills(self, one: Instance, name: str, value: Any) -> bool:
        return (self.group(one), name, value) in self.harmful and one.launched[name] != value

    def _immune(self, asked: Asked, change: Change, value: Any) -> bool:
        """Whether the change could kill no instance of its canary: they were launched with the value."""
        canaries = self.provers[asked.uid].get(change, set())
        return bool(canaries) and all(
            self._ec2.instances[one].launched[change[1]] == value for one in canaries
        )

    def _judge_pace(self, policy: str, asked: Asked) -> None:
        most = asked.safety("maxChangesPerMinute", 60)
        count = sum(at > self._now() - 60 for at, who, _ in self.sends if who == policy)
        if count > most:
            self.breach("pace", f"{count} changes within a minute")

    def _judge_twice(self, policy: str, one: Instance, options: dict[str, Any], began: float) -> None:
        """What this process knew to be on its way is left alone; what was so for too long is sent once more,
        whatever another policy has sent since."""
        told = self.answered[one.name]
        who = max(told, key=lambda policy: told[policy][0], default="")
        at, before = told.get(who, (-1e9, {}))
        own, same = told.get(policy, (at, options))
        since = own if same == options and one.pending_since(own, self._now()) else at
        late = self._now() - since >= PENDING_TIMEOUT - SLACK
        last = one.last
        known = last.at == at and (who == policy or at < began)
        if one.runs and one.pending(self._now()) and not late and known:
            what = "the same" if before == options else "another change"
            self.breach("twice", f"{one.name} is sent {what} by {policy} while that of {who} is pending")

    def _judge_values(self, asked: Asked, one: Instance, options: dict[str, Any]) -> None:
        since = self._now() - FRESH - self._ec2.longest_lag
        node = self._cluster.nodes.get(one.node)
        labels = node.labels if node is not None else {}
        wins = winners(self._cluster.asked(), labels, groups_of(labels, one.asg))
        known = self.taken[asked.uid].get(one.name)
        for name, value in options.items():
            had = one.values(name, since)
            # A change that was pending at the reading may be sent once more, though it is applied by now.
            repeated = one.was_pending(since) and (known is None or name in known.options)
            if had == {value} and not (repeated or self._untold(one, name)):
                self.breach("differs", f"{one.name} has {name}={value} already")
                continue
            if not any(asked.allows(name, before, value) for before in had):
                self.breach("allowed", f"{name} of {one.name} from {had} to {value} is not allowed")
            winner, wanted = wins.get(name, (None, value))
            decides = winner is not None and winner.name == asked.name and wanted == value
            if node is not None and not decides and self._steady(asked) and (winner or self._tags_known()):
                self.breach("wins", f"{asked.name} does not decide {name}={value} of {one.name}")

    def _untold(self, one: Instance, name: str) -> bool:
        """Whether this process has never been told the value of an option."""
        return self._ec2.lacked.get(one.name) == name and self._ec2.told.get(one.name, 0.0) < self.led_since

    def _tags_known(self) -> bool:
        """Whether all tags have been read."""
        late = self._now() - MOVED - self._ec2.longest_lag
        return self.retagged < late and self._ec2.lacked_at < self._now() - RESYNC

    def _means(self, asked: Asked, node: str) -> bool:
        """Whether it is a node of the policy."""
        there = self._cluster.nodes.get(node)
        if there is None:
            return False
        groups = groups_of(there.labels, self._cluster.instance(node).asg)
        return meant(asked.spec.get("selector", {}), there.labels, groups)

    def _steady(self, asked: Asked) -> bool:
        """Whether no spec or label was changed since the pass began."""
        return self.began[asked.name][0] > self.edited

    def _restores(self, asked: Asked, one: Instance, options: dict[str, Any]) -> bool:
        """Whether it undoes a canary that failed, as its author has asked for."""
        sent = self.taken[asked.uid].get(one.name)
        if sent is None or sent.restored or asked.safety("canary", {}).get("onFailure") != "Restore":
            return False
        return all(sent.before.get(name) == value for name, value in options.items()) and sent.canary

    def _judge_stopped(self, asked: Asked, status: Mapping[str, Any]) -> None:
        """While the breaker is open, or without a probe that is asked for."""
        if status.get("breaker"):
            self.breach("breaker", f"{asked.name} sends a change while its breaker is open")
        if asked.expect and (self.refusing[asked.name] or not self.serves):
            why = self.refusing[asked.name] or "DaemonTasks do not run"
            self.breach("unprobed", f"{asked.name} changes something without a probe: {why}")

    def _judge_drift(self, asked: Asked, began: float) -> None:
        """More than maxDriftPercent of its instances are known to differ."""
        most, late = asked.safety("maxDriftPercent", 100), began - self._ec2.longest_lag
        if not self._steady(asked) or max(self._ec2.lacked_at, self.retagged) > late - RESYNC:
            return
        every = [self._cluster.instance(node) for node in self._cluster.nodes if self._means(asked, node)]
        differ = sum(
            one.runs
            and one.name not in self._cluster.shared
            and one.last.in_force < late - (RESYNC if len(one.past) > 1 else DETECTION)
            and bool(self._lacking(asked, one))
            for one in every
        )
        if differ * 100 > most * len(every):
            self.breach("drift", f"{differ} of {len(every)} instances differ, and {most} % may")

    def _named_by_several(self, one: Instance, began: float) -> bool:
        """Whether several Nodes named it before the pass began, and do."""
        since = [self._cluster.joined[node] < began for node in self._cluster.named(one.name)]
        return sum(since) > 1

    # ------------------------------------------------------------ what another policy has held

    def _release(self, asked: Asked) -> None:
        """What has passed does not count for a value that another policy held and releases. Nodes are counted
        in the pass that stores status. Tags may be read late: groups are those of labels, in all policies."""
        if not asked.enforces or not self._steady(asked):
            return
        selectors = [one.spec.get("selector", {}) for one in self._cluster.asked()]
        if any(term["kind"] not in LABELS for one in selectors for term in one.get("groups", ())):
            self.held.pop(asked.uid, None)
            return
        held = self._held(asked)
        at, before = self.held.get(asked.uid, (-math.inf, {}))
        self.held[asked.uid] = self._now(), held
        for change in [one for one, lacks in self.proofs[asked.uid].items() if not lacks]:
            group, name, old, _ = change
            then, now = before.get((group, name, old), set()), held.get((group, name, old), set())
            left = (node for node in sorted(then - now) if self._has(asked, change, node))
            fewer = len(now) < len(then) or at >= self.led_since
            if fewer and self.proved_at[asked.uid][change] < at and (node := next(left, "")):
                self.proofs[asked.uid][change] = f"another policy has released {node} since it passed"

    def _held(self, asked: Asked) -> Held:
        """(group, EC2's name of the field, value) -> the policy's Nodes on which another one decides it."""
        held: Held = defaultdict(set)
        for name, node in self._cluster.nodes.items():
            one = self._cluster.instance(name)
            groups = groups_of(node.labels, one.asg)
            if groups[0][0] in LABELS and self._means(asked, name):
                for field, (winner, value) in winners(self._cluster.asked(), node.labels, groups).items():
                    if winner.uid != asked.uid:
                        held[groups[0], field, str(value)].add(name)
        return held

    def _has(self, asked: Asked, change: Change, node: str) -> bool:
        """Whether the policy is to make this change on a Node."""
        if node not in self._cluster.nodes or not self._means(asked, node):
            return False
        one = self._cluster.instance(node)
        differs = one.runs and str(one.last.options[change[1]]) == change[2]
        alone = one.name not in self._cluster.shared
        return alone and differs and one.node == node and self._decides(asked, change, one)

    def _judge_canary(
        self, asked: Asked, one: Instance, options: dict[str, Any], status: Any, taken: bool
    ) -> None:
        since, groups = self._now() - FRESH - self._ec2.longest_lag, self._taken_for(asked, one)
        first, stands = [group for group in groups if one.name in named(status, group)], passed(status)
        for name, value in options.items():
            had = one.values(name, since) - {value}
            changes = [(group, name, str(before), str(value)) for group in groups for before in had]
            proofs, expected = dict(self.proofs[asked.uid]), self.expected[asked.uid]
            for change in proofs.keys() & changes:
                if asked.expect not in ("", expected[change]) and (
                    asked.expect != "Any" or not expected[change]
                ):
                    proofs[change] = f"it was proved to be {expected[change] or 'nothing'}"
            if not changes or any(proofs.get(change) == "" and change in stands for change in changes):
                continue
            if not first:
                why = next((proofs[change] for change in changes if change in proofs), "it never passed")
                self.breach("canary", f"{one.name} is sent {changes}: {why}")
            elif taken:
                before = "unknown" if self._untold(one, name) else str(one.last.options[name])
                tried = self.tries[asked.uid][first[0], name, before, str(value)]
                # An instance that another client changes first is replaced by another one.
                tried -= {sent for sent in tried if self._ec2.instances[sent].averted(name, value)}
                tried.add(one.name)
                if len(tried) > asked.canary:
                    self.breach("width", f"{sorted(tried)} are sent {changes} and none has passed")

    # ------------------------------------------------------------ whether those that were changed are well

    def _judge_watch(self, asked: Asked, one: Instance, began: float, status: Mapping[str, Any]) -> None:
        canaries = {name for group in self._groups for name in named(status, group)}
        for sent in self.taken[asked.uid].values():
            ends = _watch_ends(asked, sent)
            if sent.restored or self._clock.jumped > sent.at:
                continue
            changed = self._ec2.instances[sent.instance]
            if self._cluster.shared.get(sent.instance, 0.0) > sent.at or self._accepted(sent, changed):
                continue  # or it is not known whose group and readiness count
            if changed is one:
                self._judge_fight(asked, sent, one, ends)
                continue
            if not sent.watched:
                continue
            for rule, happened, seen in self._worse(asked, sent, changed):
                until = ends
                forgiven = max(sent.forgiven, self.closed.get(asked.uid, 0.0) * (rule == "set back"))
                has = rule != "not ready" or sent.options.items() & changed.last.options.items()
                if happened < sent.over and has and self._kept(sent, changed, happened):
                    until = math.inf  # its change has not passed
                looked = any(seen < at <= min(until, began) for at in self.passes[asked.uid])
                if rule == "not ready":  # until it is Ready again
                    stands = sent.instance in canaries and self._stays(asked, sent, changed)
                    looked = seen < began and (began <= until or stands)
                if looked and sent.at <= seen and (forgiven < happened or rule == "not ready"):
                    self.breach(rule, f"{one.name} is changed after {changed.name}, at {seen:.1f}")

    @property
    def _groups(self) -> set[Group]:
        return {self.group(one) for one in self._ec2.instances.values()}

    def _stays(self, asked: Asked, sent: Sent, one: Instance) -> bool:
        """Whether it has the change, and the policy wants it."""
        changes = [(self.group(one), name, "", str(value)) for name, value in sent.options.items()]
        has = sent.options.items() <= one.last.options.items()
        return has and one.runs and all(self._decides(asked, change, one) for change in changes)

    def _accepted(self, sent: Sent, one: Instance) -> bool:
        """Whether a person settled it when nothing of the change was left."""
        then = one.then(sent.forgiven)
        return (
            then is not None and sent.at < sent.forgiven and not sent.options.items() & then.options.items()
        )

    def _kept(self, sent: Sent, one: Instance, until: float) -> bool:
        """Whether it had the change all the time."""
        past = [then for then in one.past if sent.at <= then.at < until]
        return all(sent.options.items() <= then.options.items() for then in past)

    def _judge_fight(self, asked: Asked, sent: Sent, one: Instance, ends: float) -> None:
        """A value that another client has reverted is left as it is."""
        back = self._reverted(asked, sent, one)
        if back is not None and sent.forgiven < back and self._now() < ends:
            self.breach("set back", f"{one.name} is changed again after another client set it back")

    def _reverted(self, asked: Asked, sent: Sent, one: Instance) -> float | None:
        """When another client reverted the change; None: it did not, or not after the change was read as
        applied. A change that is not in force after pendingTimeout is not expected to be read."""
        if not self._set_back(asked, sent, one.last):
            return None
        for was, then in pairwise(one.past):
            if then.at < sent.at or not self._set_back(asked, sent, then) or self._set_back(asked, sent, was):
                continue
            ours = (
                past.in_force for past in one.past if past.at <= sent.at or (past.by and past.at < then.at)
            )
            since = max(ours)
            if since - sent.at <= PENDING_TIMEOUT and then.at - since > SEEN:
                return then.at
        return None

    def _worse(self, asked: Asked, sent: Sent, one: Instance) -> Iterator[tuple[str, float, float]]:
        """(rule, when it happened, when it is known at the latest) of all that was not as it should be."""
        late = DETECTION + self._ec2.longest_lag
        removed, joined = self._cluster.removed.get(one.node, math.inf), self._cluster.joined[one.node]
        if one.node in self._cluster.nodes and not any(removed < at < joined for at in self.ended[asked.uid]):
            removed = math.inf  # it registered again before a pass could see that it was gone
        ended = math.inf if one.ended is None else one.ended
        if min(removed, ended) < math.inf:
            yield "lost", min(removed, ended), min(removed, ended + late)
        log = self._cluster.ready[one.node]
        unready = bool(log) and not log[-1][1] and log[-1][0] <= one.stopped  # not as it was stopped
        # Where nothing is left of the change, and another policy wants so, the watch has ended.
        unready &= bool(sent.options.items() & one.last.options.items()) or not self._taken_over(asked, sent)
        if one.node in self._cluster.nodes and sent.ready and unready and one.ended is None:
            yield "not ready", log[-1][0], log[-1][0]
        back = self._reverted(asked, sent, one)
        if back is not None and one.runs:
            yield "set back", back, back + late

    def _set_back(self, asked: Asked, sent: Sent, then: Any) -> bool:
        """By a client other than ours, while the policy still wants the sent values. One that no policy
        selects any more has none of them."""
        if then.by:
            return False
        node = self._cluster.nodes.get(self._ec2.instances[sent.instance].node)
        if node is None:
            return False
        asg = self._ec2.instances[sent.instance].asg
        wins = winners(self._cluster.asked(), node.labels, groups_of(node.labels, asg))
        asks = sent.options.items() <= asked.options().items()
        # In a conflict nobody wins what several policies want.
        if asks and not sent.options.keys() & (wins.keys() | self._claimed(sent)):
            return not sent.options.items() & then.options.items()
        return any(
            then.options[name] != value
            and name in wins
            and wins[name][0].uid == asked.uid
            and wins[name][1] == value
            for name, value in sent.options.items()
        )

    def _judge_probes(self, asked: Asked, began: float) -> None:
        """A finding that counts and is not as expected stops all."""
        if not asked.expect:
            return
        for name, found in self._cluster.measured.items():
            shown = [one for one in found if one.shown < began]
            # After an edit the policy may no longer select the node.
            if not shown or not self._means(asked, name) or not self._known(asked, shown[-1]):
                continue
            one, last = self._ec2.instances[shown[-1].instance], shown[-1]
            sent = self.taken[asked.uid].get(one.name)
            wanted = asked.options().items()
            counts = sent is not None and one.last.in_force + SEEN <= last.asked
            if (
                counts
                and wanted <= one.last.options.items()
                and one.last.at <= last.at
                and (why := as_expected(asked, last, self._shut(one)))
            ):
                self.breach("probe", f"something is changed though {name}: {why}")

    def _known(self, asked: Asked, found: Measured) -> bool:
        """Whether the policy can know of it: its ledger is there, or was read by a pass that has stored
        status, which keeps what is not as the policy expects, and still does."""
        if found.lost == math.inf:
            return True
        since = max(found.shown, self.expects.get(asked.uid, ("", 0.0))[1])
        return any(since < at < found.lost for at in self.ended[asked.uid])


def _watch_ends(asked: Asked, sent: Sent) -> float:
    """Of one that follows its canary."""
    soaks = (asked.soak(name, sent.before[name], value) for name, value in sent.options.items())
    return sent.at + min(max(soaks, default=0.0), WATCH_SECONDS) - SLACK
