"""What the metadata service answers: a function of request and options, and the tokens it gave out.

Input: method, path and headers of one request, the options in force, the time. It does no I/O and
serves no more than what SDKs and probes ask for: tokens, the instance's id, the role's credentials.
Sources: docs of EC2, "Use the Instance Metadata Service to access instance metadata" (token rules, status
codes), "Retrieve security credentials from instance metadata" (the document).
"""

import datetime
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hoplab.options import MetadataOptions

TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105  names, no secrets
INSTANCE_ID_PATH: Final = "/latest/meta-data/instance-id"
ROLES_PATH: Final = "/latest/meta-data/iam/security-credentials/"
TOKEN: Final = "x-aws-ec2-metadata-token"  # noqa: S105
TOKEN_TTL: Final = "x-aws-ec2-metadata-token-ttl-seconds"  # noqa: S105
LONGEST_TTL_SECONDS: Final = 21600
CREDENTIALS_SECONDS: Final = 6 * 3600
ROLE: Final = "lab-node"


@dataclass(frozen=True)
class Answer:
    """Status, body and headers; `limited` when it may only travel as far as the hop limit lets it."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    limited: bool = False


class Metadata:
    """One instance's metadata. Header names are given in lower case, `now` in seconds since the epoch."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._tokens: dict[str, float] = {}

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], options: MetadataOptions, now: float
    ) -> Answer:
        """The answer to one request."""
        if options.http_endpoint == "disabled":
            return Answer(403)
        if method == "PUT" and path == TOKEN_PATH:
            return self._token(headers, now)
        if method != "GET":
            return Answer(405)
        if not self._admitted(headers.get(TOKEN), options, now):
            return Answer(401)
        return self._document(path, now)

    def _token(self, headers: Mapping[str, str], now: float) -> Answer:
        # A request that came through a proxy gets no token.
        if "x-forwarded-for" in headers:
            return Answer(403)
        ttl = headers.get(TOKEN_TTL, "")
        if not (ttl.isascii() and ttl.isdigit() and 1 <= int(ttl) <= LONGEST_TTL_SECONDS):
            return Answer(400)
        token = secrets.token_urlsafe(40)
        self._tokens[token] = now + int(ttl)
        return Answer(200, token, {TOKEN_TTL: ttl}, limited=True)

    def _admitted(self, token: str | None, options: MetadataOptions, now: float) -> bool:
        if token is None:
            return options.http_tokens == "optional"
        return self._tokens.get(token, 0) > now

    def _document(self, path: str, now: float) -> Answer:
        if path == INSTANCE_ID_PATH:
            return Answer(200, self._instance_id)
        if path in (ROLES_PATH, ROLES_PATH.rstrip("/")):
            return Answer(200, ROLE)
        if path == ROLES_PATH + ROLE:
            return Answer(200, json.dumps(_credentials(now), indent=1))
        return Answer(404)


def _credentials(now: float) -> dict[str, str]:
    """Made up: nothing accepts them."""

    def stamp(seconds: float) -> str:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    return {
        "Code": "Success",
        "LastUpdated": stamp(now),
        "Type": "AWS-HMAC",
        "AccessKeyId": "ASIAHOPLABHOPLABHOPL",
        "SecretAccessKey": "of-the-lab-alone",
        "Token": "of-the-lab-alone",
        "Expiration": stamp(now + CREDENTIALS_SECONDS),
    }
