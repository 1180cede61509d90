"""The decision about one node: its state, and its needs. Pure data."""

from typing import Final, Literal

import msgspec

from caretaker.api.objects import Pod
from caretaker.daemontask.ledger import Entry

State = Literal["excluded", "succeeded", "failed", "active", "pending", "blocked"]

BACKOFF_BASE: Final = 10.0
BACKOFF_MAX: Final = 600.0
BACKOFF: Final = "Backoff"
QUEUED: Final = "Queued"
POD_REFUSED: Final = "PodRefused"
PREDECESSOR_TERMINATING: Final = "PredecessorTerminating"
# Waiting reasons of a container in the ordinary course of its start.
STARTING: Final = ("", "ContainerCreating", "PodInitializing")


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The state of one node, and its needs."""

    state: State
    reason: str = ""
    message: str = ""
    since: float = 0.0
    slot: bool = False  # holds one of the slots that parallelism and budgets give
    slot_for: str = ""  # why, where that is not `reason`
    slot_since: float = 0.0  # since when, likewise
    slot_until: float = 0.0  # when the reason for the slot ends by itself; 0 = by an event
    failing: float = 0.0  # since when its run has failed and may still succeed, or is lost with its node
    start: str = ""  # trigger of the run it wants to start; empty = none
    seq: int = 0  # with start: the Pod's sequence number
    attempt: int = 1
    nonce: str = ""
    record: Entry | None = None  # the entry to write before anything else happens to this node
    delete: tuple[Pod, ...] = ()
    replace: Pod | None = None  # makes way for a newer run as soon as runs may start
    duplicates: bool = False  # more than one live Pod was found
    wake: float = 0.0  # when this node must be looked at again; 0 = on an event only
