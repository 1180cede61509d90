"""What the lab's metadata service answers, by EC2's docs: tokens, status codes, the credentials' document."""

import json

import pytest

from hoplab.answers import INSTANCE_ID_PATH, ROLES_PATH, TOKEN, TOKEN_PATH, TOKEN_TTL, Metadata
from hoplab.options import MetadataOptions

NOW = 1_000_000.0
OPTIONAL = MetadataOptions(http_tokens="optional")
REQUIRED = MetadataOptions(http_tokens="required")
DISABLED = MetadataOptions(http_endpoint="disabled", http_tokens="optional")
ID = "i-0a"


@pytest.mark.parametrize(
    ("method", "path", "headers", "options", "status"),
    [
        pytest.param("PUT", TOKEN_PATH, {TOKEN_TTL: "60"}, REQUIRED, 200, id="a token for a minute"),
        pytest.param("PUT", TOKEN_PATH, {TOKEN_TTL: "21600"}, REQUIRED, 200, id="six hours are the most"),
        pytest.param("PUT", TOKEN_PATH, {TOKEN_TTL: "21601"}, REQUIRED, 400, id="longer is invalid"),
        pytest.param("PUT", TOKEN_PATH, {TOKEN_TTL: "0"}, REQUIRED, 400, id="no time at all is invalid"),
        pytest.param("PUT", TOKEN_PATH, {TOKEN_TTL: "1h"}, REQUIRED, 400, id="a TTL is a number"),
        pytest.param("PUT", TOKEN_PATH, {}, REQUIRED, 400, id="a TTL must be given"),
        pytest.param(
            "PUT",
            TOKEN_PATH,
            {TOKEN_TTL: "60", "x-forwarded-for": "10.0.0.1"},
            OPTIONAL,
            403,
            id="through a proxy there is no token",
        ),
        pytest.param("PUT", TOKEN_PATH, {TOKEN_TTL: "60"}, DISABLED, 403, id="switched off, no token"),
        pytest.param("GET", INSTANCE_ID_PATH, {}, DISABLED, 403, id="switched off, no metadata"),
        pytest.param("GET", INSTANCE_ID_PATH, {}, OPTIONAL, 200, id="optional: without a token, too"),
        pytest.param("GET", INSTANCE_ID_PATH, {}, REQUIRED, 401, id="required: not without a token"),
        pytest.param("GET", INSTANCE_ID_PATH, {TOKEN: "x"}, OPTIONAL, 401, id="a wrong token is never right"),
        pytest.param("GET", "/latest/meta-data/none", {}, OPTIONAL, 404, id="what is not there"),
        pytest.param("PUT", INSTANCE_ID_PATH, {}, OPTIONAL, 405, id="metadata cannot be written"),
    ],
)
def test_status(
    method: str, path: str, headers: dict[str, str], options: MetadataOptions, status: int
) -> None:
    assert Metadata(ID).answer(method, path, headers, options, NOW).status == status


def test_a_token_admits_until_it_ends() -> None:
    metadata = Metadata(ID)
    token = metadata.answer("PUT", TOKEN_PATH, {TOKEN_TTL: "60"}, REQUIRED, NOW).body

    def ask(now: float) -> tuple[int, str]:
        answer = metadata.answer("GET", INSTANCE_ID_PATH, {TOKEN: token}, REQUIRED, now)
        return answer.status, answer.body

    assert ask(NOW + 59) == (200, ID)
    assert ask(NOW + 60)[0] == 401


def test_the_hop_limit_binds_tokens_alone() -> None:
    metadata = Metadata(ID)
    assert metadata.answer("PUT", TOKEN_PATH, {TOKEN_TTL: "60"}, OPTIONAL, NOW).limited
    assert not metadata.answer("PUT", TOKEN_PATH, {}, OPTIONAL, NOW).limited
    assert not metadata.answer("GET", INSTANCE_ID_PATH, {}, OPTIONAL, NOW).limited


def test_the_role_that_is_listed_has_credentials_for_hours() -> None:
    metadata = Metadata(ID)
    role = metadata.answer("GET", ROLES_PATH, {}, OPTIONAL, NOW).body
    document = json.loads(metadata.answer("GET", ROLES_PATH + role, {}, OPTIONAL, NOW).body)
    assert document["Code"] == "Success"
    assert document["LastUpdated"] == "1970-01-12T13:46:40Z"
    assert document["Expiration"] == "1970-01-12T19:46:40Z"
    assert {"AccessKeyId", "SecretAccessKey", "Token"} <= set(document)
