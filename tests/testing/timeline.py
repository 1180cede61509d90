"""A pytest plugin of `make stress`: the report of a failed test has a section "timeline", the calls to its
API server and to its doubles of AWS and the logs of its operators, in order of time.

Calls to the API server come from its audit log (writes, and all that operators ask) and from proxies (as the
client saw them); calls to AWS from our doubles and the SQS proxy. MiniStack records none. The plugin is
loaded with `-p testing.timeline`; other runs do without it.
"""

import json
import time
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

import pytest
from aiohttp import web

from awsdoubles.awsserver import AwsServer
from awsdoubles.sqsproxy.calls import CallLog
from testing.apicalls import Ledger
from testing.operator import OperatorProcess

LAST: Final = 2000  # lines that are shown
_ITSELF: Final = "system:apiserver"
_HEARTBEATS: Final = "/namespaces/kube-node-lease/leases/"  # of fake nodes, many each second

_ledgers: list[Ledger] = []
_sqs: list[CallLog] = []
_operators: list[OperatorProcess] = []
_doubles: list["Line"] = []
_began = 0.0


class Line(NamedTuple):
    """What happened when, in seconds since the epoch."""

    at: float
    source: str
    text: str

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")[11:23]
        return f"{moment} {self.source}: {self.text}"


def pytest_configure() -> None:
    """Remember what tests make, though they end it before they fail."""
    _remember(Ledger, _ledgers)
    _remember(CallLog, _sqs)
    _remember(OperatorProcess, _operators)
    AwsServer._aws = _recorded(AwsServer._aws)  # type: ignore[method-assign]


def pytest_runtest_logstart() -> None:
    """Of operators that tests share, the rest is an earlier test's."""
    global _began  # noqa: PLW0603  hooks share nothing else
    _began = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the section."""
    report = yield
    if report.failed:
        lines = timeline(Path(item.config.option.basetemp or "none"), _began)
        left_out = [f"({len(lines) - LAST} earlier lines are left out)"] if len(lines) > LAST else []
        report.sections.append(("timeline", "\n".join([*left_out, *map(str, lines[-LAST:])])))
    return report


def timeline(folder: Path, since: float) -> list[Line]:
    """What is known since then; `folder` has the audit logs of its control planes."""
    found = [*_api_calls(), *_doubles, *_sqs_calls(), *_logs()]
    for file in folder.rglob("audit.jsonl"):
        found += _audited(file)
    return sorted((line for line in found if line.at >= since), key=lambda line: line.at)


def _remember(kind: type, made: list[Any]) -> None:
    original = kind.__init__

    @wraps(original)
    def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        original(self, *args, **kwargs)

    kind.__init__ = remembering  # type: ignore[misc]


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    async def recorded(self: AwsServer, request: web.Request) -> web.Response:
        at, code = time.time(), 0
        try:
            response: web.Response = await original(self, request)
            if request.transport is not None and not request.transport.is_closing():
                code = response.status
        finally:
            named = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
            operation = named or parse_qs(await request.text()).get("Action", ["?"])[0]
            _doubles.append(Line(at, type(self).__name__, _ended(operation, code, time.time() - at)))
        return response

    return recorded


def _api_calls() -> Iterator[Line]:
    for ledger in _ledgers:
        for call in ledger.calls():
            where = "/".join(part for part in call.target if part)
            words = f"{call.verb} {where}{' (dry run)' if call.dry_run else ''}"
            yield Line(call.time, f"proxy of {call.client}", _ended(words, call.code, call.seconds))


def _sqs_calls() -> Iterator[Line]:
    for log in _sqs:
        for call in log.all():
            words = " ".join((call.operation, call.queue, *call.faults))
            yield Line(call.at, "sqs", _ended(words, call.status, call.seconds))


def _logs() -> Iterator[Line]:
    for operator in _operators:
        at = 0.0
        for line in operator.lines:  # a line without a time belongs to the one before
            entry = _parsed(line)
            at = _epoch(entry["ts"]) if "ts" in entry else at
            rest = {key: value for key, value in entry.items() if key not in ("ts", "level", "logger", "msg")}
            words = f"{entry['level']} {entry['msg']} {json.dumps(rest)}" if "msg" in entry else line
            yield Line(at, f"log of {operator.name}", words)


def _audited(file: Path) -> Iterator[Line]:
    for line in file.read_text(errors="replace").splitlines():
        event = _parsed(line)  # the last one may be half written
        name = event.get("user", {}).get("username", "")  # none: it was answered before it was authenticated
        if not event or name == _ITSELF or _HEARTBEATS in event["requestURI"]:
            continue
        user = name.rpartition(":")[2] or "nobody"
        began, ended = _epoch(event["requestReceivedTimestamp"]), _epoch(event["stageTimestamp"])
        words = f"{user} {event['verb']} {event['requestURI']}"
        code = event.get("responseStatus", {}).get("code", 0)
        if event["verb"] == "watch" and event["stage"] == "ResponseComplete":
            yield Line(ended, "api", f"{words} ended")
        else:
            yield Line(began, "api", _ended(words, code, ended - began))


def _ended(words: str, code: int, seconds: float) -> str:
    return f"{words} -> {code or 'no answer'} in {seconds * 1000:.0f} ms"


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
