"""A ledger and its API server in memory, which keeps what was asked: for tests of requests, one by one."""

from typing import Any

from caretaker.api import names
from caretaker.api.daemontask import LedgerStatus
from caretaker.api.objects import WireMeta, WireOwner
from caretaker.daemontask.ledger import Entry, encode_entry
from caretaker.daemontask.shard import Marks, WireConfigMap, figures
from caretaker.daemontask.shards import Shards, Written
from caretaker.kube.errors import ApiError
from simulation.daemontask.cluster import NAMESPACE, TASK, TASK_UID, SimCluster
from unit.daemontask.build import NOW, entry, node

MARKS = Marks(NAMESPACE, TASK, TASK_UID)
SELECTOR = "caretaker.dev/ledger,caretaker.dev/daemontask=task"
ALL = {name: entry(node(name)) for name in "abcdef"}
UNREPORTED = LedgerStatus()


class Server:
    """The API server in memory. `asked` has each request in short, `sent` the last one as it was."""

    write_seconds = 5.0

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.seconds = 0.0  # that a write takes
        self.failure: ApiError | None = None  # of every request but a list
        self.unlisted: tuple[str, ...] = ()  # made after the list, but before the reads that follow
        self.asked: list[str] = []
        self.sent: tuple[Any, ...] = ()

    def hold(
        self,
        index: int,
        entries: str = "",
        *,
        writes: int = 1,
        records: int = 0,
        broken: str = "",
        **meta: Any,
    ) -> "Server":
        """Have a shard with the entries of these nodes, each of one letter."""
        owners = meta.pop("owner_references", [WireOwner(TASK_UID)])
        self.cluster.configmaps[MARKS.name(index)] = WireConfigMap(
            WireMeta(
                name=MARKS.name(index),
                uid=f"uid-of-{index}",
                resource_version=str(100 + index),
                labels=meta.pop("labels", MARKS.labels(index)),
                annotations=figures(writes, records or len(entries + broken)) if writes else None,
                owner_references=owners,
                **meta,
            ),
            {name: encode_entry(ALL[name]) for name in entries} | dict.fromkeys(broken, "{"),
        )
        return self

    def foreign(self, index: int) -> "Server":
        """Have a ConfigMap of a shard's name that is somebody else's."""
        return self.hold(index, labels=None, owner_references=None)

    async def list(self, path: str, type: Any, **options: Any) -> Any:  # noqa: A002
        self._note("list", path, type, options)
        listed = [
            one
            for name, one in self.cluster.configmaps.items()
            if (one.metadata.labels or {}).get(names.LABEL_TASK) == TASK and name not in self.unlisted
        ]
        return [options["each"](one) for one in listed], "1"

    async def get(self, path: str, type: Any, **options: Any) -> Any:  # noqa: A002
        self._note(f"get {index_of(path)}", path, type, options)
        self._fail()
        return self.cluster.get(path, type)

    async def create(self, path: str, body: Any, type: Any, **options: Any) -> Any:  # noqa: A002
        self._write(f"create {index_of(body['metadata']['name'])}", path, body, type, options)
        return self.cluster.create(path, body, type)

    async def patch(self, path: str, body: Any, type: Any, **options: Any) -> Any:  # noqa: A002
        self._write(f"patch {index_of(path)}", path, body, type, options)
        return self.cluster.patch(path, body, type)

    def _write(self, verb: str, path: str, body: Any, *how: Any) -> None:
        nodes = [f"{'-' if text is None else '+'}{name}" for name, text in body["data"].items()]
        meta = body["metadata"]
        counts = (meta.get("annotations") or {}).values()
        labels = ["labels"] if "labels" in meta and verb.startswith("patch") else []
        self._note(" ".join([verb, *nodes, *(f"#{count}" for count in counts), *labels]), path, body, *how)
        self.cluster.clock.now += self.seconds
        self._fail()

    def _note(self, short: str, *request: Any) -> None:
        self.asked.append(short)
        self.sent = request

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


def requests(server: Server) -> list[str]:
    """What was asked since the last call."""
    asked, server.asked = server.asked, []
    return asked


def index_of(name: str) -> str:
    return name.rpartition("-")[2]


def some(letters: str) -> dict[str, Entry]:
    return {name: ALL[name] for name in letters}


def intent(name: str) -> Entry:
    """One that was decided on a minute ago."""
    started = int(NOW) - 60
    return entry(node(name), "Failed", intent="pass", started_at=started, reboot_runs=(1, started))


async def write(
    shards: Shards,
    entries: str = "",
    forget: str = "",
    intents: str = "",
    reported: LedgerStatus = UNREPORTED,
    **how: bool,
) -> Written:
    """A write of the entries and intents of these nodes, each of one letter."""
    return await shards.write(
        some(entries), forget, {name: intent(name) for name in intents}, reported, **how
    )
