"""Whether a resource may do anything: whose its queues are."""

import pytest

from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.api.grants import Grants
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Source, Spec, SQSSource, Status
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.admission import QueueAccess, QueueClaims, access_of
from caretaker.s3refresh.resource import ParsedRefresh
from caretaker.s3refresh.snapshot import Rejection
from caretaker.s3refresh.targets.sqs import SqsTarget
from caretaker.s3refresh.targets.storagegateway import Completion, SharesSpec, StorageGatewayTarget
from testing.s3refreshes import target_spec_of

HOST = "https://sqs.eu-west-1.amazonaws.com/111122223333"
GRANTS = Grants.default("ours")
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def refused(
    claims: QueueClaims, name: str, source: str, ends: str = "", *, created: str = NEW, secret: str = ""
) -> str:
    """Reason and message, "" when all may be. Names with a slash are of another namespace than `ours`."""
    namespace, _, name = name.rpartition("/")
    gateway = StorageGatewayTarget(
        shares=SharesSpec(file_share_arns=("arn",)), completion=Completion(queue_url=ends and _url(ends))
    )
    spec = Spec(
        aws=AwsSpec(region="eu-west-1", credentials_secret_ref=SecretRef(secret)),
        source=Source(SQSSource(queue_url=_url(source))),
        target=target_spec_of(gateway),
    )
    meta = WireMeta(name=name, namespace=namespace or "ours", creation_timestamp=created)
    key = Key("S3AggregatedRefresh", meta.namespace, name)
    access = access_of(key, ParsedRefresh(meta, Status(), spec), GRANTS, claims)
    claims.declare(key, access.claims, lambda: None)
    found = access.rejection
    return "" if found is None else f"{found.reason}: {found.message}"


def _url(queue: str) -> str:
    return queue if "://" in queue else f"{HOST}/{queue}"


@pytest.fixture
def claims() -> QueueClaims:
    return QueueClaims()


def test_credentials_of_ones_own_keep_nobody_from_a_queue_that_was_granted(claims: QueueClaims) -> None:
    """Keys are read later, so that the Secret need not even exist."""
    assert refused(claims, "victim", "events", "ends") == ""
    told = refused(claims, "elsewhere/thief", "ends", created=OLD, secret="fake")
    assert told.startswith("QueueConflict: spec.source.sqs.queueURL: a resource of another namespace reads")
    told = refused(claims, "elsewhere/other", "own", "ends", created=OLD, secret="fake")
    assert told.startswith(
        "QueueConflict: spec.target.storageGateway.completion.queueURL: a resource of another"
    )
    assert refused(claims, "victim", "events", "ends") == ""


def test_a_completion_queue_is_read_as_its_source_is(claims: QueueClaims) -> None:
    assert refused(claims, "owner", "events") == ""
    assert refused(claims, "other", "own", "events") == ""
    told = refused(claims, "third", "mine", "events", secret="keys")
    assert "ours/owner reads this queue under another spec.aws or URL" in told


def test_a_completion_queue_that_is_the_source_spelt_otherwise_is_refused(claims: QueueClaims) -> None:
    assert refused(claims, "r", "events", "events") == ""
    told = refused(claims, "r", "events", "https://eu-west-1.queue.amazonaws.com/111122223333/events")
    assert told.endswith("is spec.source.sqs.queueURL spelt otherwise: write the same URL in both")


def test_a_source_whose_resource_does_not_read_is_known(claims: QueueClaims) -> None:
    arn = "arn:aws:sqs:eu-west-1:111122223333:events"
    assert not claims.has_source(arn)
    refused(claims, "owner", "events", "ends")
    assert claims.has_source(arn)
    assert not claims.has_source(arn.replace("events", "ends"))
    claims.drop(Key("S3AggregatedRefresh", "ours", "owner"))
    assert not claims.has_source(arn)


def test_what_cannot_be_read_claims_nothing(claims: QueueClaims) -> None:
    assert refused(claims, "elder", "events", created=OLD) == ""
    assert refused(claims, "younger", "events").startswith("QueueConflict: ")
    key = Key("S3AggregatedRefresh", "ours", "elder")
    broken = ParsedRefresh(WireMeta(name="elder", namespace="ours"), Status(), None, invalid="spec.x: wrong")
    access = access_of(key, broken, GRANTS, claims)
    assert access == QueueAccess(rejection=Rejection("InvalidSpec", "spec.x: wrong"))
    claims.declare(key, access.claims, lambda: None)
    assert refused(claims, "younger", "events") == ""


def test_who_only_asks_claims_nothing(claims: QueueClaims) -> None:
    spec = Spec(
        aws=AwsSpec(region="eu-west-1"),
        source=Source(SQSSource(queue_url=_url("events"))),
        target=target_spec_of(StorageGatewayTarget(shares=SharesSpec(file_share_arns=("arn",)))),
    )
    asks = Key("S3AggregatedRefresh", "ours", "asks")
    read = ParsedRefresh(WireMeta(name="asks", namespace="ours", creation_timestamp=OLD), Status(), spec)
    access = access_of(asks, read, GRANTS, claims)
    assert access.rejection is None
    assert refused(claims, "younger", "events") == ""
    claims.declare(asks, access.claims, lambda: None)
    assert refused(claims, "younger", "events").startswith("QueueConflict: ")


def test_refreshes_are_not_sent_to_the_queue_of_their_own_events(claims: QueueClaims) -> None:
    """However its URL is spelt."""
    spec = Spec(
        aws=AwsSpec(region="eu-west-1"),
        source=Source(SQSSource(queue_url=_url("events"))),
        target=target_spec_of(SqsTarget("https://eu-west-1.queue.amazonaws.com/111122223333/events")),
    )
    read = ParsedRefresh(WireMeta(name="ring", namespace="ours"), Status(), spec)
    found = access_of(Key("S3AggregatedRefresh", "ours", "ring"), read, GRANTS, claims).rejection
    assert found is not None
    assert found.reason == "InvalidSpec"
    assert found.message.startswith("spec.target.sqs.queueURL is the queue of spec.source.sqs.queueURL")
