"""Requests checked against botocore's model as AWS does it: types, then bounds."""

from typing import Any

import botocore.session
import pytest
from botocore.model import DenormalizedStructureBuilder, ServiceModel

from awsdoubles.gateway.shapes import constraint_errors, summary, type_errors

ARN = "arn:aws:storagegateway:eu-west-1:000000000000:share/share-00000000"


@pytest.fixture(scope="module")
def model() -> ServiceModel:
    return botocore.session.get_session().get_service_model("storagegateway")


def errors(model: ServiceModel, operation: str, body: Any) -> list[str]:
    shape = model.operation_model(operation).input_shape
    return type_errors(shape, body) or constraint_errors(shape, body)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("RefreshCache", {"FileShareARN": ARN}),
        ("RefreshCache", {"FileShareARN": ARN, "FolderList": ["f" * 1024] * 50, "Recursive": False}),
        ("RefreshCache", {"FileShareARN": ARN, "FolderList": None}),
        ("DescribeNFSFileShares", {"FileShareARNList": [ARN] * 10}),
        ("ListFileShares", {}),
        ("ListFileShares", {"Limit": 1, "Marker": "m" * 2000}),
    ],
)
def test_what_aws_takes(model: ServiceModel, operation: str, body: Any) -> None:
    assert errors(model, operation, body) == []


@pytest.mark.parametrize(
    ("operation", "body", "words"),
    [
        ("RefreshCache", {}, ["'fileShareARN'", "must not be null"]),
        ("RefreshCache", {"FileShareARN": "arn:short"}, ["'fileShareARN'", "greater than or equal to 50"]),
        ("RefreshCache", {"FileShareARN": ARN * 9}, ["less than or equal to 500"]),
        ("RefreshCache", {"FileShareARN": ARN, "FolderList": []}, ["greater than or equal to 1"]),
        ("RefreshCache", {"FileShareARN": ARN, "FolderList": ["f"] * 51}, ["'folderList'", "equal to 50"]),
        ("RefreshCache", {"FileShareARN": ARN, "FolderList": ["f" * 1025]}, ["folderList.1.member", "1024"]),
        ("RefreshCache", {"FileShareARN": ARN, "FolderList": [1]}, ["folderList.1.member must be a string"]),
        ("RefreshCache", {"FileShareARN": ARN, "Recursive": 1}, ["recursive must be a boolean, not int"]),
        ("RefreshCache", {"FileShareARN": ARN, "Folder": ["f"]}, ["unknown member 'Folder'"]),
        ("RefreshCache", [], ["the request must be a structure"]),
        ("DescribeSMBFileShares", {"FileShareARNList": [ARN] * 11}, ["less than or equal to 10"]),
        ("ListFileShares", {"Limit": 0}, ["'limit'", "value greater than or equal to 1"]),
        ("ListFileShares", {"Limit": True}, ["limit must be a integer, not bool"]),
        ("UpdateNFSFileShare", {"FileShareARN": ARN, "ObjectACL": "mine"}, ["enum value set: [private"]),
        (
            "UpdateNFSFileShare",
            {"FileShareARN": ARN, "NFSFileShareDefaults": {"FileMode": "0999"}},
            ["'nFSFileShareDefaults.fileMode'", "regular expression pattern"],
        ),
    ],
)
def test_what_aws_refuses(model: ServiceModel, operation: str, body: Any, words: list[str]) -> None:
    found = errors(model, operation, body)
    assert len(found) == 1
    assert all(word in found[0] for word in words), found


def test_every_error_is_told() -> None:
    assert summary(["one"]) == "1 validation error detected: one"
    assert summary(["one", "two"]) == "2 validation errors detected: one; two"


def test_long_values_are_cut(model: ServiceModel) -> None:
    (found,) = errors(model, "RefreshCache", {"FileShareARN": "a" * 501})
    assert len(found) < 400


def test_maps_and_patterns_of_java() -> None:
    """Python has no \\p{L}: such a pattern is let through."""
    text = {"type": "string", "pattern": r"^\p{L}+$", "max": 2}
    members = {"tags": {"type": "map", "key": text, "value": text}}
    shape = DenormalizedStructureBuilder().with_members(members).build_model()
    assert constraint_errors(shape, {"tags": {"ü": "é"}}) == []
    found = constraint_errors(shape, {"tags": {"long": "longer"}})
    assert [one.split("'")[3] for one in found] == ["tags.key", "tags.long.member"]
