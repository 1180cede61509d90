"""PoolStamp, as `plan` and `status` show it."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from caretaker.api.objects import WireMeta, WireNode
from caretaker.cli.common import Session, get
from caretaker.cli.manifest import Document
from caretaker.cli.options import KindCommands, PlanOptions
from caretaker.cli.propose import Planned, propose
from caretaker.registry import KINDS


class Raw(msgspec.Struct):
    """A resource whose spec is not checked yet."""

    metadata: WireMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def check(options: PlanOptions, documents: Sequence[Document]) -> None:
    """Every option makes sense."""


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The pools that would be stamped."""
    proposal = await propose(session, document, Raw)
    label = msgspec.json.decode(proposal.raw.spec).get("label", "")
    nodes, _ = await session.client.list("/api/v1/nodes", WireNode)
    pools = sorted({(node.metadata.labels or {}).get(label, "") for node in nodes} - {""})
    text = f"PoolStamp {document.name}: would stamp {', '.join(pools) or 'nothing'}"
    return Planned([text, *proposal.notes], {"name": document.name, "pools": pools}, proposal.refusals)


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read."""
    status: dict[str, Any] = msgspec.json.decode((await get(session, KIND, name, Raw)).status)
    print(f"PoolStamp {name}: {', '.join(status.get('pools', ()))}")
    return 0


KIND: Final = next(kind for kind in KINDS if kind.package == "poolstamp")
COMMANDS: Final = KindCommands(KIND, "stamps", check, plan, status)
