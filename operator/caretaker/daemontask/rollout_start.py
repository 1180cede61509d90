"""Since when a task waits for its nodes: no node is late before the task has waited for it.

Pure: (task, revision, now) -> moment. Nothing is stored for it. The rollout in status shows when it
began: a first pass over a revision knows, the later ones go by the status that it wrote.
"""

import math
from collections.abc import Iterator

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask
from caretaker.api.times import parse_time


def waiting_since(task: DaemonTask, revision: str, now: float) -> float:
    """When the rollout of this revision began, as far as that is known: never before the task was created. In
    whole seconds, as status has them, so that the next pass finds the same."""
    beginnings = (parse_time(text) or 0.0 for text in _beginnings(task, revision))
    # A time ahead is of a wrong clock; the API server's may be ahead of ours by little.
    past = [at for at in beginnings if at <= now]
    return max([*past, math.floor(now)] if _begins(task, revision) else past, default=0.0)


def _begins(task: DaemonTask, revision: str) -> bool:
    """Whether no status of this rollout has been written, or none since it went on."""
    ready = c.find(task.status.conditions, c.READY)
    resumed = ready is not None and ready.reason == Reason.SUSPENDED and not task.spec.suspend
    return task.status.current_revision != revision or resumed


def _beginnings(task: DaemonTask, revision: str) -> Iterator[str | None]:
    yield task.metadata.creation_timestamp
    status = task.status
    if status.current_revision != revision:
        return
    ready, moving = c.find(status.conditions, c.READY), c.find(status.conditions, c.PROGRESSING)
    if ready is not None and ready.status == "False":
        yield ready.last_transition_time  # of a rollout that an edit of a complete task began
    if moving is None or moving.reason == Reason.PROGRESS_DEADLINE_EXCEEDED:
        return  # a start that was reported late stays late
    yield status.start_time
    if moving.status == "True":
        yield moving.last_transition_time  # of one that an edit of a task which was held or late began
