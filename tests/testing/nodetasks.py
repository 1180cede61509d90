"""DaemonTasks for a real node: what they run is in our own images, the only ones with Python there."""

from typing import Any, Final

from realnode import images
from testbed.admin import Json

# Needs nothing, and tells what only a real kubelet hands back: a log, a termination message.
HELLO: Final = """
import json, os
print("hello from", os.environ["NODE_NAME"])
with open("/dev/termination-log", "w") as told:
    json.dump({"uid": os.getuid()}, told)
"""


def task(
    name: str, script: str = HELLO, *, pod: Json | None = None, target: str = "operator", **spec: Any
) -> Json:
    """A DaemonTask that runs some Python on real nodes. `pod`: more of its fields; `target`: whose image."""
    container = {
        "name": "main",
        "image": images.reference(target, images.version()),
        "command": ["python3", "-c", script],
    }
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container], **(pod or {})}}, **spec},
    }
