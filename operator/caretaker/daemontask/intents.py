"""Runs at most once (`runGuarantee: AtMostOnce`): intents, which are stored before a Pod is created.

Pure. An intent is the record of a run whose end is not known yet, and it says the worst: Failed,
OutcomeUnknown. So a lost run is never repeated: after no crash, and not even by an operator too old to know
intents. Its token names the one pass that wrote it: only that pass may create the Pod, and only once.

                      its Pod was seen to end
    written ---------------------------------------> the run's own record
       |  |     it cannot have run, as its writer knows
       |  '----------------------------------------> the entry before it: the run is due again
       |        no Pod is to be seen, for PATIENCE
       '-------------------------------------------> OutcomeUnknown, reported; if the Pod shows up
                                                     nevertheless, it is recorded yet
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import Spec
from caretaker.api.names import LABEL_REVISION
from caretaker.api.objects import Pod, WireMeta
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry
from caretaker.daemontask.pod_failure_policy import reboot_runs
from caretaker.daemontask.pods import Start, pod_name, tick_of

# Seconds that a Pod which cannot be seen may still be on its way.
PATIENCE: Final = 30.0
TOKEN: Final = 12  # characters
_GONE: Final = "its Pod was gone, or never seen, before its end was recorded; look at the node, then rerun it"
LOST: Final = "its ledger entry was lost, so it may have run; look at the node, then rerun it"
UNREADABLE: Final = "its ledger entry could not be read, so it may have run; look at the node, then rerun it"


# ---------------------------------------------------------------- before the Pod


def intent(start: Start, revision: str, before: Entry | None, token: str, now: float) -> Entry:
    """The entry to write before this run's Pod is created. `before`: the entry of the same node UID."""
    entry = Entry(
        node_uid=start.node_uid,
        revision=revision,
        run_key=start.run_key,
        result="Failed",
        seq=start.seq,
        nonce=start.nonce,
        boot_id=start.boot_id,
        tick=start.tick,
        started_at=int(now),
        reason=OUTCOME_UNKNOWN,
        intent=token,
    )
    return _after(entry, before, start.trigger, int(now))


def sent_at(entry: Entry, now: float) -> Entry:
    """An intent that is only now being written, `now` seconds since the epoch. Its patience counts from then:
    the steps before may have taken long."""
    at = int(now)
    runs = tuple(at if run == entry.started_at else run for run in entry.reboot_runs)
    return msgspec.structs.replace(entry, started_at=at, reboot_runs=runs)


def covered(spec: Spec, live: Iterable[Pod], before: Entry | None) -> Entry | None:
    """The entry of a node with Pods that have not ended: an intent where one was created without, before the
    task was changed to AtMostOnce."""
    first = min(live, key=lambda pod: (not pod.node_name, pod.created, pod.seq))
    if not spec.at_most_once or (before is not None and before.seq >= first.seq):
        return before
    marks = first.annotations
    entry = Entry(
        node_uid=first.node_uid,
        revision=first.labels.get(LABEL_REVISION, ""),
        run_key=marks.get(names.POD_RUN_KEY, ""),
        result="Failed",
        seq=first.seq,
        nonce=marks.get(names.POD_NONCE, ""),
        boot_id=marks.get(names.POD_BOOT_ID, ""),
        tick=max(tick_of(first), 0),
        started_at=int(first.created),
        reason=OUTCOME_UNKNOWN,
        intent=first.uid[:TOKEN],
    )
    return _after(entry, before, marks.get(names.POD_TRIGGER, ""), int(first.created))


def _after(entry: Entry, before: Entry | None, trigger: str, at: int) -> Entry:
    """With the content of the node's earlier entry."""
    if before is None:
        return msgspec.structs.replace(entry, reboot_runs=reboot_runs(trigger, at, None, same=False))
    same = before.run_key == entry.run_key
    return msgspec.structs.replace(
        entry,
        attempts=before.attempts if same else 0,
        disruptions=before.disruptions if same else 0,
        reboot_runs=reboot_runs(trigger, at, before, same),
        before=_slim(before),
    )


def _slim(entry: Entry) -> Entry:
    """Without the fields that withdrawn() can derive or that take too much room: two full entries for each of
    1,000 nodes are more than a ConfigMap holds."""
    return msgspec.structs.replace(
        entry,
        node_uid="",
        seq=0,
        pod_seq=0,
        started_at=0,
        exit_code=None,
        message="",
        reboot_runs=(),
        results=None,
        fault=None,
        before=None,
    )


# ---------------------------------------------------------------- its result


def is_open(entry: Entry) -> bool:
    """Whether the run may be under way."""
    return bool(entry.intent) and not entry.finished_at


def expected_until(entry: Entry) -> float:
    """When the Pod of an intent that cannot be seen counts as gone. Entries hold whole seconds."""
    return entry.started_at + PATIENCE + 1.0


def is_expected(entry: Entry, now: float) -> bool:
    """Whether the Pod of this intent may still show up. A clock that was set back prolongs it by little."""
    return is_open(entry) and abs(now - entry.started_at) < PATIENCE + 1.0


def concluded(spec: Spec, entry: Entry, unstarted: str, now: float) -> Entry:
    """The consequence of an intent without a visible Pod. `unstarted`: the token of the node's intent that
    this process knows to have run nothing, if any."""
    if entry.intent == unstarted:
        return withdrawn(entry)
    if not is_open(entry) or is_expected(entry, now):
        return entry
    if not spec.at_most_once:
        return withdrawn(entry)  # the task was changed to AtLeastOnce
    return msgspec.structs.replace(entry, finished_at=int(now), message=_GONE, before=None)


def withdrawn(entry: Entry) -> Entry:
    """The entry in place of an intent that ran nothing: the entry before it, else that a run is due. Its seq
    stays, so that no two intents of a node are for the same name."""
    if entry.before is not None:
        runs = tuple(at for at in entry.reboot_runs if at != entry.started_at)
        return msgspec.structs.replace(entry.before, node_uid=entry.node_uid, seq=entry.seq, reboot_runs=runs)
    return Entry(
        node_uid=entry.node_uid,
        revision=entry.revision,
        run_key=entry.run_key,
        result="Retry",
        seq=entry.seq,
        nonce=entry.nonce,
        boot_id=entry.boot_id,
        tick=entry.tick,
    )


def kept_from_repeating(spec: Spec, entry: Entry) -> Entry:
    """A run that failed under AtLeastOnce and would be repeated has failed for good under AtMostOnce."""
    ran = entry.result == "Retry" and bool(entry.pod_uid)
    return msgspec.structs.replace(entry, result="Failed") if ran and spec.at_most_once else entry


def was_unreadable(entry: Entry) -> bool:
    """Whether it stands for one that could not be read."""
    return entry.reason == OUTCOME_UNKNOWN and entry.message == UNREADABLE


def is_made_up(entry: Entry) -> bool:
    """Whether it names no Pod, though its run is over or counts as over."""
    return entry.result != "Retry" and not (entry.pod_uid or entry.intent)


def pod_of(task: WireMeta, entry: Entry) -> str:
    """The name of the Pod that the entry is about; "" = it names none."""
    if not (entry.pod_uid or entry.intent):
        return ""
    return pod_name(task.name, task.uid, entry.node_uid, entry.pod_seq or entry.seq)


def quiet_from(entry: Entry) -> float:
    """When no create can be under way any more that was unknown to the writer of this entry."""
    return entry.finished_at + PATIENCE + 1.0


def given_up(entries: Mapping[str, Entry], records: Mapping[str, Entry]) -> list[str]:
    """Names of nodes of which these records say that their Pod is gone."""
    found = []
    for name, record in records.items():
        before = entries.get(name)
        if record.intent and record.finished_at and before is not None and is_open(before):
            found.append(name)
    return found


def is_new_end(before: Entry | None, entry: Entry) -> bool:
    """Whether this entry, written after `before`, says of a run for the first time that it is over."""
    if entry.intent:
        return bool(entry.finished_at) and before is not None and is_open(before)
    if before is None:
        return True
    if before.intent:  # else it was withdrawn
        return bool(entry.pod_uid) and (before.before is None or before.before.pod_uid != entry.pod_uid)
    return before.pod_uid != entry.pod_uid
