"""What messages say, and what of them cannot be read."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from caretaker.api.s3refresh import SQSSource
from caretaker.s3refresh.envelope import (
    MAX_FAULT,
    MAX_KEY_BYTES,
    SLICE,
    Completion,
    Envelope,
    ObjectEvent,
    Parsed,
    parse,
    parsing,
)
from caretaker.s3refresh.inflight import parsed_of
from testing.turns import beside_others

SHARE = "arn:aws:storagegateway:eu-west-1:111122223333:share/share-E51FBS9C"
CREATED = ObjectEvent("ObjectCreated", "bucket", "a b/ü+.txt", "AWS:AROAEXAMPLE")


def record(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "eventVersion": "2.6",
        "eventTime": "2099-01-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "AWS:AROAEXAMPLE"},
        "s3": {
            "bucket": {"name": "bucket"},
            "object": {"key": "a+b/%C3%BC%2B.txt", "size": 1, "sequencer": "0062E99A88DC407460"},
        },
    }
    return {**body, **changes}


def s3(*records: Any) -> str:
    return json.dumps({"Records": list(records or (record(),))})


def sns(message: Any) -> str:
    return json.dumps({"Type": "Notification", "MessageId": "1", "TopicArn": "arn:t", "Message": message})


def bridge(what: str = "Object Created", **detail: Any) -> dict[str, Any]:
    told = {"bucket": {"name": "bucket"}, "object": {"key": "a b/ü+.txt"}, **detail}
    return {"source": "aws.s3", "detail-type": what, "detail": told}


def gateway(what: str, resources: tuple[str, ...] = (), **detail: Any) -> dict[str, Any]:
    return {"source": "aws.storagegateway", "detail-type": what, "resources": resources, "detail": detail}


@pytest.mark.parametrize(
    ("body", "envelope", "events"),
    [
        pytest.param(s3(), "Auto", [CREATED], id="S3: keys are form-encoded"),
        pytest.param(s3(), "S3", [CREATED], id="S3, as asked"),
        pytest.param(sns(s3()), "Auto", [CREATED], id="SNS, wrapped"),
        pytest.param(sns(s3()), "SNS", [CREATED], id="SNS, as asked"),
        pytest.param(
            json.dumps(bridge()),
            "EventBridge",
            [ObjectEvent("ObjectCreated", "bucket", "a b/ü+.txt")],
            id="EventBridge: keys are raw",
        ),
        pytest.param(
            json.dumps(bridge("Object Deleted", reason="DeleteObject")),
            "Auto",
            [ObjectEvent("ObjectRemoved", "bucket", "a b/ü+.txt")],
            id="EventBridge: a removal",
        ),
        pytest.param(
            json.dumps(bridge("Object Deleted", reason="Lifecycle Expiration")),
            "Auto",
            [ObjectEvent("LifecycleExpiration", "bucket", "a b/ü+.txt")],
            id="EventBridge: an expiration",
        ),
        pytest.param(
            s3(record(eventName="s3:LifecycleExpiration:DeleteMarkerCreated", userIdentity=None)),
            "Auto",
            [ObjectEvent("LifecycleExpiration", "bucket", "a b/ü+.txt")],
            id="S3: an expiration (hole 20)",
        ),
        pytest.param(
            sns(json.dumps(bridge())),
            "SNS",
            [ObjectEvent("ObjectCreated", "bucket", "a b/ü+.txt")],
            id="EventBridge by SNS",
        ),
        pytest.param(
            json.dumps(bridge("Object Restore Completed")),
            "Auto",
            [ObjectEvent("Other", "bucket", "a b/ü+.txt")],
            id="EventBridge: an event of another sort",
        ),
        pytest.param(s3(record(eventVersion=2.1)), "Auto", [CREATED], id="a version that is a number"),
        pytest.param(s3(record(eventVersion="2.1.3")), "Auto", [CREATED], id="a version in three parts"),
        pytest.param(s3(record(eventName="ObjectCreated")), "Auto", [CREATED], id="a name in one part"),
        pytest.param(
            s3(
                record(
                    userIdentity={"principalId": "p" * 256},
                    s3={"object": {"key": "k"}, "bucket": {"name": "b" * 256}},
                )
            ),
            "Auto",
            [ObjectEvent("ObjectCreated", "b" * 256, "k", "p" * 256)],
            id="names as long as they may be",
        ),
        pytest.param(s3(record(), record()), "Auto", [CREATED, CREATED], id="several records"),
        pytest.param(s3(record(more={"x": 1})), "Auto", [CREATED], id="fields of later versions"),
        pytest.param(
            s3(record(eventName="ReducedRedundancyLostObject", userIdentity={})),
            "Auto",
            [ObjectEvent("Other", "bucket", "a b/ü+.txt")],
            id="an event of another sort",
        ),
        pytest.param(
            json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"}), "S3", [], id="s3:TestEvent"
        ),
        pytest.param(
            json.dumps(
                gateway(
                    "Storage Gateway Object Upload Event",
                    **{"bucket-name": "bucket", "object-key": "a/b.txt"},
                )
            ),
            "S3",
            [ObjectEvent("ObjectCreated", "bucket", "a/b.txt")],
            id="another gateway's upload",
        ),
        pytest.param(
            json.dumps(gateway("Storage Gateway File Upload Event", ("arn:aws:s3:::bucket/pre/",))),
            "Auto",
            [ObjectEvent("ObjectCreated", "bucket", "")],
            id="another gateway's uploads, nobody says which",
        ),
        pytest.param(
            json.dumps(gateway("Storage Gateway File Upload Event", (SHARE, "arn:aws:s3:::bucket/a:::b/"))),
            "Auto",
            [ObjectEvent("ObjectCreated", "bucket", "")],
            id="below a prefix with colons",
        ),
    ],
)
def test_events(body: str, envelope: Envelope, events: list[ObjectEvent]) -> None:
    found = parse(body, envelope)
    assert (list(found.events), found.malformed) == (events, "")


@pytest.mark.parametrize(
    ("message", "completion"),
    [
        pytest.param(
            gateway("Storage Gateway Refresh Cache Event", (SHARE,), **{"notification-id": "n-1"}),
            Completion("n-1", SHARE),
            id="with its id",
        ),
        pytest.param(
            gateway("Storage Gateway Refresh Cache Event", (SHARE,)),
            Completion("", SHARE),
            id="without an id",
        ),
        pytest.param(
            gateway("Storage Gateway Refresh Cache Event", **{"notification-id": "n-1"}),
            Completion("n-1", ""),
            id="without a share",
        ),
        pytest.param(
            gateway(
                "Storage Gateway Refresh Cache Event",
                (f"{SHARE}{'x' * 300}",),
                **{"notification-id": "n" * 300},
            ),
            Completion("n" * 256, f"{SHARE}{'x' * 300}"[:256]),
            id="with long names",
        ),
        pytest.param(
            {**gateway("Storage Gateway Refresh Cache Event", (SHARE,)), "folderList": ["/"]},
            Completion("", SHARE),
            id="fields in other places",
        ),
    ],
)
@pytest.mark.parametrize("envelope", ["Auto", "S3", "EventBridge"])
def test_the_end_of_a_refresh_is_understood_in_every_queue(
    message: dict[str, Any], completion: Completion, envelope: Envelope
) -> None:
    assert parse(json.dumps(message), envelope).completions == (completion,)


def keyed(quoted: str) -> dict[str, Any]:
    return record(s3={"bucket": {"name": "bucket"}, "object": {"key": quoted}})


@pytest.mark.parametrize(
    "quoted",
    ["k" * MAX_KEY_BYTES, "%C3%BC" * 512, "%E2%82%AC" * 341 + "a", "+" * MAX_KEY_BYTES],
    ids=["ASCII", "two bytes", "three bytes", "spaces"],
)
def test_a_key_as_long_as_one_can_be(quoted: str) -> None:
    found = parse(s3(keyed(quoted)))
    assert [len(event.key.encode()) for event in found.events] == [MAX_KEY_BYTES]


@pytest.mark.parametrize("wrap", [lambda body: body, sns], ids=["S3", "SNS"])
def test_many_records_are_read_in_slices(wrap: Callable[[str], str]) -> None:
    events = 10 * SLICE
    steps = list(parsing(wrap(s3(*[record()] * events))))
    assert len(steps) == (10 if wrap is not sns else 11)
    few = list(parsing(wrap(s3(*[record()] * (SLICE - 1)))))
    assert len(few) == (0 if wrap is not sns else 1)
    assert parse(wrap(s3(*[record()] * events))).events == (CREATED,) * events


async def test_others_have_their_turns_while_many_records_are_read() -> None:
    _, turns = await beside_others(parsed_of(s3(*[record()] * 10 * SLICE), SQSSource(queue_url="q")))
    assert turns >= 10


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(s3(record(eventVersion="a." * 30_000)), id="version"),
        pytest.param(s3(keyed("%FF" * 900)), id="key"),
        pytest.param(s3(keyed("a/" * 30_000)), id="long key"),
        pytest.param(json.dumps({"x" * 60_000: 1}), id="names"),
    ],
)
def test_of_what_cannot_be_read_little_is_told(body: str) -> None:
    assert 0 < len(parse(body).malformed) <= MAX_FAULT


NEITHER = "neither Records, s3:TestEvent, an EventBridge event nor an SNS notification"
LONG = "a key of more than 1024 bytes, which no object has: "
DEEP = '{"Records":' + "[" * 100_000 + "]" * 100_000 + "}"  # Python 3.13 decodes 10,000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("[]", "the body is no JSON object", id="a list"),
        pytest.param("null", "the body is no JSON object", id="null"),
        pytest.param("{}", NEITHER, id="an empty object"),
        pytest.param('{"Records": 3}', "Records is no list", id="Records as a number"),
        pytest.param('{"Records": [3]}', "Records[0].eventVersion is missing", id="a record as a number"),
        pytest.param(s3({}), "Records[0].eventVersion is missing", id="an empty record"),
        pytest.param(
            s3(record(eventVersion="3.0")),
            "Records[0].eventVersion is 3.0, known are 2.x",
            id="a later major version",
        ),
        pytest.param(
            s3(record(eventVersion="3" * 21)),
            f"Records[0].eventVersion is {'3' * 20}, known are 2.x",
            id="a long version",
        ),
        pytest.param(s3(record(eventName=None)), "Records[0].eventName is no text", id="no event name"),
        pytest.param(s3(record(s3={})), "Records[0].s3.object is missing", id="no object"),
        pytest.param(
            s3(record(s3={"object": {"key": "k"}})), "Records[0].s3.bucket is missing", id="no bucket"
        ),
        pytest.param(
            s3(record(s3={"object": {"key": ""}})), "Records[0].s3.object.key is no text", id="an empty key"
        ),
        pytest.param(
            s3(keyed("%FF" * 40)),
            f"Records[0].s3.object.key is not UTF-8: {'%FF' * 33}%",
            id="a broken key",
        ),
        pytest.param(
            s3(record(), {"eventVersion": "2.1"}),
            "Records[1].eventName is missing",
            id="one bad record of two",
        ),
        pytest.param(sns(None), "Message is no text", id="SNS without a message"),
        pytest.param(
            json.dumps({"Type": "SubscriptionConfirmation", "TopicArn": "arn:t", "Token": "secret"}),
            "arn:t sends nothing until its subscription is confirmed: aws sns confirm-subscription, with the "
            "Token of this message",
            id="a subscription that waits for its confirmation",
        ),
        pytest.param(
            json.dumps({"Type": "UnsubscribeConfirmation", "TopicArn": ["t"]}),
            "the subscription of an SNS topic has ended, it sends no more events: subscribe the queue again",
            id="a subscription that has ended",
        ),
        pytest.param(
            json.dumps({"Type": "UnsubscribeConfirmation", "TopicArn": "t" * 301}),
            f"the subscription of {'t' * 300} has ended, it sends no more events: subscribe the queue again",
            id="a topic with a long name",
        ),
        pytest.param(sns(sns(s3())), "an SNS notification within an SNS notification", id="SNS in SNS"),
        pytest.param(
            json.dumps({"source": "aws.s3"}), "detail-type is missing", id="half an EventBridge event"
        ),
        pytest.param(
            json.dumps(bridge(object={"key": ""})), "detail.object.key is no text", id="EventBridge: no key"
        ),
        pytest.param(
            json.dumps({"source": "aws.storagegateway"}),
            "detail-type is missing",
            id="half an event of a gateway",
        ),
        pytest.param(
            json.dumps({**bridge(), "detail": "x"}), "detail.bucket is missing", id="a detail that is text"
        ),
        pytest.param(
            json.dumps(gateway("Storage Gateway Refresh Cache Event")),
            "a refresh that ended, without notification-id and share",
            id="whose?",
        ),
        pytest.param(
            json.dumps(gateway("Storage Gateway File Upload Event")),
            "an upload without a bucket",
            id="where?",
        ),
        pytest.param(s3(keyed("k" * 1025)), f"Records[0]: {LONG}{'k' * 100}", id="a key too long"),
        pytest.param(s3(keyed("ü" * 513)), f"Records[0]: {LONG}{'ü' * 100}", id="a key too long in bytes"),
        pytest.param(
            s3(keyed("ab" * 1537)),
            f"Records[0].s3.object.key is longer than any object's key: {'ab' * 50}",
            id="a key of more characters than quoting needs",
        ),
        pytest.param(
            json.dumps(bridge(object={"key": "k" * 1025})), f"{LONG}{'k' * 100}", id="EventBridge: too long"
        ),
        pytest.param(
            json.dumps(
                gateway(
                    "Storage Gateway Object Upload Event", **{"bucket-name": "b", "object-key": "k" * 1025}
                )
            ),
            f"{LONG}{'k' * 100}",
            id="an upload: too long",
        ),
        pytest.param(
            s3(record(userIdentity={"principalId": "p" * 257})),
            "Records[0]: a name of more than 256 characters",
            id="a long principal",
        ),
        pytest.param(
            s3(record(s3={"object": {"key": "k"}, "bucket": {"name": "b" * 257}})),
            "Records[0]: a name of more than 256 characters",
            id="a long bucket",
        ),
        pytest.param(
            s3(record(eventVersion=[[]])),
            "Records[0].eventVersion is no text, known are 2.x",
            id="a version that is a list",
        ),
        pytest.param('{"source": "aws.ec2"}', NEITHER, id="another service's event"),
    ],
)
def test_what_cannot_be_read_is_told(body: str, words: str) -> None:
    assert parse(body) == Parsed(malformed=words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("", "the body is no JSON: ", id="empty"),
        pytest.param("hello", "the body is no JSON: ", id="text"),
        pytest.param(sns("{"), "Message is no JSON: ", id="SNS around half an event"),
        pytest.param(DEEP, "the body is no JSON: ", id="100,000 lists in each other"),
        pytest.param('{"Records": ["\ud800"]}', "the body is no JSON: ", id="half a surrogate"),
    ],
)
def test_what_is_no_json_is_told_with_the_words_of_the_parser(body: str, words: str) -> None:
    found = parse(body)
    assert found.malformed.startswith(words)
    assert (found.events, found.completions) == ((), ())


@pytest.mark.parametrize(
    ("body", "envelope", "told"),
    [
        (sns(s3()), "S3", "an SNS notification, although envelope is S3"),
        (sns(s3()), "EventBridge", "an SNS notification, although envelope is EventBridge"),
        (
            s3(),
            "SNS",
            "no SNS notification, although spec.source.sqs.envelope is SNS (raw delivery is S3)",
        ),
        (s3(), "EventBridge", "an event of S3, although envelope is EventBridge"),
        (json.dumps(bridge()), "S3", "an event of EventBridge, although envelope is S3"),
    ],
)
def test_an_envelope_that_was_not_asked_for_is_told(body: str, envelope: Envelope, told: str) -> None:
    assert parse(body, envelope) == Parsed(malformed=told)


def test_a_gateway_event_with_a_detail_of_another_shape_breaks_nothing() -> None:
    uploads = gateway("Storage Gateway File Upload Event", ("arn:aws:s3:::bucket/pre/",))
    assert parse(json.dumps({**uploads, "detail": "y"})).events == (
        ObjectEvent("ObjectCreated", "bucket", ""),
    )


@pytest.mark.parametrize("resources", [5, "arn", {"a": 1}, None, [5, None, {}]], ids=str)
def test_a_gateway_event_with_resources_of_another_shape_breaks_nothing(resources: object) -> None:
    """One message that cannot be read must not end the polling of all others."""
    other = {"source": "aws.storagegateway", "detail-type": "x", "resources": resources}
    assert parse(json.dumps(other)) == Parsed()
    end = {"source": "aws.storagegateway", "detail-type": "Storage Gateway Refresh Cache Event"}
    assert parse(json.dumps({**end, "resources": resources})).malformed
