"""Which namespace may use which identity, queue and endpoint."""

import re
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.api.grants import CLUSTER, Grants, Refusal, arn_matches, glob, refusals, url_matches
from testing import manifests

ROLE_A = "arn:aws:iam::123456789012:role/team-a"
ROLE_B = "arn:aws:iam::123456789012:role/team-b"
QUEUE_A = "https://sqs.eu-west-1.amazonaws.com/123456789012/a"
QUEUE_B = "https://sqs.eu-west-1.amazonaws.com/123456789012/b"
ARN_A = "arn:aws:sqs:eu-west-1:123456789012:a"
ARN_B = "arn:aws:sqs:eu-west-1:123456789012:b"
FIELD = "spec.source.sqs.queueURL"
ENDPOINT = "http://localstack.dev:4566"


def grants(*entries: dict[str, Any]) -> Grants:
    return Grants.decode({"identities": list(entries)})


def spec(role: str = "", secret: str = "", **endpoints: str) -> AwsSpec:
    return AwsSpec("eu-west-1", role, "", SecretRef(secret), endpoints)


TEAM_A = {"namespaces": ["team-a"], "roleARNs": [ROLE_A], "queueARNs": [ARN_A]}
TEAM_B = {"namespaces": ["team-b-*"], "roleARNs": [ROLE_B], "queueARNs": [ARN_B]}
OWN = {"namespaces": ["ops"], "ownIdentity": True, "queueARNs": ["*"]}
LOCAL = {"namespaces": ["dev"], "endpointURLs": [ENDPOINT], "ownIdentity": True, "queueARNs": ["*"]}


def fields(found: tuple[Refusal, ...]) -> list[str]:
    return [refusal.field for refusal in found]


@pytest.mark.parametrize(
    ("namespace", "aws", "queue", "refused"),
    [
        pytest.param("team-a", spec(ROLE_A), QUEUE_A, [], id="a granted role may read a granted queue"),
        pytest.param("team-a", spec(ROLE_A), "", [], id="a resource need not name a queue"),
        pytest.param("team-b-x", spec(ROLE_B), QUEUE_B, [], id="namespaces may be patterns"),
        pytest.param(
            "team-b", spec(ROLE_B), QUEUE_B, ["spec.aws.roleARN", FIELD], id="which fit whole names"
        ),
        pytest.param("team-a", spec(ROLE_B), QUEUE_A, ["spec.aws.roleARN"], id="another team's role"),
        pytest.param("team-a", spec(ROLE_A), QUEUE_B, [FIELD], id="another team's queue"),
        pytest.param("team-a", spec(), QUEUE_A, ["spec.aws"], id="the operator's own identity"),
        pytest.param("ops", spec(), QUEUE_B, [], id="the operator's own identity where granted"),
        pytest.param("ops", spec(ROLE_A), QUEUE_B, ["spec.aws.roleARN"], id="which is no role of others"),
        pytest.param("team-a", spec(secret="s"), QUEUE_B, [], id="own keys need no grant"),
        pytest.param("team-a", spec(ROLE_B, "s"), QUEUE_B, [], id="nor do roles assumed with them"),
        pytest.param("nobody", spec(secret="s"), QUEUE_B, [], id="in no namespace"),
        pytest.param(
            *("team-a", spec(secret="s", sqs=ENDPOINT), QUEUE_B, ["spec.aws.endpointURLs.sqs"]),
            id="an endpoint needs a grant even with own keys",
        ),
        pytest.param("dev", spec(sqs=ENDPOINT, sts=ENDPOINT), QUEUE_A, [], id="a granted endpoint"),
        pytest.param("dev", spec(sqs=""), QUEUE_A, [], id="an empty endpoint is none"),
        pytest.param(
            *("dev", spec(sqs="http://169.254.169.254/"), QUEUE_A, ["spec.aws.endpointURLs.sqs"]),
            id="no other endpoint",
        ),
        pytest.param("team-a", spec(ROLE_A), "q", [FIELD], id="what is no queue URL"),
    ],
)
def test_a_namespace_uses_what_it_is_granted(
    namespace: str, aws: AwsSpec, queue: str, refused: list[str]
) -> None:
    queues = {FIELD: queue} if queue else {}
    setting = grants(TEAM_A, TEAM_B, OWN, LOCAL)
    assert fields(refusals(setting, namespace, aws, queues)) == refused


def test_one_entry_has_to_grant_it_all() -> None:
    """A role granted for one queue must not open another that a second role was granted for."""
    setting = grants(TEAM_A, {**TEAM_B, "namespaces": ["team-a"]})
    (found,) = refusals(setting, "team-a", spec(ROLE_A), {FIELD: QUEUE_B})
    assert found == Refusal(
        "spec.aws.roleARN",
        "team-a",
        f"namespace team-a is granted spec.aws.roleARN, {FIELD} by different entries of --aws-identities "
        "(with Helm: aws.identities), never by one: name them together in one entry",
    )


def test_by_default_the_operators_own_identity_is_all_that_is_granted_and_to_its_own_alone() -> None:
    setting = Grants.default("caretaker-system")
    for own in ("caretaker-system", CLUSTER):
        assert refusals(setting, own, spec()) == ()
        assert fields(refusals(setting, own, spec(ROLE_A))) == ["spec.aws.roleARN"]
        assert fields(refusals(setting, own, spec(sqs=ENDPOINT))) == ["spec.aws.endpointURLs.sqs"]
    assert refusals(setting, "caretaker-system", spec(), {FIELD: QUEUE_A}) == ()
    everything = spec(ROLE_A, sqs=ENDPOINT)
    assert fields(refusals(setting, "team-a", everything, {FIELD: QUEUE_A})) == [
        *("spec.aws.roleARN", FIELD, "spec.aws.endpointURLs.sqs")
    ]
    assert fields(refusals(setting, "team-a", spec())) == ["spec.aws"]


@pytest.mark.parametrize(
    ("entry", "refused"),
    [
        pytest.param({"namespaces": ["caretaker-system"]}, True, id="no namespace is theirs"),
        pytest.param({"namespaces": ["?*", "c*", "?"]}, True, id="whatever the pattern"),
        pytest.param({"namespaces": ["*"]}, False, id="what everybody may use they may"),
        pytest.param({"imdsPolicies": True}, False, id="they are a principal of their own"),
        pytest.param({"imdsPolicies": True, "namespaces": ["ops"]}, False, id="beside namespaces, too"),
        pytest.param({"imdsPolicies": False, "namespaces": ["ops"]}, True, id="which has to be said"),
    ],
)
def test_imds_policies_are_granted_by_their_own_name(entry: dict[str, Any], refused: bool) -> None:
    setting = grants({**entry, "roleARNs": [ROLE_A]})
    found = refusals(setting, CLUSTER, spec(ROLE_A))
    assert bool(found) is refused
    if refused:
        assert found[0].message.startswith(f"IMDSPolicies are not granted {ROLE_A}: ")
        assert "an entry for imdsPolicies in the file" in found[0].message


def test_what_imds_policies_are_granted_is_no_namespaces() -> None:
    setting = grants({"imdsPolicies": True, "roleARNs": [ROLE_A], "ownIdentity": True})
    assert fields(refusals(setting, "caretaker-system", spec(ROLE_A))) == ["spec.aws.roleARN"]


class TestExternalIds:
    FIXED: ClassVar[dict[str, Any]] = {**TEAM_A, "externalID": "prod-7"}
    AT = "spec.aws.externalID"

    def refused(self, external_id: str, *entries: dict[str, Any], role: str = ROLE_A) -> tuple[Refusal, ...]:
        return refusals(grants(*entries), "team-a", AwsSpec("eu-west-1", role, external_id), {FIELD: QUEUE_A})

    def test_one_that_a_grant_fixes_is_the_only_one(self) -> None:
        assert self.refused("prod-7", self.FIXED) == ()
        for other in ("", "prod-", "prod-77", "PROD-7"):
            assert fields(self.refused(other, self.FIXED)) == [self.AT]

    def test_a_grant_without_one_takes_any(self) -> None:
        for one in ("", "x", "prod-7"):
            assert self.refused(one, TEAM_A) == ()

    def test_it_is_asked_for_by_the_entry_that_grants_the_role(self) -> None:
        elsewhere = {"namespaces": ["team-a"], "roleARNs": [ROLE_B], "queueARNs": ["*"], "externalID": "bb"}
        assert self.refused("prod-7", elsewhere, self.FIXED) == ()
        assert fields(self.refused("bb", elsewhere, self.FIXED)) == [self.AT]
        assert fields(self.refused("prod-7", elsewhere, self.FIXED, role=ROLE_B)) == [self.AT]

    def test_a_role_that_is_not_granted_is_told_alone(self) -> None:
        assert fields(self.refused("x", self.FIXED, role=ROLE_B)) == ["spec.aws.roleARN"]

    def test_the_message_does_not_tell_it(self) -> None:
        (found,) = self.refused("guess", self.FIXED)
        assert "prod-7" not in str(found)
        assert f"{ROLE_A} with this external ID" in str(found)
        (found,) = self.refused("", self.FIXED)
        assert f"{ROLE_A} with no external ID" in str(found)

    def test_own_keys_may_use_any(self) -> None:
        aws = AwsSpec("eu-west-1", ROLE_A, "x", SecretRef("keys"))
        assert refusals(grants(self.FIXED), "team-a", aws, {FIELD: QUEUE_A}) == ()


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("", "", True),
        ("", "a", False),
        ("a", "", False),
        ("*", "", True),
        ("**", "ab", True),
        ("?", "", False),
        ("?*", "a", True),
        ("*?", "", False),
        ("a*b", "ab", True),
        ("a*b", "axbxb", True),
        ("a*ba", "aba", True),
        ("ab*ba", "aba", False),
        ("a*b*a", "aba", True),
        ("a*b*a", "ab", False),
        ("*a*a*", "a", False),
        ("*a*a*", "aa", True),
        ("*a?c*", "xxabcxx", True),
        ("*a?c*", "xxacbxx", False),
        ("a*", "ba", False),
        ("*a", "ab", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("a*\n", "a\n", True),
        ("a", "a\n", False),
        ("a*", "a\nb", True),
        ("a?b", "a\nb", True),
    ],
)
def test_stars_and_question_marks(pattern: str, text: str, fits: bool) -> None:
    assert glob(pattern, text) is fits


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=10))
def test_a_pattern_fits_as_the_shells_does(pattern: str, text: str) -> None:
    assert glob(pattern, text) is fnmatchcase(text, pattern)


@pytest.mark.parametrize("stars", [3, 30, 300])
def test_a_pattern_costs_no_more_than_in_proportion_to_the_text(stars: int) -> None:
    """With backtracking three stars and 1,000 characters took two seconds, a thousand times more per star."""

    def cost(length: int) -> float:
        pattern, text = "*a" * stars + "b", "a" * length
        began = time.process_time()
        for _ in range(20):
            assert not glob(pattern, text)
        return time.process_time() - began

    cost(1000)  # compiles the patterns
    assert cost(160_000) < 30 * max(cost(16_000), 0.002), "the square of ten is a hundred"


def test_a_refusal_says_field_namespace_and_mend() -> None:
    (role, queue) = refusals(grants(), "team-a", spec(ROLE_A), {FIELD: QUEUE_A})
    assert role.namespace == "team-a"
    assert str(role) == (
        f"spec.aws.roleARN: namespace team-a is not granted {ROLE_A}: use a granted role or a "
        "credentialsSecretRef, or have it added to roleARNs of an entry for team-a in the file of the "
        "operator's --aws-identities (with Helm: aws.identities)"
    )
    assert str(queue).startswith(f"{FIELD}: namespace team-a is not granted {ARN_A}: ")
    (own,) = refusals(grants(), "team-a", spec())
    assert "neither roleARN nor credentialsSecretRef is set" in own.message
    assert "`ownIdentity: true`" in own.message


_FILE = "an entry for team-a in the file of the operator's --aws-identities (with Helm: aws.identities)"


@pytest.mark.parametrize(
    ("aws", "queue", "told"),
    [
        (
            spec(sqs=ENDPOINT, secret="s"),
            "",
            f"spec.aws.endpointURLs.sqs: namespace team-a is not granted {ENDPOINT}: leave it out, or have "
            f"it added to endpointURLs of {_FILE}",
        ),
        (
            spec(sqs="ftp://a", secret="s"),
            "",
            "spec.aws.endpointURLs.sqs: is no http or https URL; write https://HOST[:PORT][/PATH]",
        ),
        (
            spec(sqs="https://a b", secret="s"),
            "",
            "spec.aws.endpointURLs.sqs: holds a character that no endpoint's URL has; "
            "write https://HOST[:PORT][/PATH]",
        ),
        (
            spec(sqs="https://a?b", secret="s"),
            "",
            "spec.aws.endpointURLs.sqs: must have no user, query or fragment; "
            "write https://HOST[:PORT][/PATH]",
        ),
        (
            spec(sqs="https://a/../b", secret="s"),
            "",
            "spec.aws.endpointURLs.sqs: must have no .. in its path; write https://HOST[:PORT][/PATH]",
        ),
        (
            spec(sqs="https://a:99999", secret="s"),
            "",
            "spec.aws.endpointURLs.sqs: is no URL (Port out of range 0-65535); "
            "write https://HOST[:PORT][/PATH]",
        ),
        *(
            (
                spec(sqs=url, secret="s"),
                "",
                "spec.aws.endpointURLs.sqs: has no host that botocore accepts; "
                "write https://HOST[:PORT][/PATH]",
            )
            for url in (
                *("https://a..b", f"https://{'a' * 64}.b", f"https://b.{'a' * 64}", "https://."),
                *(
                    "https://a_b",
                    "https://-a/",
                    "https://a-/",
                    "https://-a.b",
                    "https://a-.b",
                    "https://b.-a",
                ),
                *(f"https://{'a.' * 127}aa", "https://[v1.a:b]"),
            )
        ),
        (
            spec(ROLE_A),
            QUEUE_B,
            f"{FIELD}: namespace team-a is not granted {ARN_B}: use a granted queue, or have it added to "
            f"queueARNs of {_FILE}",
        ),
        (
            spec(ROLE_A),
            "q",
            f"{FIELD}: q must be a queue URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME",
        ),
        (
            spec(),
            "",
            "spec.aws: namespace team-a is not granted the operator's own AWS identity, used where neither "
            "roleARN nor credentialsSecretRef is set: set one of them, or have `ownIdentity: true` added to "
            f"{_FILE}",
        ),
    ],
)
def test_what_a_refusal_says(aws: AwsSpec, queue: str, told: str) -> None:
    (found,) = refusals(grants(TEAM_A), "team-a", aws, {FIELD: queue} if queue else {})
    assert (str(found), found.namespace) == (told, "team-a")


def test_a_queue_that_is_not_named_is_told_without_its_url() -> None:
    told = "must be a queue URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
    assert refusals(grants(TEAM_A), "team-a", spec(ROLE_A), {FIELD: ""}) == (Refusal(FIELD, "team-a", told),)


def test_what_the_refusal_of_an_external_id_says() -> None:
    fixed = {**TEAM_A, "externalID": "prod-7"}
    (found,) = refusals(grants(fixed), "team-a", AwsSpec("eu-west-1", ROLE_A, "x"), {FIELD: QUEUE_A})
    assert str(found) == (
        f"spec.aws.externalID: namespace team-a is not granted {ROLE_A} with this external ID: use the "
        f"externalID that is fixed by {_FILE}"
    )


@pytest.mark.parametrize(
    ("pattern", "arn", "fits"),
    [
        (ROLE_A, ROLE_A, True),
        ("*", ROLE_A, True),
        ("arn:aws:iam::123456789012:role/team-*", ROLE_A, True),
        ("arn:aws:iam::123456789012:role/team-?", ROLE_A, True),
        ("arn:aws:iam::*:role/team-a", ROLE_A, True),
        ("arn:aws:iam::123456789012:role/*", "arn:aws:iam::123456789012:role/path/x", True),
        ("arn:aws:iam::123456789012:role/team-a", "arn:aws:iam::123456789012:role/team-ab", False),
        ("arn:aws:iam::123456789012:role/team.a", ROLE_A, False),
        ("arn:aws:iam::123456789012:role/Team-a", ROLE_A, False),
        ("arn:aws:iam::123456789012:*", "arn:aws:iam::999999999999:x:123456789012:role/a", False),
        ("arn:aws:sqs:*:123456789012:q", "arn:aws:sqs:eu-west-1:999999999999:123456789012:q", False),
        ("arn:aws:iam::1*", ROLE_A, False),
        ("arn:aws:iam::123456789012:role:a:b", "arn:aws:iam::123456789012:role:a:b", True),
        (ROLE_A, "", False),
    ],
)
def test_patterns_of_arns_stay_within_a_field(pattern: str, arn: str, fits: bool) -> None:
    assert arn_matches(pattern, arn) is fits


@pytest.mark.parametrize(
    ("pattern", "url", "fits"),
    [
        (ENDPOINT, ENDPOINT, True),
        (ENDPOINT, ENDPOINT + "/", True),
        (ENDPOINT, "http://LocalStack.dev:4566", True),
        (ENDPOINT, "https://localstack.dev:4566", False),
        (ENDPOINT, "http://localstack.dev:4567", False),
        (ENDPOINT, ENDPOINT + "/x", False),
        (ENDPOINT + "/*", ENDPOINT + "/x", True),
        ("https://a.dev", "https://a.dev:443", True),
        ("http://a.dev", "http://a.dev:80", True),
        ("http://a.dev:80", "http://a.dev", True),
        ("https://a.dev", "https://a.dev:80", False),
        ("http://a.dev", "http://a.dev:443", False),
        ("HTTPS://A.dev", "https://a.DEV", True),
        ("https://a.dev/X", "https://a.dev/x", False),
        ("https://a.dev/x", "https://a.dev/x/", True),
        ("https://a.dev/x/", "https://a.dev/x", True),
        ("https://a.dev/X", "https://a.dev/", False),
        ("https://\u017f.dev", "https://s.dev", False),  # whose capital letter is the same
        ("https://[::1]", "https://[::1]:443", True),
        ("https://[::1]", "https://[::1]:444", False),
        ("https://[::1]:*", "https://[::1]", True),
        ("https://[::1]", "https://[::1]:/", True),
        ("*", "http://[::1]/", True),
        ("*", "https://a-b.c./", True),
        ("*", f"https://{'a' * 63}.{'b' * 63}", True),
        ("*", f"https://{'a.' * 127}a", True),
        ("*", "https://[v1.a]", False),
        # It leads to the address.
        ("https://*.example.com", "https://[2001:db8::1].example.com", False),
        ("https://*.example.com:*", "https://[2001:db8::1].example.com:443", False),
        ("https://a*", "https://a[2001:db8::1]", False),
        ("*", "https:///x", False),
        ("*", "https://a.dev?x", False),
        ("*", "https://a.dev#x", False),
        ("*", "https://a.dev/a%20b", False),
        ("*", "https://a.dev\\x", False),
        ("*", "https://a.dev/x\\..\\y", False),
        ("*", "https://a.dev/..", False),
        ("*", "https://a.dev/..x", True),
        ("*", "", False),
        ("http://127.0.0.1:*", "http://127.0.0.1:4566", True),
        ("http://[::1]:4566", "http://[::1]:4566", True),
        ("https://*.a.dev", "https://x.a.dev", True),
        ("https://*.a.dev", "https://evil.dev/.a.dev", False),
        ("https://*.a.dev", "https://evil.dev?.a.dev", False),
        ("https://*.a.dev", "https://evil.dev#.a.dev", False),
        ("https://*.a.dev", "https://evil.dev\\.a.dev", False),
        ("https://a.dev", "https://a.dev@evil.dev", False),
        ("https://*", "https://user@evil.dev", False),
        ("https://a.dev/x/*", "https://a.dev/x/../y", False),
        ("https://a.dev/x/*", "https://a.dev/x/%2e%2e/y", False),
        ("*", "https://any.where", True),
        ("*", "ftp://any.where", False),
        ("*", "https://a b", False),
        ("*", "https://a:port", False),
        ("*", "https://[", False),
    ],
)
def test_patterns_of_urls_stay_within_a_part(pattern: str, url: str, fits: bool) -> None:
    assert url_matches(pattern, url) is fits


_PARTS = ["", "a", "0", "-", "_", "a-1", "-a", "a-", "A", "x" * 63, "y" * 64, "[", "]", "[::1]", "::", ":1"]


@given(st.lists(st.sampled_from(_PARTS), max_size=5), st.sampled_from(["", "."]))
def test_botocore_takes_what_is_granted_and_no_other_name_is_refused(parts: list[str], dot: str) -> None:
    """It raises ValueError for others, which is no error of AWS."""
    url = f"https://{dot.join(parts)}/"
    try:
        urlsplit(url).port  # noqa: B018 - raises
        taken = bool(is_valid_endpoint_url(url))
    except (ValueError, IndexError):
        taken = False
    if url_matches("*", url):
        assert taken or is_valid_ipv6_endpoint_url(url)
    else:
        assert not taken or "[" in url


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"identities\[0\].namespaces: must not be empty without imdsPolicies"),
        ({"namespaces": []}, r"identities\[0\].namespaces: must not be empty"),
        ({"imdsPolicies": False}, r"identities\[0\].namespaces: must not be empty"),
        ({"namespaces": ["a"], "externalID": "x"}, r"identities\[0\].externalID: must be 2 to 1224"),
        ({"namespaces": ["a"], "externalID": "a*"}, "and is no pattern"),
        ({"namespaces": "team-a"}, r"Expected `array`, got `str` - at `\$.identities\[0\].namespaces`"),
        ({"namespaces": ["Team A"]}, r"identities\[0\].namespaces\[0\]: Team A is no name"),
        ({"namespaces": ["a"], "roleArns": []}, "unknown field `roleArns`"),
        ({"namespaces": ["a"], "roleARNs": ["team-a"]}, r"roleARNs\[0\]: team-a is no ARN of iam"),
        ({"namespaces": ["a"], "roleARNs": [ARN_A]}, "is no ARN of iam in six fields"),
        (
            {"namespaces": ["a"], "queueARNs": ["*", QUEUE_A]},
            rf"identities\[0\].queueARNs\[1\]: {QUEUE_A} is no ARN of sqs in six fields",
        ),
        (
            {"namespaces": ["a"], "targetARNs": [ROLE_A]},
            r"targetARNs\[0\]: .* is no ARN of cloudfront or sns or sqs or events or lambda in six fields",
        ),
        (
            {"namespaces": ["a"], "targetARNs": ["arn:aws:cloudfront::1:distribution/E"]},
            "has a region or an account, and spec.target.cloudFront names neither: write",
        ),
        ({"namespaces": ["a"], "endpointURLs": ["localhost"]}, r"endpointURLs\[0\]: localhost is no http"),
        ({"namespaces": ["a"], "ownIdentity": "yes"}, "Expected `bool`"),
    ],
)
def test_a_setting_that_is_wrong_is_told_by_its_field(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grants(entry)


@pytest.mark.parametrize(
    "entry",
    [{"endpointURLs": ["*"]}, {"roleARNs": ["arn:aws:iam::123456789012:role:a:b"]}],
    ids=str,
)
def test_what_a_setting_may_hold(entry: dict[str, Any]) -> None:
    assert grants({"namespaces": ["a"], **entry}).identities[0].namespaces == ("a",)


def test_an_empty_file_grants_nothing_by_mistake_no_more_than_by_intent() -> None:
    with pytest.raises(ValueError, match="the form is"):
        Grants.decode(None)
    assert Grants.decode({"identities": []}) == Grants(())


def test_the_example_of_the_docs_is_understood() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()
    (block,) = re.findall(r"```yaml\n(identities:\n.*?)```", page, re.DOTALL)
    setting = Grants.decode(manifests.load(block))
    role = "arn:aws:iam::111122223333:role/team-a-reader"
    queue = "https://sqs.eu-west-1.amazonaws.com/111122223333/team-a-events"
    reader = AwsSpec("eu-west-1", role, "team-a-7f3")
    assert refusals(setting, "team-a-dev", reader, {FIELD: queue}) == ()
    assert fields(refusals(setting, "team-a-dev", spec(role), {FIELD: queue})) == ["spec.aws.externalID"]
    assert fields(refusals(setting, "team-b", reader, {FIELD: queue})) == ["spec.aws.roleARN", FIELD]
    policy = AwsSpec("eu-west-1", "arn:aws:iam::111122223333:role/caretaker-imds")
    assert refusals(setting, CLUSTER, policy) == ()
    assert fields(refusals(setting, "caretaker-system", policy)) == ["spec.aws.roleARN"]
