"""Logs: one JSON object a line on stdout, or one coloured line for a person.

Inputs: logging records and the fields bound with `bind`. The keys are fixed: ts (RFC 3339, ms, UTC),
level, logger, msg, kind, namespace, name, node, reconcile_id, then a record's `extra`, then exc. Unknown
ones are left out. It must not print a credential: every text passes `redact` on its way out.
"""

import logging
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

LogFormat = Literal["json", "text"]

CONTEXT_KEYS: Final = ("kind", "namespace", "name", "node", "reconcile_id")
REDACTED: Final = "[redacted]"

_RESERVED: Final = frozenset({"ts", "level", "logger", "msg", "exc", "stack", *CONTEXT_KEYS})
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
# kopf's attributes of its records; k8s_ref is read as kind, namespace and name.
_KOPF: Final = frozenset({"settings", "k8s_skip", "k8s_ref"})

_bound: ContextVar[Mapping[str, str]] = ContextVar("caretaker_log", default=MappingProxyType({}))

_SECRET_NAME = re.compile(
    r"(authorization|password|passwd|secret_?(access_?)?key|session_?token|security[_-]?token|^token$"
    r"|(id|access|refresh|bearer|auth)_?token|private_?key|credentials?$)",
    re.IGNORECASE,
)
# Text from outside may be a megabyte long. A pattern must not scan it twice: no pattern starts within its own
# last match, or it scans only a few characters.
MAX_CHARACTERS: Final = 32 * 1024  # characters of a text
_LOOKAHEAD: Final = 1024  # scanned, too, for a secret at the cut
_REDACTIONS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A header in any notation: Authorization: Basic x, 'Authorization': 'Bearer x', "authorization":"x".
        r"""(?P<keep>authorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|digest|negotiate)\s+)?)"""
        r"""(?P<secret>[^\s"',;}\\]+)""",
        r"(?P<keep>\bbearer\s+)(?P<secret>[\w.~+/=-]{6,})",
        # JSON Web Tokens: service account tokens, OIDC, EKS.
        r"(?P<keep>)(?P<secret>(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)",
        # aws_secret_access_key = x, "SecretAccessKey": "x", AWS_SESSION_TOKEN=x, X-Amz-Signature=x
        r"""(?P<keep>(?:secret_?access_?key|secret_?key|session_?token|security[_-]?token|x-amz-signature"""
        r"""|x-amz-credential|password)["']?\s*[:=]\s*["']?)(?P<secret>[^\s"',;&}\\]+)""",
        # user:password@ in a URL. Its scheme is not looked at: in a.a.a. a scheme may begin at each letter.
        r"(?P<keep>://[^\s/:@]*:)(?P<secret>[^\s/@]+)(?=@)",
    )
)


def redact(text: str) -> str:
    """`text` without Authorization values, bearer tokens, JWTs, AWS secret keys, signatures and passwords; at
    most MAX_CHARACTERS characters of it."""
    size, text = len(text), text[: MAX_CHARACTERS + _LOOKAHEAD]
    if not text.isascii():  # a lone surrogate, as from os.fsdecode, would break the encoder
        text = text.encode("utf-8", "backslashreplace").decode()[: MAX_CHARACTERS + _LOOKAHEAD]
    for pattern in _REDACTIONS:
        text = pattern.sub(_mask, text)
    return text if size <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({size} characters)"


def _mask(match: re.Match[str]) -> str:
    return match["keep"] + REDACTED


def _clean(value: object, name: str = "") -> object:
    """An extra value as JSON data, its texts redacted; a value under a secret's name is hidden whole."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if name and _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, Mapping):
        return {str(k): _clean(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(v) for v in value]
    return redact(str(value))


@contextmanager
def bind(**fields: str) -> Iterator[None]:
    """Put `fields` (CONTEXT_KEYS) on every record logged inside, in this task and in tasks that it starts."""
    unknown = fields.keys() - set(CONTEXT_KEYS)
    if unknown:
        raise TypeError(f"log.bind takes {', '.join(CONTEXT_KEYS)}; not {', '.join(sorted(unknown))}")
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def new_reconcile_id() -> str:
    """Twelve hex digits that tie the records of one pass together."""
    return secrets.token_hex(6)


def in_pass() -> bool:
    """Whether this code runs in a pass or in a task that the pass awaits."""
    return bool(_bound.get().get("reconcile_id"))


def outside_pass() -> AbstractContextManager[None]:
    """Tasks that are begun inside outlive the pass: their records name its object, and not the pass."""
    return bind(reconcile_id="")


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a record beside its message: the context first, then `extra`, redacted."""
    extra = {k: v for k, v in record.__dict__.items() if k not in _STANDARD and k not in _KOPF}
    ref = record.__dict__.get("k8s_ref") or {}
    fields: dict[str, object] = {}
    for key in CONTEXT_KEYS:
        # `name` is the logger's on a record, so a name comes from bind or from kopf only.
        value = (extra.pop(key, "") if key != "name" else "") or _bound.get().get(key) or ref.get(key)
        if value:
            fields[key] = redact(str(value))
    for key, value in extra.items():
        fields[f"extra_{key}" if key in _RESERVED else key] = _clean(value, key)
    return fields


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """One JSON object a record; never a line break inside."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": redact(record.getMessage()),
            **fields_of(record),
        }
        if record.exc_info:
            line["exc"] = redact(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = redact(record.stack_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """One line for a person: time, level, message, key=value; exceptions indented below."""

    _COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        if self._colour:
            level = f"\x1b[{self._COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        fields = fields_of(record)
        pairs = "".join(f" {k}={_plain(v)}" for k, v in fields.items())
        text = f"{_time(record)} {level} {record.name}: {redact(record.getMessage())}{pairs}"
        if record.exc_info:
            text += "\n" + redact(self.formatException(record.exc_info))
        if record.stack_info:
            text += "\n" + redact(record.stack_info)
        # Indented, so that a message cannot pass for a record of its own.
        return text.replace("\n", "\n    ")


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text and not re.search(r'[\s"=]', text) else msgspec.json.encode(text).decode()


def setup(
    log_format: LogFormat = "json", level: str = "INFO", stream: TextIO | None = None
) -> logging.Handler:
    """Send every record of the process to `stream` (default stdout), replacing an earlier setup."""
    out = stream or sys.stdout
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(colour=out.isatty()))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in ("kopf", "kopf.objects", "aiohttp.access", "botocore", "boto3", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    running = logging.getLogger("kopf._core.reactor.running")
    running.removeFilter(_expected)
    running.addFilter(_expected)
    logging.getLogger("aiohttp.server").addFilter(_no_bad_request)
    logging.captureWarnings(capture=True)
    return handler


def _expected(record: logging.LogRecord) -> bool:
    """Drop kopf's warning that it does not handle signals, on each start in its own thread."""
    return "OS signals are ignored" not in record.getMessage()


def _no_bad_request(record: logging.LogRecord) -> bool:
    """Drop aiohttp's traceback of a request that is no HTTP: any client can send many."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
