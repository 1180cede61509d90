"""Nodes and Pods: what a decision sees of what the API server sends."""

import tracemalloc
from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.hashing import h10
from caretaker.api.objects import CONTAINER_LOST, MAX_SEQ, ContainerEnd, Node, Pod, Taint, WireNode, WirePod
from caretaker.api.times import parse_time

CREATED, BOUND, ENDED = "2026-01-31T12:00:00Z", "2026-01-31T12:00:05Z", "2026-01-31T12:01:00Z"
T_CREATED, T_BOUND, T_ENDED = (parse_time(t) or 0.0 for t in (CREATED, BOUND, ENDED))


def pod(status: dict[str, Any], spec: dict[str, Any] | None = None, **meta: Any) -> Pod:
    metadata = {"name": "p", "namespace": "d", "uid": "u", "creationTimestamp": CREATED, **meta}
    body = {"metadata": metadata, "spec": spec or {}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(body), type=WirePod).record()


def node(status: dict[str, Any], spec: dict[str, Any] | None = None, **meta: Any) -> Node:
    body = {"metadata": {"name": "n", "uid": "u", **meta}, "spec": spec or {}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(body), type=WireNode).record()


def condition(kind: str, status: str, reason: str = "", at: str = BOUND, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": at, "message": message}


def ended(
    name: str, code: int, reason: str = "", at: str | None = ENDED, message: str = ""
) -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "finishedAt": at, "message": message}
    return {"name": name, "state": {"terminated": end}}


def waits(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason}}}


def runs(name: str) -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": BOUND}}}


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        pytest.param(
            {"phase": "Pending"},
            {"phase": "Pending", "terminal": False, "finished": 0.0, "waiting": "", "unschedulable": ""},
            id="a pod that nobody has looked at yet",
        ),
        pytest.param(
            {},
            {"phase": "Pending", "terminal": False, "finished": 0.0},
            id="a pod without any status is Pending",
        ),
        pytest.param({"phase": ""}, {"phase": "Pending"}, id="and so is one with an empty phase"),
        pytest.param(
            {"phase": "Succeeded", "containerStatuses": [ended("main", 0, "Completed")]},
            {"terminal": True, "finished": T_ENDED, "ends": (ContainerEnd("main", 0, "Completed"),)},
            id="a success carries its exit code and its end",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [ended("main", 3, "Error", message="disk full")]},
            {"terminal": True, "ends": (ContainerEnd("main", 3, "Error", "disk full"),)},
            id="a failure carries its termination message",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [ended("main", 137, "OOMKilled")]},
            {"ends": (ContainerEnd("main", 137, "OOMKilled"),), "reason": ""},
            id="an OOM kill is the container's reason, not the pod's",
        ),
        pytest.param(
            {
                "phase": "Succeeded",
                "containerStatuses": [ended("fast", 0, at=BOUND), ended("slow", 0, at=ENDED)],
            },
            {"finished": T_ENDED},
            id="a pod ends with its last container",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "initContainerStatuses": [ended("setup", 1, "Error")],
                "containerStatuses": [waits("main", "PodInitializing")],
            },
            {"ends": (ContainerEnd("setup", 1, "Error", init=True),), "finished": T_ENDED},
            id="a failed init container is marked as one",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory.",
                "conditions": [condition("DisruptionTarget", "True", "TerminationByKubelet", ENDED)],
            },
            {
                "reason": "Evicted",
                "message": "The node was low on resource: memory.",
                "conditions": (("DisruptionTarget", "True", "TerminationByKubelet"),),
                "ends": (),
                "finished": T_ENDED,
            },
            id="an evicted pod without container statuses ended when its last condition changed",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"},
            {"reason": "OutOfcpu", "ends": (), "finished": T_CREATED},
            id="a pod that the kubelet refused ended when it was created",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "reason": "DeadlineExceeded",
                "containerStatuses": [ended("main", 143, at=None)],
            },
            {"reason": "DeadlineExceeded", "finished": T_CREATED},
            id="a container without an end time does not end in 1970",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "conditions": [condition("Ready", "False", at=ENDED)],
                "containerStatuses": [ended("main", 143, at=None)],
            },
            {"finished": T_ENDED},
            id="a container without an end time ended when the last condition changed",
        ),
        *(
            pytest.param(
                {"phase": "Failed", "containerStatuses": [{**ended("main", 137, CONTAINER_LOST), **trace}]},
                {"ends": (ContainerEnd("main", 137, CONTAINER_LOST, created=bool(trace)),)},
                id=f"a container whose end was not seen, with {', '.join(trace) or 'no trace'}",
            )
            for trace in (
                {},
                {"containerID": "containerd://main"},
                {"restartCount": 1},
                {"lastState": ended("main", 1)["state"]},
            )
        ),
        *(
            pytest.param(
                {
                    "phase": "Running",
                    f"{group}Statuses": [
                        runs("a"),
                        {**runs("b"), "lastState": ended("b", 3, "Error", message="m" * 257)["state"]},
                    ],
                },
                {"crash": ContainerEnd("b", 3, "Error", "m" * 256, init), "ends": ()},
                id=f"how one of {group} ended before it was started again",
            )
            for group, init in (("container", False), ("initContainer", True))
        ),
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
            {"unschedulable_since": 0.0},
            id="an unschedulable pod that does not say since when",
        ),
        pytest.param(
            {"phase": "Pending", "containerStatuses": [waits("main", "ImagePullBackOff")]},
            {"waiting": "ImagePullBackOff", "terminal": False, "ends": ()},
            id="an image that cannot be pulled",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "initContainerStatuses": [waits("setup", "ErrImagePull")],
                "containerStatuses": [waits("main", "PodInitializing")],
            },
            {"waiting": "ErrImagePull"},
            id="the init container that the others wait for is the one to name",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "conditions": [
                    condition("PodScheduled", "False", "Unschedulable", BOUND, "0/3 nodes: Too many pods.")
                ],
            },
            {"unschedulable": "0/3 nodes: Too many pods.", "unschedulable_since": T_BOUND, "finished": 0.0},
            id="an unschedulable pod carries the scheduler's words and since when",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "conditions": [condition("PodScheduled", "False", "SchedulingGated", BOUND, "2 gates")],
            },
            {"unschedulable": "", "unschedulable_since": 0.0},
            id="a gated pod is not unschedulable",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [runs("main"), ended("helper", 0)]},
            {"terminal": False, "finished": 0.0, "ends": (ContainerEnd("helper", 0),)},
            id="a pod with a container still running has not ended",
        ),
        pytest.param(
            {"phase": "Unknown"},
            {"phase": "Unknown", "terminal": False},
            id="a pod on a lost node may still run",
        ),
    ],
)
def test_pod_status(status: dict[str, Any], seen: dict[str, Any]) -> None:
    record = pod(status)
    assert {name: getattr(record, name) for name in seen} == seen


@pytest.mark.parametrize(
    ("meta", "seen"),
    [
        pytest.param(
            {"ownerReferences": [{"uid": "set"}, {"uid": "task", "controller": True}]},
            {"owner_uid": "task"},
            id="the owner is the controller, not any owner",
        ),
        pytest.param({"ownerReferences": [{"uid": "x"}]}, {"owner_uid": ""}, id="a pod without a controller"),
        pytest.param(
            {"deletionTimestamp": ENDED},
            {"deletion": T_ENDED, "deletion_asked": T_ENDED},
            id="a pod that is being deleted says until when",
        ),
        pytest.param(
            {"deletionTimestamp": ENDED, "deletionGracePeriodSeconds": 30},
            {"deletion": T_ENDED, "deletion_asked": T_ENDED - 30},
            id="its deletion was asked for a grace period before",
        ),
        pytest.param(
            {},
            {
                "name": "p",
                "namespace": "d",
                "uid": "u",
                "deletion": 0.0,
                "deletion_asked": 0.0,
                "created": T_CREATED,
                "labels": {},
            },
            id="a plain pod",
        ),
        pytest.param({"creationTimestamp": None}, {"created": 0.0}, id="a pod that was not created yet"),
        pytest.param(
            {"annotations": {names.POD_NODE_UID: "n-1", names.POD_SEQ: "7"}},
            {"node_uid": "n-1", "seq": 7},
            id="a run of ours says for which node and the how manieth",
        ),
        pytest.param({"annotations": {names.POD_SEQ: "seven"}}, {"seq": 0}, id="a sequence that is a word"),
        pytest.param({"annotations": {names.POD_SEQ: "-1"}}, {"seq": 0}, id="a negative sequence"),
        pytest.param({"annotations": {names.POD_SEQ: "٣"}}, {"seq": 0}, id="a digit of another script"),
    ],
)
def test_pod_metadata(meta: dict[str, Any], seen: dict[str, Any]) -> None:
    record = pod({}, **meta)
    assert {name: getattr(record, name) for name in seen} == seen


def test_a_bound_pod_names_its_node() -> None:
    assert pod({}, {"nodeName": "n"}).node_name == "n"
    assert pod({}).node_name == ""


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        pytest.param(
            {"conditions": [condition("MemoryPressure", "False"), condition("Ready", "True", at=ENDED)]},
            {"ready": True, "ready_since": T_ENDED},
            id="a node that is Ready says since when",
        ),
        pytest.param(
            {"conditions": [condition("Ready", "False", at=BOUND)]},
            {"ready": False, "ready_since": T_BOUND},
            id="a node that is not Ready says since when",
        ),
        pytest.param(
            {"conditions": [condition("Ready", "Unknown", "NodeStatusUnknown")]},
            {"ready": False},
            id="an unreachable node is not Ready",
        ),
        pytest.param(
            {}, {"ready": False, "ready_since": 0.0, "boot_id": ""}, id="a node that just registered"
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True"}]},
            {"ready": True, "ready_since": 0.0},
            id="a node that does not say since when it is Ready",
        ),
        pytest.param(
            {
                "conditions": [
                    condition("PIDPressure", "False", at=ENDED),
                    {"type": "Odd", "status": "Perhaps"},
                    condition("MemoryPressure", "False", at=ENDED),
                    condition("DiskPressure", "True", at=BOUND),
                    condition("Ready", "True", at=BOUND),
                    condition("Broken", "True", at="soon"),
                ]
            },
            {
                "ready": True,
                "ready_since": T_BOUND,
                "conditions": (
                    ("Broken", "True", 0.0),
                    ("DiskPressure", "True", T_BOUND),
                    ("MemoryPressure", "False", T_ENDED),
                    ("Odd", "Unknown", 0.0),
                    ("PIDPressure", "False", T_ENDED),
                ),
            },
            id="each condition has its own time, sorted, without Ready",
        ),
        pytest.param({"nodeInfo": {"bootID": "b-1"}}, {"boot_id": "b-1"}, id="a boot ID"),
        pytest.param({"nodeInfo": {}}, {"boot_id": ""}, id="a kubelet that reports no boot ID"),
    ],
)
def test_node_status(status: dict[str, Any], seen: dict[str, Any]) -> None:
    record = node(status)
    assert {name: getattr(record, name) for name in seen} == seen


def test_node_spec_and_metadata() -> None:
    taints = [{"key": "gpu", "effect": "NoSchedule", "value": "yes", "timeAdded": BOUND}]
    spec = {"unschedulable": True, "providerID": "aws:///eu-west-1a/i-1", "taints": taints}
    record = node({}, spec, labels={"a": "b"}, creationTimestamp=CREATED, deletionTimestamp=ENDED)
    assert (record.name, record.uid, record.created) == ("n", "u", T_CREATED)
    assert node({}).created == 0.0
    assert record.unschedulable
    assert record.deleting
    assert record.provider_id == "aws:///eu-west-1a/i-1"
    assert record.taints == (Taint("gpu", "NoSchedule", "yes", BOUND),)
    assert record.labels == {"a": "b"}


def test_a_heartbeat_changes_nothing() -> None:
    def beat(at: str) -> Node:
        ready = {**condition("Ready", "True"), "lastHeartbeatTime": at}
        return node({"conditions": [ready], "images": [{"sizeBytes": 1}]}, resourceVersion=at)

    assert beat(BOUND) == beat(ENDED)


def test_nulls_are_as_good_as_absent() -> None:
    assert pod({"conditions": None, "containerStatuses": None}, labels=None, annotations=None) == pod({})
    assert node({"conditions": None, "nodeInfo": None}, {"taints": None}, labels=None) == node({})


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("3", 3),
        (str(MAX_SEQ - 1), MAX_SEQ - 1),
        (str(MAX_SEQ), 0),
        ("", 0),
        ("three", 0),
        ("-1", 0),
        ("9" * 5000, 0),
        ("\u0663", 0),
    ],
    ids=[
        "ours",
        "as large as may be",
        "one more",
        "none",
        "a word",
        "negative",
        "more digits than int() takes",
        "other digits",
    ],
)
def test_a_seq_that_somebody_wrote_never_harms(text: str, seq: int) -> None:
    assert pod({}, annotations={names.POD_SEQ: text}).seq == seq


def test_of_containers_that_succeeded_the_first_message_of_the_spec_is_kept_and_bounded() -> None:
    """The kubelet sorts statuses by name; init containers and all further messages have no reader."""
    status = {
        "phase": "Succeeded",
        "initContainerStatuses": [ended("init", 0, message="init")],
        "containerStatuses": [ended(name, 0, message=text) for name, text in [("a", "2"), ("m", "1" * 9999)]]
        + [ended("z", 0, message=" ")],
    }
    spec = {"containers": [{"name": name, "image": "x"} for name in "zma"]}
    found = [(end.name, len(end.message)) for end in pod(status, spec).ends]
    assert found == [("init", 0), ("z", 1), ("m", 4096), ("a", 0)]


def test_every_container_that_failed_keeps_its_message() -> None:
    status = {
        "initContainerStatuses": [ended("i", 1, message="zero")],
        "containerStatuses": [
            ended("a", 1, message="one"),
            ended("b", 0, message="done"),
            ended("c", 2, message="two"),
        ],
    }
    assert [end.message for end in pod(status).ends] == ["zero", "one", "done", "two"]


def test_two_containers_are_in_the_order_of_the_spec() -> None:
    status = {"containerStatuses": [ended("a", 0), ended("b", 0)]}
    spec = {"containers": [{"name": name, "image": "x"} for name in "ba"]}
    assert [end.name for end in pod(status, spec).ends] == ["b", "a"]


def test_of_a_pods_labels_and_annotations_only_our_own_are_kept_and_none_that_is_large() -> None:
    """5,000 Pods with 200 KiB each would be a gigabyte."""
    large = {f"other/{i}": "x" * 1000 for i in range(200)}
    own = {names.POD_SEQ: "3", names.POD_NODE_NAME: "n" * 253}
    forged = {names.POD_NONCE: "x" * 254, f"{names.GROUP}/another": "x"}
    found = pod({}, annotations={**large, **own, **forged}, labels={**large, names.LABEL_TASK: "t"})
    assert (found.annotations, found.labels, found.seq) == (own, {names.LABEL_TASK: "t"}, 3)


def test_labels_and_annotations_that_are_not_ours_are_not_decoded() -> None:
    """A Pod may have labels of more than 1 MiB. As a dict they take the event loop 40 ms, for each change."""
    others = {f"other-{i}": "" for i in range(90_000)}
    metadata = {"name": "p", "labels": {**others, names.LABEL_TASK: "t"}, "annotations": others}
    body = msgspec.json.encode({"metadata": metadata})
    tracemalloc.start()
    try:
        found = msgspec.json.decode(body, type=WirePod).record()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.labels, found.annotations) == ({names.LABEL_TASK: "t"}, {})
    assert peak < 64 * 1024


def test_a_pod_of_another_kind_is_no_tasks_whatever_its_labels_say() -> None:
    owner = {"uid": "u", "controller": True, "name": "t"}
    assert pod({}, ownerReferences=[{**owner, "kind": "DaemonTask"}]).owner_uid == "u"
    assert pod({}, ownerReferences=[{**owner, "kind": "ReplicaSet"}]).owner_uid == ""


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        pytest.param(
            "1bd1ae2e-5a0c-4d5e-8c1b-2f3a4b5c6d7e", "1bd1ae2e-5a0c-4d5e-8c1b-2f3a4b5c6d7e", id="kernel"
        ),
        pytest.param("b" * 64, "b" * 64, id="64 characters"),
        pytest.param("", "", id="none"),
        pytest.param("b" * 200_000, f"hash-{h10('b' * 200_000)}", id="200 KB"),
        pytest.param("\n" * 64, "hash-" + h10("\n" * 64), id="what JSON writes in six bytes each"),
    ],
)
def test_a_boot_id_takes_little_room_in_the_ledger_and_differs_from_others(told: str, kept: str) -> None:
    found = node({"nodeInfo": {"bootID": told}}).boot_id
    assert found == kept
    assert len(msgspec.json.encode(found)) <= 66
    assert node({"nodeInfo": {"bootID": told + "c"}}).boot_id != found
