"""What a ledger has lost, how that is known, and what a person's decision about it may mean.

Pure. Three figures tell. Each shard counts its writes, and status tells the count of each: one that is gone,
or lower, is a copy of an earlier time. Each shard tells how many nodes its last write left in it, and status
how many all have: fewer than both is a shard that was cut. Every figure is one that the ledger had, whoever
crashed between two writes; so less than it is proof of a loss, and as much is no proof of none.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from caretaker.api.daemontask import NOT_KNOWN, DaemonTask, LedgerStatus
from caretaker.api.hashing import h10
from caretaker.api.objects import Node
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask import ticks
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Result
from caretaker.daemontask.orders import ASSUME_DONE, Orders, read_orders
from caretaker.daemontask.shard import Shard
from caretaker.daemontask.snapshot import Snapshot

MOST: Final = 64  # shards that are looked for by name: status may be edited, and say any number
# A decision takes the count of writes to the next multiple: beyond every copy from before it, also beyond
# those of writes that nobody told of.
_ERA: Final = 1_000_000

_DONE: Final[tuple[Result, str]] = ("Succeeded", "AssumedDone")


class Loss(msgspec.Struct, frozen=True):
    """One shard. `index` is NOT_KNOWN where it cannot be said which."""

    index: int
    why: str  # "is gone", ...
    floor: int = 0  # the count of writes that it is known to have reached
    older: bool = False  # what stands in it may have been followed by something


def losses(
    told: LedgerStatus, known: Mapping[int, int], shards: Mapping[int, Shard], *, strict: bool
) -> tuple[Loss, ...]:
    """What is missing. `known`: by index, the counts of writes that this process has seen. `strict`: what
    cannot be read is taken for lost."""
    if told.shards < 0 and strict:
        return (Loss(NOT_KNOWN, "could not be read (status.ledger)"),)
    floors = {index: writes for index, writes in enumerate(told.writes) if writes}
    floors.update((index, max(writes, floors.get(index, 0))) for index, writes in known.items())
    found = {index: loss for index, floor in floors.items() if (loss := _behind(index, floor, shards))}
    missing = (index for index in range(told.shards) if index not in shards)
    for index in islice(missing, min(max(told.shards - len(shards), 0), MOST)):
        found.setdefault(index, Loss(index, "is gone"))
    cut = [(index, shard) for index, shard in shards.items() if shard.size < shard.records]
    if cut and len({name for shard in shards.values() for name in shard.node_names}) < told.recorded:
        for index, shard in cut:
            why = f"has {shard.size} of {shard.records} records"
            found.setdefault(index, Loss(index, why, shard.writes))
    return tuple(found[index] for index in sorted(found))


def _behind(index: int, floor: int, shards: Mapping[int, Shard]) -> Loss | None:
    shard = shards.get(index)
    if shard is None:
        return Loss(index, "is gone", floor)
    if shard.writes >= floor:
        return None
    why = f"is an older copy: it counts {shard.writes} writes, and there were {floor}"
    return Loss(index, why, floor, older=True)


def beyond(loss: Loss) -> int:
    """The count of writes of the shard that a decision about this loss leaves behind."""
    return (loss.floor // _ERA + 1) * _ERA


def told_of(before: LedgerStatus, shards: Mapping[int, Shard], known: Mapping[int, int]) -> tuple[int, ...]:
    """status.ledger.writes: of each shard the highest count that anybody knows it to have had."""
    figures = {index: shard.writes for index, shard in shards.items()}
    for index, writes in [*enumerate(before.writes), *known.items()]:
        figures[index] = max(writes, figures.get(index, 0))
    last = max((index for index, writes in figures.items() if writes and index < MOST), default=-1)
    return tuple(figures.get(index, 0) for index in range(last + 1))


# ---------------------------------------------------------------- a person's decision


def wanted_run(task: DaemonTask, revision: str) -> str:
    """What every node is asked to have run, as a hash: template, tick and re-runs. Not the boot, of which
    each node has its own."""
    orders = read_orders(task)
    nodes = (f"{name}={at}" for name, at in sorted(orders.rerun_nodes.items()))
    return h10(revision, str(ticks.stored(task)), orders.rerun_at, *nodes)


def done(before: LedgerStatus, run: str, now: float) -> tuple[str, str | None]:
    """(doneRun, doneAt) of a pass that found every desired node to have succeeded in `run`; "" for none."""
    if run and run == before.done_run:
        return run, before.done_at
    return run, format_time(now) if run else None


def decided(snapshot: Snapshot) -> Orders:
    """What was asked for, without a decision that cannot be carried out; Orders.refused says why not."""
    orders = read_orders(snapshot.task)
    if not snapshot.ledger.lost or orders.ledger != ASSUME_DONE:
        return orders
    why = _unproved(snapshot) if not orders.assumed else _strangers(snapshot, orders.assumed)
    return msgspec.structs.replace(orders, ledger="", refused=why) if why else orders


def _unproved(snapshot: Snapshot) -> str:
    told = snapshot.task.status.ledger
    if told.done_run and told.done_run == wanted_run(snapshot.task, snapshot.revision):
        return ""
    since = (
        "the task was changed since every node had succeeded"
        if told.done_run
        else "when the ledger was last written, not every node had succeeded, and which had is not known"
    )
    return (
        f"{ASSUME_DONE} is not carried out: {since}; look at the nodes and name those that have run "
        f'("{ASSUME_DONE}: node-a,node-b"), or say rerun'
    )


def _strangers(snapshot: Snapshot, assumed: Iterable[str]) -> str:
    strange = sorted(set(assumed) - snapshot.nodes.keys())
    if not strange:
        return ""
    return f"{ASSUME_DONE} is not carried out: there is no node {', '.join(strange[:5])}"


def assumed(snapshot: Snapshot, orders: Orders, node: Node) -> tuple[Result, str] | None:
    """What the decision assume-done says of this node's run, as (result, reason); None: nothing.

    It has run if somebody says so, or if it was there when every node had. One that joined later may have run
    before the loss, though no status told of it: it runs if it may run twice.
    """
    ledger = snapshot.ledger
    if not ledger.lost or orders.ledger != ASSUME_DONE:
        return None
    if node.name in ledger.entries and node.name not in ledger.older:
        return None
    if orders.assumed:
        return _DONE if node.name in orders.assumed else None
    if node.created <= (parse_time(snapshot.task.status.ledger.done_at) or 0.0):
        return _DONE
    return ("Failed", OUTCOME_UNKNOWN) if snapshot.task.spec.at_most_once else None
