"""Canary and domains: which nodes begin a rollout, and what lets the others follow."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api import names
from caretaker.api.daemontask import Canary, Drain, FailurePolicy, Status
from caretaker.api.objects import Taint
from caretaker.api.times import format_time, parse_time
from caretaker.cli.daemontask.plan import _summary
from caretaker.cli.resume import stamp_of
from caretaker.daemontask.decision import DecisionCache
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import plan
from caretaker.daemontask.refused_pods import RefusedPod
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from simulation.daemontask.test_blast_radius import Rollout
from unit.daemontask.build import NOW, REVISION, TEMPLATE, entry, node, planned, pod, snapshot, task
from unit.daemontask.test_drain import MARK

ZONE = "topology.kubernetes.io/zone"
GOOD: frozenset[str] = frozenset()
SOAK = Canary(1, 600)
EDGE = 5  # seconds between passes


class Staged(Rollout):
    """A rollout whose nodes may be in zones, in turn."""

    def __init__(
        self, count: int = 20, bad: frozenset[str] | None = GOOD, zones: tuple[str, ...] = (), **spec: Any
    ) -> None:
        super().__init__(count, 2, bad, **spec)
        for place, name in enumerate(self.nodes if zones else ()):
            self.in_zone(name, zones[place % len(zones)])

    def in_zone(self, name: str, zone: str) -> None:
        labels = {**self.nodes[name].labels, **({ZONE: zone} if zone else {})}
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], labels=labels)

    def set_ready(self, name: str, *, ready: bool) -> None:
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], ready=ready, ready_since=self.now)

    def remove(self, name: str) -> None:
        for of in (self.nodes, self.pods, self.entries):
            of.pop(name, None)  # type: ignore[attr-defined]

    def active_zones(self) -> set[str]:
        live = (pod.node_name for pod in self.pods.values() if not pod.terminal)
        return {self.nodes[name].labels.get(ZONE, "") for name in live}

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = {one.type: (one.status, one.reason, one.message) for one in self.status.conditions}
        return found.get(kind, ("", "", ""))

    def done(self) -> bool:
        return self.status.succeeded == len(self.nodes)


def test_the_others_begin_once_it_has_soaked() -> None:
    rollout = Staged(canary=SOAK)
    rollout.roll_on(590)
    assert len(rollout.hit) == 1
    assert rollout.condition("Ready") == (
        "False",
        "RollingOut",
        "1 of 20 nodes succeeded, 19 pending; canary: 0 of 1 node(s) passed, 1 soak; 19 node(s) wait for it",
    )
    assert rollout.condition("Reconciling")[0] == "True"
    rollout.roll_on(30)
    assert len(rollout.hit) == 20
    rollout.roll_on(30)
    assert (rollout.done(), rollout.ready) == (True, "Succeeded")
    assert rollout.status.passed_canary == rollout.status.finished_rollout


@pytest.mark.parametrize(
    ("canary", "first"),
    [(Canary(3), 3), (Canary("10%"), 2), (Canary("11%"), 3), (Canary("1%"), 1), (Canary(50), 20)],
)
def test_it_has_so_many_nodes(canary: Canary, first: int) -> None:
    rollout = Staged(canary=canary)
    rollout.one_pass()
    assert len(rollout.hit) == first
    rollout.roll_on(60)
    assert rollout.done()


def test_parallelism_bounds_it_and_what_follows() -> None:
    rollout = Staged(canary=Canary(3, 60), parallelism=2)
    rollout.one_pass()
    assert len(rollout.hit) == 2
    rollout.roll_on(100)
    assert len(rollout.hit) == 3
    rollout.roll_on(200)
    assert rollout.done()


@pytest.mark.parametrize("action", ["Continue", "Pause", "Fail"])
def test_a_template_that_fails_reaches_no_other_node(action: Any) -> None:
    rollout = Staged(bad=None, canary=SOAK, failure_policy=FailurePolicy("100%", action), backoff_limit=1)
    rollout.roll_on(4000)
    (first,) = rollout.hit
    status, reason, message = rollout.condition("Ready")
    assert (status, reason) == ("False", "NodesFailed")
    assert message == (
        f"the canary failed on 1 of 1 node(s), first {first}: Error; no other node begins; 0 of 20 nodes "
        f"succeeded, 1 failed (first {first}: Error, exit code 1), 19 pending; canary: 0 of 1 node(s) "
        "passed; 19 node(s) wait for it; edit the task, or annotate caretaker.dev/resume-at with the "
        "current time for another canary"
    )
    assert rollout.condition("Progressing")[:2] == ("False", "NodesFailed")
    assert rollout.condition("Stalled")[:2] == ("True", "NodesFailed")
    assert not rollout.last.wake, "no pass comes without an event"


@pytest.mark.parametrize(
    ("spec", "reach"),
    [
        ({"canary": SOAK}, 1),
        ({"canary": SOAK, "failure_policy": FailurePolicy(1, "Pause")}, 1),
        ({"parallelism": 1, "failure_policy": FailurePolicy(1, "Pause")}, 2),
    ],
)
def test_a_failed_rollout_is_not_over_because_all_other_nodes_are_away(
    spec: dict[str, Any], reach: int
) -> None:
    """Cordoned for two minutes: they would have come back as nodes that join, which wait for nothing."""
    rollout = Staged(bad=None, backoff_limit=0, **spec)
    (first, *others) = rollout.nodes
    for away in (True, False):
        for name in others:
            rollout.nodes[name] = msgspec.structs.replace(rollout.nodes[name], unschedulable=away)
        for _ in range(360):
            rollout.one_pass()
            rollout.let_pass(5)
    assert first in rollout.hit
    assert len(rollout.hit) == reach


def test_a_tainted_node_that_failed_before_a_resume_keeps_no_rollout_from_its_end() -> None:
    rollout = Staged(
        bad=frozenset({"n000"}), backoff_limit=3, parallelism=20, failure_policy=FailurePolicy(0, "Pause")
    )
    rollout.roll_on(5)
    tainted = (Taint("example.com/broken", "NoSchedule"),)
    rollout.nodes["n000"] = msgspec.structs.replace(rollout.nodes["n000"], taints=tainted)
    rollout.roll_on(2000)
    assert (rollout.ready, rollout.status.finished_rollout) == ("Paused", "")
    rollout.annotations[names.RESUME_AT] = format_time(rollout.now)
    rollout.roll_on(60)
    assert rollout.status.finished_rollout


@pytest.mark.parametrize("reruns", [("TemplateChange",), ("TemplateChange", "NodeReboot")])
@pytest.mark.parametrize(
    "spec",
    [
        {"parallelism": 1, "min_success_seconds": 300, "failure_policy": FailurePolicy(0, "Pause")},
        {"canary": Canary(1, 3600)},
    ],
    ids=["Pause", "canary"],
)
def test_a_run_that_breaks_its_node_by_a_reboot_reaches_no_other(
    spec: dict[str, Any], reruns: tuple[str, ...]
) -> None:
    """The reboot asks for another run where rerunOn says so; the node that broke counts all the same."""
    rollout = Staged(rerun_on=reruns, **spec)
    for second in range(0, 6 * 3600, 10):
        for name in rollout.entries:
            of = rollout.nodes[name]
            if of.ready and rollout.now >= rollout.entries[name].finished_at + 30:
                rollout.set_ready(name, ready=False)
            elif of.boot_id != "another" and rollout.now >= rollout.entries[name].finished_at + 90:
                rollout.nodes[name] = msgspec.structs.replace(of, boot_id="another")
        rollout.one_pass()
        rollout.let_pass(10)
        assert len(rollout.hit) <= 1, second
    assert rollout.condition("Ready")[1] in ("Paused", "NodesFailed")


def test_retries_of_the_canary_go_on() -> None:
    rollout = Staged(bad=None, canary=SOAK, backoff_limit=3)
    rollout.roll_on(60)
    assert len(rollout.hit) == 1
    assert rollout.condition("Reconciling")[0] == "True"
    rollout.bad = GOOD
    rollout.roll_on(900)
    assert rollout.done()


def test_a_resume_begins_one_other_node() -> None:
    rollout = Staged(bad=None, canary=SOAK, backoff_limit=0)
    rollout.roll_on(60)
    for hit in (2, 3):
        of = task(status=rollout.status, annotations=rollout.annotations, **rollout.spec)
        seen = snapshot(of, list(rollout.nodes.values()), [], rollout.entries, now=rollout.now)
        rollout.annotations[names.RESUME_AT] = stamp_of(forecast(seen))
        rollout.roll_on(700)
        assert len(rollout.hit) == hit
        assert rollout.ready == "NodesFailed"


def test_each_rollout_has_its_own() -> None:
    rollout = Staged(canary=SOAK)
    rollout.roll_on(700)
    assert rollout.done()
    rollout.annotations[names.RERUN_AT] = again = format_time(rollout.now)
    rollout.roll_on(590)
    (asked,) = (nonce for nonce in rollout.hit_by if nonce.startswith(again.rstrip("Z")))
    assert len(rollout.hit_by[asked]) == 1
    rollout.roll_on(60)
    assert len(rollout.hit_by[asked]) == 20


def test_a_node_that_joins_later_does_not_wait() -> None:
    rollout = Staged(canary=SOAK)
    rollout.roll_on(700)
    rollout.nodes["new"] = node("new")
    rollout.one_pass()
    assert "new" in rollout.hit


def test_another_node_takes_the_place_of_one_that_is_gone() -> None:
    rollout = Staged(canary=SOAK)
    rollout.roll_on(300)
    (first,) = rollout.hit
    rollout.remove(first)
    rollout.roll_on(590)
    assert len(rollout.hit) == 2
    rollout.roll_on(60)
    assert rollout.done()


def test_a_node_that_breaks_while_it_soaks_soaks_again() -> None:
    rollout = Staged(canary=SOAK)
    rollout.roll_on(300)
    (first,) = rollout.hit
    rollout.set_ready(first, ready=False)
    rollout.roll_on(900)
    rollout.set_ready(first, ready=True)
    rollout.roll_on(590)
    assert rollout.hit == {first}
    rollout.roll_on(60)
    assert rollout.done()


def test_a_node_that_breaks_for_good_fails_it() -> None:
    rollout = Staged(canary=SOAK, progress_deadline_seconds=1800)
    rollout.roll_on(300)
    (first,) = rollout.hit
    rollout.set_ready(first, ready=False)
    rollout.roll_on(7200)
    assert rollout.hit == {first}
    assert rollout.condition("Ready")[2].startswith(
        f"the canary failed on 1 of 1 node(s), first {first}: not healthy since its run; no other node"
    )
    assert rollout.condition("Stalled")[0] == "True"
    rollout.set_ready(first, ready=True)
    rollout.roll_on(590)
    assert rollout.hit == {first}
    rollout.roll_on(60)
    assert rollout.done()


def test_a_retry_that_no_pod_reaches_is_not_called_unhealthy() -> None:
    nodes = [node("a"), node("b")]
    retry = {"a": entry(nodes[0], "Retry", attempts=1, finished_at=int(NOW - 1))}
    refused = {nodes[0].uid: RefusedPod("quota", NOW - 1, NOW + 60)}
    seen = snapshot(task(canary=SOAK), nodes, entries=retry, refused=refused)
    status = status_of(seen, plan(seen), Outcome())
    (message,) = (one.message for one in status.conditions if one.type == "Ready")
    assert message.startswith("the canary failed on 1 of 1 node(s), first a: PodRefused; no other")


def test_one_failure_of_several_is_enough() -> None:
    probe = Staged(canary=Canary(3, 60))
    probe.one_pass()
    rollout = Staged(bad=frozenset([min(probe.hit)]), canary=Canary(3, 60), backoff_limit=0)
    rollout.roll_on(4000)
    assert rollout.hit == probe.hit
    assert rollout.status.succeeded == 2
    assert rollout.ready == "NodesFailed"


@pytest.mark.parametrize(("parallelism", "retries", "begun"), [(1, 0, 1), (2, 3, 2)])
def test_after_a_failure_no_further_node_of_the_canary_begins(
    parallelism: int, retries: int, begun: int
) -> None:
    probe = Staged(canary=Canary(3), parallelism=1)
    probe.one_pass()
    rollout = Staged(bad=frozenset(probe.hit), canary=Canary(3), parallelism=parallelism)
    rollout.spec["backoff_limit"] = retries
    rollout.roll_on(50)
    assert len(rollout.hit) == begun, "also while it is retried"
    rollout.roll_on(300)
    assert len(rollout.hit) == begun
    assert rollout.ready == "NodesFailed"


def test_a_canary_of_all_nodes_ends_as_without() -> None:
    rollout = Staged(1, bad=None, canary=SOAK, failure_policy=FailurePolicy(1), backoff_limit=0)
    rollout.roll_on(60)
    assert rollout.ready == "Succeeded"


def test_to_add_it_later_holds_up_a_rollout_that_has_begun() -> None:
    rollout = Staged(parallelism=1)
    rollout.roll_on(30)
    begun = len(rollout.hit)
    rollout.spec["canary"] = SOAK
    rollout.roll_on(400)
    assert len(rollout.hit) == begun
    rollout.roll_on(400)
    assert rollout.done()


def test_a_status_that_is_lost_costs_time_alone() -> None:
    rollout = Staged(canary=Canary(2, 60), parallelism=2)
    rollout.roll_on(75)
    assert 2 < len(rollout.hit) < 20
    begun, rollout.status = len(rollout.hit), Status()
    rollout.one_pass()
    assert len(rollout.hit) <= begun + 2
    rollout.roll_on(600)
    assert rollout.done()


def test_runs_of_an_older_revision_are_replaced_on_the_canary_alone() -> None:
    nodes = [node(name) for name in "abcdef"]
    old = [pod(each, revision="old") for each in nodes]
    for canary, count in ((None, 6), (Canary(2), 2)):
        of = task(concurrency_policy="Replace", canary=canary)
        made = forecast(snapshot(of, nodes, old)).plan
        assert len(made.launch.replaced) == count
        assert made.launch.outdated == 6 - count
    going = [msgspec.structs.replace(each, deletion=NOW, deletion_asked=NOW) for each in old[:2]]
    made = forecast(snapshot(of, nodes, [*going, *old[2:]])).plan
    assert not made.launch.replaced, "two are on their way"


@pytest.mark.parametrize("policy", ["Replace", "Forbid"])
def test_a_canary_that_failed_beside_runs_of_an_older_revision_is_reported(policy: Any) -> None:
    nodes = [node(name) for name in "abc"]
    of = task(concurrency_policy=policy, canary=Canary(1), failure_policy=FailurePolicy("100%"))
    old, ended = [pod(each, revision="old") for each in nodes[1:]], {"a": entry(nodes[0], "Failed")}
    seen = snapshot(of, nodes, old, ended)
    status = status_of(seen, plan(seen), Outcome())
    assert [(c.status, c.reason) for c in status.conditions if c.type == "Ready"] == [
        ("False", "NodesFailed")
    ]


def test_a_success_of_an_older_revision_that_stands_does_not_pass_it() -> None:
    nodes = [node(f"n{place}") for place in range(9)]
    done = {each.name: entry(each, revision="old") for each in nodes[:3]}
    done |= {each.name: entry(each, revision="old", finished_at=int(NOW - 9)) for each in nodes[3:5]}
    made = planned(task(rerun_on=(), canary=SOAK), nodes, entries=done)
    assert len(made.launch.starts) == 1
    assert made.rollout.canary is not None
    assert (made.rollout.canary.passed, made.rollout.canary.moving) == (0, 0)


def test_nodes_that_run_again_for_a_lost_ledger_begin_with_it() -> None:
    nodes = [node(f"n{place}") for place in range(9)]
    past = Status(finished_rollout=f"{REVISION}/-/-", passed_canary=f"{REVISION}/-/-")
    of = task(canary=SOAK, annotations={names.LEDGER_DECISION: "rerun"}, status=past)
    made = planned(of, nodes, ledger=Ledger(entries={}, lost=1, shards=1))
    assert len(made.launch.starts) == 1
    seen = snapshot(of, nodes[:1], ledger=Ledger(entries={}, lost=1, shards=1))
    assert status_of(seen, plan(seen), Outcome()).passed_canary == ""
    undecided = planned(task(canary=SOAK, status=past), nodes, ledger=Ledger(entries={}, lost=1, shards=1))
    assert undecided.rollout.finished, "until a person has decided"


def cordoned(name: str, zone: str = "") -> Any:
    labels = {ZONE: zone} if zone else {}
    return msgspec.structs.replace(node(name, unschedulable=True, cordon=MARK), labels=labels)


def test_of_the_nodes_cordoned_for_an_older_revision_the_canary_alone_goes_on() -> None:
    nodes = [*map(cordoned, "abc"), *map(node, "def")]
    old = {each.name: entry(each, revision="old") for each in nodes}
    made = planned(task(drain=Drain(), parallelism=3, canary=SOAK), nodes, entries=old)
    (goes_on,) = made.drains
    assert {goes_on.node.name, *(each.name for each in made.releases)} == set("abc")
    assert not made.launch.cordons
    failed = {each.name: entry(each, "Failed", revision="old") for each in nodes[:3]}
    made = planned(task(drain=Drain(), parallelism=3, canary=SOAK), nodes, entries=old | failed)
    assert (len(made.drains), made.releases) == (1, ()), "one that failed stays cordoned, and waits"


def test_nodes_that_stay_cordoned_in_two_domains_go_one_domain_after_the_other() -> None:
    nodes = [msgspec.structs.replace(node("a"), labels={ZONE: "a"}), cordoned("b", "b"), cordoned("c", "c")]
    old = {each.name: entry(each, "Failed", revision="old") for each in nodes}
    made = planned(task(drain=Drain(), parallelism=2, topology_key=ZONE), nodes, entries=old)
    assert [report.node.name for report in made.drains] == ["b"], "they hold every slot"
    nodes[0] = cordoned("a", "a")
    retry = {"c": entry(nodes[2], "Retry", attempts=1, finished_at=int(NOW - 60))}
    made = planned(task(drain=Drain(), parallelism=3, topology_key=ZONE), nodes, entries=old | retry)
    assert [report.node.name for report in made.drains] == ["c"], "it is in the middle of its run"


def test_runs_of_an_older_revision_that_go_on_do_not_count() -> None:
    nodes = [node(name) for name in "abc"]
    made = forecast(snapshot(task(canary=Canary(1)), nodes, [pod(nodes[0], revision="old")])).plan
    assert len(made.launch.starts) == 1


def test_one_domain_goes_after_the_other() -> None:
    rollout = Staged(9, zones=("b", "", "a"), topology_key=ZONE)
    seen = list[set[str]]()
    while not rollout.done():
        rollout.one_pass()
        if (zones := rollout.active_zones()) and zones not in seen[-1:]:
            seen.append(zones)
        rollout.let_pass(EDGE)
    assert seen == [{""}, {"a"}, {"b"}]


@pytest.mark.parametrize(("zones", "first"), [(("a", "b"), f"with {ZONE}=a"), (("b", ""), f"without {ZONE}")])
def test_ready_names_the_domain_that_goes_first(zones: tuple[str, ...], first: str) -> None:
    rollout = Staged(4, zones=zones, topology_key=ZONE)
    rollout.one_pass()
    assert rollout.condition("Ready")[2] == (
        f"0 of 4 nodes succeeded, 2 active, 2 pending; nodes {first} go first, 2 node(s) wait for them"
    )


def test_parallelism_and_min_success_hold_within_it() -> None:
    rollout = Staged(6, zones=("a", "b"), topology_key=ZONE, parallelism=2, min_success_seconds=60)
    rollout.roll_on(100)
    assert len(rollout.hit) == 3
    rollout.roll_on(300)
    assert rollout.done()


def test_the_canary_is_of_the_first() -> None:
    rollout = Staged(20, zones=("b", "a"), topology_key=ZONE, canary=SOAK)
    rollout.roll_on(300)
    assert [rollout.nodes[name].labels[ZONE] for name in rollout.hit] == ["a"]
    rollout.roll_on(400)
    assert rollout.done()


@pytest.mark.parametrize("state", ["NotReady", "failed"])
def test_a_node_that_cannot_run_holds_up_no_other_domain(state: str) -> None:
    bad = frozenset(["n000"] if state == "failed" else [])
    rollout = Staged(4, bad, zones=("a", "b"), topology_key=ZONE, backoff_limit=0)
    rollout.set_ready("n000", ready=state == "failed")
    rollout.roll_on(60)
    assert rollout.status.succeeded == 3


def test_a_node_that_no_pod_reaches_goes_behind_all() -> None:
    nodes = [msgspec.structs.replace(node(name), labels={ZONE: zone}) for name, zone in ("xa", "yb")]
    behind = {nodes[0].uid: NOW - 5}
    of = task(topology_key=ZONE)
    made = forecast(snapshot(of, nodes, deprioritised=behind)).plan
    assert [start.node_name for start in made.launch.starts] == ["y"]
    made = forecast(snapshot(of, nodes[:1], deprioritised=behind)).plan
    assert [start.node_name for start in made.launch.starts] == ["x"]


def test_active_runs_of_other_domains_make_way_in_their_turn() -> None:
    nodes = [msgspec.structs.replace(node(name), labels={ZONE: zone}) for name, zone in ("xb", "ya", "zb")]
    old = [pod(each, revision="old") for each in nodes]
    of = task(concurrency_policy="Replace", topology_key=ZONE)
    made = forecast(snapshot(of, nodes, old)).plan
    assert [one.node_name for one in made.launch.replaced] == ["y"]
    going = msgspec.structs.replace(old[1], deletion=NOW, deletion_asked=NOW)
    made = forecast(snapshot(of, nodes, [going, old[0], old[2]])).plan
    assert not made.launch.replaced


def test_after_the_rollout_no_domain_waits() -> None:
    rollout = Staged(4, zones=("a", "b"), topology_key=ZONE)
    rollout.roll_on(60)
    rollout.nodes["x"], rollout.nodes["y"] = node("x"), node("y")
    rollout.in_zone("x", "a")
    rollout.in_zone("y", "b")
    rollout.one_pass()
    assert rollout.active_zones() == {"a", "b"}


@given(
    count=st.integers(1, 12),
    first=st.sampled_from([1, 2, 5, "10%", "50%"]),
    soak=st.sampled_from([0, 30, 120]),
    parallelism=st.sampled_from([None, 1, 3]),
    zones=st.sampled_from([(), ("a",), ("b", "a"), ("c", "", "a")]),
    fails=st.booleans(),
    step=st.sampled_from([1.0, 5.0, 40.0]),
    lost=st.sets(st.integers(0, 30), max_size=3),
)
def test_no_history_passes_a_canary_or_mixes_domains(
    count: int, first: Any, soak: int, parallelism: Any, zones: Any, fails: bool, step: float, lost: set[int]
) -> None:
    """Passes at any pace, and statuses that are lost: every pass is one after a restart, too."""
    rollout = Staged(
        count,
        None if fails else GOOD,
        zones,
        canary=Canary(first, soak),
        parallelism=parallelism,
        topology_key=ZONE if zones else None,
        backoff_limit=1,
    )
    wanted = first if isinstance(first, int) else max(-(-int(first[:-1]) * count // 100), 1)
    for place in range(400):
        rollout.one_pass()
        assert len(rollout.active_zones()) <= 1 or not zones
        soaked = [
            e
            for e in rollout.entries.values()
            if e.result == "Succeeded" and e.finished_at + soak <= rollout.now
        ]
        if len(soaked) < wanted:
            assert len(rollout.hit) <= wanted
        if place in lost:
            rollout.status = Status()
        rollout.let_pass(step)
    rollout.roll_on(2000, 40.0)
    assert rollout.done() != fails
    assert len(rollout.hit) == count or (fails and 0 < len(rollout.hit) <= wanted)


def test_a_plan_shows_the_canary_and_the_domains_as_waves() -> None:
    nodes = [msgspec.structs.replace(node(f"n{i}"), labels={ZONE: "ab"[i % 2]}) for i in range(6)]
    found = forecast(snapshot(task(canary=SOAK, topology_key=ZONE, parallelism=2), nodes))
    zones = {name: found.reports[name].node.labels[ZONE] for name in found.turns}
    by_wave = [
        sorted(zones[name] for name in found.turns if found.turns[name] == wave) for wave in range(1, 5)
    ]
    assert by_wave == [["a"], ["a", "a"], ["b", "b"], ["b"]]
    assert _summary(found) == (
        "6 of 6 nodes it is for would run: 1 at once, 4 waves of at most 2 in all (canary 1, soak 600s, one "
        f"{ZONE} after the other, parallelism 2)"
    )
    none = "3 of 4 nodes it is for would run: none before {} has passed, 1 wave of at most 4 in all "
    for result, canary in (("Succeeded", "the canary"), ("Failed", "another canary")):
        first = {"n0": entry(nodes[0], result, finished_at=int(NOW - 9))}
        words = _summary(forecast(snapshot(task(canary=SOAK), nodes[:4], entries=first)))
        assert words == f"{none.format(canary)}(canary 1, soak 600s)"
    done = {each.name: entry(each) for each in nodes}
    assert not forecast(snapshot(task(canary=SOAK, topology_key=ZONE), nodes, entries=done)).turns


def test_once_it_has_passed_it_holds_up_no_node() -> None:
    past, nodes = Status(passed_canary=f"{REVISION}/-/-"), [node(name) for name in "abc"]
    assert len(planned(task(canary=SOAK, status=past), nodes).launch.starts) == 3, "its nodes may be gone"
    for canary, passed in ((SOAK, past.passed_canary), (None, "")):
        seen = snapshot(task(canary=canary, status=past), nodes)
        assert status_of(seen, plan(seen), Outcome()).passed_canary == passed


def test_a_node_that_broke_before_a_resume_no_longer_fails_it() -> None:
    rollout = Staged(canary=SOAK, progress_deadline_seconds=300)
    rollout.roll_on(100)
    rollout.set_ready(min(rollout.hit), ready=False)
    rollout.roll_on(1200)
    assert len(rollout.hit) == 1
    rollout.annotations[names.RESUME_AT] = format_time(rollout.now)
    rollout.roll_on(10)
    assert (len(rollout.hit), rollout.ready) == (2, "RollingOut")


def test_the_longer_of_soak_and_min_success_seconds_counts() -> None:
    rollout = Staged(canary=Canary(1, 30), min_success_seconds=60)
    rollout.roll_on(50)
    assert len(rollout.hit) == 1
    assert [one.decision.reason for one in rollout.last.nodes.holders] == ["MinSuccessSeconds"]


def test_it_has_not_failed_while_enough_others_may_still_pass() -> None:
    nodes = [node(name) for name in "abc"]
    seen = snapshot(task(canary=SOAK), nodes, [pod(nodes[1])], {"a": entry(nodes[0], "Failed")})
    canary = plan(seen).rollout.canary
    assert canary is not None
    assert (canary.failed, canary.room) == (False, 0)


def test_a_pod_of_an_older_revision_that_ends_does_not_count() -> None:
    nodes = [node("a"), node("b")]
    going = pod(nodes[0], revision="old", deletion=NOW, deletion_asked=NOW)
    assert len(planned(task(canary=SOAK), nodes, [going]).launch.starts) == 1


def test_no_pod_makes_way_while_another_node_may_begin_at_once() -> None:
    nodes = [node("a"), node("b")]
    of = task(canary=SOAK, concurrency_policy="Replace")
    made = planned(of, nodes, [pod(nodes[0], revision="old")])
    assert (made.launch.replaced, len(made.launch.starts)) == ((), 1)


def test_a_retry_that_no_pod_has_reached_goes_on() -> None:
    nodes = [node("a"), node("b")]
    retry = {"a": entry(nodes[0], "Retry", attempts=1, finished_at=int(NOW - 60))}
    made = planned(task(canary=SOAK), nodes, entries=retry, deprioritised={nodes[0].uid: NOW - 5})
    assert [start.node_name for start in made.launch.starts] == ["a"]


@pytest.mark.parametrize("name", "abcd")
def test_a_node_that_holds_the_only_slot_by_its_cordon_is_the_canary(name: str) -> None:
    nodes = [cordoned(each) if each == name else node(each) for each in "abcd"]
    failed = {each.name: entry(each, "Failed", revision="old") for each in nodes}
    made = planned(task(drain=Drain(), parallelism=1, canary=SOAK), nodes, entries=failed)
    assert [report.node.name for report in made.drains] == [name]


def test_a_failed_node_that_stays_cordoned_holds_up_no_other_domain() -> None:
    nodes = [cordoned("a", "a"), msgspec.structs.replace(node("b"), labels={ZONE: "b"})]
    failed = {"a": entry(nodes[0], "Failed")}
    made = planned(task(drain=Drain(), parallelism=2, topology_key=ZONE), nodes, entries=failed)
    assert [start.node_name for start in made.launch.cordons] == ["b"]


def test_no_decision_outlives_the_soak() -> None:
    done = node("a")
    entries, rules = {"a": entry(done, finished_at=int(NOW - 9))}, EligibilityRules(TEMPLATE)
    kept: dict[str, Any] = {"entries": entries, "eligibility_rules": rules, "decision_cache": DecisionCache()}
    for past, soaking in (("", 1), (f"{REVISION}/-/-", 0)):
        of = task(canary=SOAK, status=Status(passed_canary=past))
        assert planned(of, [done], **kept).nodes.resting == soaking


def test_a_resume_excuses_a_failure_of_a_clock_that_is_ahead() -> None:
    nodes, ahead = [node("a"), node("b")], int(NOW + 50)
    retry = {"a": entry(nodes[0], "Retry", attempts=1, finished_at=int(NOW), failing_since=ahead)}
    stamp = stamp_of(forecast(snapshot(task(canary=SOAK), nodes, entries=retry)))
    assert (parse_time(stamp) or 0) > ahead


def test_a_plan_shows_the_domain_that_is_at_work_first() -> None:
    zones = {"x": "b", "y": "a", "z": "b"}
    nodes = [msgspec.structs.replace(node(name), labels={ZONE: zone}) for name, zone in zones.items()]
    found = forecast(snapshot(task(topology_key=ZONE, parallelism=1), nodes, [pod(nodes[0])]))
    assert found.turns == {"z": 1, "y": 2}


@pytest.mark.parametrize(
    ("own", "ago", "ready", "reason", "released"),
    [
        (0, 5, True, "CanarySoaking", True),
        (60, 59, True, "MinSuccessSeconds", False),
        (60, 61, True, "CanarySoaking", True),
        (60, 61, False, "MinSuccessSeconds", False),
        (600, 61, True, "MinSuccessSeconds", False),
    ],
)
def test_a_drained_canary_soaks_with_its_workloads(
    own: int, ago: int, ready: bool, reason: str, released: bool
) -> None:
    """It is uncordoned as without a canary, after minSuccessSeconds, and keeps its slot."""
    drained = node("a", unschedulable=True, cordon=MARK, ready=ready, ready_since=NOW - 3600 * ready)
    of = task(drain=Drain(), parallelism=1, canary=SOAK, min_success_seconds=own)
    ended = {"a": entry(drained, finished_at=int(NOW - ago))}
    made = planned(of, [drained, node("b")], entries=ended)
    (slot,) = status_of(snapshot(of, [drained], entries=ended), made, Outcome()).slots.holders
    assert slot.reason == reason
    assert bool(made.releases) == released
    assert (made.launch.starts, made.launch.cordons) == ((), ())
    if not released and ready:
        assert made.wake == NOW - ago + own
