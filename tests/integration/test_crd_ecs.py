"""The ECS target as a real API server takes it, or refuses it: with the field and the words that a user
reads."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from kubernetes.client.exceptions import ApiException

from caretaker.api.daemontask import Status
from caretaker.api.ecs import EcsCluster
from caretaker.registry import DAEMON_TASK
from testing.customobjects import Objects, Spec, in_own_namespace
from testing.daemontasks import TEMPLATE

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/ecs-instances"


@pytest.fixture(scope="module")
def tasks(cluster: Any) -> Iterator[Objects]:
    with in_own_namespace(cluster.kubeconfig, DAEMON_TASK) as own:
        yield own


def ecs(**fields: Any) -> Spec:
    """Fields that are None are left out."""
    given = {"aws": {"region": "eu-west-1"}, "service": "agent", "events": {"sqsQueueURL": URL}, **fields}
    return {"ecs": {name: value for name, value in given.items() if value is not None}}


def aws(**fields: Any) -> Spec:
    return ecs(aws={"region": "eu-west-1", **fields})


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        pytest.param({**ecs(), "template": TEMPLATE}, "spec", "exactly one of template", id="both targets"),
        pytest.param({}, "spec", "exactly one of template", id="neither"),
        pytest.param(ecs(service=None), "spec.ecs.service", "Required value", id="no service"),
        pytest.param(ecs(service=""), "spec.ecs.service", "must be", id="an empty one"),
        pytest.param(ecs(service="arn:aws:ecs:x"), "spec.ecs.service", "must be", id="an ARN"),
        pytest.param(ecs(aws=None), "spec.ecs.aws", "Required value", id="no aws"),
        pytest.param(ecs(aws={}), "spec.ecs.aws.region", "Required value", id="no region"),
        pytest.param(aws(region="Ireland"), "spec.ecs.aws.region", "must be", id="no such region"),
        pytest.param(aws(roleARN="admin"), "spec.ecs.aws.roleARN", "must be", id="a role's name"),
        pytest.param(
            aws(externalID="x1"), "spec.ecs.aws.externalID", "set roleARN as well", id="an ID for no role"
        ),
        pytest.param(
            aws(endpointURLs={"ec2": "https://x"}),
            "spec.ecs.aws.endpointURLs",
            "keyed by service: ecs, sqs or sts",
            id="an endpoint of something else",
        ),
        pytest.param(ecs(events=None), "spec.ecs.events", "Required value", id="no events"),
        pytest.param(ecs(events={}), "spec.ecs.events.sqsQueueURL", "Required value", id="no queue"),
        pytest.param(
            ecs(events={"sqsQueueURL": f"{URL}.fifo"}),
            "spec.ecs.events.sqsQueueURL",
            "must be",
            id="a FIFO queue, which EventBridge would need more for",
        ),
        pytest.param(
            ecs(clusters=["prod", "prod"]), "spec.ecs.clusters[1]", "Duplicate value", id="a cluster twice"
        ),
        pytest.param(ecs(clusters=[""]), "spec.ecs.clusters[0]", "at least 1 chars", id="one without a name"),
        pytest.param(
            ecs(clusters=[f"c{n}" for n in range(101)]),
            "spec.ecs.clusters",
            "must have at most 100 items",
            id="too many clusters",
        ),
        pytest.param(
            ecs(countInstances="All"),
            "spec.ecs.countInstances",
            'supported values: "Registered", "Active"',
            id="another way to count",
        ),
        pytest.param(
            ecs(resyncSeconds=29),
            "spec.ecs.resyncSeconds",
            "should be greater than or equal to 30",
            id="a resync that is none",
        ),
        *(
            pytest.param(
                ecs(**{name: value}),
                f"spec.ecs.{name}",
                f"should be {bound} than or equal to",
                id=f"{name} {value}",
            )
            for name, value, bound in (
                ("maxCount", 0, "greater"),
                ("maxCount", 100_001, "less"),
                ("maxDecreasePercent", 0, "greater"),
                ("maxDecreasePercent", 101, "less"),
            )
        ),
        *(
            pytest.param({**ecs(), **field}, "spec.ecs", "are about pods", id=f"{next(iter(field))} of pods")
            for field in (
                {"schedule": "0 3 * * *"},
                {"startingDeadlineSeconds": 60},
                {"budgets": [{"nodes": 1}]},
                {"parallelism": 1},
                {"activeDeadlineSeconds": 5},
                {"ttlSecondsAfterFinished": 5},
                {"results": [{"name": "x"}]},
                {"nodeGate": {}},
                {"healthGate": {"conditions": [{"type": "DiskPressure"}]}},
                {"rolloutDeadlineSeconds": 60},
                {"drain": {}},
                {"dependsOn": [{"name": "x"}]},
                {"exclusive": {"group": "kernel"}},
                {"podFailurePolicy": {"rules": []}},
            )
        ),
    ],
)
def test_a_spec_that_is_refused_says_where_and_why(
    tasks: Objects, spec: Spec, field: str, message: str
) -> None:
    status, whole, causes = tasks.refusal(spec)
    assert status == 422
    assert any(where == field and message in said for where, said in causes), whole


def test_defaults_are_filled_in(tasks: Objects) -> None:
    spec = tasks.create({**ecs(), "suspend": True})["spec"]
    assert (spec["ecs"]["countInstances"], spec["ecs"]["resyncSeconds"]) == ("Active", 300)
    assert (spec["ecs"].get("maxCount"), spec["ecs"]["maxDecreasePercent"]) == (None, 50)


def test_one_target_does_not_become_the_other(tasks: Objects) -> None:
    tasks.create(ecs(), "stays", dry_run=False)
    group, version, namespace, plural = tasks.kind
    for kind, patch in (("stays", {"ecs": None, "template": TEMPLATE}),):
        with pytest.raises(ApiException) as error:
            tasks.api.patch_namespaced_custom_object(
                group, version, namespace, plural, kind, {"spec": patch}, dry_run="All"
            )
        assert "delete it and create another" in error.value.body
    changed = tasks.api.patch_namespaced_custom_object(
        group, version, namespace, plural, "stays", {"spec": {"ecs": {"clusters": ["prod"]}}}
    )
    assert changed["spec"]["ecs"]["clusters"] == ["prod"]


@pytest.mark.parametrize(
    "clusters",
    [
        pytest.param((EcsCluster("prod"),), id="a cluster of which nothing is known"),
        pytest.param(
            (
                EcsCluster("lab", last_calls=1, reason="DaemonService", message="it has DAEMON"),
                EcsCluster("prod", 5, 4, 5, "2026-01-31T12:00:00.5+00:00", "2026-01-31T12:00:01Z", 3),
            ),
            id="clusters of which all is known",
        ),
    ],
)
def test_the_status_we_write_is_stored_as_it_is(tasks: Objects, clusters: tuple[EcsCluster, ...]) -> None:
    created = tasks.create(ecs(), f"stored-{len(clusters)}", dry_run=False)
    name = created["metadata"]["name"]
    status = msgspec.to_builtins(Status(observed_generation=1, ecs=clusters, ecs_omitted=2))
    group, version, namespace, plural = tasks.kind
    tasks.api.replace_namespaced_custom_object_status(
        group, version, namespace, plural, name, {**created, "status": status}
    )
    stored = tasks.api.get_namespaced_custom_object(group, version, namespace, plural, name)["status"]
    assert msgspec.convert(stored, Status).ecs == clusters
    assert stored["ecsOmitted"] == 2
