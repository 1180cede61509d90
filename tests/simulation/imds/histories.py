"""The rules of the random histories in test_model.py."""

from random import Random
from typing import Any, Final

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from caretaker.kube.errors import ApiError
from simulation.imds.told import typed
from simulation.imds.truth import FIELDS, LABELS, TEAM, WORDS, Group, ec2_name
from simulation.imds.world import BAD, World

GROUPS: Final[list[Group]] = [
    ("EKSManagedNodegroup", "a"),
    ("KarpenterNodePool", "b"),
    ("AutoScalingGroup", "c"),
    ("", ""),
]
NAMES: Final = ["base", "hops", "shut"]
EXCEPTION: Final = "except"
REFUSED: Final = ["configmaps", "get", "patch", "delete", "create"]  # by the API server
DAY: Final = 86_400.0
HARM: Final = [
    ("HttpEndpoint", "disabled"),
    ("HttpPutResponseHopLimit", 1),
    ("HttpTokens", "required"),
    ("HttpProtocolIpv6", "disabled"),
]
HOPS: Final = st.sampled_from([1, 2, 3])
SWITCH: Final = st.sampled_from(["enabled", "disabled"])
TOKENS: Final = st.sampled_from(["optional", "required", "required"])
OPTIONS: Final = st.one_of(
    st.fixed_dictionaries({"httpPutResponseHopLimit": HOPS}),
    st.fixed_dictionaries({"httpTokens": TOKENS}),
    st.fixed_dictionaries({"httpPutResponseHopLimit": HOPS, "httpTokens": TOKENS}),
    st.just({"httpEndpoint": "disabled"}),
    st.fixed_dictionaries({"httpProtocolIpv6": SWITCH}, optional={"httpPutResponseHopLimit": HOPS}),
    st.fixed_dictionaries({"httpEndpoint": st.just("enabled"), "httpTokens": TOKENS}),
)
LAUNCHED: Final = st.fixed_dictionaries(
    {
        "HttpPutResponseHopLimit": HOPS,
        "HttpTokens": TOKENS,
        "HttpEndpoint": st.just("enabled"),
        "HttpProtocolIpv6": SWITCH,
    }
)
ALLOWED: Final = st.one_of(
    st.just(WORDS), st.just(WORDS), st.just(WORDS), st.lists(st.sampled_from(WORDS), unique=True)
)
SAFETY: Final = st.fixed_dictionaries(
    {
        "allowLoosening": ALLOWED,
        "allowTightening": ALLOWED,
        "canary": st.fixed_dictionaries(
            {
                "instances": st.sampled_from([1, 1, 1, 2]),
                "soak": st.sampled_from(["1m", "5m"]),
                "onFailure": st.sampled_from(["Keep", "Keep", "Restore"]),
            }
        ),
        "maxChangesPerMinute": st.sampled_from([6, 60]),
        "maxDriftPercent": st.sampled_from([100, 100, 100, 50]),
        "stopAfterConsecutiveFailures": st.just(3),
    }
)
SELECTOR: Final = st.sampled_from(
    [
        {},
        {},
        {"nodeSelector": {"matchLabels": {TEAM: "x"}}},
        {"exclude": {"matchLabels": {TEAM: "y"}}},
        *({"groups": [{"kind": kind, "names": [name]}]} for kind, name in GROUPS if kind),
    ]
)
VERIFICATION: Final = st.sampled_from(
    [
        *({} for _ in range(3)),
        {"probe": True, "expect": "PodReachable"},
        {"probe": True, "expect": "Any", "nodesPerGroup": 1},
        {"probe": True, "expect": "PodBlocked"},
    ]
)
SPEC: Final = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["Enforce", "Enforce", "Enforce", "Audit"]),
        "priority": st.sampled_from([10, 50, 100]),
        "options": OPTIONS,
        "safety": SAFETY,
        "selector": SELECTOR,
        "verification": VERIFICATION,
    }
)
ROLLOUT: Final = st.sampled_from(
    [
        {"httpPutResponseHopLimit": 2},
        {"httpTokens": "required"},
        {"httpEndpoint": "disabled"},
        {"httpPutResponseHopLimit": 2, "httpTokens": "required"},
    ]
)
SLOWLY: Final = {
    "allowLoosening": WORDS,
    "allowTightening": WORDS,
    "canary": {"instances": 1, "soak": "15m"},
    "stopAfterConsecutiveFailures": 3,
}
FAILS: Final = ["leaves", "leaves", "moves", "is set back", "ends", "is gone"]
LEFT: Final = {"exclude": {"matchLabels": {TEAM: "z"}}}
KEPT: Final = {"pendingTimeout": "1m", "resyncInterval": "10m"}


class History(RuleBasedStateMachine):
    """A cluster with a few groups, and up to three policies that overlap."""

    world: World

    @initialize(
        data=st.data(),
        count=st.integers(1, 3),
        harm=st.booleans(),
        rhythm=st.integers(0, 10_000),
        plain=st.booleans(),
    )
    def start(self, data: Any, count: int, harm: bool, rhythm: int, plain: bool) -> None:
        """Half of them begin with a rollout in which all nodes are alike, for much to be at stake. The canary
        of half of these fails first."""
        self.rhythm, self.plain = Random(rhythm), plain
        groups = data.draw(st.permutations(GROUPS))[:count]
        launched = st.just(BAD) if plain else LAUNCHED
        self.world = World({group: data.draw(launched) for group in groups})
        for group in groups:
            for _ in range(data.draw(st.integers(3 if plain else 1, 4))):
                self.joins(data, group)
        if harm:
            for group in groups:
                kills = data.draw(st.lists(st.sampled_from(HARM), max_size=2))
                self.world.harmful.update((group, name, value) for name, value in kills)
        self.world.ails_after = data.draw(st.sampled_from([1.0, 20.0, 40.0]))
        self.world.repaired_after = data.draw(st.sampled_from([60.0, 400.0]))
        fails = plain and data.draw(st.booleans())
        for name in NAMES[: data.draw(st.integers(1, 3))]:
            spec = data.draw(SPEC)
            if plain and name == NAMES[0]:
                spec |= {"mode": "Enforce", "options": data.draw(ROLLOUT), "selector": LEFT, "priority": 100}
                spec |= {"safety": SLOWLY, "verification": {}} if fails else {}
            self.world.apply(name, **spec, **KEPT)
            if fails and name == NAMES[0]:
                self.world.run(130.0, until=lambda: bool(self.canaries()))
                self.world.run(data.draw(st.sampled_from([15.0, 45.0])))
                if self.canaries():
                    self.a_canary_fails_and_gets_worse(data)

    # ------------------------------------------------------------ strategies

    def node(self, data: Any) -> str:
        """Mostly one that was changed: there is more to be got wrong."""
        nodes = sorted(self.world.cluster.nodes)
        changed = [node for node in nodes if any(then.by for then in self.world.instance_of(node).past)]
        return str(data.draw(st.sampled_from((changed if data.draw(st.booleans()) else []) or nodes)))

    def policy(self, data: Any) -> str:
        return str(data.draw(st.sampled_from(sorted(self.world.cluster.policies))))

    def twins(self) -> list[str]:
        """Nodes whose instance another one names as well."""
        cluster = self.world.cluster
        return sorted(
            node
            for node in self.world.twins
            if len(cluster.named(self.world.twins[node])) > 1 and node in cluster.nodes
        )

    def changes(self) -> list[tuple[Group, str, Any]]:
        """(group, field, former value) of all that have passed."""
        canaries = [self.world.cluster.status(name).canary for name in self.world.cluster.policies]
        every = [one for canary in canaries if canary is not None for one in canary.passed]
        return sorted(
            {
                ((one.kind, one.name), one.field, typed(one.before, 1 if one.before.isdecimal() else ""))
                for one in every
            },
            key=str,
        )

    def canaries(self) -> list[tuple[str, str]]:
        """(policy, Node) of all that stand."""
        every = [(name, self.world.cluster.status(name).canary) for name in self.world.cluster.policies]
        return sorted(
            (name, one.node)
            for name, canary in every
            if canary is not None
            for group in canary.groups
            for one in group.instances
            if group.phase != "Failed" and one.node in self.world.cluster.nodes
        )

    def joins(self, data: Any, group: Group) -> None:
        skew = data.draw(st.sampled_from([0.0, -DAY, DAY, 7.0]))
        labels = {TEAM: data.draw(st.sampled_from(["x", "y"]))}
        options = None if self.plain else data.draw(st.one_of(st.none(), LAUNCHED))
        self.world.join(group, skew=skew, options=options, **labels)

    @invariant()
    def time_passes(self) -> None:
        """Long or short, so that what happens next meets anything: a call under way, a soak, a rest."""
        if hasattr(self, "world"):
            self.world.run(self.rhythm.choice([0.0, 0.03, 0.05, 0.2, 3.0, 20.0, 61.0, 130.0, 400.0, 1_900.0]))

    # ------------------------------------------------------------ EC2

    @rule(
        faults=st.lists(st.sampled_from(["refuse", "throttle", "deny", "lose", "drop", "state"]), max_size=4)
    )
    def changes_fail(self, faults: list[str]) -> None:
        self.world.ec2.faults = faults

    @rule(faults=st.lists(st.sampled_from(["throttle", "cut", "away"]), min_size=1, max_size=3))
    def descriptions_fail(self, faults: list[str]) -> None:
        self.world.ec2.blind = faults

    @rule(lags=st.lists(st.sampled_from([0.0, 1.0, 4.0, 8.0]), min_size=1, max_size=3))
    def descriptions_lag(self, lags: list[float]) -> None:
        self.world.ec2.lag(*lags)

    @rule(
        every=st.sampled_from([0, 0, 1, 2, 3]),
        lacking=st.sampled_from(["Tags", "Tags", *FIELDS]),
        page=st.sampled_from([1000, 2]),
    )
    def descriptions_lack(self, every: int, lacking: str, page: int) -> None:
        self.world.ec2.untold, self.world.ec2.lacking, self.world.ec2.page = every, lacking, page

    @rule(seconds=st.sampled_from([0.0, 5.0, 90.0, 1e9]))
    def changes_take(self, seconds: float) -> None:
        self.world.ec2.applies_in = seconds

    @precondition(lambda self: self.world.ec2.instances)
    @rule(data=st.data())
    def is_denied(self, data: Any) -> None:
        names = st.sampled_from(sorted(self.world.ec2.instances))
        self.world.ec2.denied = set(data.draw(st.lists(names, max_size=2)))
        self.world.ec2.denied_option = data.draw(st.sampled_from([None, None, *HARM]))

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(
        data=st.data(),
        hops=HOPS,
        tokens=TOKENS,
        endpoint=st.sampled_from(["enabled", "enabled", "disabled"]),
        ipv6=SWITCH,
    )
    def another_hand(self, data: Any, hops: int, tokens: str, endpoint: str, ipv6: str) -> None:
        one = self.world.instance_of(self.node(data))
        changed: dict[str, Any] = dict(zip(FIELDS, (hops, tokens, endpoint, ipv6), strict=True))
        only = data.draw(st.sampled_from([*FIELDS, "", "launch"]))
        if only == "launch":
            changed = one.launched
        elif only:
            changed = {only: changed[only]}
        if one.runs:
            self.world.ec2.put(one, takes=0.0, **changed)

    # ------------------------------------------------------------ the cluster

    @precondition(lambda self: len(self.world.cluster.nodes) < 10)
    @rule(data=st.data())
    def join(self, data: Any) -> None:
        self.joins(data, data.draw(st.sampled_from(sorted(self.world.groups))))

    @precondition(lambda self: self.changes() and len(self.world.cluster.nodes) < 14)
    @rule(data=st.data(), count=st.integers(1, 2))
    def join_as_before(self, data: Any, count: int) -> None:
        """With the former value of a change that has passed."""
        group, field, before = data.draw(st.sampled_from(self.changes()))
        if group in self.world.groups:
            for _ in range(count):
                self.world.join(group, options={ec2_name(field): before}, **{TEAM: "x"})

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), leaves_in=st.sampled_from([0.0, 40.0, 300.0, None]))
    def ends(self, data: Any, leaves_in: float | None) -> None:
        self.world.end(self.node(data), leaves_in=leaves_in)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data())
    def leaves(self, data: Any) -> None:
        self.world.remove(self.node(data))

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), after=st.sampled_from([0.0, 0.0, 40.0]))
    def registers_again(self, data: Any, after: float) -> None:
        """A kubelet, after its Node was deleted."""
        node = self.world.cluster.nodes[self.node(data)]
        self.world.remove(node.name)
        self.world.run(after)
        if node.name not in self.world.cluster.nodes:
            self.world.cluster.put_node(msgspec.structs.replace(node, uid=f"{node.uid}b"))

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), ready=st.booleans(), same=st.booleans())
    def twin(self, data: Any, ready: bool, same: bool) -> None:
        """Another Node names an instance, in the group of the first one or in another."""
        node = self.node(data)
        kind, name = data.draw(st.sampled_from(sorted(self.world.groups)))
        labels = {TEAM: "x"} | ({LABELS[kind]: name} if kind in LABELS else {})
        self.world.twin(node, ready=ready, **(self.world.cluster.labels[node] if same else labels))

    @precondition(lambda self: self.twins())
    @rule(data=st.data(), first=st.booleans())
    def twin_leaves(self, data: Any, first: bool) -> None:
        """Or the Node that was there before it, as after a change of the hostname."""
        twin = data.draw(st.sampled_from(self.twins()))
        self.world.remove(self.world.instance_of(twin).node if first else twin)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), ready=st.booleans())
    def readiness(self, data: Any, ready: bool) -> None:
        node = self.node(data)
        if self.world.instance_of(node).name not in self.world.ailing:
            self.world.cluster.set_ready(node, ready)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data())
    def flaps(self, data: Any) -> None:
        self.world.cluster.flap(self.node(data))

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), team=st.sampled_from(["x", "y"]))
    def relabel(self, data: Any, team: str) -> None:
        node = self.node(data)
        labels = {**self.world.cluster.nodes[node].labels, TEAM: team}
        kind, name = data.draw(st.sampled_from(sorted(self.world.groups)))
        if kind in LABELS and data.draw(st.booleans()):
            labels = {TEAM: team, LABELS[kind]: name}
        self.world.label(node, labels)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), asg=st.sampled_from(["", "c", "c", "d"]))
    def attach(self, data: Any, asg: str) -> None:
        self.world.attach(self.node(data), asg)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), unschedulable=st.booleans())
    def cordon(self, data: Any, unschedulable: bool) -> None:
        self.world.cordon(self.node(data), unschedulable=unschedulable)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), stops=st.booleans())
    def stops(self, data: Any, stops: bool) -> None:
        node = self.node(data)
        if self.world.instance_of(node).runs:
            (self.world.stop if stops else self.world.start)(node)

    @rule()
    def the_probes_task_is_deleted(self) -> None:
        self.world.cluster.lose_task()

    @rule(what=st.sampled_from(REFUSED), lasts=st.sampled_from([0.1, 30.0, 900.0]))
    def the_probes_task_is_refused(self, what: str, lasts: float) -> None:
        """For a while. "create": there is no CRD."""
        if what == "create":
            self.world.cluster.lose_task()
        self.world.cluster.refused[what] = ApiError(404 if what == "create" else 403, "no")
        self.world.loop.at(self.world.clock.now + lasts, lambda: self.world.cluster.refused.pop(what, None))

    @rule(takes=st.sampled_from([1.0, 30.0, 300.0]), told=st.sampled_from([0.0, 10.0, 200.0]))
    def probes_take(self, takes: float, told: float) -> None:
        self.world.cluster.probe_takes, self.world.cluster.probe_told = takes, told

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), hops=st.sampled_from([1, 2, 9]))
    def a_pod_is_farther(self, data: Any, hops: int) -> None:
        self.world.cluster.needs_of[self.node(data)] = hops

    # ------------------------------------------------------------ the operator

    @rule()
    def restart(self) -> None:
        self.world.operator.restart()

    @rule(skew=st.sampled_from([None, -3_600.0, -180.0, 0.0, 180.0, 3_600.0]))
    def change_leader(self, skew: float | None) -> None:
        """On a machine with a clock of its own."""
        self.world.operator.change_leader()
        self.world.clock.jump(self.world.clock.skew if skew is None else skew)

    @rule()
    def restart_without_daemontasks(self) -> None:
        """Until the next one."""
        self.world.operator.daemontasks = False
        self.world.operator.restart()
        self.world.operator.daemontasks = True

    @rule(calls=st.integers(0, 6), effect=st.booleans())
    def is_killed_at_a_call(self, calls: int, effect: bool) -> None:
        self.world.operator.kill_in, self.world.operator.effect = calls, effect

    @rule()
    def status_conflict(self) -> None:
        self.world.operator.conflict = True

    @rule(statuses=st.lists(st.sampled_from([0, 409, 429, 500]), min_size=1, max_size=2))
    def the_api_server_fails(self, statuses: list[int]) -> None:
        self.world.operator.api_faults = [ApiError(status, "no") for status in statuses]

    @rule(slow=st.lists(st.sampled_from([0.02, 0.5, 3.0, 7.0, 20.0]), min_size=1, max_size=6))
    def calls_are_slow(self, slow: list[float]) -> None:
        self.world.operator.slow = slow

    @rule(skew=st.sampled_from([-3_600.0, 0.0, 3_600.0]))
    def clock_jumps(self, skew: float) -> None:
        self.world.clock.jump(skew)

    # ------------------------------------------------------------ people

    @precondition(lambda self: self.world.cluster.policies)
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        self.world.resume(self.policy(data))

    @precondition(lambda self: self.canaries())
    @rule(data=st.data())
    def a_canary_fails_and_gets_worse(self, data: Any) -> None:
        """Or another one of the same canary, once a person has resumed its policy. Another process may read
        late, or nothing, at first."""
        name, node = data.draw(st.sampled_from(self.canaries()))
        others = [other for who, other in self.canaries() if who == name and self.alike(other, node)]
        self.fails(node, data.draw(st.sampled_from(FAILS if others != [node] else FAILS[:4])))
        self.world.run(130.0, until=lambda: self.world.cluster.status(name).breaker is not None)
        self.world.resume(name)
        unsure = data.draw(st.sampled_from(["", "", "lag", "away"]))
        if unsure == "lag":
            self.world.ec2.lag(8.0)
            self.world.operator.change_leader()
        elif unsure == "away":
            self.world.ec2.blind = ["away"] * 6
            self.world.operator.restart()
        self.world.run(data.draw(st.sampled_from([0.2, 20.0, 130.0, 400.0])))
        still = [other for other in others if other in self.world.cluster.nodes]
        worse = data.draw(st.sampled_from(["ends", "ends", "is gone", "is not ready", "is set back", ""]))
        if still and worse:
            self.gets_worse(data.draw(st.sampled_from(still)), worse)
            self.world.run(data.draw(st.sampled_from([0.0, 1_300.0, 2_600.0])))

    def fails(self, node: str, how: str) -> None:
        """As a canary."""
        labels = self.world.cluster.nodes[node].labels
        if how == "leaves":
            self.world.label(node, labels | {TEAM: "z"})
        elif how == "moves" and self.world.instance_of(node).asg == "c":
            self.world.attach(node, "d")
        elif how == "moves":
            self.world.label(node, {key: "z" if key in LABELS.values() else labels[key] for key in labels})
        else:
            self.gets_worse(node, how)

    def alike(self, node: str, other: str) -> bool:
        """Whether they are of one group."""
        group = self.world.judge.group
        return group(self.world.instance_of(node)) == group(self.world.instance_of(other))

    def gets_worse(self, node: str, how: str) -> None:
        one = self.world.instance_of(node)
        if how == "ends":
            self.world.end(node, leaves_in=None)
        elif how == "is gone":
            self.world.remove(node)
        elif how == "is set back" and one.runs:
            self.world.ec2.put(one, takes=0.0, **one.launched)
        elif how == "is not ready" and one.name not in self.world.ailing:
            self.world.cluster.set_ready(node, False)

    @precondition(lambda self: self.world.cluster.policies)
    @rule(data=st.data(), new=SPEC)
    def edit(self, data: Any, new: dict[str, Any]) -> None:
        what = data.draw(st.sampled_from(sorted(new)))
        self.world.apply(self.policy(data), **{what: new[what]})

    @precondition(lambda self: self.world.cluster.policies)
    @rule(data=st.data(), expect=st.sampled_from(["PodReachable", "PodBlocked", "Any"]))
    def expects(self, data: Any, expect: str) -> None:
        """Something else of the probe."""
        verification = self.world.cluster.policy(name := self.policy(data)).verification
        self.world.apply(name, verification={**verification, "expect": expect})

    @precondition(lambda self: self.world.cluster.policies)
    @rule(data=st.data())
    def suspend(self, data: Any) -> None:
        """Or go on."""
        name = self.policy(data)
        self.world.apply(name, suspend=not self.world.cluster.policy(name).spec.get("suspend", False))

    @precondition(lambda self: self.changes())
    @rule(
        data=st.data(),
        canary=st.sampled_from([0, 0, 1]),
        stands=st.sampled_from([2.0, 2.0, 60.0, 60.0, 1_900.0]),
    )
    def exception(self, data: Any, canary: int, stands: float) -> None:
        """A policy of higher priority holds the former value of a change that has passed, and lets it go. A
        new leader may not read its last changes at first."""
        (kind, name), field, before = data.draw(st.sampled_from(self.changes()))
        groups = {"groups": [{"kind": kind, "names": [name]}]} if kind else {}
        team = {"nodeSelector": {"matchLabels": {TEAM: data.draw(st.sampled_from(["x", "y"]))}}}
        safety = {
            "allowLoosening": WORDS,
            "allowTightening": WORDS,
            "canary": {"instances": canary, "soak": "1m"},
        }
        spec = {
            "mode": "Enforce",
            "priority": 200,
            "options": {field: before},
            "safety": safety,
            "suspend": False,
        }
        selector = data.draw(st.sampled_from([team, groups]))
        self.world.apply(EXCEPTION, **spec, selector=selector, verification={}, **KEPT)
        self.world.run(stands)
        if stands < 60.0:
            self.world.ec2.lag(8.0)
            (self.world.operator.change_leader if data.draw(st.booleans()) else self.world.operator.restart)()
        if data.draw(st.booleans()):
            self.exception_ends(data)

    @precondition(lambda self: EXCEPTION in self.world.cluster.policies)
    @rule(data=st.data())
    def exception_ends(self, data: Any) -> None:
        """For all of its nodes, or for some."""
        edits = {
            "audits": {"mode": "Audit"},
            "yields": {"priority": 1},
            "lets go": {"selector": {"nodeSelector": {"matchLabels": {TEAM: "z"}}}},
        }
        how = data.draw(st.sampled_from([*edits, "is deleted", "a label", "a label"]))
        if how in edits:
            self.world.apply(EXCEPTION, **edits[how])
        elif how == "is deleted":
            self.world.delete(EXCEPTION)
        elif self.world.cluster.nodes:
            node = self.node(data)
            self.world.label(node, self.world.cluster.nodes[node].labels | {TEAM: "z"})

    @rule(name=st.sampled_from(NAMES), new=SPEC)
    def create(self, name: str, new: dict[str, Any]) -> None:
        if name not in self.world.cluster.policies:
            self.world.apply(name, **new, **KEPT)

    @precondition(lambda self: self.world.cluster.policies)
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        self.world.delete(self.policy(data))
