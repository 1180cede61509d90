"""What a node needs that has a Pod which has not ended: each field of the decision about it."""

from typing import Any, Final

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.objects import Pod
from caretaker.daemontask.decision import Decision
from caretaker.daemontask.node_eligibility import FITS, Eligibility
from unit.daemontask.build import NOW, REVISION, node, pod
from unit.daemontask.test_node import DEADLINE, A, decided

UNREADY: Final = node("a", ready=False, ready_since=NOW - 60)
LOST: Final = node("a", ready=False, ready_since=NOW - DEADLINE)
NAME: Final = pod(A).name
WAITING: Final = {"phase": "Pending"}
UNPLACED: Final = {"phase": "Pending", "node_name": ""}
FULL: Final = {**UNPLACED, "unschedulable": "0/3 nodes: Too many pods", "unschedulable_since": NOW - 9}
GOING: Final = {"deletion": NOW + 21, "deletion_asked": NOW - 9}


@pytest.mark.parametrize(
    ("of", "decision"),
    [
        pytest.param({}, Decision("active", "Running", since=NOW - 60, slot=True), id="it runs"),
        pytest.param(
            WAITING,
            Decision("active", "Starting", since=NOW - 60, slot=True, wake=NOW - 60 + DEADLINE),
            id="it starts",
        ),
        pytest.param(
            {**WAITING, "waiting": "ErrImagePull", "created": NOW - DEADLINE},
            Decision("active", "ErrImagePull", since=NOW - DEADLINE, slot=True),
            id="its start is late now",
        ),
        pytest.param(
            UNPLACED,
            Decision("active", "Scheduling", since=NOW - 60, slot=True, wake=NOW - 60 + DEADLINE),
            id="it is not scheduled yet",
        ),
        pytest.param(
            FULL,
            Decision(
                "blocked",
                "TooManyPods",
                "0/3 nodes: Too many pods",
                since=NOW - 9,
                slot=True,
                slot_until=NOW - 60 + DEADLINE,
                wake=NOW - 60 + DEADLINE,
            ),
            id="its node is full",
        ),
        *(
            pytest.param(
                {**UNPLACED, "unschedulable": "no cpu", "unschedulable_since": at},
                Decision(
                    "blocked",
                    "Unschedulable",
                    "no cpu",
                    since=NOW - 60,
                    slot=True,
                    slot_until=NOW - 60 + DEADLINE,
                    wake=NOW - 60 + DEADLINE,
                ),
                id=f"nobody knows since when it cannot be scheduled ({at:.0f})",
            )
            for at in (0.0, NOW + 9)
        ),
    ],
)
def test_a_pod_that_stays(of: dict[str, Any], decision: Decision) -> None:
    assert decided(None, pod(A, **of)) == decision


@pytest.mark.parametrize(
    ("of", "eligibility", "decision"),
    [
        pytest.param(
            {**UNPLACED, "created": NOW - DEADLINE},
            FITS,
            Decision("blocked", "Unschedulable", "not scheduled", since=NOW - DEADLINE),
            id="it was not scheduled in time",
        ),
        pytest.param(
            {**FULL, "created": NOW - DEADLINE},
            FITS,
            Decision("blocked", "Unschedulable", "0/3 nodes: Too many pods", since=NOW - DEADLINE),
            id="it could not be scheduled in time",
        ),
        pytest.param(
            UNPLACED,
            Eligibility("excluded", "NotSelected", "no label", 7.0),
            Decision("excluded", "NotSelected", "no label", since=7),
            id="its node is no longer selected",
        ),
        pytest.param(
            UNPLACED,
            Eligibility("blocked", "Cordoned", "by hand", 7.0),
            Decision("blocked", "Cordoned", "by hand", since=7),
            id="its node is cordoned",
        ),
        pytest.param(
            {**UNPLACED, "unschedulable": "no cpu", "revision": "old"},
            FITS,
            Decision(
                "pending",
                "TemplateChanged",
                f"Pod {NAME} cannot start or end and makes way for the changed template",
                outdated=True,
            ),
            id="the template has changed",
        ),
        pytest.param(
            {**WAITING, "waiting": "ErrImagePull", "revision": "old"},
            FITS,
            Decision(
                "pending",
                "TemplateChanged",
                f"Pod {NAME} cannot start or end and makes way for the changed template",
                slot=True,
                outdated=True,
            ),
            id="the template has changed, and it has a node",
        ),
        pytest.param(
            {**WAITING, "waiting": "CreateContainerConfigError", "revision": f"{REVISION}-old"},
            FITS,
            Decision(
                "pending",
                "TemplateChanged",
                f"Pod {NAME} cannot start or end and makes way for the changed data",
                slot=True,
                outdated=True,
            ),
            id="the data has changed: a key that its container needs is there now",
        ),
    ],
)
def test_a_pod_that_is_deleted(of: dict[str, Any], eligibility: Eligibility, decision: Decision) -> None:
    found = pod(A, **of)
    assert decided(None, found, eligibility=eligibility) == msgspec.structs.replace(decision, delete=(found,))


def test_a_pod_without_a_node_stays_while_its_node_is_blocked_otherwise() -> None:
    found = decided(None, pod(A, **UNPLACED), eligibility=Eligibility("blocked", "NodeNotReady"))
    assert (found.reason, found.delete) == ("Scheduling", ())


@pytest.mark.parametrize(("revision", "failing"), [({}, NOW - DEADLINE), ({"revision": "old"}, 0.0)])
@pytest.mark.parametrize(
    ("of", "decision"),
    [
        pytest.param(
            {},
            Decision("blocked", "NodeNotReady", f"Pod {NAME} may still run there", since=NOW - DEADLINE),
            id="it ran",
        ),
        pytest.param(
            GOING,
            Decision(
                "blocked",
                "PredecessorTerminating",
                f"waiting for Pod {NAME} to go",
                since=NOW - 9,
                wake=NOW - 9 + DEADLINE,
            ),
            id="it was being deleted",
        ),
    ],
)
def test_a_pod_on_a_lost_node(
    of: dict[str, Any], decision: Decision, revision: dict[str, str], failing: float
) -> None:
    found = decided(None, pod(LOST, created=NOW - 9000, **of, **revision), at=LOST)
    assert found == msgspec.structs.replace(decision, failing=failing, outdated=bool(revision))


def test_a_pod_on_a_node_that_is_not_ready() -> None:
    until = NOW - 60 + DEADLINE
    assert decided(None, pod(UNREADY, created=NOW - 90), at=UNREADY) == Decision(
        "active", "NodeNotReady", since=NOW - 60, slot=True, slot_until=until, wake=until
    )


@pytest.mark.parametrize(
    ("at", "asked", "until", "wake"),
    [
        pytest.param(A, NOW - 9, 0, NOW - 9 + DEADLINE, id="it is late then"),
        pytest.param(A, NOW - DEADLINE, 0, 0, id="it is late now"),
        pytest.param(UNREADY, NOW - 9, NOW - 60 + DEADLINE, NOW - 60 + DEADLINE, id="its node is lost then"),
        pytest.param(UNREADY, NOW - 90, NOW - 60 + DEADLINE, NOW - 90 + DEADLINE, id="late, then lost"),
    ],
)
def test_pods_that_are_being_deleted(at: Any, asked: float, until: float, wake: float) -> None:
    """Of two the one whose grace period ends last."""
    last = pod(A, 2, created=NOW - 90, deletion=NOW + 30, deletion_asked=asked)
    assert decided(None, pod(A, 1, deletion=NOW + 20), last, at=at) == Decision(
        "blocked",
        "PredecessorTerminating",
        f"waiting for Pod {last.name} to go",
        since=asked,
        slot=True,
        slot_until=until,
        wake=wake,
    )


def unasked(of: Pod) -> Pod:
    del of.annotations[names.POD_NONCE]
    return of


@pytest.mark.parametrize(("asked", "replaced"), [("", False), ("2026-01-01T00:00:00Z", True)])
def test_a_pod_that_says_of_no_re_run_was_started_for_none(asked: str, replaced: bool) -> None:
    live = unasked(pod(A))
    found = decided(None, live, spec={"concurrency_policy": "Replace"}, rerun_at=asked)
    assert found.replace == (live if replaced else None)
