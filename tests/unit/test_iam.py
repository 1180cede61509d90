"""docs/iam/ grants the actions of the calls that the code makes: none less, none more."""

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botocore.loaders
from botocore import xform_name
from botocore.model import ServiceModel

from caretaker.aws.s3control import S3Control
from caretaker.aws.services import iam_action
from caretaker.aws.sqs import Sqs
from caretaker.aws.storagegateway import StorageGateway
from caretaker.aws.sts import Sts

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "caretaker"
POLICY = ROOT / "docs" / "iam" / "s3aggregatedrefresh.json"
SERVICES: dict[str, type] = {"sqs": Sqs, "storagegateway": StorageGateway, "s3control": S3Control, "sts": Sts}
# The kind's own modules, and the one that assumes its role.
CALLERS = (*sorted((PACKAGE / "s3refresh").rglob("*.py")), PACKAGE / "aws" / "session.py")
# SQS asks for it on the caller's behalf, where a queue is encrypted with a key of KMS.
ON_BEHALF = {"kms:Decrypt"}


@cache
def operations(service: str) -> dict[str, str]:
    """Method -> operation."""
    model = ServiceModel(botocore.loaders.create_loader().load_service_model(service, "service-2"))
    return {xform_name(name): name for name in model.operation_names}


def called() -> Iterator[tuple[str, str]]:
    """(service, method) of every call of a Protocol's method in the callers' source."""
    methods = {name: service for service, protocol in SERVICES.items() for name in vars(protocol)}
    for file in CALLERS:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if not name.startswith("_") and name in methods:
                    yield methods[name], name


def actions() -> set[str]:
    statements = json.loads(POLICY.read_text())["Statement"]
    return {action for statement in statements for action in statement["Action"]}


def test_the_policy_allows_what_is_called_and_nothing_else() -> None:
    wanted = {iam_action(service, operations(service)[method]) for service, method in called()}
    assert "sqs:ReceiveMessage" in wanted
    assert actions() == wanted | ON_BEHALF


def test_every_statement_says_what_it_is_for_and_names_resources() -> None:
    statements = json.loads(POLICY.read_text())["Statement"]
    assert len({statement["Sid"] for statement in statements}) == len(statements)
    everywhere = {s["Sid"] for s in statements if s["Resource"] == "*"}
    assert everywhere == {"FindFileShares"}, "only lists may not name what they are for"
    assert all(statement["Effect"] == "Allow" for statement in statements)
