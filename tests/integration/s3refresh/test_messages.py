"""Events that become messages: real API server, real operator, and MiniStack's SNS, SQS and EventBridge.
Their subscribers are queues; the messages in them are the judge."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from awsdoubles.sqsproxy.rules import LoseReply, Match
from fakes.aws import Answer, Call, FakeAws
from testbed.admin import Json
from testing.apiproxy import ApiProxy
from testing.aws import Aws, Source
from testing.gate import Gate
from testing.operator import OperatorProcess
from testing.refreshing import TIMEOUT, Refresh, Refreshing, condition, stands

KEYS: Final = ("in/2026/a", "in/2026/b")
FOLDERS: Final = {"/", "in", "in/2026"}


@dataclass
class Place:
    """Where messages go, and the queue in which they arrive."""

    target: Json
    queue_url: str
    service: str
    operation: str


def sqs(aws: Aws, *, fifo: bool = False) -> Place:
    url = _queue(aws, fifo=fifo)
    return Place({"sqs": {"queueURL": url}}, url, "sqs", "SendMessage")


def sns(aws: Aws) -> Place:
    url = _queue(aws)
    topic = aws.sns.create_topic(Name=f"refreshes-{secrets.token_hex(4)}")["TopicArn"]
    arn = aws.wiring.arn_of(url)
    raw = {"RawMessageDelivery": "true"}
    aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=raw)
    return Place({"sns": {"topicARN": topic}}, url, "sns", "Publish")


def event_bridge(aws: Aws) -> Place:
    url = _queue(aws)
    name = f"refreshes-{secrets.token_hex(4)}"
    bus = aws.events.create_event_bus(Name=name)["EventBusArn"]
    pattern = {"source": ["caretaker.dev"], "detail-type": ["S3AggregatedRefresh"]}
    aws.events.put_rule(Name=name, EventBusName=name, EventPattern=json.dumps(pattern))
    aws.events.put_targets(
        Rule=name, EventBusName=name, Targets=[{"Id": "queue", "Arn": aws.wiring.arn_of(url)}]
    )
    return Place({"eventBridge": {"eventBusARN": bus}}, url, "events", "PutEvents")


def _queue(aws: Aws, *, fifo: bool = False) -> str:
    name = f"told-{secrets.token_hex(4)}{'.fifo' if fifo else ''}"
    attributes = {"FifoQueue": "true"} if fifo else {}
    return str(aws.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def fifo(aws: Aws) -> Place:
    return sqs(aws, fifo=True)


each_place = pytest.mark.parametrize("make", [sns, sqs, fifo, event_bridge], ids=lambda make: make.__name__)
Make = Callable[[Aws], Place]


async def refresher(place: Refreshing, source: Source, to: Place, **endpoints: str) -> Refresh:
    """A resource that sends messages there about this bucket."""
    aws = place.body(source.queue)["spec"]["aws"]
    aws["endpointURLs"] = {**aws["endpointURLs"], **endpoints}
    return await place.create(
        source.queue,
        aws=aws,
        filter={"buckets": [source.bucket]},
        target=to.target,
        debounce={"quietPeriod": "1s", "maxDelay": "60s", "minInterval": "0s"},
    )


def only(found: Json) -> Json:
    """The record of the one target."""
    (target,) = (found.get("status") or {}).get("targets") or ({},)
    return dict(target)


def succeeded(found: Json) -> bool:
    """Whether the last refresh has succeeded and nothing is left to do."""
    return (only(found).get("last") or {}).get("result") == "Succeeded" and stands(found, "CaughtUp")


async def arrived(aws: Aws, to: Place) -> list[Json]:
    """The payloads in the queue, once there is one and no more come at once."""
    found: list[Json] = []
    asked: dict[str, Any] = {"QueueUrl": to.queue_url, "MaxNumberOfMessages": 10}
    asked["MessageAttributeNames"] = ["All"]

    def take(seconds: int) -> list[Json]:
        messages = aws.sqs.receive_message(**asked, WaitTimeSeconds=seconds).get("Messages", [])
        for one in messages:
            aws.sqs.delete_message(QueueUrl=to.queue_url, ReceiptHandle=one["ReceiptHandle"])
        return list(messages)

    while messages := await asyncio.to_thread(take, 1 if found else 20):
        for message in messages:
            body = json.loads(message["Body"])
            payload = body.get("detail", body)
            attribute = message.get("MessageAttributes", {}).get("claimID")
            assert attribute is None or attribute["StringValue"] == payload["claimID"]
            assert (attribute is None) == ("detail" in body)
            found.append(payload)
    return found


def check(payload: Json, source: Source) -> None:
    """It has the folders that the events of KEYS have made stale."""
    assert (payload["bucket"], payload["prefix"], payload["all"]) == (source.bucket, "", False)
    assert set(payload["folders"]) == FOLDERS


@each_place
async def test_events_become_one_message(shared: Refreshing, make: Make) -> None:
    to = await asyncio.to_thread(make, shared.aws)
    source = shared.aws.source()
    resource = await refresher(shared, source, to)
    await resource.condition("Ready")
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(succeeded)
    assert not {"dirty", "claim", "inFlight"} & only(found).keys()
    (payload,) = await arrived(shared.aws, to)
    check(payload, source)
    await shared.emptied(source.queue.url)


@pytest.mark.parametrize("after", [False, True], ids=["before it is made", "before it is known"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(fifo, id="fifo"),
        pytest.param(sns, id="sns", marks=pytest.mark.slow),
        pytest.param(sqs, id="sqs", marks=pytest.mark.slow),
        pytest.param(event_bridge, id="event_bridge", marks=pytest.mark.slow),
    ],
)
async def test_an_operator_that_dies_at_a_call_loses_no_message(
    make: Make, after: bool, own: tuple[OperatorProcess, Refreshing, ApiProxy]
) -> None:
    process, place, _ = own
    to = await asyncio.to_thread(make, place.aws)
    with Gate(place.aws.url) as gate:
        how: Json = {"after": process.kill9} if after else {"before": process.kill9, "forward": False}
        stop = gate.stop_at(to.operation, **how)
        source = place.aws.source()
        resource = await refresher(place, source, to, **{to.service: gate.url})
        await asyncio.to_thread(process.start)
        await resource.condition("Ready")
        await place.put(source.bucket, *KEYS)
        await place.until(lambda: not process.running, "the operator was killed", TIMEOUT)
        claim = only(await resource.get())["claim"]
        gate.remove(stop)
        await asyncio.to_thread(process.start)
        await resource.when(succeeded)
        payloads = await arrived(place.aws, to)
    assert {payload["claimID"] for payload in payloads} == {claim["id"]}
    assert all(payload == payloads[0] for payload in payloads)
    check(payloads[0], source)
    # A FIFO queue knows the id; the receiver of any other has to.
    assert len(payloads) == (2 if after and make is not fifo else 1)


@pytest.mark.parametrize("after", [None, False, True], ids=["", "before it is made", "before it is known"])
async def test_a_function_is_invoked_under_one_id(
    after: bool | None, own: tuple[OperatorProcess, Refreshing, ApiProxy]
) -> None:
    process, place, _ = own
    accepted: list[Json] = []

    def invoke(call: Call) -> Answer:
        first = len(fake.calls) == 1
        if first and after is False:
            process.kill9()
            return Answer(cut=True)
        accepted.append(call.json)
        if first and after:
            process.kill9()
        return Answer("", 202)

    with FakeAws() as fake:
        fake.on("Invoke", invoke)
        arn = "arn:aws:lambda:eu-west-1:123456789012:function:reindex"
        to = Place({"lambda": {"functionARN": arn}}, "", "lambda", "Invoke")
        source = place.aws.source()
        resource = await refresher(place, source, to, **{"lambda": fake.url})
        await asyncio.to_thread(process.start)
        await resource.condition("Ready")
        await place.put(source.bucket, *KEYS)
        if after is not None:
            await place.until(lambda: not process.running, "the operator was killed", TIMEOUT)
            await asyncio.to_thread(process.start)
        await resource.when(succeeded)
    assert len(accepted) == (2 if after else 1)  # the function knows the second by its id
    assert all(payload == accepted[0] for payload in accepted)
    check(accepted[0], source)


async def test_a_lost_reply_of_a_fifo_queue_is_one_message(shared: Refreshing, sqs_proxy: Any) -> None:
    to = await asyncio.to_thread(fifo, shared.aws)
    source = shared.aws.source()
    sqs_proxy.add(Match("SendMessage"), LoseReply(), count=3)
    resource = await refresher(shared, source, to)
    await shared.put(source.bucket, *KEYS)
    await resource.when(succeeded)
    (payload,) = await arrived(shared.aws, to)
    check(payload, source)


async def test_the_changes_wait_for_a_topic_that_does_not_exist(shared: Refreshing) -> None:
    to = await asyncio.to_thread(sns, shared.aws)
    source = shared.aws.source()
    missing = Place(
        {"sns": {"topicARN": f"{to.target['sns']['topicARN']}-x"}}, to.queue_url, "sns", "Publish"
    )
    resource = await refresher(shared, source, missing)
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(lambda found: bool(only(found).get("failure")))
    assert condition(found, "CaughtUp")["reason"] == "RefreshFailing"
    await resource.edit(target=to.target)
    await resource.when(succeeded)
    (payload,) = await arrived(shared.aws, to)
    check(payload, source)
