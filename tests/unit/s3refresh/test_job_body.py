"""The Job of a claim: its name and its body."""

from typing import Any

from caretaker.api import names
from caretaker.api.objects import WireMeta
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.targets.job import JobTarget, build, job_name
from caretaker.s3refresh.targets.payload import payload_of

META = WireMeta(name="media.files", namespace="team", uid="u1")
BUCKET = of_buckets(["bucket"])[0]
CLAIM = Claim("c1", "me", 1_800_000_000.0, Request(("a", "/"), recursive=False), 1_799_999_990.0)
LABELS = {
    "app.kubernetes.io/managed-by": "caretaker",
    "caretaker.dev/s3aggregatedrefresh": "media.files",
    "caretaker.dev/claim": "c1",
}


def body(template: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    plain = {"spec": {"containers": [{"name": "a", "image": "b"}]}}
    return build(META, JobTarget(template or plain, **fields), BUCKET, CLAIM)


def test_the_name_follows_from_resource_and_claim() -> None:
    name = job_name(META, "c1")
    assert name == job_name(META, "c1")
    assert name.startswith("media-files-")
    others = {
        job_name(META, "c2"),
        job_name(WireMeta(name="media.files", uid="u2"), "c1"),
        job_name(WireMeta(name="media", uid="u1"), "c1"),
    }
    assert len({name, *others}) == 4


def test_the_longest_name_fits() -> None:
    assert len(job_name(WireMeta(name="x" * 253, uid="u"), "c" * 10)) <= 63
    assert "--" not in job_name(WireMeta(name="x" * 39 + ".y", uid="u"), "c1")


def test_the_body() -> None:
    assert body() == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(META, "c1"),
            "namespace": "team",
            "labels": LABELS,
            "ownerReferences": [
                {
                    "apiVersion": "caretaker.dev/v1alpha1",
                    "kind": "S3AggregatedRefresh",
                    "name": "media.files",
                    "uid": "u1",
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "ttlSecondsAfterFinished": 3600,
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "a",
                            "image": "b",
                            "env": [{"name": names.ENV_PAYLOAD, "value": payload_of(BUCKET, CLAIM).decode()}],
                        }
                    ],
                },
            },
        },
    }


def test_fields_of_the_job() -> None:
    spec = body(backoff_limit=0, active_deadline_seconds=60, ttl_seconds_after_finished=300)["spec"]
    found = (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"])
    assert found == (0, 60, 300)


def test_the_templates_own_is_kept() -> None:
    template = body(
        {
            "metadata": {"labels": {"app": "x", names.LABEL_CLAIM: "mine"}, "annotations": {"k": "v"}},
            "spec": {
                "restartPolicy": "OnFailure",
                "initContainers": [{"name": "i", "env": [{"name": "A", "value": "1"}]}],
                "containers": [{"name": "a", "env": [{"name": names.ENV_PAYLOAD, "value": "mine"}]}],
            },
        }
    )["spec"]["template"]
    assert template["metadata"] == {"labels": {"app": "x", **LABELS}, "annotations": {"k": "v"}}
    spec = template["spec"]
    assert spec["restartPolicy"] == "OnFailure"
    assert [v["name"] for v in spec["initContainers"][0]["env"]] == [names.ENV_PAYLOAD, "A"]
    assert spec["containers"][0]["env"] == [{"name": names.ENV_PAYLOAD, "value": "mine"}]
