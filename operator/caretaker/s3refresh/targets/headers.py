"""The headers of a call: which values of a Secret are sent, and to which hosts; Retry-After of the response.

Pure. The author of the URL decides neither: a label on the Secret marks it for headers, and an annotation
lists the hosts. Setting them needs write access to the Secret. No message contains a value.
"""

import base64
import binascii
import re
from collections.abc import Collection
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec

from caretaker.api import names
from caretaker.api.objects import WireMeta

FIELD: Final = "spec.target.http.headersFrom"
REFUSED: Final = "HeadersRefused"
INVALID: Final = "HeaderInvalid"
UNREADABLE: Final = "SecretUnreadable"
# Headers that the call sets itself, and headers that change how proxies and servers parse the request.
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
# Retry-After (RFC 9110).
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_DATE: Final = re.compile(r"[A-Za-z]{3,9}, ?[0-9]{1,2}[ -][A-Za-z]{3}[ -][0-9]{2,4} [0-9:]{8} GMT")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Secret(msgspec.Struct):
    """The members of a v1 Secret that are read."""

    metadata: WireMeta
    data: dict[str, str] | None = None


class NotSentError(Exception):
    """The call was not sent. `code`: failure.code in status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def headers_of(secret: Secret, url: str, allowed: Collection[str]) -> dict[str, str]:
    """The Secret's headers for a call of this URL. Raises NotSentError that names the field and the fix.

    allowed: `http://HOST` for each host to which headers may go without TLS; other entries are ignored.
    """
    name = secret.metadata.name
    if refusal := _refusal(secret.metadata, url, allowed):
        raise NotSentError(REFUSED, f"{FIELD}: {refusal}")
    found: dict[str, str] = {}
    for key, value in (secret.data or {}).items():
        if key.upper().startswith(_AWS_KEYS):
            message = f"{FIELD}: Secret {name}: {key} is never sent: remove the AWS keys from this Secret"
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
    return text.rstrip("\r\n")  # Secrets made from files end in a newline


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
            f"Secret {secret.name} is not meant for headers: label it {names.SECRET_HEADERS}=true, and list "
            f"the hosts it may be sent to in its annotation {names.SECRET_HOSTS}"
        )
    usual = 443 if parts.scheme == "https" else 80
    try:
        port = parts.port if parts.port is not None else usual
    except ValueError:
        return "spec.target.http.url has an invalid port"
    wanted = shown if port == usual else f"{shown}:{port}"
    hosts = (secret.annotations or {}).get(names.SECRET_HOSTS, "").lower().replace(",", " ").split()
    if not {wanted, f"{shown}:{port}"} & set(hosts):
        return (
            f"Secret {secret.name} is not meant for {wanted}, the host of spec.target.http.url: "
            f"add {wanted} to its annotation {names.SECRET_HOSTS}"
        )
    return ""


def seconds_of(header: str, now: float) -> float:
    """Of Retry-After: seconds to wait from `now` (since the epoch); 0 for a date in the past and for an
    invalid value. The caller has to bound it: the service may send any number, or a date by a wrong clock."""
    header = header.strip()
    if _SECONDS.fullmatch(header):
        wait = float(header)
    elif _DATE.fullmatch(header):
        try:
            wait = parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    else:
        return 0.0
    return max(wait, 0.0)
