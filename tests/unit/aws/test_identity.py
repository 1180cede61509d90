"""Whose credentials a spec asks for."""

from base64 import b64encode

import pytest

from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.aws.identity import Identity, Keys, Target

ROLE = "arn:aws:iam::123456789012:role/a"


def secret(**data: str) -> dict[str, str]:
    return {name: b64encode(value.encode()).decode() for name, value in data.items()}


def test_without_anything_it_is_the_operators_own() -> None:
    assert Identity.of(AwsSpec(region="eu-west-1")) == Identity()


def test_a_role_is_assumed_in_the_specs_region_at_the_specs_endpoint() -> None:
    spec = AwsSpec("eu-west-1", ROLE, "x", endpoint_urls={"sts": "http://sts", "sqs": ""})
    assert Identity.of(spec) == Identity(None, ROLE, "x", "eu-west-1", "http://sts")
    assert Identity.of(spec).source == Identity()


def test_regions_share_an_identity_that_needs_no_sts() -> None:
    assert Identity.of(AwsSpec("eu-west-1")) == Identity.of(AwsSpec("us-east-1"))


def test_a_target_is_of_the_specs_region_unless_told_otherwise() -> None:
    spec = AwsSpec("eu-west-1", endpoint_urls={"sqs": "http://sqs"})
    assert Target.of(spec, "sqs") == Target("sqs", "eu-west-1", Identity(), "http://sqs")
    assert Target.of(spec, "storagegateway", region="us-east-1").region == "us-east-1"


def test_keys_are_read_from_a_secret() -> None:
    data = secret(AWS_ACCESS_KEY_ID="AKIA\n", AWS_SECRET_ACCESS_KEY="s", AWS_SESSION_TOKEN="t")
    assert Keys.from_secret(data) == Keys("AKIA", "s", "t")
    assert Keys.from_secret(secret(AWS_ACCESS_KEY_ID="A", AWS_SECRET_ACCESS_KEY="s")).session_token == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (secret(AWS_ACCESS_KEY_ID="A"), "lacks the key AWS_SECRET_ACCESS_KEY"),
        ({}, "lacks the key AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": "not base64!"}, "AWS_ACCESS_KEY_ID is not base64"),
        (secret(AWS_ACCESS_KEY_ID="\xff"), "AWS_ACCESS_KEY_ID is not base64 of plain text"),
    ],
)
def test_a_secret_that_lacks_something_is_told_without_its_values(data: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        Keys.from_secret(data)
    assert "not base64!" not in str(raised.value)


def test_a_secret_that_was_not_read_is_never_the_operators_own_identity() -> None:
    spec = AwsSpec("eu-west-1", credentials_secret_ref=SecretRef("s"))
    with pytest.raises(ValueError, match="must come together"):
        Identity.of(spec)
    with pytest.raises(ValueError, match="must come together"):
        Identity.of(AwsSpec("eu-west-1"), Keys("A", "s"))


def test_no_secret_is_shown() -> None:
    shown = repr(Target("sqs", "r", Identity(Keys("AKIA", "very-secret", "very-token"))))
    assert "AKIA" in shown
    assert "very" not in shown
