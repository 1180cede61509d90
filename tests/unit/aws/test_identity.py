"""Whose credentials a spec asks for."""

import re
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.api.objects import WireMeta
from caretaker.aws.identity import ClientKey, Identity, Keys, User, session_name
from caretaker.imds import resource as imds
from caretaker.registry import IMDS_POLICY, S3_AGGREGATED_REFRESH
from caretaker.s3refresh import resource as s3refresh

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
    assert ClientKey.of(spec, "sqs") == ClientKey("sqs", "eu-west-1", Identity(), "http://sqs")
    assert ClientKey.of(spec, "storagegateway", region="us-east-1").region == "us-east-1"
    user = User("media", "s3ar", "a")
    assert ClientKey.of(spec, "sqs", user=user).namespace == "media"  # its calls have a share of the threads
    assert ClientKey.of(spec, "storagegateway", user=user).namespace == "media"  # of those of AWS, too
    policies = User("", "imdsp", "")
    assert ClientKey.of(spec, "sqs", user=policies).namespace == "http://sqs"
    assert ClientKey.of(spec, "ec2", user=policies).namespace == ""


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
        ({"AWS_ACCESS_KEY_ID": "QUtJ!QQ=="}, "AWS_ACCESS_KEY_ID is not base64"),
        (secret(AWS_ACCESS_KEY_ID="\xff"), "AWS_ACCESS_KEY_ID is not base64 of plain text"),
    ],
)
def test_a_secret_that_lacks_something_is_told_without_its_values(data: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        Keys.from_secret(data)
    assert "not base64!" not in str(raised.value)


def test_a_secret_that_was_not_read_is_never_the_operators_own_identity() -> None:
    spec = AwsSpec("eu-west-1", credentials_secret_ref=SecretRef("s"))
    told = "^spec.aws.credentialsSecretRef and the Secret's keys must come together$"
    with pytest.raises(ValueError, match=told):
        Identity.of(spec)
    with pytest.raises(ValueError, match=told):
        Identity.of(AwsSpec("eu-west-1"), Keys("A", "s"))


@pytest.mark.parametrize("role", ["", ROLE])
def test_a_secret_that_was_read_is_the_identity_or_assumes_the_role(role: str) -> None:
    spec, keys = AwsSpec("eu-west-1", role, credentials_secret_ref=SecretRef("s")), Keys("A", "s")
    identity = ClientKey.of(spec, "sqs", keys).identity
    assert (identity.keys, identity.role_arn, identity.source) == (keys, role, Identity(keys))


def test_no_secret_is_shown() -> None:
    shown = repr(ClientKey("sqs", "r", Identity(Keys("AKIA", "very-secret", "very-token"))))
    assert "AKIA" in shown
    assert "very" not in shown


class TestSessionNames:
    @pytest.mark.parametrize(
        ("cluster", "user", "name"),
        [
            ("prod", User("media", "s3ar", "photos"), "prod,media,s3ar,photos"),
            ("prod", User("media", "dtask", "a.b-c"), "prod,media,dtask,a.b-c"),
            ("prod", User("", "imdsp", "workers"), "prod,,imdsp,workers"),
            ("prod", User("", "imdsp", ""), "prod,,imdsp,"),
            ("", User("media", "s3ar", "photos"), "caretaker,media,s3ar,photos"),
            ("", None, "caretaker"),
            ("my_EKS-1", None, "my_EKS-1"),
            # 64 characters, the maximum.
            ("prod", User("n" * 25, "s3ar", "p" * 28), f"prod,{'n' * 25},s3ar,{'p' * 28}"),
            # A cut part is marked: "n+" is no namespace, so a condition on "prod,n...,*" does not match.
            ("prod", User("n" * 25, "s3ar", "p" * 29), f"prod,{'n' * 20}+,s3ar,{'p' * 20}+,j5axchsjmj"),
            ("prod", User("media", "s3ar", "p" * 253), f"prod,media,s3ar,{'p' * 36}+,pkguncd454"),
            ("c" * 100, User("media", "s3ar", "x"), f"{'c' * 39}+,media,s3ar,x,mblu5v6u46"),
            ("a b", User("media", "s3ar", "x"), "a+b,media,s3ar,x,yzeymu7vpy"),
            ("a,b", User("media", "s3ar", "x"), "a+b,media,s3ar,x,c3ydkqtnyb"),
        ],
    )
    def test_they_tell_cluster_namespace_and_resource(
        self, cluster: str, user: User | None, name: str
    ) -> None:
        assert session_name(cluster, user) == name

    def test_what_is_cut_differs_still(self) -> None:
        found = {session_name("prod", User("media", "s3ar", "p" * 200 + str(n))) for n in range(100)}
        assert len(found) == 100

    def test_kinds_are_told_by_the_names_that_kubectl_knows(self) -> None:
        """For an ECS target: tests/unit/daemontask/ecs/test_controller.py."""
        users = (s3refresh.user_of(WireMeta(name="a")), imds.user_of("a"))
        assert [user.kind for user in users] == [S3_AGGREGATED_REFRESH.short, IMDS_POLICY.short]


@given(st.text(max_size=120), st.text("ab-9", max_size=63), st.text("ab.-9", min_size=1, max_size=253))
def test_session_names_are_what_sts_takes(cluster: str, namespace: str, name: str) -> None:
    found = session_name(cluster, User(namespace, "s3ar", name))
    assert re.fullmatch(r"[A-Za-z0-9_+=,.@-]{2,64}", found)
    assert found.count(",") in (3, 4)
    assert ("+" in found) == (found.count(",") == 4)


class TestUsers:
    USER = User("media", "s3ar", "photos")
    SPEC = AwsSpec("eu-west-1", ROLE, "x")

    def test_each_has_an_identity_of_its_own_by_a_role(self) -> None:
        one, other = (ClientKey.of(self.SPEC, "sqs", user=User("media", "s3ar", name)) for name in "ab")
        assert one.identity.user == User("media", "s3ar", "a")
        assert one != other
        assert one.shared == other.shared == ClientKey.of(self.SPEC, "sqs")
        assert one.used_by(other.identity.user) == other

    def test_without_a_role_nobody_needs_one(self) -> None:
        own = ClientKey.of(AwsSpec("eu-west-1"), "sqs", user=self.USER)
        assert own.identity.user is None
        assert own.shared == ClientKey.of(AwsSpec("eu-west-1"), "sqs")
        assert own.used_by(self.USER) is own
