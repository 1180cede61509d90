"""S3AggregatedRefreshes that a real API server accepts: defaults, stored status, columns, examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caretaker.api import durations
from caretaker.api.conditions import Condition, merge
from caretaker.api.s3refresh import (
    MAX_TARGETS,
    ClaimStatus,
    FailureStatus,
    InFlightStatus,
    LastStatus,
    QueueStatus,
    S3AggregatedRefresh,
    ScopeStatus,
    Status,
    TargetStatus,
)
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.s3refresh import folders
from caretaker.s3refresh.targets import registry
from testing import manifests
from testing.customobjects import Objects, Spec, in_own_namespace
from testing.examplefiles import examples_of
from testing.s3refreshes import (
    ACCOUNT,
    GATEWAY,
    QUEUE,
    REGION,
    SHARE,
    aws,
    completion,
    gateway,
    refresh,
    shares,
    sqs,
)

FULL = {
    "suspend": True,
    "aws": {
        "region": REGION,
        "roleARN": f"arn:aws:iam::{ACCOUNT}:role/team/refresh",
        "externalID": "tenant-7",
        "credentialsSecretRef": {"name": "aws-keys"},
        "endpointURLs": {
            "sqs": "http://127.0.0.1:4566",
            "storagegateway": "https://vpce-1.storagegateway.eu-west-1.vpce.amazonaws.com/",
            "sts": "https://sts.eu-west-1.amazonaws.com",
        },
    },
    "source": {
        "sqs": {
            "queueURL": QUEUE,
            "envelope": "EventBridge",
            "waitTime": "0s",
            "visibilityTimeout": "12h",
            "malformed": "RefreshAll",
        }
    },
    "filter": {
        "buckets": ["media", "my.bucket-2"],
        "prefixes": ["incoming/", "Ünïcode und Leerzeichen/"],
        "excludePrefixes": ["incoming/tmp/"],
        "suffixes": [".jpg"],
        "excludeSuffixes": [".part"],
        "events": ["ObjectCreated"],
        "ignorePrincipals": ["AWS:AROAEXAMPLE:*"],
    },
    "debounce": {"quietPeriod": "1m30s", "maxDelay": "24h", "minInterval": "5m"},
    "resync": {"onStart": False, "interval": "24h"},
    "target": {
        "storageGateway": {
            "regions": [REGION, "us-gov-west-1", "cn-north-1"],
            "shares": {"discover": {"gatewayARNs": [GATEWAY], "protocols": ["SMB"]}},
            "accessPointBuckets": {f"arn:aws:s3:{REGION}:{ACCOUNT}:accesspoint/media-ap": "media"},
            "scope": "Share",
            "maxFolders": 1,
            "concurrencyPerGateway": 2,
            "rediscoverEvery": "1h",
            "completion": {
                "queueURL": QUEUE,
                "timeout": "168h",
                "assumeAfter": "1m",
                "onTimeout": "Assume",
            },
        }
    },
    "retry": {"initial": "1s", "max": "24h"},
    "onDelete": "Flush",
}


@pytest.fixture(scope="module")
def refreshes(cluster: Any) -> Iterator[Objects]:
    with in_own_namespace(cluster.kubeconfig, S3_AGGREGATED_REFRESH) as own:
        yield own


def test_a_small_spec_gets_the_defaults_of_the_structs(refreshes: Objects) -> None:
    created = refreshes.create(refresh())
    assert created["spec"] == {
        "suspend": False,
        "aws": {"region": REGION},
        "source": {
            "sqs": {
                "queueURL": QUEUE,
                "envelope": "Auto",
                "waitTime": "20s",
                "visibilityTimeout": "60s",
                "malformed": "DeadLetter",
            }
        },
        "filter": {"events": ["ObjectCreated", "ObjectRemoved", "LifecycleExpiration"]},
        "debounce": {"quietPeriod": "30s", "maxDelay": "10m", "minInterval": "60s"},
        "resync": {"onStart": True, "interval": "0s"},
        "target": {
            "storageGateway": {
                "shares": {"discover": {"protocols": ["NFS", "SMB"]}},
                "scope": "Folders",
                "maxFolders": 50,
                "concurrencyPerGateway": 1,
                "rediscoverEvery": "10m",
                "completion": {"timeout": "6h", "onTimeout": "RefreshAgain"},
            }
        },
        "retry": {"initial": "30s", "max": "15m"},
        "onDelete": "Discard",
    }
    assert created["status"] == {"observedGeneration": -1}
    written = {"metadata": created["metadata"], "spec": refresh()}
    assert msgspec.convert(created["spec"], registry().spec) == msgspec.convert(
        written["spec"], registry().spec
    )


def test_a_full_spec_is_kept_as_written(refreshes: Objects) -> None:
    created = refreshes.create(FULL)
    assert created["spec"] == FULL
    read = msgspec.convert(created["spec"], registry().spec)
    assert msgspec.json.decode(msgspec.json.encode(read)) == FULL


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(sqs(queueURL=f"http://127.0.0.1:4566/{ACCOUNT}/q"), id="a queue of a double"),
        pytest.param(sqs(queueURL=f"http://[::1]:4566/{ACCOUNT}/q"), id="a queue by an address of IPv6"),
        pytest.param(sqs(queueURL=f"https://queue.amazonaws.com/{ACCOUNT}/q"), id="a host of no region"),
        pytest.param(
            sqs(queueURL=f"https://sqs.us-east-1.example.com/{ACCOUNT}/q"),
            id="a host of another region that is not Amazon's",
        ),
        pytest.param(
            refresh(
                aws={"region": "cn-north-1"},
                source={"sqs": {"queueURL": f"https://sqs.cn-north-1.amazonaws.com.cn/{ACCOUNT}/q"}},
            ),
            id="a queue in China",
        ),
        pytest.param(
            sqs(queueURL=f"https://vpce-1a-2b.sqs.{REGION}.vpce.amazonaws.com/{ACCOUNT}/q"),
            id="a queue by a private endpoint",
        ),
        pytest.param(
            aws(roleARN="", externalID="", credentialsSecretRef={"name": ""}, endpointURLs={"sqs": ""}),
            id="empty values, as templates write them",
        ),
        pytest.param(shares(fileShareARNs=[SHARE]), id="listed shares"),
        pytest.param(
            shares(fileShareARNs=[f"{SHARE}{n}" for n in range(MAX_TARGETS)]),
            id="as many shares as there may be",
        ),
        pytest.param(shares(discover={}, fileShareARNs=[]), id="an empty list beside discovery"),
        pytest.param(completion(queueURL=""), id="completions not tracked"),
        pytest.param(completion(queueURL=QUEUE), id="completions by the source queue"),
        pytest.param(gateway(completion=None, scope=None), id="null is as good as absent"),
        pytest.param(
            refresh(debounce={"quietPeriod": "0", "maxDelay": "0s", "minInterval": "1m"}), id="no debounce"
        ),
        pytest.param(refresh(debounce={"quietPeriod": "10m"}), id="a fixed window"),
    ],
)
def test_accepted(refreshes: Objects, spec: Spec) -> None:
    created = refreshes.create(spec)
    read = msgspec.convert(created, S3AggregatedRefresh).spec
    assert durations.seconds(read.debounce.max_delay) >= durations.seconds(read.debounce.quiet_period)


WHEN = "2026-01-31T12:00:00.123456Z"
DEEP = "/".join(["a" * 63] * 4)
STATUS = Status(
    observed_generation=1,
    conditions=merge(
        (),
        (
            Condition("Ready", "False", "QueueUnreachable", "AccessDenied: sqs:ReceiveMessage", 1),
            Condition("CaughtUp", "False", "Waiting", "1 of 1 targets is dirty", 1),
        ),
        "2026-01-31T12:00:00Z",
    ),
    queue=QueueStatus(visible=7, in_flight=2, dlq_visible=1, checked_at="2026-01-31T12:00:00Z"),
    targets=(
        TargetStatus(id="share-1"),
        TargetStatus(
            id="share-2",
            phase="Backoff",
            dirty=ScopeStatus(since=WHEN, all=True, folders=("/", "2026", "2026/11"), trees=("2025",)),
            claim=ClaimStatus("6f1c", "pod-uid", WHEN, WHEN, ("2026/11",), recursive=True),
            in_flight=InFlightStatus("n-1", WHEN, ("2026/11", "/")),
            last=LastStatus(WHEN, WHEN, WHEN, WHEN, duration_seconds=12, folders=3, result="Succeeded"),
            failure=FailureStatus(2, "InvalidGatewayRequestException", "x" * 1024, WHEN),
        ),
    ),
)
LARGEST = Status(
    targets=tuple(
        TargetStatus(
            id=f"share-{number}",
            dirty=ScopeStatus(
                since=WHEN,
                folders=tuple(f"{DEEP}/{n}" for n in range(folders.MAX_BYTES // (len(DEEP) + 6))),
            ),
        )
        for number in range(MAX_TARGETS)
    )
)


@pytest.fixture
def stored(refreshes: Objects) -> Iterator[Any]:
    created = refreshes.create(refresh(suspend=True), "stored", dry_run=False)
    yield created
    refreshes.api.delete_namespaced_custom_object(*refreshes.kind, "stored")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(Status(), id="a status of which nothing is known"),
        pytest.param(STATUS, id="a status that is full"),
        pytest.param(LARGEST, id="64 targets for which as many folders wait as may"),
    ],
)
def test_the_status_we_write_is_stored_as_it_is(refreshes: Objects, stored: Any, status: Status) -> None:
    written = {**stored, "status": msgspec.to_builtins(status)}
    refreshes.api.replace_namespaced_custom_object_status(
        *refreshes.kind, "stored", written, field_validation="Strict"
    )
    read = refreshes.api.get_namespaced_custom_object(*refreshes.kind, "stored")
    assert msgspec.convert(read, S3AggregatedRefresh).status == status


def test_columns(refreshes: Objects, stored: Any) -> None:
    row, _ = refreshes.row("stored")
    assert row["VISIBLE"] is None
    written = {**stored, "status": msgspec.to_builtins(STATUS)}
    refreshes.api.replace_namespaced_custom_object_status(*refreshes.kind, "stored", written)
    row, wide = refreshes.row("stored")
    assert list(row) == ["NAME", "READY", "CAUGHT-UP", "VISIBLE", "AGE", "REASON"]
    assert wide == ["Reason"]
    assert (row["READY"], row["CAUGHT-UP"], row["VISIBLE"]) == ("False", "False", 7)
    assert row["REASON"] == "QueueUnreachable"


@pytest.mark.parametrize("path", examples_of(S3_AGGREGATED_REFRESH), ids=lambda path: path.stem)
def test_example(refreshes: Objects, path: Path) -> None:
    for document in manifests.load_all(path.read_text()):
        assert refreshes.submit(document)["kind"] == S3_AGGREGATED_REFRESH.kind


def test_names_for_kubectl(refreshes: Objects) -> None:
    resources = {r["name"]: r for r in refreshes.get("/apis/caretaker.dev/v1alpha1")["resources"]}
    kind = resources["s3aggregatedrefreshes"]
    assert (kind["kind"], kind["singularName"]) == ("S3AggregatedRefresh", "s3aggregatedrefresh")
    assert (kind["shortNames"], kind["categories"], kind["namespaced"]) == (["s3ar"], ["caretaker"], True)
    assert "s3aggregatedrefreshes/status" in resources
