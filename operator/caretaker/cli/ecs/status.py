"""caretaker status of a DaemonTask with an ECS target: its clusters, as the operator found them."""

import time

from caretaker.cli.common import UsageError
from caretaker.cli.ecs.text import as_json, as_text
from caretaker.cli.text import json_text
from caretaker.daemontask.resource import RawTask, read_ecs


def status(raw: RawTask, output: str | None, *, watch: bool) -> int:
    """Print it; 0."""
    task, _ = read_ecs(raw)
    if watch:
        raise UsageError(
            f"an ECS target has no end to watch for; kubectl get daemontask {task.metadata.name} --watch "
            "follows it"
        )
    if output == "json":
        print(json_text(as_json(task)))
    else:
        print("\n".join(as_text(task, time.time(), wide=output == "wide")))
    return 0
