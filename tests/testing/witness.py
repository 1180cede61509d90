"""Every status that operators wrote of S3AggregatedRefreshes, and what must hold for the row of them.

Inputs: proxies between operators and the API server; the calls that the Storage Gateway double has seen.
It knows nothing of the operator's code: what covers what is judged anew here. A write whose answer the proxy
never saw is missing from the row, so each write is compared with the version that it was based on, if that
is known.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from testbed.admin import Json
from testing.apiproxy import ApiProxy
from testing.faults import Action, Exchange, Match

PLURAL: Final = "s3aggregatedrefreshes"
STATUS_WRITES: Final = Match(verb="patch", resource=PLURAL, subresource="status")


@dataclass(frozen=True)
class Written:
    """One status as the API server stored it."""

    operator: str
    name: str
    uid: str
    base: str  # the resourceVersion that the write was conditioned on
    version: str
    at: float  # when its answer passed the proxy, Unix seconds
    targets: Mapping[str, Json]  # by id


@dataclass
class Claimed:
    """A call on record: from when on it may be made."""

    target: str
    id: str
    folders: tuple[str, ...]
    recursive: bool
    at: float
    used: bool = False


class _Watching(Action):
    def __init__(self, witness: "Witness", operator: str) -> None:
        self._witness = witness
        self._operator = operator

    async def after(self, exchange: Exchange) -> None:
        if exchange.reply is not None and exchange.reply.status == 200:
            self._witness.take(self._operator, json.loads(exchange.body), json.loads(exchange.reply.body))


class Witness:
    """See the module. Thread-safe."""

    def __init__(self) -> None:
        self._written: list[Written] = []
        self._lock = threading.Lock()

    def watch(self, proxy: ApiProxy) -> None:
        """See this operator's writes from now on."""
        proxy.add(STATUS_WRITES, _Watching(self, proxy.client))

    def take(self, operator: str, sent: Json, stored: Json) -> None:
        """A write and its answer."""
        meta = stored["metadata"]
        seen = Written(
            operator,
            meta["name"],
            meta["uid"],
            str(sent.get("metadata", {}).get("resourceVersion", "")),
            str(meta["resourceVersion"]),
            time.time(),
            {target["id"]: target for target in (stored.get("status") or {}).get("targets") or ()},
        )
        with self._lock:
            self._written.append(seen)

    @property
    def written(self) -> list[Written]:
        """All that was seen so far, in the order of their versions."""
        with self._lock:
            return sorted(self._written, key=lambda one: int(one.version))

    def claims(self) -> list[Claimed]:
        """Every claim that came on record, once each."""
        found: dict[str, Claimed] = {}
        for one in self.written:
            for target in one.targets.values():
                if (claim := target.get("claim")) and claim["id"] not in found:
                    request = tuple(claim["folders"]), bool(claim.get("recursive"))
                    found[claim["id"]] = Claimed(target["id"], claim["id"], *request, at=one.at)
        return list(found.values())

    # ------------------------------------------------------------ the promises

    def problems(self, calls: Iterable[Json], refreshes: Iterable[Json]) -> list[str]:
        """What broke a promise: sentences. `calls` and `refreshes` as the gateway's Control has them."""
        return [
            *self._unwritten(calls),
            *self._forgotten(),
            *_in_vain(refreshes),
        ]

    def _unwritten(self, calls: Iterable[Json]) -> Iterator[str]:
        """No call without a record before it, and one call for each record."""
        claims = self.claims()
        for call in calls:
            if call["operation"] != "RefreshCache":
                continue
            asked = call["input"]
            target = asked["FileShareARN"].rpartition("/")[2]
            request = tuple(asked["FolderList"]), asked["Recursive"]
            fitting = [c for c in claims if c.target == target and (c.folders, c.recursive) == request]
            ready = [c for c in fitting if not c.used and c.at <= call["at"]]
            if ready:
                ready[-1].used = True
                continue
            told = "; ".join(f"{c.id} at {c.at:.3f}{' (used)' if c.used else ''}" for c in fitting)
            yield f"{target} was called at {call['at']:.3f} for {request} without a record: {told or 'none'}"

    def _forgotten(self) -> Iterator[str]:
        """What waits goes only into a claim, a claim only into a refresh or back."""
        row = self.written
        known = {(one.uid, one.version): one for one in row}
        for after in row:
            before = known.get((after.uid, after.base))
            if before is None:
                continue
            for name, old in before.targets.items():
                new = after.targets.get(name)
                step = f"{after.name} {name} from version {before.version} to {after.version}"
                shown = f"\n  before {_brief(old)}\n  after  {_brief(new)}"
                for fault in _lost(old, new or {"id": name}):
                    yield f"{step}, by {after.operator}: {fault}{shown}"


def _lost(old: Json, new: Json) -> Iterator[str]:
    claim, fresh = old.get("claim"), new.get("claim")
    waits = [part for part in (new.get("dirty"), fresh) if part]
    if old.get("dirty") and (missing := _missing([old["dirty"]], waits)):
        yield f"{missing} waited, and is forgotten"
    if claim and (not fresh or fresh["id"] != claim["id"]):
        accepted = (new.get("last") or {}).get("acceptedAt") != (old.get("last") or {}).get("acceptedAt")
        if not accepted and (missing := _missing([claim], waits)):
            yield f"{missing} of claim {claim['id']} is forgotten"
    in_flight, still = old.get("inFlight"), new.get("inFlight")
    if in_flight and (not still or still["notificationID"] != in_flight["notificationID"]):
        ended = (new.get("last") or {}).get("completedAt") != (old.get("last") or {}).get("completedAt")
        if not ended and (missing := _missing([in_flight], waits)):
            yield f"{missing} of refresh {in_flight['notificationID']} is forgotten"


def _missing(wanted: Sequence[Json], held: Sequence[Json]) -> list[str]:
    """Folders of `wanted` that `held` does not cover. A tree is told by a trailing /**."""
    plain, trees = _parts(held)
    if "/" in trees:
        return []
    names, below = _parts(wanted)
    left = [name for name in names if name not in plain and not _within(name, trees)]
    return sorted([*left, *(f"{tree}/**" for tree in below if not _within(tree, trees))])


def _parts(scopes: Sequence[Json]) -> tuple[set[str], set[str]]:
    plain: set[str] = set()
    trees: set[str] = set()
    for scope in scopes:
        if scope.get("all"):
            trees.add("/")
        trees.update(scope.get("trees") or ())
        (trees if scope.get("recursive") else plain).update(scope.get("folders") or ())
    return plain, trees


def _within(name: str, trees: set[str]) -> bool:
    return any(tree in ("/", name) or name.startswith(f"{tree}/") for tree in trees)


def _in_vain(refreshes: Iterable[Json]) -> Iterator[str]:
    """A call that the gateway accepts too early does nothing, and nobody is told."""
    for one in refreshes:
        if not one["evicts"]:
            at = datetime.fromtimestamp(one["acceptedAt"]).astimezone().isoformat()
            yield f"{one['share']}: the call accepted at {at} came too early to evict anything"


def _brief(target: Any) -> str:
    return json.dumps(target, sort_keys=True)[:1500]
