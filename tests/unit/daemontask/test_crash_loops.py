"""Containers that the kubelet restarts in place: as in a Job, that is bounded by backoffLimit."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest

from caretaker.api.names import LABEL_REVISION
from caretaker.api.objects import ContainerEnd, Node, Pod
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.task_state import SpecCache
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import NOW, UID, entry, node, planned, started, states, task
from unit.daemontask.kubelet_status import CRASHING, PULLING, RUNNING, container, ended, reported_pod

A, B = node("a"), node("b")
NEVER: Final = {"restartPolicy": "Never"}
ON_FAILURE: Final = {"restartPolicy": "OnFailure"}


def crashed(restarts: int, *, seq: int = 1, waits: bool = True, **changes: Any) -> Pod:
    """Its container has failed once more than it was restarted, or runs again."""
    state = CRASHING if waits else RUNNING
    main = container(state, restarts=restarts, last=ended(3))
    found = reported_pod(A, seq, spec=ON_FAILURE, phase="Running", containerStatuses=[main])
    return msgspec.structs.replace(found, **changes)


def look(pod: Pod, before: Entry | None = None, **spec: Any) -> Plan:
    return planned(task(parallelism=1, **spec), [A, B], [pod], {"a": before} if before else {})


@pytest.mark.parametrize(
    ("limit", "pod", "over"),
    [
        pytest.param(3, crashed(2), False, id="its third failure of four"),
        pytest.param(3, crashed(3, waits=False), False, id="its last retry runs"),
        pytest.param(3, crashed(3), True, id="its last retry has failed"),
        pytest.param(3, crashed(4, waits=False), True, id="and was restarted before anybody looked"),
        pytest.param(0, crashed(0), True, id="no retry is allowed"),
        pytest.param(0, crashed(0, waits=False), False, id="no failure"),
        pytest.param(3, crashed(9, deletion=NOW), False, id="it is being deleted"),
    ],
)
def test_failures_in_one_pod_count_towards_the_limit(limit: int, pod: Pod, over: bool) -> None:
    """As many runs of the container as with restartPolicy Never."""
    result = look(pod, backoff_limit=limit)
    assert [record.reason for record in result.records.values()] == ["BackoffLimitExceeded"] * over


def test_a_run_that_is_over_the_limit_is_recorded_and_its_pod_goes_after_that() -> None:
    pod = crashed(4, waits=False)
    first = look(pod)
    record = first.records["a"]
    assert (first.deletes, started(first)) == ((), [])
    assert (record.result, record.attempts, record.exit_code) == ("Failed", 4, 3)
    assert record.message == "failed 4 times, backoffLimit is 3; last: Error, container main exited 3"
    assert (record.pod_uid, record.seq, record.finished_at) == (pod.uid, 1, int(NOW))

    second = look(pod, record)
    assert (second.deletes, second.records) == ((pod,), {})
    assert (states(second), started(second)) == ({"failed": 1, "pending": 1}, []), "its slot is still taken"

    going = msgspec.structs.replace(pod, deletion=NOW + 20)
    third = look(going, record)
    assert (third.deletes, states(third), started(third)) == ((), {"failed": 1, "pending": 1}, [])

    gone = planned(task(parallelism=1), [A, B], [], {"a": record})
    assert (states(gone), started(gone)) == ({"failed": 1, "pending": 1}, ["b"])


@pytest.mark.parametrize(
    ("crash", "code", "last"),
    [
        pytest.param(None, None, "", id="the kubelet has forgotten how it ended"),
        pytest.param(ContainerEnd("main", 3), 3, "; last: Error, container main exited 3", id="a code"),
        pytest.param(
            ContainerEnd("main", 137, "OOMKilled", "no memory"),
            137,
            "; last: OOMKilled, no memory",
            id="words",
        ),
    ],
)
def test_how_it_last_failed_is_recorded(crash: ContainerEnd | None, code: int | None, last: str) -> None:
    record = look(crashed(3, crash=crash)).records["a"]
    assert (record.exit_code, record.message) == (code, f"failed 4 times, backoffLimit is 3{last}")


def test_one_that_ends_while_it_is_deleted_is_not_judged_again() -> None:
    record = look(crashed(4)).records["a"]
    killed = crashed(4, phase="Failed", deletion=NOW + 20, finished=NOW)
    assert look(killed, record).records == {}


def test_a_view_of_the_past_costs_no_recorded_pod_its_life() -> None:
    """What is recorded as ended otherwise ended: the Pod is only shown alive still."""
    result = look(crashed(4), entry(A, "Failed", reason="Error"))
    assert result.deletes == ()


def test_a_node_that_is_wanted_again_waits_until_the_pod_is_gone() -> None:
    pod = crashed(4)
    record = look(pod).records["a"]
    again = {"annotations": {"caretaker.dev/rerun-at": "2030-01-01T00:00:00Z"}}
    result = look(pod, record, **again)
    assert (result.deletes, [r.decision.reason for r in result.nodes.blocked]) == (
        (pod,),
        ["PredecessorTerminating"],
    )
    assert started(planned(task(**again), [A], [], {"a": record})) == ["a"]


@pytest.mark.parametrize(
    ("spec", "status", "failures", "waiting"),
    [
        pytest.param(
            ON_FAILURE,
            {
                "phase": "Running",
                "initContainerStatuses": [container(RUNNING, "setup", restarts=2)],
                "containerStatuses": [container(CRASHING, restarts=3), container(RUNNING, "x", restarts=1)],
            },
            7,
            "CrashLoopBackOff",
            id="with OnFailure all containers, as batch/v1 adds them up",
        ),
        pytest.param(
            ON_FAILURE,
            {"phase": "Pending", "initContainerStatuses": [container(CRASHING, "setup", restarts=1)]},
            2,
            "CrashLoopBackOff",
            id="an init container",
        ),
        pytest.param(
            NEVER,
            {
                "phase": "Running",
                "initContainerStatuses": [container(CRASHING, "sidecar", restarts=7)],
                "containerStatuses": [container(RUNNING)],
            },
            0,
            "",
            id="with Never no sidecar, which keeps nothing from its end",
        ),
        pytest.param(
            NEVER,
            {"phase": "Running", "containerStatuses": [container(CRASHING, restarts=7)]},
            8,
            "CrashLoopBackOff",
            id="with Never a container with a policy of its own",
        ),
        pytest.param(
            ON_FAILURE,
            {"phase": "Pending", "containerStatuses": [container(PULLING, made=False)]},
            0,
            "ContainerCreating",
            id="none",
        ),
    ],
)
def test_what_counts(spec: dict[str, str], status: dict[str, Any], failures: int, waiting: str) -> None:
    found = reported_pod(A, spec=spec, **status)
    assert (found.failures, found.waiting) == (failures, waiting)


@pytest.mark.parametrize(
    ("state", "policy", "way"),
    [
        pytest.param({"waiting": "CrashLoopBackOff"}, "Forbid", True, id="in CrashLoopBackOff"),
        pytest.param(
            {"waiting": "CrashLoopBackOff", "phase": "Pending"}, "Forbid", True, id="an init container is"
        ),
        pytest.param({"waiting": ""}, "Forbid", False, id="hung: it finishes first, or its deadline ends it"),
        pytest.param({"waiting": ""}, "Replace", True, id="hung, and whatever is active is replaced"),
        pytest.param({"waiting": "ImagePullBackOff"}, "Forbid", False, id="one of its containers runs"),
    ],
)
def test_what_makes_way_for_a_changed_template(state: dict[str, str], policy: str, way: bool) -> None:
    pod = crashed(0, waits=False, **state)
    old = msgspec.structs.replace(pod, labels={**pod.labels, LABEL_REVISION: "old"}, failures=0)
    result = look(old, concurrency_policy=policy)
    assert result.deletes == (old,) * way
    same = look(msgspec.structs.replace(pod, failures=0), concurrency_policy=policy)
    assert same.deletes == ()


@pytest.fixture
def hears() -> Callable[[Pod, Pod], bool]:
    """Whether a change of a Pod brings a pass of a task with backoffLimit 3."""
    keys: list[Any] = []
    pods = Store[Pod]()
    handlers = WatchHandlers(Store[Node](), pods, lambda key, **_: keys.append(key))
    state = handlers.task_states.of(Key("DaemonTask", "default", "task"), UID)
    state.spec = SpecCache(backoff_limit=3, revision=crashed(0).labels[LABEL_REVISION])

    def changed(old: Pod, new: Pod) -> bool:
        pods.apply(old, pods.version + 1)
        keys.clear()
        pods.apply(new, pods.version + 1)
        return bool(keys)

    return changed


def test_a_pass_comes_when_the_limit_is_crossed_and_at_no_restart_before(
    hears: Callable[[Pod, Pod], bool],
) -> None:
    below = [crashed(n, waits=waits) for n in range(3) for waits in (False, True)]
    assert not any(hears(old, new) for old, new in pairwise([*below, crashed(3, waits=False)]))
    assert hears(crashed(3, waits=False), crashed(3))
    assert not hears(crashed(3), crashed(4, waits=False))


def test_a_pass_comes_when_one_of_an_older_template_begins_to_wait(hears: Callable[[Pod, Pod], bool]) -> None:
    labels = {**crashed(0).labels, LABEL_REVISION: "old"}
    assert hears(crashed(1, waits=False, labels=labels), crashed(1, labels=labels))
