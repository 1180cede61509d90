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
from typing import Any, TypeVar

import yaml
from aiohttp import web

from awsdoubles.serverthread import ServerThread
from testing.apicalls import Ledger
from testing.faults import Action, Hang, Match, Reset, Rule, error_line
from testing.relay import Relay
from testing.staleness import RevisionClock, Stale
from testing.suiterole import companion, token_of
from testing.upstream import Upstream

_T = TypeVar("_T")


class ApiProxy(ServerThread):
    """See the module. `client` names the calls in the ledger. `stop` raises what a callback raised.

    The client's own Authorization is passed on; a request without one gets the kubeconfig's credentials.
    """

    def __init__(self, kubeconfig: Path | str, client: str = "operator") -> None:
        super().__init__()
        self.client = client
        self.ledger = Ledger()
        self._kubeconfig = kubeconfig
        self._upstream = Upstream.from_kubeconfig(Path(kubeconfig))
        self._relay = Relay(client, self._upstream, self.ledger)
        self._rules_lock = threading.Lock()
        self._sampler: asyncio.Task[None]

    # ------------------------------------------------------------ life

    def routes(self) -> list[web.RouteDef]:
        """Everything."""
        return [web.route("*", "/{path:.*}", self._relay.handle)]

    async def opened(self) -> None:
        """Connect to the API server, and follow its revisions."""
        await self._upstream.__aenter__()
        self._sampler = asyncio.create_task(self._relay.sample_revisions())

    async def abandon(self) -> None:
        """End what is under way."""
        self._sampler.cancel()
        await asyncio.gather(self._sampler, return_exceptions=True)
        await self._relay.abandon()

    async def closing(self) -> None:
        """Leave the API server."""
        await self._upstream.__aexit__(None, None, None)

    def _raise_fault(self) -> None:
        super()._raise_fault()
        for fault in self._relay.faults:
            raise fault

    # ------------------------------------------------------------ for the test

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
            self.loop.call_soon_threadsafe(self._relay.pulse)

    def _on_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)
