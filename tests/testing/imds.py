"""IMDSPolicies at work: real API server, fake nodes with instances of an EC2 double behind them."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from awsdoubles.clients import KEY
from awsdoubles.ec2.control import Control
from testbed.admin import Admin, Json, path
from testing.cluster import Nodes
from testing.customresource import TIMEOUT, Resource
from testing.operator import OperatorProcess

PLURAL: Final = "imdspolicies"
# An operator's: credentials that any double takes, and no endpoint: what is not led to a double fails.
NOWHERE: Final = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": KEY,
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
}
TAGS: Final = {"kubernetes.io/cluster/test": "owned", "Name": "node"}
MODIFY: Final = "ModifyInstanceMetadataOptions"
SLOW: Final = {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional", "HttpEndpoint": "enabled"}
GOOD: Final = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required", "HttpEndpoint": "enabled"}


class Policy(Resource):
    """One policy."""

    def __init__(self, admin: Admin, name: str) -> None:
        super().__init__(admin, path(PLURAL, None, name))
        self.name = name

    async def summary(self, *, timeout: float = TIMEOUT, **counts: int) -> Json:
        """The policy once its summary has these counts, and 0 elsewhere."""
        return await self.when(
            lambda f: {k: v for k, v in f["status"]["summary"].items() if v} == counts, timeout
        )


class Fleet:
    """Nodes of one test with their instances in `control`; policies that mean no other nodes."""

    def __init__(self, admin: Admin, nodes: Nodes, control: Control, url: str) -> None:
        self.control = control
        self.url = url
        self.policies: list[Policy] = []
        self._admin = admin
        self.nodes = nodes
        self._prefix = secrets.token_hex(3)

    async def add(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        joined: bool = True,
        **launch: Any,
    ) -> list[tuple[str, str]]:
        """(node, instance id) of new nodes; `joined`: their providerID is known; `launch`: as add_nodes()."""
        launched = self.control.add_nodes(
            count, tags={**TAGS, **(tags or {})}, options=GOOD if options is None else options, **launch
        )
        names = await self.nodes.add(count, labels=labels)
        made = [(name, str(one["id"])) for name, one in zip(names, launched, strict=True)]
        if joined:
            await self.join(made)
        return made

    async def join(self, made: Sequence[tuple[str, str]]) -> None:
        """The cloud controller tells whose instance each node is."""
        for name, instance in made:
            patch = {"spec": {"providerID": f"aws:///eu-west-1a/{instance}"}}
            await self._admin.patch(path("nodes", None, name), patch)

    async def delete(self, *names: str) -> None:
        """Nodes go, as after a scale-down."""
        await self.nodes.delete(*names)

    def body(self, name: str = "p", **spec: Any) -> Json:
        """What create() sends."""
        selector = {"nodeSelector": {"matchLabels": self.nodes.selector}, **spec.pop("selector", {})}
        return {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "IMDSPolicy",
            "metadata": {"name": f"{self._prefix}-{name}"},
            "spec": {
                "options": {"httpPutResponseHopLimit": 2, "httpTokens": "required"},
                "aws": {"endpointURLs": {"ec2": self.url, "autoscaling": self.url}},
                "selector": selector,
                **spec,
            },
        }

    async def create(self, name: str = "p", **spec: Any) -> Policy:
        """A policy of this test's nodes."""
        body = self.body(name, **spec)
        await self._admin.create(path(PLURAL), body)
        self.policies.append(Policy(self._admin, body["metadata"]["name"]))
        return self.policies[-1]

    def told(self, operator: OperatorProcess, key: str) -> list[Json]:
        """What the operator has logged with this key on behalf of these policies."""
        names = {policy.name for policy in self.policies}
        return [entry for entry in operator.logs if key in entry and entry.get("name") in names]

    def described(self) -> int:
        """DescribeInstances so far."""
        return len(self.control.calls("DescribeInstances"))

    def modified(self, *, dry: bool = False) -> list[Json]:
        """What was sent to change instances, in order; the dry runs instead with `dry`."""
        sent = [call["params"] for call in self.control.calls(MODIFY)]
        return [params for params in sent if bool(params.get("DryRun")) == dry]

    async def clear(self) -> None:
        """Delete what was created."""
        await asyncio.gather(*(policy.delete() for policy in self.policies))
