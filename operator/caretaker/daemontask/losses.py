"""Losses of a ledger, how they are detected, and the effect of a person's decision about them.

Pure. A shard is lost if it is missing, counts fewer writes than status or this process has seen (an older
copy), or holds fewer nodes than its own annotation and status say (entries were removed). Status never has
a figure that the ledger did not reach, whenever the operator crashes. So a lower figure proves a loss, and
an equal figure proves nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from caretaker.api.daemontask import NOT_KNOWN, DaemonTask, LedgerStatus
from caretaker.api.hashing import h10
from caretaker.api.objects import Node
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask import ticks
from caretaker.daemontask.annotation_requests import ASSUME_DONE, AnnotationRequests, in_time, read_requests
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Ledger, Result
from caretaker.daemontask.shard import Shard

MOST: Final = 64  # shards that are read by name: an edited status may have any number
# A decision raises the count of writes to the next multiple: above every earlier copy, and above writes that
# status does not have.
_ERA: Final = 1_000_000

_DONE: Final[tuple[Result, str]] = ("Succeeded", "AssumedDone")


class Loss(msgspec.Struct, frozen=True):
    """A lost shard. `index` is NOT_KNOWN where status does not say how many shards there are."""

    index: int
    why: str  # "is gone", ...
    floor: int = 0  # the highest count of writes that was seen
    older: bool = False  # its entries are from an older copy


def losses(
    reported: LedgerStatus, counts: Mapping[int, int], shards: Mapping[int, Shard], *, strict: bool
) -> tuple[Loss, ...]:
    """The shards that are lost. `counts`: index -> the count of writes that this process has seen. `strict`:
    an unreadable status counts as a loss."""
    if reported.shards < 0 and strict:
        return (Loss(NOT_KNOWN, "status.ledger could not be read"),)
    floors = {index: writes for index, writes in enumerate(reported.writes) if writes}
    floors.update((index, max(writes, floors.get(index, 0))) for index, writes in counts.items())
    found = {index: loss for index, floor in floors.items() if (loss := _behind(index, floor, shards))}
    missing = (index for index in range(reported.shards) if index not in shards)
    for index in islice(missing, min(max(reported.shards - len(shards), 0), MOST)):
        found.setdefault(index, Loss(index, "is gone"))
    cut = [(index, shard) for index, shard in shards.items() if shard.size < shard.records]
    if cut and len({name for shard in shards.values() for name in shard.node_names}) < reported.recorded:
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


def expected(reported: LedgerStatus) -> int:
    """The number of shards that may exist, by status: a process that did not find one of them counts fewer,
    but keeps that shard's count of writes."""
    return max(reported.shards, len(reported.writes))


def beyond(loss: Loss) -> int:
    """The count of writes of the shard after a decision about this loss."""
    return (loss.floor // _ERA + 1) * _ERA


def write_counts(
    before: LedgerStatus, shards: Mapping[int, Shard], counts: Mapping[int, int]
) -> tuple[int, ...]:
    """status.ledger.writes: of each shard the highest count that status, the shard or this process has."""
    figures = {index: shard.writes for index, shard in shards.items()}
    for index, writes in [*enumerate(before.writes), *counts.items()]:
        figures[index] = max(writes, figures.get(index, 0))
    last = max((index for index, writes in figures.items() if writes and index < MOST), default=-1)
    return tuple(figures.get(index, 0) for index in range(last + 1))


# ---------------------------------------------------------------- a person's decision


def wanted_run(task: DaemonTask, revision: str, requests: AnnotationRequests) -> str:
    """A hash of the run that every node must have made: template, tick and re-runs. Without the boot ID,
    which differs by node."""
    nodes = (f"{name}={at}" for name, at in sorted(requests.rerun_nodes.items()))
    return h10(revision, str(ticks.stored(task)), requests.rerun_at, *nodes)


def done(before: LedgerStatus, run: str, now: float) -> tuple[str, str | None]:
    """(doneRun, doneAt) after a pass; `run` is "" unless every desired node has succeeded in it."""
    if run and run == before.done_run:
        return run, before.done_at
    return run, format_time(now) if run else None


def decided(
    task: DaemonTask, revision: str, ledger: Ledger, nodes: Collection[str], now: float
) -> AnnotationRequests:
    """The requests, without a decision that cannot be carried out: see AnnotationRequests.refused. `nodes`:
    the names of those that exist."""
    requests = in_time(read_requests(task), now)
    if not ledger.lost or requests.ledger != ASSUME_DONE:
        return requests
    why = _unknown_nodes(requests.assumed, nodes) if requests.assumed else _unproved(task, revision, requests)
    return msgspec.structs.replace(requests, ledger="", refused=why) if why else requests


def _unproved(task: DaemonTask, revision: str, requests: AnnotationRequests) -> str:
    reported = task.status.ledger
    if reported.done_run and reported.done_run == wanted_run(task, revision, requests):
        return ""
    since = (
        "the task was changed since every node had succeeded"
        if reported.done_run
        else "when the ledger was last written, not every node had succeeded, and which had is not known"
    )
    return (
        f"{ASSUME_DONE} is not carried out: {since}; look at the nodes and name those that have run "
        f'("{ASSUME_DONE}: node-a,node-b"), or say rerun'
    )


def _unknown_nodes(assumed: Iterable[str], nodes: Collection[str]) -> str:
    unknown = sorted(name for name in assumed if name not in nodes)
    if not unknown:
        return ""
    return f"{ASSUME_DONE} is not carried out: there is no node {', '.join(unknown[:5])}"


def assumed(
    task: DaemonTask, ledger: Ledger, requests: AnnotationRequests, node: Node
) -> tuple[Result, str] | None:
    """(result, reason) of this node's run by the decision assume-done; None where it does not apply.

    A node that the decision names has succeeded, and without names each node that existed when every node had
    succeeded. A node that joined later may have run before the loss: it runs again, but with AtMostOnce it
    fails.
    """
    if not ledger.lost or requests.ledger != ASSUME_DONE:
        return None
    if node.name in ledger.entries and node.name not in ledger.older:
        return None
    if requests.assumed:
        return _DONE if node.name in requests.assumed else None
    if node.created <= (parse_time(task.status.ledger.done_at) or 0.0):
        return _DONE
    return ("Failed", OUTCOME_UNKNOWN) if task.spec.at_most_once else None
