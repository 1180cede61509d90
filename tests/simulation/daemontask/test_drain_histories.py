"""Random histories of spec.drain: no cordon too many, none for nothing, no failed node given back."""

import random
from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import Budget, Drain, FailurePolicy
from caretaker.api.objects import Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.cordon import Cordons, cordoning, is_cordoned_by
from caretaker.daemontask.decision import DrainView
from caretaker.daemontask.drain import continued
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.pods import Start
from caretaker.daemontask.refused_pods import RefusedPods
from caretaker.daemontask.snapshot import Snapshot
from testing.examples import SEED, examples
from unit.daemontask.build import NOW, TEMPLATE, UID, failed, node, pod, snapshot, states, succeeded, task

OTHER: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "other"}]}}


class _World:
    """Nodes, Pods, PodDisruptionBudgets, API server and people, in steps of ten seconds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.width = self.most = self.chance.randint(1, 3)
        self.keep = self.chance.random() < 0.5
        drain = Drain(timeout_seconds=60, on_failure="KeepCordoned" if self.keep else "Uncordon")
        self.spec: dict[str, Any] = {
            "drain": drain,
            "parallelism": self.most,
            "backoff_limit": 1,
            "progress_deadline_seconds": 60,
            "failure_policy": self.chance.choice([FailurePolicy(), FailurePolicy(1, "Pause")]),
        }
        self.suspended = self.dropped = False
        self.template, self.asked = TEMPLATE, ""
        self.nodes = {name: node(name) for name in "abcde"}
        self.versions = dict.fromkeys(self.nodes, 1)
        # By a PodDisruptionBudget that never gives.
        self.guarded = {name for name in self.nodes if self.chance.random() < 0.3}
        self.refusing, self.full = set[str](), set[str]()  # nodes that get no Pod, or have no room for it
        self.pods: dict[str, Pod] = {}
        self.entries: dict[str, Entry] = {}
        self.by_hand: set[str] = set()  # nodes that a person cordoned
        self.late: list[tuple[str, int, str]] = []  # cordons without an answer: node, version, mark
        self.now = NOW
        self.forget()

    def forget(self) -> None:
        """A new process begins. The requests of the one before have ended."""
        self.views: dict[str, DrainView] = {}
        self.refused = RefusedPods()
        self.unsure: dict[str, tuple[str, int]] = {}
        self.behind: dict[str, float] = {}
        self.unplaced: frozenset[str] = frozenset()
        self.arrive(len(self.late))

    def snapshot(self) -> Snapshot:
        spec = {**self.spec, "suspend": self.suspended, "template": self.template}
        if self.dropped:
            spec["drain"] = None
        of = task(annotations={"caretaker.dev/rerun-at": self.asked} if self.asked else None, **spec)
        return snapshot(
            of,
            list(self.nodes.values()),
            list(self.pods.values()),
            dict(self.entries),
            now=self.now,
            drains=dict(self.views),
            cordons=Cordons(unsure=dict(self.unsure)),
            refused=self.refused.by_node,
            refused_until=self.refused.until,
            deprioritised=dict(self.behind),
            unplaced=self.unplaced,
        )

    def act(self, *, kill: bool = False) -> Plan:
        """One pass; killed, it ends after a random part of its writes and forgets what it knew."""
        self.unsure = {uid: at for uid, at in self.unsure.items() if self.versions[at[0]] == at[1]}
        found = self.snapshot()
        made = plan(found)
        self.revision = found.revision
        steps: list[Any] = [("release", one) for one in made.releases]
        steps += [("record", item) for item in made.records.items()]
        steps += [("delete", one) for one in made.deletes]
        steps += [("start", one) for one in made.launch.starts]
        steps += [("cordon", one) for one in made.launch.cordons]
        steps += [("drain", one) for one in made.drains]
        self.unplaced = frozenset(report.node.uid for report in made.nodes.unplaced)
        kept = {report.node.uid for report in made.drained}
        self.views = {uid: seen for uid, seen in self.views.items() if uid in kept}
        if kill:
            steps = steps[: self.chance.randint(0, len(steps))]
        for what, of in steps:
            getattr(self, f"_{what}")(of)
        if kill:
            self.forget()
        return made

    def _release(self, of: Node) -> None:
        assert of.name not in self.by_hand, "a person's cordon was taken"
        on, last = self.pods.get(of.name), self.entries.get(of.name)
        assert on is None or on.terminal, "a run goes on there"
        tried = last is not None and (last.result == "Failed" or (last.result == "Retry" and last.attempts))
        if self.keep and tried and of.unschedulable:
            assert self.dropped, "KeepCordoned: the node has failed an attempt"
        self._set(of.name, cordon="", unschedulable=False)

    def _record(self, item: tuple[str, Entry]) -> None:
        self.entries[item[0]] = item[1]

    def _delete(self, of: Pod) -> None:
        name = of.annotations[names.POD_NODE_NAME]
        self.pods.pop(name, None)
        if not (of.node_name or of.terminal):
            self.behind[of.node_uid] = self.now

    def _start(self, of: Start) -> None:
        on = self.nodes[of.node_name]
        if not self.dropped:
            assert is_cordoned_by(on, UID), "a run began on a node that was not cordoned for it"
            assert of.node_name not in self.guarded, "a run began beside a Pod that may not go"
        if of.node_name in self.refusing:
            self._refuse(of)
            return
        self.refused.created(of.node_uid)
        self.behind.pop(of.node_uid, None)
        marks = {names.POD_RUN_KEY: of.run_key, names.POD_NONCE: of.nonce}
        made = pod(on, of.seq, created=self.now, revision=self.revision, marks=marks)
        if of.node_name in self.full:
            made = msgspec.structs.replace(made, node_name="", phase="Pending", unschedulable="no room")
        self.pods[of.node_name] = made

    def _refuse(self, of: Start) -> None:
        self.refused.add(of.node_uid, "quota", self.now)
        self.behind[of.node_uid] = self.now

    def _cordon(self, start: Start) -> None:
        of = self.nodes[start.node_name]
        if of.name in self.refusing:
            self._refuse(start)
            return
        assert not of.unschedulable
        self.refused.forget(of.uid)
        mark = cordoning(of, 1, task().metadata, self.now)["metadata"]["annotations"][names.CORDONED_BY]
        if self.chance.random() < 0.2:
            self.late.append((of.name, self.versions[of.name], mark))
            self.unsure[of.uid] = (of.name, self.versions[of.name])
            self.behind[of.uid] = self.now
            return
        self._set(of.name, cordon=mark, unschedulable=True)
        self.behind.pop(of.uid, None)

    def arrive(self, count: int) -> None:
        """So many requests without an answer are executed."""
        for name, version, mark in self.late[:count]:
            if self.versions[name] == version:
                self._set(name, cordon=mark, unschedulable=True)
        del self.late[:count]

    def _drain(self, report: Any) -> None:
        on, run, name = report.node, report.decision.drain, report.node.name
        before = continued(self.views, report, self.now)
        first = before.first if before is not None else self.now
        empty, fault = name not in self.guarded, ""
        if self.chance.random() < 0.1:
            empty, fault = False, "no answer"
            first += self.now - before.looked if before is not None else 0.0
        words = "" if empty else fault or "PDB"
        self.views[on.uid] = DrainView(
            on.cordon, run, first, self.now, self.now + 5, empty, words, fault=fault
        )

    def _set(self, name: str, **changes: Any) -> None:
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], **changes)
        self.versions[name] += 1

    def happen(self) -> None:
        """What others do."""
        name, chance = self.chance.choice(list(self.nodes)), self.chance.random()
        self.arrive(int(self.chance.random() < 0.5))
        at = self.pods.get(name)
        if at is not None and at.node_name and not at.terminal and chance < 0.5:
            end = succeeded if self.chance.random() < 0.6 else failed
            revision, marks = at.labels[names.LABEL_REVISION], dict(at.annotations)
            self.pods[name] = end(
                self.nodes[name],
                at.seq,
                created=at.created,
                finished=self.now,
                revision=revision,
                marks=marks,
            )
        elif chance < 0.1 and not self.nodes[name].unschedulable and not self.nodes[name].cordon:
            self.by_hand.add(name)
            self._set(name, unschedulable=True)
        elif chance < 0.2 and self.nodes[name].unschedulable:
            self.by_hand.discard(name)
            self._set(name, unschedulable=False)
        elif chance < 0.24:
            self.suspended = not self.suspended
        elif chance < 0.26:
            self.dropped = not self.dropped
        elif chance < 0.31 and (name in self.guarded or not self.nodes[name].unschedulable):
            self.guarded ^= {name}
        else:
            self._disturb(name, chance)

    def _disturb(self, name: str, chance: float) -> None:
        if chance < 0.36:
            self._set(name, ready=not self.nodes[name].ready, ready_since=self.now)
        elif chance < 0.41:
            self.refusing ^= {name}
        elif chance < 0.46:
            self.full ^= {name}
        elif chance < 0.48:
            self.asked = format_time(self.now)
        elif chance < 0.5:
            self.template = OTHER if self.template is TEMPLATE else TEMPLATE
        elif chance < 0.54:
            self.narrow(self.chance.randint(1, 3), self.chance.choice([None, 0, 1, 2]))

    def narrow(self, parallelism: int, budget: int | None) -> None:
        """Parallelism and budget change."""
        self.spec |= {
            "parallelism": parallelism,
            "budgets": () if budget is None else (Budget(nodes=budget),),
        }
        self.width = parallelism if budget is None else min(parallelism, budget)
        self.most = max(self.most, self.width)

    def repair(self) -> None:
        """People and API server leave nothing in the way."""
        self.suspended = self.dropped = False
        for of in (self.guarded, self.refusing, self.full):
            of.clear()
        for name in self.nodes:
            changes = {"unschedulable": False} if name in self.by_hand else {}
            self._set(name, ready=True, ready_since=self.now, **changes)
        self.by_hand.clear()
        self.asked = format_time(self.now)
        self.narrow(self.most, None)
        self.spec["failure_policy"] = FailurePolicy()

    def cordons(self) -> list[str]:
        return [name for name, one in self.nodes.items() if is_cordoned_by(one, UID)]

    def has_begun(self, name: str) -> bool:
        on, last = self.pods.get(name), self.entries.get(name)
        return on is not None or (last is not None and last.result != "Succeeded")

    def check(self) -> None:
        """Of nodes that have not begun no more are cordoned than the others leave slots."""
        begun = [name for name in self.cordons() if self.has_begun(name)]
        assert len(self.cordons()) <= self.most
        assert len(self.cordons()) <= max(self.width, len(begun))


@pytest.mark.random
@pytest.mark.parametrize("seed", range(SEED, SEED + examples(100, 12)))
def test_whatever_happens_no_more_nodes_are_cordoned_than_may_be_and_none_for_nothing(seed: int) -> None:
    world = _World(seed)
    for _ in range(60):
        world.happen()
        assert len(world.cordons()) <= world.most
        if world.chance.random() < 0.15:
            world.act(kill=True)
        for _ in range(2):  # what the first pass deletes or records, the second one sees
            world.act()
        world.check()
        world.now += 10
    world.repair()
    for turn in range(120):
        for name, one in world.pods.items():
            if not one.terminal:
                revision, marks = one.labels[names.LABEL_REVISION], dict(one.annotations)
                end = {"created": one.created, "finished": world.now, "revision": revision, "marks": marks}
                world.pods[name] = succeeded(world.nodes[name], one.seq, **end)
        made = world.act()
        world.now += 10 if turn < 60 else 60
    left = {report.node.name for report in made.nodes.failed} if world.keep else set()
    assert set(world.cordons()) <= left, "a node stays cordoned, and nobody works on it"
    if not left:
        assert states(made).get("succeeded", 0) + states(made).get("failed", 0) == 5
    assert not [one for one in world.nodes.values() if one.cordon and not one.unschedulable]
