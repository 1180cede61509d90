"""What a client asked of the API server: requests told apart as RBAC does, and a ledger of them.

Inputs: method, path, query and body. It must not know how requests travel. The path grammar is that of
https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from testing.customresource import TIMEOUT

WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "HEAD": "get", "GET": "get"}


class Target(NamedTuple):
    """What a path points at; all empty for a non-resource path such as /version."""

    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(slots=True, eq=False)
class Call:
    """One request. `code` is 0 until it is answered, and stays 0 where the client got no answer."""

    client: str
    verb: str
    target: Target
    user_agent: str = ""
    dry_run: bool = False
    request_bytes: int = 0
    code: int = 0
    time: float = field(default_factory=time.time)  # seconds since the epoch, at arrival
    seconds: float = 0.0  # until the reply was given

    @property
    def resource(self) -> str:
        return self.target.resource

    @property
    def subresource(self) -> str:
        return self.target.subresource

    @property
    def namespace(self) -> str:
        return self.target.namespace

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def is_write(self) -> bool:
        """Whether it would change something; a dry run does not."""
        return self.verb in WRITES and not self.dry_run


class _Meta(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_name_in = msgspec.json.Decoder(_Named).decode


def parse_path(path: str) -> Target:
    """Group, resource, namespace, name and subresource of an API path."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, rest = "", parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, rest = parts[1], parts[3:]
    else:
        return Target()
    namespace = ""
    # /namespaces/NAME/RESOURCE is inside the namespace, /namespaces/NAME[/status|/finalize] is itself.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, *sub = [*rest, "", ""][: max(len(rest), 2)]
    return Target(group, resource, namespace, name, "/".join(sub))


def classify(
    client: str, method: str, path: str, query: Mapping[str, str], user_agent: str, body: bytes
) -> Call:
    """The Call of a request; a create's name is read from its body."""
    target = parse_path(path)
    if target.resource and not target.name and method == "POST":
        target = target._replace(name=_name_of(body))
    return Call(
        client=client,
        verb=_verb(method, target, query),
        target=target,
        user_agent=user_agent,
        dry_run="dryRun" in query,
        request_bytes=len(body),
    )


def _verb(method: str, target: Target, query: Mapping[str, str]) -> str:
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    if method == "GET" and query.get("watch", "") in ("1", "true"):
        return "watch"
    if method == "GET" and target.resource and not target.name:
        return "list"
    return _VERBS.get(method, method.lower())


def _name_of(body: bytes) -> str:
    try:
        return _name_in(body).metadata.name
    except msgspec.MsgspecError:
        return ""


class Ledger:
    """Every call of one client, in order of arrival. Safe to read from any thread."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._changed = threading.Condition()

    def add(self, call: Call) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def answered(self, call: Call, code: int) -> None:
        """Note the status that the client got; 0 = none."""
        with self._changed:
            call.code = code
            call.seconds = time.time() - call.time
            self._changed.notify_all()

    def calls(self, where: Callable[[Call], bool] | None = None, since: float = 0.0) -> list[Call]:
        """The calls that arrived at or after `since` (seconds since the epoch) and fit `where`."""
        with self._changed:
            return [c for c in self._calls if c.time >= since and (where is None or where(c))]

    def writes(
        self, *, exclude_leases: bool = True, exclude_events: bool = False, since: float = 0.0
    ) -> list[Call]:
        """The calls that would change something, dry runs excepted, whatever became of them."""
        left_out = {name for name, out in (("leases", exclude_leases), ("events", exclude_events)) if out}
        return self.calls(lambda c: c.is_write and c.resource not in left_out, since)

    def counts(self, since: float = 0.0) -> Counter[tuple[str, str]]:
        """How many calls of each (verb, resource); a subresource as `pods/status`."""
        return Counter(
            (c.verb, f"{c.resource}/{c.subresource}" if c.subresource else c.resource)
            for c in self.calls(since=since)
        )

    def wait(self, where: Callable[[Call], bool], count: int = 1, timeout: float = TIMEOUT) -> list[Call]:
        """Block until at least `count` calls fit `where`; TimeoutError after `timeout` seconds.

        `where` is asked again when a call is answered, so it may look at `code`.
        """
        found: list[Call] = []

        def enough() -> bool:
            found[:] = [c for c in self._calls if where(c)]
            return len(found) >= count

        with self._changed:
            if not self._changed.wait_for(enough, timeout):
                raise TimeoutError(f"{len(found)} of {count} expected calls after {timeout:g} s")
        return found

    def clear(self) -> None:
        """Forget all calls so far."""
        with self._changed:
            self._calls.clear()
