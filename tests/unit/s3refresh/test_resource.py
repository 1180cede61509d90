"""How a resource is read: its record of earlier passes, what cannot be read, and what its tasks depend on."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.api.conditions import Condition
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Filter, QueueStatus, Source, Spec, SQSSource, Status, TargetStatus
from caretaker.aws.identity import ClientKey, Identity, Keys, User
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.s3refresh.debounce import DirtyScope, TargetState
from caretaker.s3refresh.folders import EVERYTHING
from caretaker.s3refresh.resource import (
    FINALIZER,
    LOST,
    ParsedRefresh,
    RawRefresh,
    Reading,
    WorkerConfig,
    alike,
    targets_of,
    worker_config_of,
)
from caretaker.s3refresh.resource import read as judged
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.targets.job import JobTarget
from caretaker.s3refresh.targets.storagegateway import Completion, Discover, SharesSpec, StorageGatewayTarget
from testing.s3refreshes import ACCOUNT, QUEUE, REGION, target_spec_of

SPEC = {
    "aws": {"region": "eu-west-1"},
    "source": {"sqs": {"queueURL": "https://sqs.eu-west-1.amazonaws.com/111122223333/q"}},
    "target": {"storageGateway": {"shares": {"discover": {}}}},
}
QUEUE_STATUS = QueueStatus(checked_at="2026-01-01T00:00:00Z")
META = WireMeta(name="r", namespace="ns")


def raw(spec: object = SPEC, status: object = None, meta: WireMeta = META) -> RawRefresh:
    return RawRefresh(
        meta, msgspec.Raw(msgspec.json.encode(spec)), msgspec.Raw(msgspec.json.encode(status or {}))
    )


def read(found: RawRefresh) -> ParsedRefresh:
    return judged(found, registry().spec)


def resolved(reason: str, *targets: TargetStatus) -> Status:
    return Status(conditions=(Condition(c.TARGETS_RESOLVED, "True", reason),), targets=targets)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        pytest.param(ParsedRefresh(META, Status(), None), True, id="no pass yet"),
        pytest.param(
            ParsedRefresh(META, resolved("NotChecked"), None), True, id="a pass that had not looked"
        ),
        pytest.param(ParsedRefresh(META, resolved("TargetsUnresolved"), None), True, id="a look that failed"),
        pytest.param(ParsedRefresh(META, resolved("Resolved", TargetStatus("t")), None), False, id="targets"),
        pytest.param(ParsedRefresh(META, resolved("NoTargets"), None), False, id="all targets have gone"),
        pytest.param(
            ParsedRefresh(META, msgspec.structs.replace(resolved("NotChecked"), queue=QUEUE_STATUS), None),
            False,
            id="all targets have gone, and the spec was edited since",
        ),
        pytest.param(ParsedRefresh(META, LOST, None), False, id="a record that cannot be read"),
    ],
)
def test_first(found: ParsedRefresh, first: bool) -> None:
    assert found.first is first


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({**SPEC, "target": {}}, "spec.target: must name", id="no target"),
        pytest.param({**SPEC, "suspend": "no"}, "spec.suspend", id="another type"),
        pytest.param({}, "missing required field `aws`", id="nothing"),
        pytest.param(
            {**SPEC, "debounce": {"quietPeriod": "soon"}}, "spec.debounce.quietPeriod", id="no duration"
        ),
    ],
)
def test_a_spec_that_an_older_crd_let_in_is_told_with_its_field(spec: object, words: str) -> None:
    found = read(raw(spec))
    assert found.spec is None
    assert words in found.invalid
    assert not found.active
    assert (found.meta, found.status) == (META, Status())


def test_what_stands_is_kept_without_a_spec() -> None:
    found = read(raw({}, {"observedGeneration": 4}))
    assert (found.spec, found.status.observed_generation) == (None, 4)
    assert read(raw({}, {"targets": "none"})).status == LOST


def test_the_pace_is_the_specs() -> None:
    debounce = {"quietPeriod": "5s", "maxDelay": "2m", "minInterval": "70s"}
    retry = {"initial": "10s", "max": "20s"}
    spec = {**SPEC, "debounce": debounce, "retry": retry, "resync": {"interval": "1h"}}
    found = read(raw(spec)).options
    assert (found.quiet_period, found.max_delay, found.resync) == (5.0, 120.0, 3600.0)
    assert (found.min_interval, found.retry_initial, found.retry_max) == (70.0, 10.0, 20.0)
    assert found.claim_lost == 120.0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"debounce": {"quietPeriod": "x"}}, "debounce.quietPeriod"),
        ({"debounce": {"maxDelay": "x"}}, "debounce.maxDelay"),
        ({"debounce": {"minInterval": "x"}}, "debounce.minInterval"),
        ({"retry": {"initial": "x"}}, "retry.initial"),
        ({"retry": {"max": "x"}}, "retry.max"),
        ({"resync": {"interval": "x"}}, "resync.interval"),
    ],
)
def test_a_duration_that_is_none_is_told_by_its_field(fields: dict[str, object], field: str) -> None:
    assert read(raw({**SPEC, **fields})).invalid.startswith(f"spec.{field}: ")


def test_where_resources_are() -> None:
    group = "/apis/caretaker.dev/v1alpha1"
    assert S3_AGGREGATED_REFRESH.path("ns", "r") == f"{group}/namespaces/ns/s3aggregatedrefreshes/r"
    assert S3_AGGREGATED_REFRESH.path("ns") == f"{group}/namespaces/ns/s3aggregatedrefreshes"
    assert S3_AGGREGATED_REFRESH.path("") == f"{group}/s3aggregatedrefreshes"


def test_the_targets_on_record() -> None:
    status = {"targets": [{"id": "t", "dirty": {"since": "yesterday", "all": True}}, {"id": "u"}]}
    assert targets_of(read(raw(status=status)), 9.0) == (
        TargetState("t", dirty=DirtyScope(9.0, EVERYTHING)),
        TargetState("u"),
    )
    assert targets_of(read(raw(status={"targets": "none"})), 9.0) == ()


def test_a_status_that_somebody_else_wrote_counts_as_lost() -> None:
    found = read(raw(status={"targets": "none"}))
    assert (found.status, found.first, found.invalid) == (LOST, False, "")


def test_a_resource_on_its_way_out_is_active_even_if_suspended() -> None:
    going = WireMeta(name="r", namespace="ns", deletion_timestamp="2026-01-01T00:00:00Z")
    suspended = {**SPEC, "suspend": True}
    assert not read(raw(suspended)).active
    flushing = msgspec.structs.replace(going, finalizers=[FINALIZER])
    found = read(raw(suspended, meta=flushing))
    assert (found.flushing, found.active) == (True, True)
    assert not read(raw(suspended, meta=going)).flushing


def test_a_budget_has_an_interval_besides_that_of_the_spec() -> None:
    spec = {**SPEC, "cost": {"maxEstimatedCostPerDay": "2"}}
    buckets = [{"bucket": "media", "region": REGION, "targets": 1, "objects": 1_000_000}]
    status = {"cost": {"buckets": buckets}}
    options = read(raw(spec, status)).options
    assert (options.min_interval, options.budget_interval) == (60, 21600)
    assert read(raw(SPEC, status)).options.budget_interval == 0
    broken = read(raw({**SPEC, "cost": {"headPrice": "free"}}))
    assert broken.invalid == "spec.cost.headPrice: 'free' is no amount such as 0.005"


# ---------------------------------------------------------------- what the tasks of a resource depend on

ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}"
ENDS = QUEUE.replace("events", "ends")
ROLE = f"arn:aws:iam::{ACCOUNT}:role/a"
AWS = AwsSpec(REGION, endpoint_urls={"sqs": "http://sqs", "sts": "http://sts"})
KEYS, USER = Keys("A", "s"), User("ns", "s3ar", "r")
JOB = JobTarget({"spec": {}})
ALONE = StorageGatewayTarget(shares=SharesSpec(discover=Discover()), rediscover_every="7m")


def spec_of(target_type: TargetType = ALONE, aws: AwsSpec = AWS, url: str = QUEUE, **sqs: Any) -> Spec:
    source = Source(SQSSource(queue_url=url, **sqs))
    return Spec(aws, source, target_spec_of(target_type), filter=Filter(buckets=("media",)))


def test_a_queue_is_read_as_the_spec_says() -> None:
    given = spec_of(wait_time="5s", visibility_timeout="2m", envelope="S3")
    target = ClientKey("sqs", REGION, Identity(), "http://sqs")
    reading = Reading(target, f"{ARN}:events", given.source.sqs, "spec.source.sqs.queueURL", 5, 120)
    assert worker_config_of(given, None) == WorkerConfig(reading, None, 420.0, ALONE, (AWS, None, ()))


def test_a_queue_of_completions_is_read_in_any_envelope() -> None:
    target_type = msgspec.structs.replace(ALONE, completion=Completion(queue_url=ENDS))
    given = spec_of(target_type, wait_time="5s", envelope="S3")
    found = worker_config_of(given, None)
    source = msgspec.structs.replace(given.source.sqs, queue_url=ENDS, envelope="Auto")
    field = "spec.target.storageGateway.completion.queueURL"
    assert found.completions == Reading(found.source.target, f"{ARN}:ends", source, field)
    assert found.readings == (found.source, found.completions)
    same = msgspec.structs.replace(ALONE, completion=Completion(queue_url=QUEUE))
    assert worker_config_of(spec_of(same), None).completions is None


def test_the_credentials_are_those_of_the_spec() -> None:
    own = msgspec.structs.replace(AWS, credentials_secret_ref=SecretRef("s"))
    found = worker_config_of(spec_of(aws=own), KEYS, USER)
    assert (found.source.target.identity, found.others) == (Identity(KEYS), (own, KEYS, ()))
    role = msgspec.structs.replace(AWS, role_arn=ROLE)
    assert worker_config_of(spec_of(aws=role), None, USER).source.target.identity.user == USER


def test_buckets_are_part_of_it_where_they_are_the_targets() -> None:
    assert worker_config_of(spec_of(JOB), None).others == (AWS, None, ("media",))


def test_a_url_that_an_older_crd_let_in_names_its_queue_itself() -> None:
    assert worker_config_of(spec_of(url="q"), None).source.arn == "q"


@pytest.mark.parametrize("field", ["waitTime", "visibilityTimeout"])
def test_a_duration_of_the_queue_that_is_none_is_told_by_its_field(field: str) -> None:
    name = {"waitTime": "wait_time", "visibilityTimeout": "visibility_timeout"}[field]
    with pytest.raises(ValueError, match=f"^spec.source.sqs.{field}: "):
        worker_config_of(spec_of(**{name: "soon"}), None)


def test_who_may_share_the_reader_of_a_queue() -> None:
    one = alike(spec_of(), "a", QUEUE)
    assert alike(spec_of(JOB), "b", QUEUE) == one, "the operator's identity is the same in every namespace"
    assert alike(spec_of(), "a", ENDS) != one
    for changed in (
        {"region": "us-east-1"},
        {"role_arn": ROLE},
        {"external_id": "x"},
        {"endpoint_urls": {"sqs": "http://sqs"}},
        {"endpoint_urls": {"sts": "http://sts"}},
    ):
        assert alike(spec_of(aws=msgspec.structs.replace(AWS, **changed)), "a", QUEUE) != one
    secret = spec_of(aws=msgspec.structs.replace(AWS, credentials_secret_ref=SecretRef("s")))
    assert alike(secret, "a", QUEUE) == alike(secret, "a", QUEUE)
    assert alike(secret, "a", QUEUE) != alike(secret, "b", QUEUE), "each has a Secret of its own"
