"""The required members of the response of every operation that is used."""

import copy
import importlib.util
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore import xform_name

from caretaker.aws import response_check
from caretaker.aws.response_check import PROTOCOLS, AssumeRoleResponse, fault_of
from testing.servicemodels import service_model

SERVICES = (
    "autoscaling",
    "cloudfront",
    "cloudwatch",
    "ec2",
    "ecs",
    "events",
    "lambda",
    "s3control",
    "sns",
    "sqs",
    "storagegateway",
    "sts",
)
NAMES = {xform_name(name): name for service in SERVICES for name in service_model(service).operation_names}
METHODS = [
    (name, method)
    for protocol in PROTOCOLS
    for name, method in vars(protocol).items()
    if not name.startswith("_")
]
FORMS: dict[str, Any] = {
    NAMES[name]: typing.get_type_hints(method, include_extras=True)["return"] for name, method in METHODS
}
FORMS["AssumeRoleWithWebIdentity"] = AssumeRoleResponse
EXAMPLES = {str: "x", int: 202, float: 1.5, bool: True, datetime: datetime(2026, 1, 1, tzinfo=UTC), Any: "x"}


def whole(form: Any) -> Any:
    """A response with every member that is read."""
    if typing.get_origin(form) is typing.Required:
        return whole(typing.get_args(form)[0])
    if typing.is_typeddict(form):
        hints = typing.get_type_hints(form)
        return {name: whole(kind) for name, kind in hints.items()}
    if typing.get_origin(form) is list:
        return [whole(typing.get_args(form)[0])]
    if typing.get_origin(form) is dict:
        return {"x": whole(typing.get_args(form)[1])}
    return EXAMPLES[form]


def places(form: Any, answer: Any) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """(structure, member, whether it is required) for every member of this response that is read."""
    if typing.is_typeddict(form):
        for name, kind in typing.get_type_hints(form).items():
            yield answer, name, name in form.__required_keys__
            yield from places(kind, answer[name])
    elif typing.get_origin(form) is list:
        yield from places(typing.get_args(form)[0], answer[0])


def each(operation: str) -> Iterator[tuple[Any, dict[str, Any], str, bool]]:
    """(a response, a structure in it, a member of that, whether it is required), for every member."""
    form = FORMS[operation]
    for at, _ in enumerate(places(form, whole(form))):
        answer = whole(form)
        yield answer, *list(places(form, answer))[at]


def test_no_two_services_share_an_operation() -> None:
    """The answer to one of them would be held against the type of the other."""
    assert len({name for name, _ in METHODS}) == len(METHODS)


def test_every_operation_is_known_once_the_module_is_loaded() -> None:
    spec = importlib.util.find_spec(response_check.__name__)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    for operation in FORMS:
        assert loaded.fault_of(operation, None) == "Expected `object`, got `null`"


@pytest.mark.parametrize("operation", FORMS)
def test_a_whole_answer_has_no_fault(operation: str) -> None:
    answer = whole(FORMS[operation])
    before = copy.deepcopy(answer)
    assert fault_of(operation, {**answer, "ResponseMetadata": {"HTTPStatusCode": 200}, "New": 1}) == ""
    assert answer == before


@pytest.mark.parametrize("operation", FORMS)
def test_a_required_member_has_to_be_there(operation: str) -> None:
    for answer, structure, member, required in each(operation):
        del structure[member]
        fault = fault_of(operation, answer)
        assert bool(fault) is required, (member, fault)
        assert f"`{member}`" in fault or not required


@pytest.mark.parametrize("operation", FORMS)
def test_a_member_of_another_type_is_a_fault_that_quotes_nothing(operation: str) -> None:
    for answer, structure, member, _ in each(operation):
        text = isinstance(structure[member], str)
        for wrong in (None, 7.5 if text else "foreign-text", [["foreign-text"]]):
            structure[member] = wrong
            fault = fault_of(operation, answer)
            assert fault, (member, wrong)
            assert "foreign" not in fault


@pytest.mark.parametrize(
    ("operation", "required"),
    [
        ("DescribeInstances", True),
        ("DescribeNFSFileShares", True),
        ("DescribeSMBFileShares", True),
        ("ListFileShares", True),
        ("DescribeAutoScalingGroups", True),
        ("DescribeLaunchTemplateVersions", True),
        ("DescribeTags", True),
        ("GetInstanceMetadataDefaults", True),
        ("GetMetricData", True),
        ("GetQueueAttributes", True),
        ("GetQueueUrl", True),
        ("DeleteMessageBatch", True),
        ("ChangeMessageVisibilityBatch", True),
        ("ModifyInstanceMetadataOptions", True),
        ("RefreshCache", True),
        ("CreateInvalidation", True),
        ("Invoke", True),
        ("Publish", True),
        ("PutEvents", True),
        ("SendMessage", True),
        ("AssumeRole", True),
        ("AssumeRoleWithWebIdentity", True),
        ("ReceiveMessage", False),  # no message arrived during the wait
    ],
)
def test_an_answer_without_anything_is_none(operation: str, required: bool) -> None:
    assert bool(fault_of(operation, {})) is required


@pytest.mark.parametrize("operation", ["DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_a_batch_tells_of_success_or_of_failure(operation: str) -> None:
    assert fault_of(operation, {"Successful": [{"Id": "1"}]}) == ""
    assert fault_of(operation, {"Failed": [{"Id": "1", "Code": "x"}]}) == ""
    assert fault_of(operation, {"Successful": [], "Failed": []}) == (
        "Object has neither of the fields `Successful` and `Failed`"
    )


@pytest.mark.parametrize(
    "operation", sorted(set(FORMS) - {"AssumeRole", "AssumeRoleWithWebIdentity", "GetCallerIdentity"})
)
def test_a_name_is_no_longer_than_aws_has_it(operation: str) -> None:
    """Names are kept in memory, and shown in statuses and conditions."""
    answer = whole(FORMS[operation])
    for structure, member, _ in places(FORMS[operation], answer):
        if structure[member] == "x" and member.lower().endswith(("arn", "id", "name")):
            structure[member] = "x" * 2048
            assert fault_of(operation, answer) == ""
            structure[member] = "foreign" * 300
            assert "of length <= 2048" in fault_of(operation, answer), member
            structure[member] = "x"


def test_a_receive_has_no_more_messages_than_can_be_asked_for() -> None:
    """Their number is bounded, not only their bytes: each one takes time, and memory of its own."""
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": ""}
    assert fault_of("ReceiveMessage", {"Messages": [message] * 10}) == ""
    assert "of length <= 10" in fault_of("ReceiveMessage", {"Messages": [message] * 11})
    assert "of length <= 2048" in fault_of(
        "ReceiveMessage", {"Messages": [{**message, "ReceiptHandle": "r" * 2049}]}
    )


def test_placement_constraints_are_no_longer_than_ecs_has_them() -> None:
    """They are searched, and sent back in the filter of a list."""
    for operation in ("DescribeServices", "DescribeTaskDefinition"):
        answer = whole(FORMS[operation])
        found = next(
            structure for structure, member, _ in places(FORMS[operation], answer) if member == "expression"
        )
        found["expression"] = "x" * 2000
        assert fault_of(operation, answer) == ""
        found["expression"] += "x"
        assert "of length <= 2000" in fault_of(operation, answer)
    assert "of length <= 100" in fault_of("ListClusters", {"clusterArns": ["a"] * 101})
    service = {**whole(FORMS["DescribeServices"])["services"][0], "placementConstraints": [{}] * 101}
    assert "of length <= 100" in fault_of("DescribeServices", {"services": [service]})


@pytest.mark.parametrize("told", ["", "-1", "1.5", "1e3", "many", "٣", "9" * 16])
@pytest.mark.parametrize(
    "name",
    [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "MaximumMessageSize",
        "MessageRetentionPeriod",
    ],
)
def test_a_number_of_a_queue_is_one(name: str, told: str) -> None:
    fault = fault_of("GetQueueAttributes", {"Attributes": {name: told}})
    assert fault == f"Expected a number - at `$.Attributes.{name}`"
    assert not fault_of("GetQueueAttributes", {"Attributes": {name: "262144", "QueueArn": "a"}})


def test_an_operation_that_nothing_is_read_of_is_not_looked_at() -> None:
    assert fault_of("PutObject", {"x": 1}) == ""


# In processes of their own, where no answer was read before. Threads take turns as often as they can.
AT_ONCE = """
import os, sys, threading
from caretaker.aws.response_check import fault_of

def read(operation, together):
    together.wait()
    fault_of(operation, {"unknown": 1})

for _ in range(8):
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        continue
    sys.setswitchinterval(1e-6)
    for operation in sys.argv[1:]:
        together = threading.Barrier(8)
        threads = [threading.Thread(target=read, args=(operation, together)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    os._exit(0)
"""


@pytest.mark.slow
def test_the_first_answers_may_come_to_many_threads_at_once() -> None:
    command = [sys.executable, "-c", AT_ONCE, *FORMS]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # `caretaker` need not be installed
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert ended.stdout.split() == ["0"] * 8
