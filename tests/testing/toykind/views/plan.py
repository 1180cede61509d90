"""caretaker plan of a PoolStamp: the pools that would be stamped."""

import msgspec
from caretaker.cli.poolstamp.status import Raw

from caretaker.api.objects import WireNode
from caretaker.cli.common import Session
from caretaker.cli.manifest import Document
from caretaker.cli.plan import Planned, PlanOptions, propose


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The pools that would be stamped."""
    proposal = await propose(session, document, Raw)
    label = msgspec.json.decode(proposal.raw.spec).get("label", "")
    nodes, _ = await session.client.list("/api/v1/nodes", WireNode)
    pools = sorted({(node.metadata.labels or {}).get(label, "") for node in nodes} - {""})
    text = f"PoolStamp {document.name}: would stamp {', '.join(pools) or 'nothing'}"
    return Planned([text, *proposal.notes], {"name": document.name, "pools": pools}, proposal.refusals)
