"""A fault-injecting HTTP proxy in front of a real API server, with a ledger of every request.

Inputs: a kubeconfig of the API server; rules (testing.faults) that a test adds and removes while it runs.
One proxy stands for one client: start one for each operator. It runs in a thread and loop of its own, so
sync and async tests can use it and a callback may block. It must not invent answers without a rule: an
API server that is down is a reset connection.

    with ApiProxy(kubeconfig, "operator-a") as proxy:
        path = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        rule = proxy.add(Match(verb="create", resource="pods", nth=3), LoseReply())
        ...
        rule.wait()
        assert proxy.ledger.writes() == []
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import yaml
from aiohttp import web

from testbed.closing import connections_cut, server_closed
from testing.apicalls import Ledger
from testing.faults import Action, Hang, Match, Reset, Rule, error_line
from testing.relay import Relay
from testing.staleness import RevisionClock, Stale
from testing.suiterole import companion, token_of
from testing.upstream import Upstream

_MAX_BODY: Final = 64 * 1024 * 1024
_T = TypeVar("_T")


class ApiProxy:
    """See the module. `client` names the calls in the ledger.

    The client's own Authorization is passed on; a request without one gets the kubeconfig's credentials.
    """

    def __init__(self, kubeconfig: Path | str, client: str = "operator") -> None:
        self.client = client
        self.ledger = Ledger()
        self.port = 0
        self._kubeconfig = kubeconfig
        self._upstream = Upstream.from_kubeconfig(Path(kubeconfig))
        self._relay = Relay(client, self._upstream, self.ledger)
        self._rules_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._fault: BaseException | None = None  # what ended the thread
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event

    # ------------------------------------------------------------ life

    def start(self) -> Self:
        """Listen on a free loopback port. Raises what kept it from doing so."""
        self._thread = threading.Thread(target=self._run, name=f"apiproxy-{self.client}", daemon=True)
        self._thread.start()
        self._started.wait()
        self._raise_faults()
        return self

    def stop(self) -> None:
        """Reset all connections, end the thread, raise what a callback raised."""
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed when its start failed
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        self._raise_faults()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BaseException:
            if error is None:
                raise

    def _raise_faults(self) -> None:
        for fault in (self._fault, *self._relay.faults):
            if fault is not None:
                raise fault

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  handed to the test's thread
            self._fault = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._relay.handle)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1, keepalive_timeout=3600
        )
        async with self._upstream:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            sampler = asyncio.create_task(self._relay.sample_revisions())
            self._started.set()
            await self._stopping.wait()
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)
            await self._relay.abandon()
            await server_closed(runner)
        await connections_cut()

    # ------------------------------------------------------------ for the test

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT"""
        return f"http://127.0.0.1:{self.port}"

    def write_kubeconfig(self, path: Path, token: str = "") -> Path:
        """Write a kubeconfig that points at the proxy; without `token` the proxy's credentials serve, and an
        operator has those of the suite's."""
        if not token and (operators := token_of(self._kubeconfig)):
            self.write_kubeconfig(companion(path), operators)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def add(self, match: Match, action: Action) -> Rule:
        """Put a fault in force, for new requests and for open watches. Rules apply in order of addition."""
        rule = Rule(match, action, self._remove)
        with self._rules_lock:
            self._relay.rules = (*self._relay.rules, rule)
        self._pulse()
        return rule

    @contextmanager
    def fault(self, match: Match, action: Action) -> Iterator[Rule]:
        """A rule for as long as the `with` block."""
        rule = self.add(match, action)
        try:
            yield rule
        finally:
            rule.remove()

    def stale(
        self, seconds: float, match: Match | None = None, *, lists: bool = True, gets: bool = False
    ) -> Rule:
        """Show the world `seconds` ago, from now on: watches, and as asked lists and gets.

        It is never older than this call. Writes, and the answers to them, are not held back.
        """
        if self._relay.clock is None:
            clock = RevisionClock()
            clock.sample(self._on_loop(self._relay.current_revision()))
            self._relay.clock = clock
        return self.add(match or Match(), Stale(seconds, self._relay.clock, lists, gets))

    @contextmanager
    def partition(self, *, silent: bool = False) -> Iterator[Rule]:
        """No way to the API server: connections are reset, or (`silent`) nothing comes back at all."""
        with self.fault(Match(), Hang() if silent else Reset()) as rule:
            if not silent:
                self.cut_watches()
            yield rule

    def cut_watches(self, match: Match | None = None) -> int:
        """Reset the open watches that fit; how many there were."""
        return self._end_watches(match, None)

    def send_watch_error(self, match: Match | None = None, code: int = 410, reason: str = "Expired") -> int:
        """End the open watches that fit with an in-stream ERROR; how many there were."""
        line = error_line(code, reason, "too old resource version: injected by the test")
        return self._end_watches(match, line)

    def open_watches(self, match: Match | None = None) -> int:
        """How many watches that fit are open."""
        fits = (match or Match()).fits
        return sum(1 for watch in self._relay.watches.copy() if fits(watch.call))

    def _end_watches(self, match: Match | None, last_words: bytes | None) -> int:
        async def end() -> int:
            ended = [watch for watch in self._relay.watches if (match or Match()).fits(watch.call)]
            for watch in ended:
                watch.end(last_words)
            return len(ended)

        return self._on_loop(end())

    def _remove(self, rule: Rule) -> None:
        with self._rules_lock:
            self._relay.rules = tuple(r for r in self._relay.rules if r is not rule)
        self._pulse()

    def _pulse(self) -> None:
        with contextlib.suppress(RuntimeError):  # stopped already: nothing waits
            self._loop.call_soon_threadsafe(self._relay.pulse)

    def _on_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
