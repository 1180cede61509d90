"""Messages to SNS, SQS and EventBridge: their content, and the meaning of each answer for the claim."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pytest
from botocore.retries.standard import ExponentialBackoff
from msgspec.structs import replace

from caretaker.api.grants import Grant, Grants, refusals
from caretaker.api.objects import WireMeta
from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.snapshot import Result
from caretaker.s3refresh.targets import TargetClient, Tools, make, registry
from caretaker.s3refresh.targets.outcomes import failed
from caretaker.s3refresh.targets.payload import payload_of
from fakes.aws import Answer, Call, FakeAws, error, query_error
from testing.s3refreshes import refresh

BUCKET: Final = of_buckets(["media"], "in/")[0]
CLAIM: Final = Claim("c1", "me", 1_800_000_000.0, Request(("a", "/"), recursive=False), 1_799_999_990.0)
AGAIN: Final = replace(CLAIM, attempt=2)
PAYLOAD: Final = payload_of(BUCKET, CLAIM).decode()
TOPIC: Final = "arn:aws:sns:eu-central-1:123456789012:refreshes"
QUEUE: Final = "https://sqs.eu-west-1.amazonaws.com/123456789012/refreshes"
BUS: Final = "arn:aws:events:eu-central-1:123456789012:event-bus/refreshes"
FUNCTION: Final = "arn:aws:lambda:eu-central-1:123456789012:function:reindex:live"
TARGETS: Final[dict[str, tuple[str, str, str]]] = {  # member -> field, where to, action
    "sns": ("topicARN", TOPIC, "Publish"),
    "sqs": ("queueURL", QUEUE, "SendMessage"),
    "eventBridge": ("eventBusARN", BUS, "PutEvents"),
    "lambda": ("functionARN", FUNCTION, "Invoke"),
}
each_target = pytest.mark.parametrize("member", TARGETS)


def spec_of(member: str, to: str = "") -> Any:
    field, usual, _ = TARGETS[member]
    spec = refresh(target={member: {field: to or usual, "prefix": "in/"}}, filter={"buckets": ["media"]})
    raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
    found = read(raw, registry().spec)
    assert found.spec is not None, found.invalid
    return found.spec


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with FakeAws() as started:
        for service in ("SNS", "SQS", "EVENTBRIDGE", "LAMBDA"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", started.url)
        started.on("Invoke", Answer("", 202))
        yield started


@pytest.fixture
async def aws(fake: FakeAws) -> AsyncIterator[Aws]:
    assert fake.url
    async with Aws() as made:
        yield made


@pytest.fixture
def target(aws: Aws) -> Callable[..., TargetClient]:
    def made(member: str, to: str = "") -> TargetClient:
        client: Any = None
        return make(spec_of(member, to), Tools(aws, client, WireMeta(name="r", namespace="n", uid="u-1")))

    return made


def sent(call: Call, member: str) -> tuple[str, dict[str, Any]]:
    """(the payload, the other parameters) of a call."""
    if member == "sns":
        return call.form["Message"], {k: v for k, v in call.form.items() if k != "Message"}
    if member == "sqs":
        return call.json["MessageBody"], call.json
    if member == "lambda":
        return call.body, call.headers
    (entry,) = call.json["Entries"]
    return entry["Detail"], entry


@each_target
async def test_the_buckets_are_known_without_a_call(
    target: Callable[..., TargetClient], fake: FakeAws, member: str
) -> None:
    found = await target(member).discover()
    assert (found.complete, found.faults, found.shares) == (True, (), (BUCKET,))
    assert fake.calls == []


@each_target
async def test_a_refresh_is_one_message_the_same_to_the_letter(
    target: Callable[..., TargetClient], fake: FakeAws, member: str
) -> None:
    made = target(member)
    assert await made.refresh(BUCKET, CLAIM) == Result("media", "c1")
    assert await made.refresh(BUCKET, AGAIN) == Result("media", "c1")
    assert fake.actions() == [TARGETS[member][2]] * 2
    assert {sent(call, member)[0] for call in fake.calls} == {PAYLOAD}
    assert fake.calls[0].body == fake.calls[1].body
    assert json.loads(PAYLOAD)["claimID"] == "c1"


async def test_the_claims_id_is_an_attribute_of_a_message(
    target: Callable[..., TargetClient], fake: FakeAws
) -> None:
    await target("sqs").refresh(BUCKET, CLAIM)
    _, others = sent(fake.calls[0], "sqs")
    assert others["MessageAttributes"] == {"claimID": {"DataType": "String", "StringValue": "c1"}}
    assert not {"MessageDeduplicationId", "MessageGroupId"} & others.keys()
    await target("sns").refresh(BUCKET, CLAIM)
    _, others = sent(fake.calls[1], "sns")
    assert others["MessageAttributes.entry.1.Name"] == "claimID"
    assert others["MessageAttributes.entry.1.Value.StringValue"] == "c1"
    assert others["TopicArn"] == TOPIC
    assert "MessageGroupId" not in others
    assert "/eu-central-1/sns/" in fake.calls[1].headers["Authorization"]


@pytest.mark.parametrize(("member", "to"), [("sns", f"{TOPIC}.fifo"), ("sqs", f"{QUEUE}.fifo")])
async def test_of_a_fifo_it_is_the_id_of_deduplication(
    target: Callable[..., TargetClient], fake: FakeAws, member: str, to: str
) -> None:
    await target(member, to).refresh(BUCKET, CLAIM)
    _, others = sent(fake.calls[0], member)
    assert (others["MessageDeduplicationId"], others["MessageGroupId"]) == ("c1", "u-1")


async def test_a_name_that_only_begins_with_fifo_is_none(
    target: Callable[..., TargetClient], fake: FakeAws
) -> None:
    await target("sqs", f"{QUEUE.rpartition('/')[0]}/fifo-x").refresh(BUCKET, CLAIM)
    assert "MessageGroupId" not in sent(fake.calls[0], "sqs")[1]


async def test_an_event_says_what_it_is(target: Callable[..., TargetClient], fake: FakeAws) -> None:
    await target("eventBridge").refresh(BUCKET, CLAIM)
    _, entry = sent(fake.calls[0], "eventBridge")
    assert entry == {
        "Source": "caretaker.dev",
        "DetailType": "S3AggregatedRefresh",
        "EventBusName": BUS,
        "Detail": PAYLOAD,
    }
    assert "/eu-central-1/events/" in fake.calls[0].headers["Authorization"]


async def test_a_function_is_invoked_as_an_event(target: Callable[..., TargetClient], fake: FakeAws) -> None:
    made = target("lambda")
    await made.refresh(BUCKET, CLAIM)
    await made.refresh(BUCKET, AGAIN)
    _, headers = sent(fake.calls[0], "lambda")
    assert headers["X-Amz-Invocation-Type"] == "Event"
    assert unquote(fake.calls[0].path) == f"/2015-03-31/functions/{FUNCTION}/invocations"
    assert "/eu-central-1/lambda/" in headers["Authorization"]
    assert fake.connections == 1  # the answer's body was read


async def test_an_answer_of_another_kind_of_invocation_is_none(
    target: Callable[..., TargetClient], fake: FakeAws
) -> None:
    fake.on("Invoke", Answer('{"done": true}', 200))
    assert (await target("lambda").refresh(BUCKET, CLAIM)).code == UNKNOWN


def refusing(member: str, code: str, status: int, message: str = "no") -> Answer:
    return query_error(code, message, status) if member == "sns" else error(code, message, status)


@each_target
@pytest.mark.parametrize(
    ("code", "status", "first", "again"),
    [
        ("AccessDenied", 403, "AccessDenied", UNKNOWN),
        ("Throttling", 400, "Throttling", UNKNOWN),
        ("InternalFailure", 500, UNKNOWN, UNKNOWN),
        ("ServiceUnavailable", 503, UNKNOWN, UNKNOWN),
        ("ResourceNotFoundException", 404, "ResourceNotFoundException", "ResourceNotFoundException"),
        ("InvalidParameter", 400, "InvalidParameter", "InvalidParameter"),
    ],
)
async def test_what_an_error_means(
    monkeypatch: pytest.MonkeyPatch,
    target: Callable[..., TargetClient],
    fake: FakeAws,
    member: str,
    code: str,
    status: int,
    first: str,
    again: str,
) -> None:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)  # seconds, at random
    fake.on(TARGETS[member][2], refusing(member, code, status))
    made = target(member)
    assert (await made.refresh(BUCKET, CLAIM)).code == first
    assert (await made.refresh(BUCKET, AGAIN)).code == again


@pytest.mark.parametrize("member", ["sns", "eventBridge", "lambda"])
async def test_a_call_that_failed_is_not_repeated_before_it_is_on_record(
    target: Callable[..., TargetClient], fake: FakeAws, member: str
) -> None:
    fake.on(TARGETS[member][2], refusing(member, "InternalFailure", 500))
    await target(member).refresh(BUCKET, CLAIM)
    assert fake.actions() == [TARGETS[member][2]]


def test_a_retry_that_was_never_sent_reports_nothing_of_the_call_before() -> None:
    invalid = AwsError(ErrorClass.INVALID_REQUEST, "ParamValidation")
    assert failed(BUCKET, CLAIM, invalid).code == "ParamValidation"
    assert failed(BUCKET, AGAIN, invalid).code == UNKNOWN


@each_target
async def test_a_lost_reply_is_an_unknown_outcome(
    target: Callable[..., TargetClient], fake: FakeAws, member: str
) -> None:
    fake.on(TARGETS[member][2], Answer(cut=True))
    assert (await target(member).refresh(BUCKET, CLAIM)).code == UNKNOWN


@each_target
async def test_a_denied_call_names_the_action(
    target: Callable[..., TargetClient], fake: FakeAws, member: str
) -> None:
    action = TARGETS[member][2]
    fake.on(action, refusing(member, "AccessDenied", 403))
    service = {"eventBridge": "events"}.get(member, member)
    right = {"Invoke": "InvokeFunction"}.get(action, action)
    said = (await target(member).refresh(BUCKET, CLAIM)).message
    assert f"allow {service}:{right} to the identity that spec.aws names" in said


@pytest.mark.parametrize(
    ("code", "meant"), [("ThrottlingException", "ThrottlingException"), ("InternalFailure", UNKNOWN)]
)
async def test_an_entry_that_failed_is_a_failure(
    target: Callable[..., TargetClient], fake: FakeAws, code: str, meant: str
) -> None:
    entry = {"ErrorCode": code, "ErrorMessage": "why"}
    fake.on("PutEvents", Answer(json.dumps({"FailedEntryCount": 1, "Entries": [entry]})))
    found = await target("eventBridge").refresh(BUCKET, CLAIM)
    assert found.code == meant
    assert "why" in found.message
    assert (await target("eventBridge").refresh(BUCKET, AGAIN)).code == UNKNOWN


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than 9 bytes.",
        ),
        ("InvalidMessageContents", "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD"),
    ],
)
async def test_a_message_that_a_queue_does_not_take_gets_fewer_folders(
    target: Callable[..., TargetClient], fake: FakeAws, code: str, message: str
) -> None:
    fake.on("SendMessage", error(code, message))
    found = await target("sqs").refresh(BUCKET, CLAIM)
    assert (found.code, found.refused) == (code, True)


@each_target
async def test_without_the_lease_nothing_is_sent(
    target: Callable[..., TargetClient], aws: Aws, fake: FakeAws, member: str
) -> None:
    def guard(_: float) -> None:
        raise NotLeader("held by another")

    aws.hooks.guard = guard
    with pytest.raises(NotLeader):
        await target(member).refresh(BUCKET, CLAIM)
    assert fake.calls == []


@each_target
def test_where_messages_go_has_to_be_granted(member: str) -> None:
    spec = spec_of(member)
    wanted = getattr(spec.target, member).called("eu-west-1")
    arns = {"sqs": "arn:aws:sqs:eu-west-1:123456789012:refreshes"}
    arn = arns.get(member, TARGETS[member][1])
    mine = Grant(("web",), own_identity=True, target_arns=(arn,))
    reads = Grant(("web",), own_identity=True, queue_arns=("*",), target_arns=(f"{arn}-of-others",))
    assert refusals(Grants((reads, mine)), "web", spec.aws, wanted) == ()
    (refused,) = refusals(Grants((reads,)), "web", spec.aws, wanted)
    assert refused.field == f"spec.target.{member}.{TARGETS[member][0]}"
    assert f"namespace web is not granted {arn}: " in refused.message
