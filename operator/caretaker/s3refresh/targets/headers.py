"""Which values of a Secret may be sent as headers, and where to.

Pure. Whoever writes the URL chooses none of it: the Secret says that it is for headers, by a label, and
for which hosts, by an annotation. Only who may write the Secret gives them. No message holds a value.
"""

import base64
import binascii
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from caretaker.api import names
from caretaker.api.objects import WireMeta

FIELD: Final = "spec.target.http.headersFrom"
REFUSED: Final = "HeadersRefused"
INVALID: Final = "HeaderInvalid"
UNREADABLE: Final = "SecretUnreadable"
# What a call is made of, and what would change how it is read on its way.
RESERVED: Final = frozenset(
    (
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_AWS_KEYS: Final = "AWS_"
_PORTS: Final = {"https": 443, "http": 80}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Secret(msgspec.Struct):
    """What is read of a v1 Secret."""

    metadata: WireMeta
    data: dict[str, str] | None = None


class NotSentError(Exception):
    """Nothing of the call has left. `code`: of the failure in status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def headers_of(secret: Secret, url: str, allowed: Collection[str]) -> dict[str, str]:
    """The Secret's headers for a call of this URL. Raises NotSentError, naming field and fix.

    allowed: `http://HOST` for each host to which headers may go without TLS; all else in it is another's.
    """
    name = secret.metadata.name
    if refusal := _refusal(secret.metadata, url, allowed):
        raise NotSentError(REFUSED, f"{FIELD}: {refusal}")
    found: dict[str, str] = {}
    for key, value in (secret.data or {}).items():
        if key.upper().startswith(_AWS_KEYS):
            message = f"{FIELD}: Secret {name}: {key} is never sent: take the AWS keys out of this Secret"
            raise NotSentError(REFUSED, message)
        text = _decoded(name, value)
        if key.lower() in RESERVED or _CONTROL.search(text):
            message = f"Secret {name}: {key} cannot be a header, by its name or by a control character"
            raise NotSentError(INVALID, message)
        found[key] = text
    return found


def _decoded(name: str, value: str) -> str:
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise NotSentError(UNREADABLE, f"Secret {name} cannot be decoded") from None
    return text.rstrip("\r\n")  # as files end


def _refusal(secret: WireMeta, url: str, allowed: Collection[str]) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    shown = f"[{host}]" if ":" in host else host
    if parts.scheme != "https" and f"http://{shown}" not in allowed:
        return (
            f"Secret {secret.name} is sent by https alone: begin spec.target.http.url with https://, or name "
            f"http://{shown} in `caretaker run --egress-allow`"
        )
    if (secret.labels or {}).get(names.SECRET_HEADERS) != "true":
        return (
            f"Secret {secret.name} is not meant for headers: label it {names.SECRET_HEADERS}=true, and name "
            f"the hosts that get it in its annotation {names.SECRET_HOSTS}"
        )
    usual = _PORTS.get(parts.scheme, 0)
    try:
        port = parts.port if parts.port is not None else usual
    except ValueError:
        return "spec.target.http.url has a port that cannot be"
    wanted = shown if port == usual else f"{shown}:{port}"
    hosts = (secret.annotations or {}).get(names.SECRET_HOSTS, "").lower().replace(",", " ").split()
    if not {wanted, f"{shown}:{port}"} & set(hosts):
        return (
            f"Secret {secret.name} is not meant for {wanted}, to which spec.target.http.url leads: "
            f"name {wanted} in its annotation {names.SECRET_HOSTS}"
        )
    return ""
