"""The judge of limits: parallelism, budgets, failurePolicy and the blast radius, at every step.

It knows the truth in the cluster, and goes by docs/spec/daemontask.md alone: nothing here asks the planner or
reads what it wrote. Of what an operator cannot know yet (events that its watches have not told) it is held to
what it could know when its pass began; of limits that change during a pass, to any of them. The task is one
without a schedule, and one operator leads at a time.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.objects import Node, Pod
from caretaker.api.times import normalise_time, parse_time
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN
from simulation.daemontask.kubelets import SlowCluster
from simulation.daemontask.operator import SimOperator
from simulation.daemontask.terms import End, Run, Terms, exhausted, run_of

CALL_SECONDS: Final = 5.0  # after so long a request that is on its way is given up


class Limits:
    """Attach it to a cluster, and it asserts what it sees. `leader` is whose calls are let go."""

    def __init__(self, cluster: SlowCluster, leader: Callable[[], SimOperator]) -> None:
        self._cluster = cluster
        self._leader = leader
        self._terms: list[Terms] = []
        self._ends: dict[str, list[End]] = {}  # node UID -> of its Pods
        self._ran: dict[Run, set[str]] = {}  # the rollout -> UIDs of nodes that ran it
        self._started: set[tuple[str, Run]] = set()  # (node UID, what it has run)
        self._joined = dict.fromkeys((node.uid for node in self._nodes()), cluster.version)  # by UID
        self._put_off: dict[str, int] = {}  # node name -> version; its Pod was refused, or given up unplaced
        # Node UID -> since when its Pods have been refused with none created, and of which revision.
        self._refused: dict[str, tuple[float, str]] = {}
        self._finished: set[Run] = set()
        self._unknown: dict[
            str, tuple[int, Run]
        ] = {}  # node UID -> (seq, run) without a Pod, see _note_unknown
        cluster.on_change.append(self._note)
        cluster.on_create.append(self._judge_start)
        cluster.on_run.append(self._judge_radius)
        cluster.on_end.append(self._note_end)
        cluster.on_delete.append(self._note_delete)
        cluster.on_refusal.append(self._note_refusal)

    def may_stop(self) -> bool:
        """Whether failurePolicy has a reason to hold the rollout for good."""
        terms = self._terms[-1]
        if terms.spec.failure_policy.action == "Continue":
            return False
        if terms.revision in self._cluster.bad:
            return True
        refused, rejecting = self._cluster.refused, self._cluster.rejecting
        failed = set()
        for node in self._nodes():
            ends = self._of(node, terms)
            fails = all(end.pod.phase == "Failed" for end in ends)
            failing = fails and any(end.counts for end in ends)
            disrupted = fails and not all(end.rejected for end in ends)
            rejected = node.name in rejecting or self._was_rejected(node, terms)
            # A node that was refused or rejected until the deadline has failed. While that lasts its run is
            # not retried, so no retry can succeed.
            shut = rejected or node.name in refused or self._shut(node, terms)
            over = exhausted(ends, (terms,)) or self._given_up(node, terms)
            if over or (failing and shut) or (disrupted and rejected):
                failed.add(node.name)
        return len(failed) > terms.allowed

    # ------------------------------------------------------------ what it notes

    def _note(self) -> None:
        cluster = self._cluster
        for wire in cluster.nodes.values():
            self._joined.setdefault(wire.metadata.uid, cluster.version)
        self._note_unknown()
        spec, marks = cluster.spec, cluster.annotations
        rerun_nodes = json.loads(marks.get(names.RERUN_NODES, "{}"))
        now = Terms(
            version=cluster.version,
            spec=spec,
            revision=cluster.revision,
            rerun=normalise_time(marks.get(names.RERUN_AT)),
            rerun_nodes={name: normalise_time(at) for name, at in rerun_nodes.items()},
            resumed=parse_time(marks.get(names.RESUME_AT)) or 0.0,
            desired=len(cluster.nodes),
        )
        if (
            not self._terms
            or msgspec.structs.replace(now, version=self._terms[-1].version) != self._terms[-1]
        ):
            if self._terms:
                self._note_finished(self._terms[-1])  # before they changed
            if self._terms and now.rollout != self._terms[-1].rollout:
                self._ran.pop(now.rollout, None)  # a template that comes back is another rollout
            self._terms.append(now)
        self._note_finished(now)

    def _note_unknown(self) -> None:
        """AtMostOnce: a run is over as well once the ledger says that nobody knows what became of it."""
        entries = self._cluster.entries() if self._cluster.spec.at_most_once else {}
        for node in self._nodes():
            entry = entries.get(node.name)
            if entry is None or entry.node_uid != node.uid or entry.reason != OUTCOME_UNKNOWN:
                continue
            if entry.finished_at:
                self._unknown[node.uid] = entry.seq, (entry.revision, entry.nonce)

    def _note_end(self, pod: Pod) -> None:
        end = End(pod, run_of(pod), self._cluster.clock.now, self._cluster.version)
        self._ends.setdefault(pod.node_uid, []).append(end)
        self._note()

    def _note_delete(self, pod: Pod) -> None:
        if not (pod.node_name or pod.terminal):
            self._note_put_off(pod.annotations[names.POD_NODE_NAME])

    def _note_put_off(self, node: str) -> None:
        self._put_off[node] = self._cluster.version

    def _note_refusal(self, node: str) -> None:
        self._note_put_off(node)
        if (wire := self._cluster.nodes.get(node)) is None:
            return
        uid, revision = wire.metadata.uid, self._terms[-1].revision
        if uid not in self._refused or self._refused[uid][1] != revision:
            self._refused[uid] = self._cluster.clock.now, revision

    def _note_finished(self, terms: Terms) -> None:
        """Whether every node that the operator knows and that can run has ended, few enough of them badly:
        what fails afterwards holds up nothing. One that has been refused or rejected for so long cannot run;
        if it was failing it has failed."""
        if terms.rollout in self._finished:
            return
        seen, good, bad = self._leader().seen("nodes"), 0, 0
        for node in self._nodes():
            ends = self._of(node, terms)
            if any(end.pod.phase == "Succeeded" for end in ends):
                good += 1
            elif exhausted(ends, (terms,)) or (any(end.counts for end in ends) and self._shut(node, terms)):
                excused = self._failing_since(ends) <= terms.resumed
                bad, good = bad + (not excused), good + excused
            elif self._given_up(node, terms):
                bad += 1
            elif self._shut(node, terms):
                continue
            elif node.ready and self._joined[node.uid] <= seen:
                return
        if good + bad and bad <= terms.allowed:
            self._finished.add(terms.rollout)

    # ------------------------------------------------------------ what it asserts

    def _judge_start(self, pod: Pod) -> None:
        """A Pod is created: were there a slot, and leave to start?"""
        self._note()
        leader, now = self._leader(), self._cluster.clock.now
        terms = self._since(min(leader.began, leader.saw["nodes"]))
        node = pod.annotations[names.POD_NODE_NAME]
        width = max(one.width(at) for one in terms for at in (now, now - CALL_SECONDS))
        live = self._live(terms) - {node}
        assert len(live) < width, f"{node} starts beside {sorted(live)}: more than {width} Pods at once"
        faults = [self._fault(pod, one, terms, width) for one in terms]
        assert not all(faults), faults
        self._refused.pop(pod.node_uid, None)
        self._started = {one for one in self._started if one[0] != pod.node_uid}
        self._started.add((pod.node_uid, run_of(pod)))

    def _fault(self, pod: Pod, terms: Terms, every: list[Terms], width: float) -> str:
        """What is wrong with this start by these terms; empty for nothing."""
        node = pod.annotations[names.POD_NODE_NAME]
        failing = self._failing(terms)
        held = self._live(every) | self._holding(failing, every) | self._resting(terms)
        # An operator that took over does not know that the node's Pod was refused or left unplaced.
        own = held | self._holding(failing, every, self._leader().remembers)
        if node not in own and len(held) >= width:
            return f"{node} takes a slot of {width}; {sorted(held)} have them"
        busy = (self._live(every) | self._resting(terms)) - {node}
        if len(busy) >= width:
            return f"{node} starts again beside {sorted(busy)}, who need all {width} slots"
        again = node in failing or (pod.node_uid, run_of(pod)) in self._started
        if again or terms.rollout in self._finished:
            return ""
        resumed = max(one.resumed for one in every)
        failed = {
            name
            for name, ends in failing.items()
            if any(end.counts or terms.spec.at_most_once for end in ends)
            and self._failing_since(ends) > resumed
        }
        failed |= self._lost(terms, every, resumed) | self._taken_down(failing, every, resumed)
        failed -= {node}
        if len(failed) > max(one.allowed for one in every):
            return f"{node} starts for the first time while {sorted(failed)} fail"
        return ""

    def _judge_radius(self, pod: Pod) -> None:
        """Containers are created: how many nodes of today have run a template that always fails?"""
        revision, rerun = run_of(pod)
        terms = [one for one in self._terms if one.rollout == (revision, rerun)]
        if revision not in self._cluster.bad or not terms or (revision, rerun) in self._finished:
            return
        ran = self._ran.setdefault((revision, rerun), set())
        ran.add(pod.node_uid)
        ran &= {node.uid for node in self._nodes()}
        now = self._cluster.clock.now
        width = max(one.width(at) for one in terms for at in (now, now + 60))  # odd and even minutes
        most = width + max(one.allowed for one in terms)
        # Who resumes, or asks for a run of single nodes, takes failures back.
        ends = [end for found in self._ends.values() for end in found if end.run == (revision, rerun)]
        resumed = any(self._told(end) <= terms[-1].resumed for end in ends)
        asked = resumed or any(one.rerun_nodes != terms[0].rerun_nodes for one in terms)
        reached = len(ran) - len(self._disrupted(ran, (revision, rerun)))
        assert asked or reached <= most, f"{reached} nodes ran what always fails; at most {most} may"

    # ------------------------------------------------------------ what is true

    def _nodes(self) -> Iterable[Node]:
        return [self._cluster.record(wire) for wire in self._cluster.nodes.values()]

    def _since(self, version: int) -> list[Terms]:
        """All that were in effect at this version or later. Nodes may be seen later than the spec: each spec
        with each number of nodes."""
        first = max((i for i, one in enumerate(self._terms) if one.version <= version), default=0)
        found = self._terms[first:]
        counts = sorted({one.desired for one in found})
        return [msgspec.structs.replace(one, desired=count) for one in found for count in counts]

    def _live(self, terms: list[Terms]) -> set[str]:
        """Nodes with a Pod that is not over. One of a node that has been dead for long holds nothing, nor
        does one that no node can get any more."""
        found = set()
        for pod in (self._cluster.record(wire) for wire in self._cluster.pods.values()):
            node = pod.node_name or pod.annotations[names.POD_NODE_NAME]
            over = pod.terminal or (pod.deletion and not pod.node_name)
            if not over and node in self._cluster.nodes and not self._is_dead(node, pod.created, terms):
                found.add(node)
        return found

    def _is_dead(self, node: str, since: float, terms: list[Terms]) -> bool:
        """Whether the node was not Ready during the whole progress deadline that began `since`. A node that
        is Ready again has already lost its slot to the Pod that the leader is creating."""
        late = self._cluster.clock.now - min(one.spec.progress_deadline_seconds for one in terms)
        known = self._known(self._cluster.nodes[node].metadata.uid)
        return any(not one.ready and late >= max(since, one.ready_since) for one in known)

    def _disrupted(self, ran: set[str], run: Run) -> set[str]:
        """Of these nodes those without a Pod that gave up their slot: their ends show no failure, and they
        were blocked since, or nobody knows of the ends any more."""
        live = {
            pod.node_uid
            for pod in (self._cluster.record(p) for p in self._cluster.pods.values())
            if not pod.terminal
        }
        once = self._cluster.spec.at_most_once
        found = set()
        for node in self._nodes():
            ends = [end for end in self._ends.get(node.uid, ()) if end.run == run]
            failed = any(end.counts or once for end in ends)
            if node.uid in ran - live and not failed and self._was_blocked(node, ends):
                found.add(node.uid)
        return found

    def _was_blocked(self, node: Node, ends: list[End]) -> bool:
        """Whether, since its last Pod ended, a Pod of the node was refused, another run was requested, or the
        Pod was deleted before its end was recorded."""
        known = [end for end in ends if end.pod.uid in self._there()]
        if not known or (known[-1].rejected and len(known) == 1):
            return True
        last = known[-1]
        return self._put_off.get(node.name, -1) >= last.version or any(
            one.run(node.name) != last.run for one in self._since(last.version)
        )

    def _there(self) -> set[str]:
        """UIDs of Pods that are there or on record."""
        return {wire.metadata.uid for wire in self._cluster.pods.values()} | self._cluster.recorded

    def _of(self, node: Node, terms: Terms) -> list[End]:
        """How the node's Pods for what it is asked to run have ended, as far as anybody can know: one that
        was deleted unrecorded may be forgotten."""
        there = self._there()
        last, run = self._unknown.get(node.uid, (0, None))
        past = last if run != terms.run(node.name) else 0
        found = self._ends.get(node.uid, ())
        ends = [end for end in found if end.pod.uid in there and end.pod.seq > past]
        # Of a run that another one followed nothing counts, should it come back.
        row = itertools.takewhile(lambda end: end.run == terms.run(node.name), reversed(ends))
        return list(row)[::-1]

    def _shut(self, node: Node, terms: Terms) -> bool:
        """Whether the node's Pods have been refused, or rejected, for the progress deadline."""
        since, revision = self._refused.get(node.uid, (math.inf, ""))
        late = self._cluster.clock.now - terms.spec.progress_deadline_seconds
        return (revision == terms.revision and late >= since) or self._was_rejected(node, terms)

    def _was_rejected(self, node: Node, terms: Terms) -> bool:
        """Whether the node has rejected its Pods for the progress deadline."""
        late = self._cluster.clock.now - terms.spec.progress_deadline_seconds
        row = list(itertools.takewhile(lambda end: end.rejected, reversed(self._of(node, terms))))
        return bool(row) and late >= self._told(row[-1])

    def _given_up(self, node: Node, terms: Terms) -> bool:
        """Whether the node's run is one of which nobody knows what became."""
        return self._unknown.get(node.uid, (0, None))[1] == terms.run(node.name)

    def _known(self, uid: str) -> Iterator[Node]:
        """The node's states, from the current one back to the one that the leader's pass may have seen."""
        saw = self._leader().saw["nodes"]
        for _, version, wire in reversed(self._cluster.node_log):
            if wire.metadata.uid == uid:
                yield self._cluster.record(wire)
                if version <= saw:
                    return

    def _told(self, end: End) -> float:
        """When it ended, by the earliest that its kubelet tells: never before the Pod was created."""
        behind = min(self._cluster.ahead.get(end.pod.annotations[names.POD_NODE_NAME], 0.0), 0.0)
        return max(end.pod.created, float(math.floor(end.at + behind)))

    def _failing_since(self, ends: list[End]) -> float:
        """When the first attempt failed: resume-at excuses the node by that, whatever its retries do."""
        counted = [end for end in ends if end.counts]
        return self._told(counted[0] if counted else ends[-1])

    def _failing(self, terms: Terms) -> dict[str, list[End]]:
        """Node name -> its ends, of nodes that had a run and no success, as the leader's pass could know."""
        found, saw = {}, self._leader().saw["pods"]
        for node in self._nodes():
            ends = [end for end in self._of(node, terms) if end.version <= saw]
            if ends and all(end.pod.phase == "Failed" for end in ends):
                found[node.name] = ends
        return found

    def _holding(self, failing: dict[str, list[End]], terms: list[Terms], known: int = -1) -> set[str]:
        """Nodes that failed, have retries left, and had no refused or unplaced Pod since (later than
        `known`). A node that is not Ready, or rejects its Pods since, holds its slot until the deadline."""
        now = self._cluster.clock.now
        deadline = min(one.spec.progress_deadline_seconds for one in terms)
        found = set()
        for node, ends in failing.items():
            last, uid = ends[-1], self._cluster.nodes[node].metadata.uid
            row = list(itertools.takewhile(lambda end: end.rejected, reversed(ends)))
            away = now >= self._told(row[-1] if row else last) + deadline
            away = away and (bool(row) or not all(one.ready for one in self._known(uid)))
            put_off = known < self._put_off.get(node, -1) >= last.version
            if len(row) < len(ends) and not (put_off or away or exhausted(ends, terms)):
                found.add(node)
        return found

    def _lost(self, terms: Terms, every: list[Terms], resumed: float) -> set[str]:
        """Nodes that a run may have taken down: NotReady for long beneath their Pod, or since before their
        minSuccessSeconds were over."""
        saw = self._leader().saw["nodes"]
        deadline = max(one.spec.progress_deadline_seconds for one in every)
        found = set()
        for node in self._nodes():
            since, version = self._cluster.unready.get(node.uid, (0.0, saw + 1))
            if version > saw or since <= resumed:
                continue
            rest = terms.spec.min_success_seconds
            behind = self._cluster.ahead.get(node.name, 0.0) < 0
            good = [end for end in self._of(node, terms) if end.pod.phase == "Succeeded" and not behind]
            if rest and any(end.at <= since < math.floor(end.at) + rest for end in good):
                found.add(node.name)
            for pod in (self._cluster.record(wire) for wire in self._cluster.pods.values()):
                late = self._cluster.clock.now >= max(pod.created, since) + deadline
                mine = pod.node_uid == node.uid and run_of(pod) == terms.run(node.name)
                if mine and late and pod.node_name and not (pod.terminal or pod.deletion):
                    found.add(node.name)
        return found

    def _taken_down(self, failing: dict[str, list[End]], every: list[Terms], resumed: float) -> set[str]:
        """Nodes whose run was disrupted, and that have been NotReady or rejecting Pods since then until the
        deadline. Without those whose times come from a clock that is ahead."""
        now, leader = self._cluster.clock.now, self._leader()
        deadline = max(one.spec.progress_deadline_seconds for one in every)
        live = {
            pod.node_uid
            for pod in (self._cluster.record(p) for p in self._cluster.pods.values())
            if not pod.terminal
        }
        found = set()
        for node in self._nodes():
            ends, ahead = failing.get(node.name, []), self._cluster.ahead.get(node.name, 0.0) > 0
            row = list(itertools.takewhile(lambda end: end.rejected, reversed(ends)))
            newer = any(end.version > leader.saw["pods"] for end in self._ends.get(node.uid, ()))
            if len(row) == len(ends) or ahead or newer or node.uid in live or node.uid in self._refused:
                continue
            if row and now >= row[-1].at + deadline and self._told(row[-1]) > resumed:
                found.add(node.name)
            since, version = self._cluster.unready.get(node.uid, (0.0, leader.saw["nodes"] + 1))
            told = max(since, leader.heard.get(version, since))  # when its watch reported it
            kept = self._told(ends[-1]) + deadline
            if (
                version <= leader.saw["nodes"]
                and resumed < since
                and told <= kept
                and now >= ends[-1].at + deadline
            ):
                found.add(node.name)
        return found

    def _resting(self, terms: Terms) -> set[str]:
        """Nodes that succeeded less than minSuccessSeconds ago. A kubelet whose clock is behind may tell of
        an end as early as the Pod's beginning, and is believed."""
        found, now = set(), self._cluster.clock.now
        for node in self._nodes():
            for end in self._of(node, terms):
                over = math.floor(end.at) + terms.spec.min_success_seconds
                behind = self._cluster.ahead.get(node.name, 0.0) < 0
                if end.pod.phase == "Succeeded" and now < over and not behind:
                    found.add(node.name)
        return found
