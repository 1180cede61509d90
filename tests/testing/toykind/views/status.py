"""caretaker status of a PoolStamp."""

from typing import Any, Final

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.cli.common import Session, get
from caretaker.registry import KINDS

KIND: Final = next(kind for kind in KINDS if kind.package == "poolstamp")


class Raw(msgspec.Struct):
    """A resource whose spec is not checked yet."""

    metadata: WireMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read."""
    found: dict[str, Any] = msgspec.json.decode((await get(session, KIND, name, Raw)).status)
    print(f"PoolStamp {name}: {', '.join(found.get('pools', ()))}")
    return 0
