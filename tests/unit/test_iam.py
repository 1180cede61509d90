"""docs/iam/ grants the actions of the calls that the code makes: none less, none more."""

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore import xform_name

from caretaker.aws.cloudfront import CloudFront
from caretaker.aws.cloudwatch import CloudWatch
from caretaker.aws.ec2 import AutoScaling, Ec2, Ec2Writer
from caretaker.aws.ecs import Ecs
from caretaker.aws.eventbridge import EventBridge
from caretaker.aws.functions import Lambda
from caretaker.aws.response_check import Sts
from caretaker.aws.s3control import S3Control
from caretaker.aws.services import iam_action
from caretaker.aws.sns import Sns
from caretaker.aws.sqs import Sqs
from caretaker.aws.storagegateway import StorageGateway
from testing.servicemodels import service_model

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "caretaker"
SERVICES: dict[str, type] = {
    "autoscaling": AutoScaling,
    "cloudfront": CloudFront,
    "cloudwatch": CloudWatch,
    "ec2": Ec2,
    "ecs": Ecs,
    "events": EventBridge,
    "lambda": Lambda,
    "s3control": S3Control,
    "sns": Sns,
    "sqs": Sqs,
    "storagegateway": StorageGateway,
    "sts": Sts,
}


class Kind(msgspec.Struct, frozen=True):
    """A policy, the part of the package whose calls it is for, one of its actions, and what cannot name
    resources."""

    file: str  # beside FILE-*.json of its targets, if it has any
    package: str  # a folder or a module
    known: str
    everywhere: frozenset[str]
    on_behalf: frozenset[str] = frozenset()  # what a service asks for on the caller's behalf
    uncalled: frozenset[str] = frozenset()  # what the shared consumer of queues does for other kinds alone

    @property
    def statements(self) -> list[dict[str, Any]]:
        return statements(self.file)


def statements(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "docs" / "iam" / file).read_text())["Statement"]
    return found


# Other targets than file shares -> their own actions, beside those of the queue.
TARGETS = {
    "cloudfront": {"cloudfront:CreateInvalidation"},
    "eventbridge": {"events:PutEvents"},
    "lambda": {"lambda:InvokeFunction"},
    "sns": {"sns:Publish"},
    "sqs": {"sqs:SendMessage"},
}
KINDS = (
    # SQS asks for kms:Decrypt where a queue is encrypted with a key of KMS; lists have no resource.
    Kind(
        "s3aggregatedrefresh.json",
        "s3refresh",
        "sqs:ReceiveMessage",
        frozenset({"FindFileShares", "ResolveAccessPoints", "CountObjects"}),
        frozenset({"kms:Decrypt"}),
    ),
    Kind(
        "imdspolicy.json",
        "imds",
        "ec2:DescribeInstances",
        frozenset({"LookAtInstances", "LookAtWhatLaunchesThem", "LookAtUseOfIMDSv1"}),
    ),
    Kind(
        "daemontask-ecs.json",
        "daemontask/ecs",
        "ecs:UpdateService",
        frozenset({"FindClusters", "ReadPlacementConstraints"}),
        uncalled=frozenset({"sqs:ChangeMessageVisibility"}),  # it returns no message
    ),
    Kind("assume-roles.json", "aws/session.py", "sts:AssumeRole", frozenset()),
)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file)
FILES = sorted((ROOT / "docs" / "iam").glob("*.json"))


@cache
def operations(service: str) -> dict[str, str]:
    """Method -> operation."""
    model = service_model(service)
    return {xform_name(name): name for name in model.operation_names}


def called(package: str) -> Iterator[tuple[str, str]]:
    """(service, method) of every Protocol method that these modules call, or pass on as a callable; their
    consumers of queues call SQS in the class that they derive from."""
    methods = {name: service for service, protocol in SERVICES.items() for name in vars(protocol)}
    place = PACKAGE / package
    files = sorted(place.rglob("*.py")) or [place]
    shared = PACKAGE / "runtime" / "queue_consumer.py"
    for file in (*files, *([shared] if any("QueueConsumer" in one.read_text() for one in files) else [])):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                name = node.attr
                if not name.startswith("_") and name in methods:
                    yield methods[name], name


@each_kind
def test_the_policy_allows_what_is_called_and_nothing_else(kind: Kind) -> None:
    wanted = {iam_action(service, operations(service)[method]) for service, method in called(kind.package)}
    assert kind.known in wanted
    of_targets = set().union(*TARGETS.values()) if kind.package == "s3refresh" else set[str]()
    assert {action for one in kind.statements for action in one["Action"]} | of_targets == (
        wanted - kind.uncalled | kind.on_behalf
    )


@each_kind
def test_every_statement_says_what_it_is_for_and_names_resources(kind: Kind) -> None:
    statements = kind.statements
    assert len({statement["Sid"] for statement in statements}) == len(statements)
    everywhere = {s["Sid"] for s in statements if s["Resource"] == "*"}
    assert everywhere == kind.everywhere, "only lists may not name what they are for"
    assert all(statement["Effect"] == "Allow" for statement in statements)


def actions(file: str) -> set[str]:
    """What a policy allows."""
    return {action for statement in statements(file) for action in statement["Action"]}


def test_only_enforce_may_change_anything_and_only_the_clusters_instances() -> None:
    assert actions("imdspolicy-enforce.json") == {
        iam_action("ec2", operations("ec2")[name]) for name in vars(Ec2Writer) if name in operations("ec2")
    }
    (statement,) = json.loads((ROOT / "docs" / "iam" / "imdspolicy-enforce.json").read_text())["Statement"]
    assert statement["Resource"].startswith("arn:aws:ec2:eu-west-1:111122223333:instance/")
    (condition,) = statement["Condition"]["StringEquals"]
    assert condition.startswith("aws:ResourceTag/kubernetes.io/cluster/")


def test_jobs_and_http_need_the_queue_alone() -> None:
    whole, queue = actions("s3aggregatedrefresh.json"), actions("s3aggregatedrefresh-queue.json")
    assert queue == {action for action in whole if action.startswith(("sqs:", "kms:"))}


@pytest.mark.parametrize("target", TARGETS)
def test_another_target_needs_its_own_actions_beside_the_queue(target: str) -> None:
    file = f"s3aggregatedrefresh-{target}.json"
    queue = statements("s3aggregatedrefresh-queue.json")
    own = [statement for statement in statements(file) if statement not in queue]
    assert [statement for statement in statements(file) if statement in queue] == queue
    assert {action for statement in own for action in statement["Action"]} == TARGETS[target]
    assert all("*" not in statement["Resource"] for statement in own)


def test_pod_identitys_tags_go_along_and_nothing_else_is_more() -> None:
    assert actions("assume-roles-pod-identity.json") - actions("assume-roles.json") == {"sts:TagSession"}


def test_every_policy_is_looked_at_here_and_none_is_taken_by_star() -> None:
    further = {"imdspolicy-enforce", "s3aggregatedrefresh-queue", "assume-roles-pod-identity"}
    further |= {f"s3aggregatedrefresh-{target}" for target in TARGETS}
    looked_at = {*(kind.file for kind in KINDS), *(f"{name}.json" for name in further)}
    assert {file.name for file in FILES} == looked_at
    assert not [action for file in FILES for action in actions(file.name) if "*" in action]
