"""The snapshot of a pass over one resource: the input of the plan, and of status. Pure data."""

import math

import msgspec

from caretaker.s3refresh.plan import PlanInput
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.resource import Read


class Rejection(msgspec.Struct, frozen=True):
    """Why nothing is done for a resource: a reason and a message, of Ready."""

    reason: str
    message: str


class Snapshot(msgspec.Struct, frozen=True):
    """One resource, now."""

    read: Read
    plan_input: PlanInput
    rejection: Rejection | None = None
    queue: QueueView = QueueView()
    problem: str = ""  # why a queue cannot be received from
    code: str = ""  # the problem's class
    polling: bool = False  # messages are received, or would be if the queue could be read
    behind: bool = False  # the source queue may hold messages that have not been received
    reading: bool = False  # a receive has come back, and nothing is in the way
    blocked: str = ""  # why no refresh can be called
    flush_remaining: float = math.inf  # seconds that a flush still waits while it is blocked
    newest: float = 0.0  # when the newest of the messages came, by time.monotonic()
    more: bool = False  # further messages wait for the next pass
    malformed: int = 0  # messages of late that could not be read
    fault: str = ""  # of the last of them
