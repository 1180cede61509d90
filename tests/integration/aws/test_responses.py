"""Invalid responses of every operation that is used: one error, which contains nothing of the body."""

import inspect
import json
import logging
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore import xform_name
from botocore.loaders import create_loader
from botocore.model import OperationModel, ServiceModel
from prometheus_client import CollectorRegistry, generate_latest

from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey, Identity
from caretaker.aws.response_check import PROTOCOLS, UNREADABLE, Sts
from caretaker.aws.services import is_write
from caretaker.obs.metrics import AwsMetrics
from fakes.aws import Answer, FakeAws, assumed, error
from testing.operator import parse_metrics

pytestmark = pytest.mark.usefixtures("environment")

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"


def fronts() -> Iterator[tuple[str, type]]:
    """(method of Aws, its Protocol) of every service."""
    for name, method in vars(Aws).items():
        front = typing.get_type_hints(method).get("return") if inspect.isfunction(method) else None
        if getattr(front, "_is_protocol", False) and not name.startswith("_"):
            yield name, front


FRONTS = {**dict(fronts()), "sts": Sts}  # AssumeRole is called by session.py alone
# (method of Aws, method of its Protocol)
OPERATIONS = [
    (front, method)
    for front, protocol in FRONTS.items()
    for method in vars(protocol)
    if not method.startswith("_")
]
# A front's operations differ in their models alone: `make test` tries one of each.
TRIED = [
    pytest.param(
        front,
        method,
        marks=() if method == next(m for f, m in OPERATIONS if f == front) else pytest.mark.slow,
    )
    for front, method in OPERATIONS
]


@cache
def operations(service: str) -> dict[str, OperationModel]:
    """By the names of boto3's methods."""
    model = ServiceModel(create_loader().load_service_model(service, "service-2"))
    return {xform_name(name): model.operation_model(name) for name in model.operation_names}


def operation(front: str, method: str) -> OperationModel:
    return operations(service_of(front))[method]


def service_of(front: str) -> str:
    return front.removesuffix("_writer").removesuffix("_")


def least(shape: Any, name: str = "") -> Any:
    """The least value that botocore sends."""
    if shape.type_name == "structure":
        return {member: least(shape.members[member], member) for member in shape.required_members}
    if shape.type_name == "list":
        return [least(shape.member)]
    if shape.type_name == "string":
        words = getattr(shape, "enum", None) or [QUEUE if name == "QueueUrl" else "a"]
        return words[0].ljust(shape.metadata.get("min", 1), "a")
    return 1


HTML = "<html><body>db_password=hunter2</body></html>"
JSON = json.dumps({"message": "db_password=hunter2", "code": 403, "Error": "hunter2", "__type": 7})
MESSAGE = {"MessageId": "hunter2", "ReceiptHandle": "h", "Body": "b"}
FAULTS = {
    "cut": Answer('{"Messages": [{"MessageId": "hunter2", "Rec'),
    "cut XML": Answer("<DescribeInstancesResponse><reservationSet><item><hunter2"),
    "empty": Answer(""),
    "HTML": Answer(HTML),
    "HTML that is no XML": Answer("<!DOCTYPE html><html><br>hunter2"),
    "a list": Answer('[{"hunter2": 1}]'),
    "a text": Answer('"hunter2"'),
    "a number": Answer("7"),
    "null": Answer("null"),
    "bytes": Answer("\x00\ufffdhunter2"),
    "deep": Answer('{"a":' * 100_000),
    "deep of 400": Answer('{"a":' * 100_000, 400),
    "HTML of 404": Answer(HTML, 404),
    "HTML of 403": Answer(HTML, 403),
    "HTML of 400": Answer(HTML, 400),
    "JSON of 404": Answer(JSON, 404),
    "a redirect": Answer(HTML, 302, {"Location": "http://127.0.0.1:9/hunter2"}),
    "nothing of 404": Answer("", 404),
    "empty JSON of 404": Answer("{}", 404),
    "a foreign code": Answer(json.dumps({"__type": "hunter2 " * 40, "message": "hunter2"}), 400),
    "a foreign query code": Answer("{}", 400, {"x-amzn-query-error": "hunter2 hunter2;Sender"}),
}


async def ask(aws: Aws, front: str, method: str, target: ClientKey) -> Any:
    given = least(operation(front, method).input_shape)
    if front == "sts":
        return await aws.call(target, method, **given)
    return await getattr(getattr(aws, front)(target), method)(**given)


def test_every_service_is_tried_and_its_answers_are_validated() -> None:
    assert set(FRONTS.values()) == set(PROTOCOLS)
    assert len({operation(*one).name for one in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize(("front", "method"), TRIED)
async def test_what_is_no_answer_is_one_error_that_tells_nothing_of_it(
    fake: FakeAws, aws: Aws, caplog: pytest.LogCaptureFixture, front: str, method: str
) -> None:
    caplog.set_level(logging.INFO)
    called = operation(front, method).name
    target, write = ClientKey(service_of(front), "eu-west-1"), is_write(called)
    for name, answer in FAULTS.items():
        fake.on(called, answer)
        with pytest.raises(AwsError) as raised:
            await ask(aws, front, method, target)
        found = raised.value
        assert (found.code, found.status) == (UNREADABLE, answer.status), name
        assert found.error_class is (ErrorClass.UNKNOWN_OUTCOME if write else ErrorClass.TRANSIENT), name
        assert found.transient, name
        assert "hunter2" not in f"{found} {found!r} {found.__cause__} {caplog.text}", name
        assert len(str(found)) < 300, name
    fake.on(called, Answer(None))


@pytest.mark.parametrize(("front", "method"), TRIED)
async def test_html_of_a_server_that_fails_is_told_by_its_status(
    fake: FakeAws, aws: Aws, front: str, method: str
) -> None:
    for body in (HTML, "<!DOCTYPE html><br>hunter2", "hunter2", ""):
        fake.on(operation(front, method).name, Answer(body, 502))
        with pytest.raises(AwsError) as raised:
            await ask(aws, front, method, ClientKey(service_of(front), "eu-west-1", once=True))
        assert (raised.value.code, raised.value.status) == ("502", 502)
        assert raised.value.transient
        assert "hunter2" not in f"{raised.value!r} {raised.value}"


async def test_what_aws_says_of_an_error_is_kept_to_a_code_and_a_line(fake: FakeAws, aws: Aws) -> None:
    words = "User: arn:aws:sts::1:assumed-role/r/" + "s" * 150 + " is not authorized to perform: kms:Decrypt"
    fake.on("GetQueueUrl", Answer(json.dumps({"__type": "x#AccessDenied", "message": words + "\n" * 9}), 400))
    with pytest.raises(AwsError) as raised:
        await aws.sqs(ClientKey("sqs", "eu-west-1")).get_queue_url(QueueName="q")
    assert raised.value.message == words[:200]
    assert raised.value.missing_permission == "kms:Decrypt"
    fake.on("GetQueueUrl", error("AccessDenied", "a\x1b[31mb\u2028c"))
    with pytest.raises(AwsError) as raised:
        await aws.sqs(ClientKey("sqs", "eu-west-1")).get_queue_url(QueueName="q")
    assert raised.value.message == "a [31mb c"


async def test_unreadable_answers_have_a_code_of_their_own_in_the_metrics(fake: FakeAws, aws: Aws) -> None:
    registry = CollectorRegistry()
    aws.hooks.observer = AwsMetrics(registry)
    fake.on("GetQueueUrl", Answer('{"QueueUrl": "htt'))
    with pytest.raises(AwsError):
        await aws.sqs(ClientKey("sqs", "eu-west-1")).get_queue_url(QueueName="q")
    series = 'caretaker_aws_requests_total{code="UnreadableAnswer",operation="GetQueueUrl",service="sqs"}'
    assert parse_metrics(generate_latest(registry).decode())[series] == 1


class TestCredentials:
    ROLE = Identity(None, "arn:aws:iam::123456789012:role/r", "", "eu-west-1")

    @pytest.mark.parametrize("name", FAULTS)
    async def test_no_role_is_assumed_from_what_is_no_answer(
        self, fake: FakeAws, aws: Aws, name: str
    ) -> None:
        fake.on("AssumeRole", FAULTS[name])
        with pytest.raises(AwsError) as raised:
            await aws.sqs(ClientKey("sqs", "eu-west-1", self.ROLE)).get_queue_url(QueueName="q")
        found = raised.value
        assert (found.service, found.operation, found.code) == ("sts", "AssumeRole", UNREADABLE)
        assert fake.actions() == ["AssumeRole"]
        assert "hunter2" not in f"{found!r} {found}"

    async def test_nor_from_one_that_lacks_a_key(self, fake: FakeAws, aws: Aws) -> None:
        whole = assumed("ASIA1", "2030-01-01T00:00:00Z").body or ""
        fake.on("AssumeRole", Answer(whole.replace("SecretAccessKey", "Other")))
        with pytest.raises(AwsError, match="required field `SecretAccessKey`"):
            await aws.sqs(ClientKey("sqs", "eu-west-1", self.ROLE)).get_queue_url(QueueName="q")

    @pytest.mark.parametrize("name", ["cut XML", "empty", "HTML", "HTML of 403"])
    async def test_nor_the_operators_own_of_a_web_identity(
        self, fake: FakeAws, aws: Aws, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        token = tmp_path / "token"
        token.write_text("token")
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/own")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        fake.on("AssumeRoleWithWebIdentity", FAULTS[name])
        with pytest.raises(AwsError) as raised:
            await aws.sqs(ClientKey("sqs", "eu-west-1")).get_queue_url(QueueName="q")
        assert raised.value.code == UNREADABLE
        assert fake.actions() == ["AssumeRoleWithWebIdentity"]
