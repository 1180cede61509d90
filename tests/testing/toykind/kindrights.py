"""Rights of an operator with PoolStamp alone."""

from typing import Final

RIGHTS: Final = {
    "poolstamps": "get list watch",
    "poolstamps/status": "patch",
    "configmaps": "list create delete",
    "nodes": "list watch",
    "events": "create",
}
