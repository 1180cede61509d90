"""The proxy itself: a server thread between SQS clients and an SQS.

Input: the address behind it, rules that a test adds and removes while it runs. Clients use `url` as their
endpoint; queue URLs may name either address. All rules work with JSON 1.0 (what boto3 speaks); with the
query protocol those that need not look into a message do. Without a rule it must change nothing.

    with SqsProxy(aws.url, seed=7) as proxy:
        rule = proxy.add(Match("DeleteMessageBatch"), LoseReply(), count=1)
        ...
        rule.wait()
        assert proxy.calls.count("DeleteMessageBatch") == 2
"""

import asyncio
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import aiohttp
from aiohttp import web
from yarl import URL

from awsdoubles.serverthread import ServerThread, reset
from awsdoubles.sqsproxy import answers, messages
from awsdoubles.sqsproxy.calls import Call, CallLog
from awsdoubles.sqsproxy.rules import (
    Action,
    Duplicate,
    EmptyReceive,
    Fail,
    FailEntries,
    LoseReply,
    Match,
    NotDeleted,
    Reorder,
    Rule,
    Slow,
    StaleSucceeds,
)

TARGET: Final = "AmazonSQS."
POLL_SECONDS: Final = 0.05
# Ours to set, on both sides; the answer must come uncompressed.
_OWN_HEADERS: Final = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "date"}
_IN_MESSAGES: Final = (NotDeleted, StaleSucceeds, FailEntries, Duplicate, Reorder)

Json = dict[str, Any]


class Request:
    """One call as it arrived. `body` is None in the query protocol."""

    def __init__(self, http: web.Request, raw: bytes) -> None:
        self.http = http
        self.raw = raw
        target = http.headers.get("X-Amz-Target", "")
        self.body: Json | None = json.loads(raw or b"{}") if target.startswith(TARGET) else None
        if self.body is not None:
            self.operation = target.removeprefix(TARGET)
            fields = self.body
        else:
            fields = {name: values[0] for name, values in parse_qs(raw.decode(errors="replace")).items()}
            fields = {**http.query, **fields}
            self.operation = fields.get("Action", "")
        url = fields.get("QueueUrl") or fields.get("QueueName") or http.path
        self.queue = str(url).rstrip("/").rsplit("/", 1)[-1]
        self.wait = float(fields.get("WaitTimeSeconds", 0))


class SqsProxy(ServerThread):
    """See the module. `seed` decides where chance is asked.

    The emulators go on with a long poll whose client is gone, and hide from all others what it brings.
    With `own_waits` the proxy does the waiting, asking every 50 ms, and stops when the client does.
    """

    def __init__(self, upstream: str, *, seed: int = 0, port: int = 0, own_waits: bool = True) -> None:
        super().__init__(port)
        self.calls = CallLog()
        self._own_waits = own_waits
        self._upstream = upstream.rstrip("/")
        self._chance = random.Random(seed)
        self._rules: tuple[Rule, ...] = ()
        self._rules_lock = threading.Lock()
        self._backlogs: dict[str, messages.Backlog] = defaultdict(lambda: messages.Backlog(self._chance))
        self._sent: set[asyncio.Task[tuple[int, dict[str, str], bytes]]] = set()
        self._session: aiohttp.ClientSession

    def add(self, match: Match, action: Action, count: int | None = None) -> Rule:
        """Put a fault in force for the next `count` calls that fit, or until it is removed."""
        rule = Rule(match, action, count, self._forget)
        with self._rules_lock:
            self._rules = (*self._rules, rule)
        return rule

    @contextmanager
    def fault(self, match: Match, action: Action, count: int | None = None) -> Iterator[Rule]:
        """A rule for as long as the `with` block."""
        rule = self.add(match, action, count)
        try:
            yield rule
        finally:
            rule.remove()

    def clear(self) -> None:
        """Remove all rules. What was held back still comes."""
        with self._rules_lock:
            self._rules = ()

    def routes(self) -> list[web.RouteDef]:
        """Everything."""
        return [web.route("*", "/{path:.*}", self._handle)]

    async def opened(self) -> None:
        """A client without limits of its own."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
        )

    async def closing(self) -> None:
        """Close it; calls under way end with it."""
        for sent in self._sent:
            sent.cancel()
        await asyncio.gather(*self._sent, return_exceptions=True)
        await self._session.close()

    def _forget(self, rule: Rule) -> None:
        with self._rules_lock:
            self._rules = tuple(one for one in self._rules if one is not rule)

    async def _handle(self, http: web.Request) -> web.Response:
        request = Request(http, await http.read())
        actions = [
            rule.action for rule in self._rules if rule.takes(request.operation, request.queue, self._chance)
        ]
        entries = len((request.body or {}).get("Entries", []))
        call = Call(request.operation, request.queue, entries, wait=request.wait)
        call.faults = tuple(type(action).__name__ for action in actions)
        self.calls.add(call)
        started = time.monotonic()
        try:
            response = await self._answer(request, actions, call)
        except aiohttp.ClientError:  # an SQS that is down is a reset connection
            return reset(http)
        finally:
            call.seconds = time.monotonic() - started
        if _any(actions, LoseReply):
            return reset(http)
        call.status = response.status
        return response

    async def _answer(self, request: Request, actions: list[Action], call: Call) -> web.Response:
        for action in actions:
            if isinstance(action, Slow):
                await asyncio.sleep(action.seconds)
            if isinstance(action, _IN_MESSAGES) and request.body is None:
                return answers.error(
                    request.operation, 400, "InvalidAction", "a fault for JSON only", json=False
                )
        for action in actions:
            if isinstance(action, Fail):
                known = request.body is not None
                return answers.error(
                    request.operation, action.status, action.code, action.message, json=known
                )
            if isinstance(action, EmptyReceive) and request.operation == "ReceiveMessage":
                await asyncio.sleep(request.wait)
                return answers.empty_receive(json=request.body is not None)
            if isinstance(action, NotDeleted) and request.operation.startswith("DeleteMessage"):
                return answers.ok(messages.success(request.operation, request.body or {}))
        if request.body is None:
            return answers.relayed(*await self._forward(request, request.raw))
        return await self._json(request, request.body, actions, call)

    async def _json(self, request: Request, body: Json, actions: list[Action], call: Call) -> web.Response:
        if request.operation == "ReceiveMessage":
            return await self._receive(request, body, actions, call)
        body, stale = messages.original(body)
        if request.operation.startswith("DeleteMessage") and _any(actions, StaleSucceeds):
            stale |= {entry["Id"] for entry in body.get("Entries", [])} or {""}
        failed: list[Json] = []
        for action in actions:
            if isinstance(action, FailEntries) and request.operation in messages.BATCHES:
                body, more = messages.split(body, action)
                failed += more
        if failed and not body["Entries"]:
            return answers.ok({"Successful": [], "Failed": failed})
        raw = json.dumps(body).encode() if failed or stale else request.raw
        status, headers, answer = await self._forward(request, raw)
        if stale and status == 400 and b"ReceiptHandleIsInvalid" in answer:
            return answers.ok({})
        if status != 200 or not (failed or stale):
            return answers.relayed(status, headers, answer)
        result = messages.forgive(json.loads(answer or b"{}"), stale) if "" not in stale else {}
        if failed:
            result["Failed"] = [*result.get("Failed", []), *failed]
        return answers.ok(result)

    async def _receive(self, request: Request, body: Json, actions: list[Action], call: Call) -> web.Response:
        backlog = self._backlogs[request.queue]
        faults = [action for action in actions if isinstance(action, Duplicate | Reorder)]
        # What waits here must not wait for a long poll.
        status, headers, answer = await self._poll(request, body, 0 if backlog else request.wait)
        fresh = _messages(answer) if status == 200 else []
        if status != 200 or not (backlog or faults):
            call.messages = len(fresh)
            return answers.relayed(status, headers, answer)
        found = backlog.deliver(fresh, int(body.get("MaxNumberOfMessages", 1)), faults)
        call.messages = len(found)
        return answers.ok({"Messages": found} if found else {})

    async def _poll(self, request: Request, body: Json, wait: float) -> tuple[int, dict[str, str], bytes]:
        """ReceiveMessage, waiting here or there."""
        if wait == request.wait and not (wait and self._own_waits):
            return await self._forward(request, request.raw)
        raw = json.dumps({**body, "WaitTimeSeconds": 0}).encode()
        deadline = time.monotonic() + wait
        while True:
            status, headers, answer = await self._whole(request, raw)
            left = deadline - time.monotonic()
            if status != 200 or left <= 0 or _messages(answer):
                return status, headers, answer
            await asyncio.sleep(min(POLL_SECONDS, left))

    async def _whole(self, request: Request, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """A receive upstream that ends though its client goes meanwhile: what it takes would be nobody's for
        a while, and is the next receiver's."""
        sent = asyncio.ensure_future(self._forward(request, raw))
        self._sent.add(sent)
        sent.add_done_callback(self._sent.discard)
        try:
            return await asyncio.shield(sent)
        except asyncio.CancelledError:
            # A callback: the server's end cancels the wait as well.
            sent.add_done_callback(partial(self._left, request.queue))
            await asyncio.wait({sent})
            raise

    def _left(self, queue: str, sent: "asyncio.Task[tuple[int, dict[str, str], bytes]]") -> None:
        """Keep what came when its client was gone."""
        if sent.cancelled() or sent.exception() is not None:
            return
        status, _, answer = sent.result()
        if status == 200:
            self._backlogs[queue].keep(_messages(answer))

    async def _forward(self, request: Request, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {k: v for k, v in request.http.headers.items() if k.lower() not in _OWN_HEADERS}
        url = URL(self._upstream + request.http.raw_path, encoded=True)
        sent = self._session.request(
            request.http.method, url, headers=headers, data=raw or None, allow_redirects=False
        )
        async with sent as response:
            kept = {k: v for k, v in response.headers.items() if k.lower() not in _OWN_HEADERS}
            return response.status, kept, await response.read()


def _messages(answer: bytes) -> list[Json]:
    return json.loads(answer).get("Messages") or []


def _any(actions: list[Action], kind: type[Action]) -> bool:
    return any(isinstance(action, kind) for action in actions)
