"""What the tests of the documented roles share: names, a small task, and looks at what is missing."""

import asyncio
from collections.abc import Callable
from typing import Any

from testbed import steer
from testbed.admin import Json
from testing.cluster import Nodes

SYSTEM = "caretaker-system"
# kopf's own words on a list that is refused.
KOPF = ("APIForbiddenError",)
METRIC = "caretaker_missing_permission"


def small_task(name: str, nodes: Nodes, **spec: Any) -> Json:
    """A task that is done in a moment on this test's nodes."""
    container = {"name": "main", "image": "busybox"}
    template = {
        "metadata": {"annotations": steer.behaviour(run_seconds=0.1)},
        "spec": {"nodeSelector": nodes.selector, "containers": [container]},
    }
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def ready(task: Json) -> Json:
    """The Ready condition, or nothing."""
    conditions = task.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == "Ready"), {})


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once it holds; asked of the operator's metrics, which announce nothing."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)
