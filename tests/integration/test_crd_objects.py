"""DaemonTasks that a real API server accepts: defaults, stored status, columns, examples."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubernetes.client.exceptions import ApiException, ConflictException

from caretaker.api.conditions import Condition, merge
from caretaker.api.daemontask import (
    BlockedNode,
    DaemonTask,
    EndedTick,
    FailedNode,
    LedgerStatus,
    ObservedSchedule,
    ResultError,
    ResultStatus,
    ResultValue,
    Rollout,
    Status,
)
from caretaker.registry import DAEMON_TASK
from testing import manifests
from testing.customobjects import Objects, Spec, in_own_namespace
from testing.daemontasks import (
    DISRUPTED,
    POD,
    exit_codes,
    meta,
    once,
    pod,
    rules,
    task,
)
from testing.examplefiles import examples_of

EXAMPLES = examples_of(DAEMON_TASK)


@pytest.fixture(scope="module")
def tasks(cluster: Any) -> Iterator[Objects]:
    with in_own_namespace(cluster.kubeconfig, DAEMON_TASK) as own:
        yield own


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(task(), id="the smallest spec"),
        pytest.param(task(parallelism=1), id="one node at a time"),
        pytest.param(task(nodeGate={}), id="a gate"),
        pytest.param(
            task(healthGate={"conditions": [{"type": "example.com/A", "status": "True"}, {"type": "B"}]}),
            id="conditions of nodes",
        ),
        pytest.param(task(rolloutDeadlineSeconds=2592000), id="a rollout of thirty days"),
        pytest.param(task(dependsOn=[{"name": "u"}, {"name": "v"}]), id="tasks that come first"),
        pytest.param(task(drain={}, parallelism="1%"), id="a drain"),
        pytest.param(task(exclusive={"group": "kernel"}), id="a group"),
        pytest.param(
            task(exclusive={"group": "Kernel_1.a", "parallelism": "10%"}), id="the width of a group"
        ),
        pytest.param(
            task(
                parallelism=1,
                drain={
                    "gracePeriodSeconds": 5,
                    "force": True,
                    "podSelector": {
                        "matchLabels": {"a": "b"},
                        "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}],
                    },
                    "onFailure": "Uncordon",
                },
            ),
            id="a drain with all it may have",
        ),
        pytest.param(task(parallelism="1%"), id="the smallest share"),
        pytest.param(task(parallelism="100%"), id="all nodes as a share"),
        pytest.param(task(parallelism=None, activeDeadlineSeconds=None), id="null is as good as absent"),
        pytest.param(task(backoffLimit=2.0), id="a whole number written as a fraction"),
        pytest.param(task(failurePolicy={"maxFailedNodes": "0%"}), id="no percent of failures"),
        pytest.param(
            task(failurePolicy={"maxFailedNodes": "100%", "action": "Fail"}), id="every node may fail"
        ),
        *(
            pytest.param(task(schedule=text), id=f"{text} as schedule")
            for text in (
                *(
                    "* * * * *",
                    "0 3 * * 1-5",
                    "*/15 0-23/2 1,15 JAN-mar ?",
                    "05 03 01 01 00",
                    "59 23 31 12 SAT",
                ),
                *(
                    " 0\t3  * * * ",
                    "@yearly",
                    "@annually",
                    "@monthly",
                    "@weekly",
                    "@daily",
                    "@midnight",
                    "@hourly",
                ),
            )
        ),
        *(
            pytest.param(task(timeZone=zone), id=f"{zone} as time zone")
            for zone in ("Etc/UTC", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5")
        ),
        pytest.param(
            task(schedule="0 3 * * *", startingDeadlineSeconds=10, concurrencyPolicy="Replace"),
            id="every field of a schedule",
        ),
        pytest.param(
            task(budgets=[{"nodes": 0, "schedule": "0 9 * * 1-5", "duration": "8h"}] * 20), id="20 budgets"
        ),
        *(
            pytest.param(task(budgets=[{"nodes": nodes}]), id=f"a budget of {nodes!r} nodes")
            for nodes in (0, 7, "0", "12", "0%", "100%")
        ),
        pytest.param(
            task(budgets=[{"nodes": 1, "schedule": "@daily", "duration": "1h30m10s"}]), id="a long window"
        ),
        pytest.param(task(rerunOn=[]), id="no trigger at all"),
        pytest.param(
            task(
                rerunOn=["NodeReboot", "TemplateChange", "ReferencedDataChange"],
                dataRefs=[{"kind": "ConfigMap", "name": "same"}, {"kind": "Secret", "name": "same"}],
            ),
            id="every trigger",
        ),
        pytest.param(task(dataRefs=[]), id="an empty list of data"),
        pytest.param(task(ttlSecondsAfterFinished=0), id="a TTL of zero"),
        pytest.param(task(backoffLimit=0), id="no retries"),
        pytest.param(once(), id="at most once"),
        pytest.param(
            once(initContainers=[{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]),
            id="at most once, with a sidecar",
        ),
        pytest.param(
            {**once(), "podFailurePolicy": {"rules": [{**DISRUPTED, "action": "FailJob"}]}},
            id="at most once, and one failure is enough",
        ),
        pytest.param(pod(restartPolicy="OnFailure"), id="restarts by the kubelet"),
        pytest.param(pod(activeDeadlineSeconds=60), id="a deadline in the template"),
        pytest.param(rules(), id="no rules"),
        pytest.param(
            task(results=[{"name": f"result-{n}_Z", "type": "Text", "unit": "ms"} for n in range(8)]),
            id="8 results",
        ),
        pytest.param(task(results=[{"name": "r"}]), id="a result of one letter"),
        pytest.param(rules(*[DISRUPTED] * 20), id="20 rules"),
        pytest.param(exit_codes(0, 1, operator="NotIn"), id="0 among the codes to leave out"),
        pytest.param(exit_codes(*range(1, 256)), id="255 exit codes"),
        pytest.param(exit_codes(1, containerName="main"), id="a rule about a container"),
        pytest.param(
            rules(
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "In", "values": [1], "containerName": "setup"},
                },
                initContainers=[{"name": "setup", "image": "busybox"}],
            ),
            id="a rule about an init container",
        ),
        pytest.param(
            pod(initContainers=[{"name": "sidecar", "image": "busybox", "restartPolicy": "Always"}]),
            id="a sidecar may restart for as long as the pod lives",
        ),
        pytest.param(
            meta(labels={"a": "b"}, annotations={"c": "d"}, creationTimestamp=None), id="pod metadata"
        ),
    ],
)
def test_accepted(tasks: Objects, spec: Spec) -> None:
    created = tasks.create(spec)
    assert msgspec.convert(created, DaemonTask).spec.template == created["spec"]["template"]


def test_names_of_63_characters_with_dots_are_accepted(tasks: Objects) -> None:
    name = ("a." * 32)[:63]
    assert tasks.create(task(), name)["metadata"]["name"] == name


def test_the_pod_is_kept_as_written(tasks: Objects) -> None:
    written = {
        "containers": [
            {"name": "main", "image": "b", "resources": {"limits": {"cpu": "0.5"}}, "made": {"up": 1}}
        ],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
    }
    assert tasks.create({"template": {"spec": written}})["spec"]["template"]["spec"] == written


def test_defaults(tasks: Objects) -> None:
    created = tasks.create(task(podFailurePolicy={"rules": [DISRUPTED]}))
    assert created["spec"] == {
        "template": {"spec": {**POD, "restartPolicy": "Never"}},
        "suspend": False,
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "rerunOn": ["TemplateChange"],
        "rebootsNode": False,
        "runGuarantee": "AtLeastOnce",
        "minSuccessSeconds": 0,
        "backoffLimit": 3,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
            ]
        },
        "failurePolicy": {"maxFailedNodes": 0, "action": "Continue"},
        "progressDeadlineSeconds": 1800,
    }
    assert created["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(tasks: Objects, path: Path) -> None:
    for document in manifests.load_all(path.read_text()):
        made = tasks.submit(document)
        # The pod is opaque to the CRD, so the API server is asked about it as a pod.
        template = made["spec"].get("template")
        if template is None:
            assert "ecs" in made["spec"]
            continue
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template.get("metadata", {}), "name": "example"},
        }
        with contextlib.suppress(ConflictException):  # the controller manager makes one too
            tasks.core.create_namespaced_service_account(tasks.namespace, {"metadata": {"name": "default"}})
        tasks.core.create_namespaced_pod(
            tasks.namespace, {**body, "spec": template["spec"]}, dry_run="All", field_validation="Strict"
        )


CONDITIONS = merge(
    (),
    (
        Condition("Ready", "False", "NodesFailed", "1 of 3 nodes succeeded, 1 failed, 1 blocked", 1),
        Condition("Stalled", "True", "NodesFailed", "1 failed", 1),
    ),
    "2026-01-31T12:00:00Z",
)
STATUS = Status(
    observed_generation=1,
    current_revision="7c9d5f8b6a",
    conditions=CONDITIONS,
    desired=3,
    succeeded=1,
    failed=1,
    blocked=1,
    start_time="2026-01-31T11:00:00Z",
    last_schedule_time="2026-01-31T03:00:00Z",
    next_schedule_time="2026-02-01T03:00:00Z",
    observed_schedule=ObservedSchedule("0 3 * * *", "Etc/UTC", "2026-01-30T12:00:00Z"),
    schedule_history=(
        EndedTick("2026-01-30T03:00:00Z", 3, 2, 1, "2026-01-30T03:01:00Z"),
        EndedTick("2026-01-29T03:00:00Z", 3, 0, 3),
    ),
    last_completion_time="2026-01-31T12:00:00Z",
    failed_nodes=(FailedNode("node-1", "OOMKilled", "", 137, 4, "2026-01-31T12:00:00Z", "t-0123456789-4"),),
    blocked_nodes=(BlockedNode("node-2", "NodeNotReady", "2026-01-31T11:30:00Z"),),
    results=(
        ResultStatus("ms", "Number", "ms", 2, 0.1, 3.0, 1e300, -2.5),
        ResultStatus(
            "os", "Text", "", 3, values=(ResultValue("one", 2), ResultValue("two", 1)), values_omitted=1
        ),
    ),
    result_errors=(ResultError("node-3", "ms: it is not there"),),
    result_errors_omitted=1,
    ledger=LedgerStatus(2, 1002, (3, 2**53 - 1), "abcdefghij", "2026-01-31T12:00:00Z"),
    rollout=Rollout(start_time="2026-01-31T11:00:00Z"),
)


@pytest.fixture
def stored(tasks: Objects) -> Iterator[Any]:
    created = tasks.create(task(suspend=True), "stored", dry_run=False)
    yield created
    tasks.api.delete_namespaced_custom_object(*tasks.kind, "stored")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(Status(), id="a status of which nothing is known"),
        pytest.param(STATUS, id="a status that is full"),
    ],
)
def test_the_status_we_write_is_stored_as_it_is(tasks: Objects, stored: Any, status: Status) -> None:
    written = {**stored, "status": msgspec.to_builtins(status)}
    tasks.api.replace_namespaced_custom_object_status(
        *tasks.kind, "stored", written, field_validation="Strict"
    )
    read = tasks.api.get_namespaced_custom_object(*tasks.kind, "stored")
    assert msgspec.convert(read, DaemonTask).status == status


def test_status_is_out_of_reach_of_those_who_edit_the_spec(tasks: Objects, stored: Any) -> None:
    forged = {**stored, "status": {"succeeded": 1000}}
    tasks.api.replace_namespaced_custom_object(*tasks.kind, "stored", forged)
    assert tasks.api.get_namespaced_custom_object(*tasks.kind, "stored")["status"] == {
        "observedGeneration": -1
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(
            {"failedNodes": [{"nodeName": "n", "reason": "r"}] * 51}, "failedNodes", id="51 failed nodes"
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "true", "reason": "R"}]},
            "conditions[0].status",
            id="a condition in lower case",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True", "reason": "R"}] * 2},
            "conditions[1]",
            id="a condition twice",
        ),
    ],
)
def test_a_status_that_clients_could_not_read_is_refused(
    tasks: Objects, stored: Any, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ApiException) as error:
        tasks.api.replace_namespaced_custom_object_status(*tasks.kind, "stored", {**stored, "status": change})
    assert error.value.status == 422
    assert f"status.{field}" in error.value.body


def test_columns(tasks: Objects, stored: Any) -> None:
    written = {**stored, "status": msgspec.to_builtins(STATUS)}
    tasks.api.replace_namespaced_custom_object_status(*tasks.kind, "stored", written)
    row, wide = tasks.row("stored")
    assert list(row)[: -len(wide)] == [
        *(
            "NAME",
            "DESIRED",
            "ACTIVE",
            "SUCCEEDED",
            "FAILED",
            "PENDING",
            "BLOCKED",
            "READY",
            "LAST-RUN",
            "AGE",
        )
    ]
    assert wide == ["Schedule", "Revision", "Suspend", "Reason"]
    assert [row[n] for n in ("DESIRED", "ACTIVE", "SUCCEEDED", "FAILED", "BLOCKED")] == [3, 0, 1, 1, 1]
    assert (row["READY"], row["REVISION"], row["SUSPEND"]) == ("False", "7c9d5f8b6a", True)
    assert row["REASON"] == "NodesFailed"
    assert row["LAST-RUN"] != "<unknown>"


def test_names_for_kubectl(tasks: Objects) -> None:
    resources = {r["name"]: r for r in tasks.get("/apis/caretaker.dev/v1alpha1")["resources"]}
    kind = resources["daemontasks"]
    assert (kind["kind"], kind["singularName"], kind["namespaced"]) == ("DaemonTask", "daemontask", True)
    assert (kind["shortNames"], kind["categories"]) == (["dtask"], ["caretaker"])
    assert "daemontasks/status" in resources
