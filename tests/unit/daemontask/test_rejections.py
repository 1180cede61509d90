"""Pods that the kubelet ended before it created any container: never counted, whatever the reason."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api.daemontask import FailureRule, OnPodCondition, PodFailurePolicy
from caretaker.api.objects import Pod
from caretaker.daemontask.ledger import Entry
from testing.examples import examples
from unit.daemontask.build import NOW, entry, failed, node, planned, started, states, task
from unit.daemontask.kubelet_status import CRASHING, LOST, PULLING, container, ended, reported_pod

A, B = node("a"), node("b")
EVICTED: Final = {
    "reason": "Evicted",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
}
COLLECTED: Final = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]
REASONS: Final = (
    "NodeShutdown",
    "TopologyAffinityError",
    "SysctlForbidden",
    "PodOSNotSupported",
    "OutOfcpu",
    "NodeAffinity",
    "UnexpectedAdmissionError",
    "VolumeAttachmentLimitExceeded",
    "AReasonOf2031",
)


def recorded(pod: Pod, before: Entry | None = None, **spec: Any) -> Entry:
    return planned(task(**spec), [A], [pod], {"a": before} if before else {}).records["a"]


def rejected(seq: int = 1, at: float = NOW, reason: str = "Evicted") -> Pod:
    return msgspec.structs.replace(
        reported_pod(A, seq, phase="Failed", reason=reason, message="no room"), finished=at
    )


@pytest.mark.parametrize("limit", [0, 3])
@pytest.mark.parametrize(
    "status",
    [
        pytest.param(
            {"reason": "Evicted", "message": "The node had condition: [DiskPressure]. "}, id="DiskPressure"
        ),
        *(pytest.param({"reason": reason}, id=reason) for reason in REASONS),
        pytest.param({}, id="no reason at all"),
        pytest.param(
            {**EVICTED, "containerStatuses": [container(PULLING, made=False)]},
            id="evicted while its image was pulled",
        ),
        pytest.param(
            {**EVICTED, "containerStatuses": [container(LOST, made=False)]},
            id="the same, when the kubelet has given the container up",
        ),
    ],
)
def test_a_pod_of_which_no_container_was_created_counts_nothing(status: dict[str, Any], limit: int) -> None:
    found = recorded(reported_pod(A, phase="Failed", **status), backoff_limit=limit)
    assert (found.result, found.attempts, found.disruptions, found.rejections) == ("Retry", 0, 0, 1)
    assert found.reason == status.get("reason", "Rejected")


@pytest.mark.parametrize(
    ("status", "counted", "disrupted"),
    [
        pytest.param({**EVICTED, "containerStatuses": [container(ended(137))]}, 0, 1, id="evicted as it ran"),
        pytest.param(
            {
                **EVICTED,
                "initContainerStatuses": [container(ended(0), "setup")],
                "containerStatuses": [container(LOST, made=False)],
            },
            0,
            1,
            id="evicted after its init container",
        ),
        pytest.param(
            {**EVICTED, "containerStatuses": [container(LOST)]}, 0, 1, id="evicted, its container lost"
        ),
        pytest.param(
            {**EVICTED, "containerStatuses": [container(CRASHING, made=False, last=ended())]},
            0,
            1,
            id="evicted before a restart",
        ),
        pytest.param(
            {**EVICTED, "containerStatuses": [container(CRASHING, made=False, restarts=1)]},
            0,
            1,
            id="the same, when the kubelet has forgotten how it ended",
        ),
        pytest.param(
            {"reason": "DeadlineExceeded", "containerStatuses": [container(PULLING, made=False)]},
            1,
            0,
            id="ended by its own deadline before its image came, which batch/v1 counts",
        ),
        pytest.param({"reason": "DeadlineExceeded"}, 1, 0, id="the same, without a word of containers"),
        pytest.param({"conditions": COLLECTED}, 0, 1, id="collected: its kubelet may have begun it"),
        pytest.param({"containerStatuses": [container(ended())]}, 1, 0, id="failed"),
        pytest.param(
            {"containerStatuses": [container(LOST, made=False)]}, 1, 0, id="lost, as after a reboot"
        ),
    ],
)
def test_what_was_begun_or_ended_by_others_is_no_rejection(
    status: dict[str, Any], counted: int, disrupted: int
) -> None:
    found = recorded(reported_pod(A, phase="Failed", **status))
    assert (found.attempts, found.disruptions, found.rejections) == (counted, disrupted, 0)


@pytest.mark.parametrize("made", [True, False])
def test_a_pod_that_was_deleted_before_it_started_was_deleted(made: bool) -> None:
    gone = reported_pod(A, phase="Failed", containerStatuses=[container(LOST, made=made)])
    found = recorded(msgspec.structs.replace(gone, deletion=NOW))
    assert (found.reason, found.disruptions, found.rejections) == ("Deleted", 1, 0)


def test_no_rule_counts_it() -> None:
    rule = FailureRule("FailJob", on_pod_conditions=(OnPodCondition("DisruptionTarget"),))
    found = recorded(reported_pod(A, phase="Failed", **EVICTED), pod_failure_policy=PodFailurePolicy((rule,)))
    assert (found.result, found.rejections, found.fail_task) == ("Retry", 1, False)


def test_with_at_most_once_it_has_failed() -> None:
    """A kubelet that restarts rejects in the same words Pods that have run."""
    found = recorded(reported_pod(A, phase="Failed", **EVICTED), run_guarantee="AtMostOnce", backoff_limit=0)
    assert (found.result, found.reason) == ("Failed", "Evicted")


@pytest.mark.parametrize(
    ("before", "row"),
    [
        pytest.param({"rejections": 2}, (3, 50), id="it began with the first"),
        pytest.param({"attempts": 1}, (1, int(NOW)), id="after a failure it begins anew"),
        pytest.param({"rejections": 2, "run_key": "x"}, (1, int(NOW)), id="those of another run"),
    ],
)
def test_rejections_in_a_row_are_counted_since_the_first(
    before: dict[str, Any], row: tuple[int, int]
) -> None:
    """Since its end: its Pod, 60 s old, may have waited for a node that long."""
    found = recorded(rejected(2), entry(A, "Retry", **{"started_at": 50, **before}))
    assert (found.rejections, found.started_at) == row
    assert (found.reason, found.message) == ("Evicted", "no room")


def test_its_node_is_blocked_in_the_kubelets_words_and_holds_no_slot() -> None:
    of = entry(A, "Retry", rejections=2, reason="OutOfcpu", message="no room", finished_at=int(NOW - 5))
    of = msgspec.structs.replace(of, started_at=int(NOW - 40))
    result = planned(task(parallelism=1), [A, B], [], {"a": of})
    (blocked,) = result.nodes.blocked
    assert (blocked.decision.reason, blocked.decision.message) == ("OutOfcpu", "no room")
    assert (blocked.decision.since, result.wake) == (NOW - 40, NOW + 15)
    assert started(result) == ["b"]


def test_a_changed_template_does_not_wait_for_its_backoff() -> None:
    of = entry(A, "Retry", revision="old", rejections=9, reason="OutOfcpu", finished_at=int(NOW - 5))
    assert started(planned(task(), [A], [], {"a": of})) == ["a"]


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.sampled_from(["reject", "fail", "disrupt"]), max_size=40), st.integers(0, 3))
def test_whatever_comes_between_only_what_ran_counts(history: list[str], limit: int) -> None:
    """Rejections change neither whether nor when a node has failed; and none is final."""
    before, rejections, counted, now, since = None, 0, 0, NOW, 0.0
    for seq, what in enumerate(history, 1):
        pod = rejected(seq, now)
        if what == "fail":
            pod = failed(A, seq, finished=now)
        elif what == "disrupt":
            pod = failed(A, seq, finished=now, conditions=(("DisruptionTarget", "True", "x"),))
        counted += what == "fail"
        rejections = rejections + 1 if what == "reject" else 0
        since = now if rejections == 1 else since
        result = planned(task(backoff_limit=limit), [A], [pod], {"a": before} if before else {}, now=now)
        found = result.records["a"]
        assert (found.attempts, found.rejections) == (counted, rejections)
        if found.result == "Failed":
            assert what != "reject"
            assert counted > limit or found.reason == "TooManyDisruptions"
            break
        assert counted <= limit
        waits = planned(task(backoff_limit=limit), [A], [], {"a": found}, now=now)
        assert states(waits) == ({"blocked": 1} if rejections else {"pending": 1})
        assert [report.decision.since for report in waits.nodes.blocked] == [int(since)] * (rejections > 0)
        assert 10 <= waits.wake - now <= 600
        before, now = found, waits.wake
