"""Many Nodes with an instance of the EC2 double behind each, made by plain POSTs.

Inputs: an administrator's client, the double's Control. No fake kubelet cares for these nodes, so that a
thousand of them cost nothing; the controller manager finds them silent after a while, which is nothing to a
policy. Labels are the caller's, so that its policies mean no other nodes.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from awsdoubles.ec2.control import Control
from testbed.admin import Admin, path
from testbed.nodes import FAKE, node
from testing.imds import TAGS


class Herd:
    """Nodes `PREFIX-0000` and so on; `instances` are those that are there now, by node."""

    def __init__(self, control: Control, prefix: str, labels: Mapping[str, str]) -> None:
        self.control = control
        self.labels = dict(labels)
        self.instances: dict[str, str] = {}
        self._prefix = prefix
        self._made = 0

    async def add(self, admin: Admin, count: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Ready nodes, whose instances have these options; node -> instance."""
        launched = await asyncio.to_thread(self.control.add_nodes, count, tags=TAGS, options=options)
        names = [f"{self._prefix}-{number:04d}" for number in range(self._made, self._made + count)]
        self._made += count
        pairs = list(zip(names, launched, strict=True))
        await asyncio.gather(*(self._post(admin, name, str(one["providerID"])) for name, one in pairs))
        made = {name: str(one["id"]) for name, one in pairs}
        self.instances |= made
        return made

    async def remove(self, admin: Admin, names: Collection[str]) -> None:
        """The machines are gone, and then their nodes."""
        gone = [self.instances.pop(name) for name in names]
        await asyncio.to_thread(self.control.remove, gone)
        await asyncio.gather(*(admin.delete(path("nodes", name=name)) for name in names))

    async def clear(self, admin: Admin) -> None:
        """No nodes any more."""
        terms = ",".join(f"{key}={value}" for key, value in self.labels.items())
        await admin.delete(f"{path('nodes')}?labelSelector={terms}")

    async def _post(self, admin: Admin, name: str, provider_id: str) -> None:
        body = node(name, self.labels)
        for annotation in FAKE:
            del body["metadata"]["annotations"][annotation]
        body["spec"]["providerID"] = provider_id
        await admin.create(path("nodes"), body)
