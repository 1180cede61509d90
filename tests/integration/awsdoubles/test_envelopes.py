"""What MiniStack really sends for each way from a bucket to a queue: caretaker's tests build on it."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_plus

import pytest

from awsdoubles.envelopes import Envelope, Queue
from testing.aws import Aws

ODD_KEY = "a folder/ü+x%&=1.txt"


def unwrapped(body: dict[str, Any], envelope: Envelope) -> dict[str, Any]:
    if envelope is Envelope.SNS:
        assert body["Type"] == "Notification"
        return dict(json.loads(body["Message"]))
    return body


def record(body: dict[str, Any], envelope: Envelope) -> dict[str, Any]:
    inner = unwrapped(body, envelope)
    assert len(inner["Records"]) == 1
    return dict(inner["Records"][0])


def records(bodies: list[dict[str, Any]], envelope: Envelope) -> list[dict[str, Any]]:
    """Their records in the order of the calls: S3 promises none, and MiniStack sends each from a thread."""
    found = [record(body, envelope) for body in bodies]
    return sorted(found, key=lambda one: str(one["s3"]["object"]["sequencer"]))


@pytest.fixture(params=[e for e in Envelope if e is not Envelope.EVENTBRIDGE], ids=str)
def envelope(request: pytest.FixtureRequest) -> Envelope:
    return Envelope(request.param)


def test_a_test_event_comes_first_then_one_record_a_message(aws: Aws, envelope: Envelope) -> None:
    source = aws.source(envelope)
    aws.put(source.bucket, ODD_KEY)
    test_event, body = aws.receive(source.queue, 2)
    test_event = unwrapped(test_event, envelope)
    assert (test_event["Event"], test_event["Bucket"]) == ("s3:TestEvent", source.bucket)
    found = record(body, envelope)
    assert found["eventSource"] == "aws:s3"
    assert found["eventVersion"].split(".")[0] == "2"
    assert found["eventName"] == "ObjectCreated:Put"
    assert found["s3"]["bucket"]["name"] == source.bucket
    assert found["s3"]["object"]["sequencer"]


def test_keys_are_form_encoded(aws: Aws, envelope: Envelope) -> None:
    source = aws.source(envelope)
    aws.put(source.bucket, ODD_KEY, "/leading/slash", "a//b")
    bodies = aws.receive(source.queue, 4)[1:]
    keys = [one["s3"]["object"]["key"] for one in records(bodies, envelope)]
    assert keys[0] == "a+folder/%C3%BC%2Bx%25%26%3D1.txt"
    assert [unquote_plus(key) for key in keys] == [ODD_KEY, "/leading/slash", "a//b"]


def acts(s3: Any, plain: str, versioned: str) -> Iterator[list[str]]:
    """Every way to write and delete; of each, the names of its events, as S3 sends them."""
    s3.put_object(Bucket=plain, Key="one", Body=b"")
    yield ["ObjectCreated:Put"]
    s3.copy_object(Bucket=plain, Key="two", CopySource={"Bucket": plain, "Key": "one"})
    yield ["ObjectCreated:Copy"]
    upload = s3.create_multipart_upload(Bucket=plain, Key="three")["UploadId"]
    which = {"Bucket": plain, "Key": "three", "UploadId": upload}
    etag = s3.upload_part(**which, PartNumber=1, Body=b"part")["ETag"]
    s3.complete_multipart_upload(**which, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    yield ["ObjectCreated:CompleteMultipartUpload"]
    s3.delete_object(Bucket=plain, Key="one")
    yield ["ObjectRemoved:Delete"]
    s3.delete_objects(Bucket=plain, Delete={"Objects": [{"Key": "two"}, {"Key": "three"}]})
    yield ["ObjectRemoved:Delete"] * 2
    version = s3.put_object(Bucket=versioned, Key="key", Body=b"1")["VersionId"]
    yield ["ObjectCreated:Put"]
    marker = s3.delete_object(Bucket=versioned, Key="key")["VersionId"]
    yield ["ObjectRemoved:DeleteMarkerCreated"]
    s3.delete_object(Bucket=versioned, Key="key", VersionId=marker)
    yield ["ObjectRemoved:Delete"]
    s3.delete_object(Bucket=versioned, Key="key", VersionId=version)
    yield ["ObjectRemoved:Delete"]


def fed_by_two(aws: Aws, envelope: Envelope) -> tuple[Queue, str, str]:
    """A queue, and two buckets that feed it: without and with versions."""
    queue, plain, versioned = aws.queue(), aws.bucket(), aws.bucket(versioned=True)
    for bucket in (plain, versioned):
        aws.wiring.connect(bucket, queue, envelope)
    return queue, plain, versioned


def test_every_way_to_write_and_delete_is_told(aws: Aws, envelope: Envelope) -> None:
    queue, plain, versioned = fed_by_two(aws, envelope)
    aws.receive(queue, 2)  # the test events
    wanted = [name for names in acts(aws.s3, plain, versioned) for name in names]
    found = records(aws.receive(queue, len(wanted)), envelope)
    assert [one["eventName"] for one in found] == wanted


# Amazon S3 user guide, "EventBridge event message structure": the operation, and how it was deleted.
IN_EVENTBRIDGE = {
    "ObjectCreated:Put": ("Object Created", "PutObject", None),
    "ObjectCreated:Copy": ("Object Created", "CopyObject", None),
    "ObjectCreated:CompleteMultipartUpload": ("Object Created", "CompleteMultipartUpload", None),
    "ObjectRemoved:Delete": ("Object Deleted", "DeleteObject", "Permanently Deleted"),
    "ObjectRemoved:DeleteMarkerCreated": ("Object Deleted", "DeleteObject", "Delete Marker Created"),
}


def test_every_way_to_write_and_delete_is_told_to_eventbridge(aws: Aws) -> None:
    queue, plain, versioned = fed_by_two(aws, Envelope.EVENTBRIDGE)
    wanted = [IN_EVENTBRIDGE[name] for names in acts(aws.s3, plain, versioned) for name in names]
    bodies = aws.receive(queue, len(wanted))
    bodies.sort(key=lambda one: str(one["detail"]["object"]["sequencer"]))
    found = [
        (one["detail-type"], one["detail"]["reason"], one["detail"].get("deletion-type")) for one in bodies
    ]
    assert found == wanted


def test_eventbridge_has_no_test_event_and_raw_keys(aws: Aws) -> None:
    source = aws.source(Envelope.EVENTBRIDGE)
    aws.put(source.bucket, ODD_KEY)
    aws.s3.delete_object(Bucket=source.bucket, Key=ODD_KEY)
    created, deleted = sorted(aws.receive(source.queue, 2), key=lambda one: str(one["detail-type"]))
    assert (created["source"], created["detail-type"]) == ("aws.s3", "Object Created")
    assert created["detail"]["bucket"]["name"] == source.bucket
    assert created["detail"]["object"]["key"] == ODD_KEY
    assert created["detail"]["reason"] == "PutObject"
    assert deleted["detail-type"] == "Object Deleted"
    assert deleted["detail"]["object"]["key"] == ODD_KEY


def test_several_buckets_may_feed_one_queue(aws: Aws) -> None:
    queue = aws.queue()
    buckets = [aws.bucket(), aws.bucket()]
    for bucket in buckets:
        aws.wiring.connect(bucket, queue)
        aws.put(bucket, "key")
    bodies = [body for body in aws.receive(queue, 4) if "Records" in body]
    assert [one["s3"]["bucket"]["name"] for one in records(bodies, Envelope.S3)] == buckets


def test_a_queue_gives_up_a_message_to_its_dead_letter_queue(aws: Aws) -> None:
    queue = aws.queue(visibility=0, max_receives=2)
    aws.sqs.send_message(QueueUrl=queue.url, MessageBody="{}")
    for _ in range(2):
        assert aws.sqs.receive_message(QueueUrl=queue.url)["Messages"]
    assert "Messages" not in aws.sqs.receive_message(QueueUrl=queue.url)
    assert aws.depth(queue.dead_letters) == (1, 0)
