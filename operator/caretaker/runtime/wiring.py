"""How a kind is put together: the core resources that it watches, and the factory of its controller.

Each kind has one `WIRING` in the `wiring` module of its package. The registry names the package.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from caretaker.api.objects import Node, WireNode
from caretaker.aws.calls import Aws
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.reflector import Collection, Wire
from caretaker.kube.store import Record, Store
from caretaker.obs.metrics import Metrics
from caretaker.runtime.controller import Kind
from caretaker.runtime.work_queue import WorkQueue
from caretaker.settings import Settings

R = TypeVar("R", bound=Record)


class Watch(msgspec.Struct, Generic[R], frozen=True):
    """A collection of the core API that is watched. Two kinds may share one: they declare the same Watch.

    wire      how its items are decoded
    record    the type of the Store's records
    selector  of labels; None = all items
    """

    resource: str
    wire: type[Wire]
    record: type[R]
    selector: str | None = None
    namespaced: bool = False

    def collection(self, namespace: str | None) -> Collection[R]:
        """It, in the namespace that is served; None = in all."""
        scope = f"namespaces/{namespace}/" if self.namespaced and namespace else ""
        return Collection(f"/api/v1/{scope}{self.resource}", self.wire, label_selector=self.selector)


NODES: Final = Watch("nodes", WireNode, Node)


class Context(msgspec.Struct, frozen=True):
    """The parts of the process that a kind's controller is made from.

    unseen  why the resources that the kind watches cannot be seen now; None = they can
    """

    client: KubeClient
    aws: Aws
    stores: Mapping[str, Store[Any]]  # by resource
    queue: WorkQueue
    metrics: Metrics
    settings: Settings
    unseen: Callable[[], ApiError | None]

    def store(self, watch: Watch[R]) -> Store[R]:
        """The records of a resource that the kind's Wiring lists."""
        return self.stores[watch.resource]


class Wiring(msgspec.Struct, frozen=True):
    """The parts of a kind that the process needs. `make` is called once, at the start of the process."""

    watches: tuple[Watch[Any], ...]
    make: Callable[[Context], Kind[Any, Any, Any]]
