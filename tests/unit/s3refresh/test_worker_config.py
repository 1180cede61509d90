"""What the tasks of a resource depend on."""

from typing import Any

import msgspec
import pytest

from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.api.s3refresh import Filter, Source, Spec, SQSSource
from caretaker.aws.identity import ClientKey, Identity, Keys, User
from caretaker.s3refresh.resource import Reading, WorkerConfig, alike, worker_config_of
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets.job import JobTarget
from caretaker.s3refresh.targets.storagegateway import Completion, Discover, SharesSpec, StorageGatewayTarget
from testing.s3refreshes import ACCOUNT, QUEUE, REGION, target_spec_of

ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}"
ENDS = QUEUE.replace("events", "ends")
ROLE = f"arn:aws:iam::{ACCOUNT}:role/a"
AWS = AwsSpec(REGION, endpoint_urls={"sqs": "http://sqs", "sts": "http://sts"})
KEYS, USER = Keys("A", "s"), User("ns", "s3ar", "r")
JOB = JobTarget({"spec": {}})
ALONE = StorageGatewayTarget(shares=SharesSpec(discover=Discover()), rediscover_every="7m")


def spec(target_type: TargetType = ALONE, aws: AwsSpec = AWS, url: str = QUEUE, **sqs: Any) -> Spec:
    source = Source(SQSSource(queue_url=url, **sqs))
    return Spec(aws, source, target_spec_of(target_type), filter=Filter(buckets=("media",)))


def test_a_queue_is_read_as_the_spec_says() -> None:
    given = spec(wait_time="5s", visibility_timeout="2m", envelope="S3")
    target = ClientKey("sqs", REGION, Identity(), "http://sqs")
    reading = Reading(target, f"{ARN}:events", given.source.sqs, "spec.source.sqs.queueURL", 5, 120)
    assert worker_config_of(given, None) == WorkerConfig(reading, None, 420.0, ALONE, (AWS, None, ()))


def test_a_queue_of_completions_is_read_in_any_envelope() -> None:
    target_type = msgspec.structs.replace(ALONE, completion=Completion(queue_url=ENDS))
    given = spec(target_type, wait_time="5s", envelope="S3")
    found = worker_config_of(given, None)
    source = msgspec.structs.replace(given.source.sqs, queue_url=ENDS, envelope="Auto")
    field = "spec.target.storageGateway.completion.queueURL"
    assert found.completions == Reading(found.source.target, f"{ARN}:ends", source, field)
    assert found.readings == (found.source, found.completions)
    same = msgspec.structs.replace(ALONE, completion=Completion(queue_url=QUEUE))
    assert worker_config_of(spec(same), None).completions is None


def test_the_credentials_are_those_of_the_spec() -> None:
    own = msgspec.structs.replace(AWS, credentials_secret_ref=SecretRef("s"))
    found = worker_config_of(spec(aws=own), KEYS, USER)
    assert (found.source.target.identity, found.others) == (Identity(KEYS), (own, KEYS, ()))
    role = msgspec.structs.replace(AWS, role_arn=ROLE)
    assert worker_config_of(spec(aws=role), None, USER).source.target.identity.user == USER


def test_buckets_are_part_of_it_where_they_are_the_targets() -> None:
    assert worker_config_of(spec(JOB), None).others == (AWS, None, ("media",))


def test_a_url_that_an_older_crd_let_in_names_its_queue_itself() -> None:
    assert worker_config_of(spec(url="q"), None).source.arn == "q"


@pytest.mark.parametrize("field", ["waitTime", "visibilityTimeout"])
def test_a_duration_that_is_none_is_told_by_its_field(field: str) -> None:
    name = {"waitTime": "wait_time", "visibilityTimeout": "visibility_timeout"}[field]
    with pytest.raises(ValueError, match=f"^spec.source.sqs.{field}: "):
        worker_config_of(spec(**{name: "soon"}), None)


def test_who_may_share_the_reader_of_a_queue() -> None:
    one = alike(spec(), "a", QUEUE)
    assert alike(spec(JOB), "b", QUEUE) == one, "the operator's identity is the same in every namespace"
    assert alike(spec(), "a", ENDS) != one
    for changed in (
        {"region": "us-east-1"},
        {"role_arn": ROLE},
        {"external_id": "x"},
        {"endpoint_urls": {"sqs": "http://sqs"}},
        {"endpoint_urls": {"sts": "http://sts"}},
    ):
        assert alike(spec(aws=msgspec.structs.replace(AWS, **changed)), "a", QUEUE) != one
    secret = spec(aws=msgspec.structs.replace(AWS, credentials_secret_ref=SecretRef("s")))
    assert alike(secret, "a", QUEUE) == alike(secret, "a", QUEUE)
    assert alike(secret, "a", QUEUE) != alike(secret, "b", QUEUE), "each has a Secret of its own"
