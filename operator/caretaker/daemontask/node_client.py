"""Reads and writes single Nodes; the store knows every answer at once, before the watch does. I/O only."""

import logging
from typing import Any

from caretaker.api.objects import Node, WireNode
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, by_admission, or_none
from caretaker.kube.store import Store

logger = logging.getLogger(__name__)


class NodeClient:
    """Nodes of the API server, one at a time. Methods raise ApiError unless they say otherwise."""

    def __init__(self, client: KubeClient, store: Store[Node]) -> None:
        self._client = client
        self._store = store

    async def patch(self, node: Node, body: dict[str, Any] | list[dict[str, Any]]) -> None:
        """A merge patch, or a JSON patch if `body` is a list."""
        self._observe(await self._client.patch(_path(node.name), body, WireNode))

    async def current(self, name: str, uid: str) -> tuple[Node, int] | None:
        """(Node, resourceVersion) as the API server has it; None: it is gone. `uid`: of the node that was."""
        found: WireNode | None = await or_none(self._client.get(_path(name), WireNode))
        if found is None:
            self._store.observe_delete(("", name), uid)
            return None
        return self._observe(found)

    async def after(self, node: Node, error: ApiError) -> Node | None:
        """The current Node after a refused patch; None: it is gone. `node` itself if the refusal is not due
        to another write, or if the API server does not answer. Raises nothing."""
        if error.status not in (404, 409, 422) or by_admission(error):
            return node
        try:
            found = await self.current(node.name, node.uid)
        except ApiError as failure:
            logger.warning("node %s cannot be read: %s", node.name, failure)
            return node
        return found[0] if found is not None else None

    def _observe(self, found: WireNode) -> tuple[Node, int]:
        record, version = found.record(), int(found.metadata.resource_version)
        self._store.observe_write(record, version)
        return record, version


def _path(name: str) -> str:
    return f"/api/v1/nodes/{name}"
