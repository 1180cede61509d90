"""How a Pod that ended is recorded: each field of its entry, and what counts as a failure."""

from typing import Any, Final, Literal

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import FailureRule, OnExitCodes, OnPodCondition, PodFailurePolicy
from caretaker.api.objects import ContainerEnd, Node, Pod
from caretaker.api.times import past
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.pod_failure_policy import (
    MAX_DISRUPTIONS,
    OWN_REBOOT_SECONDS,
    REBOOT_WINDOW,
    absorb_own_reboot,
    entry_for,
    reboot_loop,
)
from caretaker.daemontask.pods import run_key
from unit.daemontask.build import NOW, REVISION, UID, decision_input, entry, failed, node, succeeded

A = node("a")
REBOOTS: Final = ("TemplateChange", "NodeReboot")
ANOTHER_RUN: Final = {names.POD_RUN_KEY: "another"}
DISRUPTED: Final = (("DisruptionTarget", "True", "EvictionByEvictionAPI"),)


def recorded(pod: Pod, before: Entry | None = None, **spec: Any) -> Entry:
    return entry_for(decision_input(**spec), pod, A, before)


# ---------------------------------------------------------------- what an entry says


def test_what_a_pod_does_not_say_is_empty() -> None:
    bare = msgspec.structs.replace(succeeded(A, 4), annotations={names.POD_SEQ: "4"}, labels={})
    assert recorded(bare) == Entry(
        node_uid="",
        revision="",
        run_key="",
        result="Succeeded",
        seq=4,
        pod_uid="pod-a-4",
        started_at=int(NOW - 60),
        finished_at=int(NOW - 5),
    )


@pytest.mark.parametrize(
    ("pod", "carried"),
    [
        pytest.param(failed(A, 2), (2, 1, 50), id="a failure is one more"),
        pytest.param(failed(A, 2, conditions=DISRUPTED), (1, 2, 50), id="a disruption is one more"),
        pytest.param(failed(A, 2, ends=(), reason="OutOfcpu"), (1, 1, 50), id="a rejection counts nothing"),
        pytest.param(succeeded(A, 2), (1, 0, 0), id="a success keeps the failures alone"),
        pytest.param(failed(A, 2, marks=ANOTHER_RUN), (1, 0, int(NOW - 5)), id="another run begins anew"),
        pytest.param(
            failed(A, 2, marks=ANOTHER_RUN, conditions=DISRUPTED),
            (0, 1, 0),
            id="a run that was only disrupted has not been failing",
        ),
    ],
)
def test_what_is_carried_on_from_the_attempt_before(pod: Pod, carried: tuple[int, int, int]) -> None:
    before = entry(A, "Retry", attempts=1, disruptions=1, failing_since=50)
    found = recorded(pod, before)
    assert (found.attempts, found.disruptions, found.failing_since) == carried


@pytest.mark.parametrize(
    ("trigger", "marks", "runs"),
    [
        ("NodeReboot", ANOTHER_RUN, (7, int(NOW - 60))),
        ("NodeReboot", {}, (7,)),
        ("TemplateChange", ANOTHER_RUN, (7,)),
    ],
    ids=["a reboot started it", "recorded before", "a change started it"],
)
def test_runs_that_reboots_started_are_counted_once(
    trigger: str, marks: dict[str, str], runs: tuple[int, ...]
) -> None:
    pod = succeeded(A, 2, marks={names.POD_TRIGGER: trigger, **marks})
    assert recorded(pod, entry(A, "Retry", reboot_runs=(7,))).reboot_runs == runs


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        pytest.param(
            {"deletion": NOW}, ("Deleted", "the Pod was deleted while it ran", 1), id="a deletion killed it"
        ),
        pytest.param(
            {"deletion": NOW, "ends": ()},
            ("Deleted", "the Pod was deleted while it ran", None),
            id="the same, without a word of containers",
        ),
        pytest.param({"reason": "Evicted", "message": "no room"}, ("Evicted", "no room", 1), id="evicted"),
        pytest.param(
            {"reason": "DeadlineExceeded", "message": "too long", "ends": ()},
            ("DeadlineExceeded", "too long", None),
            id="ended by its own deadline, without a word of containers",
        ),
        pytest.param(
            {"ends": (ContainerEnd("main", 0),), "message": "no idea"},
            ("PodFailed", "no idea", None),
            id="no container failed, and nothing says why",
        ),
        pytest.param(
            {
                "ends": (),
                "conditions": (
                    ("PodScheduled", "True", "no"),
                    ("DisruptionTarget", "False", "no"),
                    ("DisruptionTarget", "True", "DeletionByPodGC"),
                ),
            },
            ("DeletionByPodGC", "", None),
            id="a condition says why",
        ),
        pytest.param(
            {"ends": (), "conditions": (("DisruptionTarget", "True", ""),)},
            ("PodFailed", "", None),
            id="a condition without a reason",
        ),
        pytest.param(
            {"ends": (ContainerEnd("main", 3, "Error", "a\x00b\n"),)},
            ("Error", "a b", 3),
            id="what cannot be printed is a space",
        ),
        pytest.param(
            {"reason": "x" * 65, "message": "x" * 200},
            ("x" * 64, "x" * 200, 1),
            id="as long as there is room",
        ),
        pytest.param(
            {"reason": "é" * 33, "message": "é" * 199}, ("é" * 32, "é" * 100, 1), id="room is for bytes"
        ),
    ],
)
def test_the_cause_that_is_recorded(changes: dict[str, Any], cause: tuple[str, str, int | None]) -> None:
    found = recorded(failed(A, **changes))
    assert (found.reason, found.message, found.exit_code) == cause


# ---------------------------------------------------------------- what counts


@pytest.mark.parametrize(("before", "final"), [(MAX_DISRUPTIONS - 1, False), (MAX_DISRUPTIONS, True)])
def test_disruptions_are_not_ignored_without_end(before: int, final: bool) -> None:
    found = recorded(failed(A, 2, conditions=DISRUPTED), entry(A, "Retry", disruptions=before))
    assert (found.result, found.reason, found.message) == (
        ("Failed", "TooManyDisruptions", "last: Error. container main exited 1")
        if final
        else ("Retry", "Error", "container main exited 1")
    )


def codes(operator: Literal["In", "NotIn"], *values: int, of: str | None = None) -> dict[str, Any]:
    return {"on_exit_codes": OnExitCodes(operator, values, of)}


def condition(status: Literal["True", "False"] = "True") -> dict[str, Any]:
    return {"on_pod_conditions": (OnPodCondition("Other"), OnPodCondition("Quota", status))}


THREE: Final = {"ends": (ContainerEnd("setup", 0), ContainerEnd("main", 3))}
QUOTA: Final = {"conditions": (("Quota", "True", ""), ("Other", "False", ""))}


@pytest.mark.parametrize(
    ("rule", "of", "matches"),
    [
        pytest.param(codes("In", 3), THREE, True, id="In: it is"),
        pytest.param(codes("In", 1), {}, True, id="In: it is 1"),
        pytest.param(codes("In", 4), THREE, False, id="In: it is not"),
        pytest.param(codes("NotIn", 4), THREE, True, id="NotIn: it is not"),
        pytest.param(codes("NotIn", 3), THREE, False, id="NotIn: it is, and 0 is left out"),
        pytest.param(codes("In", 3, of="main"), THREE, True, id="of that container"),
        pytest.param(codes("In", 3, of="setup"), THREE, False, id="of another container"),
        pytest.param(codes("In", 3, of=""), THREE, True, id="an empty name is any container's"),
        pytest.param(condition(), QUOTA, True, id="that condition"),
        pytest.param(condition("False"), QUOTA, False, id="that condition, with another status"),
        pytest.param(condition(), {"conditions": DISRUPTED}, False, id="another condition"),
    ],
)
def test_which_failures_a_rule_matches(rule: dict[str, Any], of: dict[str, Any], matches: bool) -> None:
    policy = PodFailurePolicy((FailureRule("Ignore", **rule),))
    found = recorded(failed(A, **of), pod_failure_policy=policy)
    assert (found.attempts, found.disruptions) == ((0, 1) if matches else (1, 0))


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("FailJob", ("Failed", 1, 0, True)),
        ("FailIndex", ("Failed", 1, 0, False)),
        ("Ignore", ("Retry", 0, 1, False)),
        ("Count", ("Retry", 1, 0, False)),
    ],
)
def test_the_first_rule_that_matches_says_what_follows(
    action: Any, outcome: tuple[str, int, int, bool]
) -> None:
    """A Pod that was disrupted, too."""
    unlike = FailureRule("FailJob" if action != "FailJob" else "Ignore", **codes("In", 4))
    last = FailureRule("Ignore" if action != "Ignore" else "FailJob", **codes("In", 3))
    policy = PodFailurePolicy((unlike, FailureRule(action, **codes("In", 3)), last))
    found = recorded(failed(A, conditions=DISRUPTED, **THREE), pod_failure_policy=policy)
    assert (found.result, found.attempts, found.disruptions, found.fail_task) == outcome


# ---------------------------------------------------------------- reboots


@pytest.mark.parametrize(
    ("ready", "began", "own"),
    [
        pytest.param(OWN_REBOOT_SECONDS, None, True, id="Ready in time"),
        pytest.param(OWN_REBOOT_SECONDS + 1, None, False, id="Ready too late"),
        pytest.param(0, None, False, id="Ready since its end: rebooted now"),
        pytest.param(0, -60, True, id="Ready since its end, recorded only now"),
        pytest.param(-60, -60, True, id="Ready since it began, recorded only now"),
        pytest.param(-61, -60, False, id="Ready since before it began"),
    ],
)
def test_which_reboot_is_the_runs_own(ready: float, began: float | None, own: bool) -> None:
    """The run ended an hour ago; `ready` and `began` are seconds from then."""
    end = NOW - 3600
    before = entry(A, boot_id="before", tick=60, finished_at=int(end))
    at = node("a", ready_since=end + ready)
    known = decision_input(rerun_on=REBOOTS, reboots_node=True)
    found = absorb_own_reboot(known, before, at, None if began is None else end + began)
    key = run_key(UID, REVISION, A.uid, "", "boot-a", 60)
    own_entry = msgspec.structs.replace(before, run_key=key, boot_id="boot-a", boot_absorbed=True)
    assert found == (own_entry if own else before)


@pytest.mark.parametrize(
    ("before", "at", "result"),
    [
        ("before", A, "Retry"),
        ("boot-a", A, "Failed"),
        ("", A, "Failed"),
        ("before", node("a", boot_id=""), "Failed"),
    ],
)
def test_a_failure_is_repeated_for_a_reboot_that_is_known(before: str, at: Node, result: str) -> None:
    known = decision_input(rerun_on=REBOOTS, backoff_limit=0)
    pod = failed(A, marks={names.POD_BOOT_ID: before})
    assert entry_for(known, pod, at, None).result == result


@pytest.mark.parametrize(("first", "loop"), [(NOW - REBOOT_WINDOW + 1, True), (NOW - REBOOT_WINDOW, False)])
def test_reboots_are_a_loop_within_six_hours(first: float, loop: bool) -> None:
    assert reboot_loop(entry(A, reboot_runs=(int(first), int(NOW - 9), int(NOW))), NOW) is loop


def test_a_moment_that_lies_ahead_is_none() -> None:
    assert (past(NOW - 1, NOW), past(NOW, NOW), past(NOW + 1, NOW)) == (NOW - 1, NOW, 0.0)
