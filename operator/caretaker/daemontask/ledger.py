"""The ledger: what is known to have run where. Its entries, their encoding and their place in shards.

Pure. A shard is a ConfigMap of at most SHARD_NODES entries: data key = node name, value = Entry as JSON.
An entry stays in the shard that has it, else goes to the first with room, and is never moved; of
duplicates the higher seq wins. Reading and writing shards is daemontask/shards.py.
"""

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import force_setattr

from caretaker.api.objects import MAX_SEQ

SHARD_NODES: Final = 1000

Result = Literal["Succeeded", "Failed", "Retry"]

OUTCOME_UNKNOWN: Final = "OutcomeUnknown"  # the reason of a run of which nobody saw the end


# What is outside was written by hand: it is corrupt, and neither a date that no calendar has nor a count that
# the CRD refuses reaches status.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Seq = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQ)]
Seconds = Annotated[int, msgspec.Meta(ge=0, lt=253402300800)]  # since the epoch, until the year 9999


# What a run told under a declared name.
Value = int | float | str


class Fault(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a run's results are incomplete; results.py has the words."""

    name: str  # of the result; empty: the message as a whole
    code: str
    found: str = ""  # what stood there, at most 24 bytes


class Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The last recorded run of a node. About 250 bytes, and what it told."""

    node_uid: str = msgspec.field(name="nodeUID")
    revision: str
    run_key: str
    result: Result  # Retry: failed or disrupted, with attempts left
    seq: Seq  # of the node's last Pod, or beyond it: no name up to this one is given again
    pod_uid: str = msgspec.field(name="podUID", default="")
    pod_seq: Seq = 0  # of the Pod that this is about, where `seq` is beyond it
    nonce: str = ""
    boot_id: str = msgspec.field(name="bootID", default="")
    tick: Seconds = 0  # of the schedule, that the run was for; 0 = of none
    attempts: Count = 0  # counted failures under run_key
    disruptions: Count = 0  # uncounted ones under run_key, until it succeeds
    rejections: Count = 0  # Pods in a row, under run_key, of which the kubelet created no container
    failing_since: Seconds = 0  # end of the first attempt under run_key that failed and was counted
    started_at: Seconds = 0
    finished_at: Seconds = 0
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    reason: str = ""
    message: str = ""  # at most 200 bytes
    boot_absorbed: bool = False  # the run's own reboot has been seen
    reboot_runs: tuple[Seconds, ...] = ()  # when NodeReboot started runs, newest last, at most 3
    fail_task: bool = False  # a FailJob rule matched
    results: dict[str, Value] | None = None  # of a run that succeeded, at most 216 bytes
    fault: Fault | None = None  # the first of them that it did not tell as declared
    intent: str = ""  # intents.py: written before the Pod was created, by the pass of this token
    before: "Entry | None" = None  # what stood here before the intent, without what takes room

    @property
    def ended(self) -> int:
        """The seq up to which the ends of the node's Pods are recorded."""
        return self.seq - 1 if self.intent else self.seq


class Ledger(msgspec.Struct, frozen=True):
    """What a pass knows of a task's ledger."""

    entries: Mapping[str, Entry]  # by node name
    corrupt: Mapping[str, str] = {}  # node name -> why the entry cannot be read
    shards: int = 0  # shards that exist
    # The latest resourceVersion, where an entry is corrupt; 0 where none is, or where the versions are no
    # numbers. With AtMostOnce no seq exceeds it, since a shard is written before each Pod is created.
    version: int = 0
    lost: int = 0  # shards that are gone, or hold less than they did
    loss: str = ""  # which, and how that is known
    older: frozenset[str] = frozenset()  # nodes of which an entry stands that a later one may have followed
    since: Mapping[str, float] = {}  # node name -> when this process first knew the entry to be stored


_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def decode_entry(text: str) -> Entry | str:
    """The entry, or why it cannot be read: one corrupt entry is isolated to its node."""
    try:
        return shared(_decoder.decode(text))
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeError) as error:
        return str(error)


def shared(entry: Entry) -> Entry:
    """The same entry, with one copy in the process of what others say too: those of its node in the ledgers
    of other tasks, and those of its task. With hundreds of tasks on a thousand nodes that is a third of what
    the ledgers take up."""
    for name in ("node_uid", "boot_id", "revision", "nonce"):
        force_setattr(entry, name, intern(getattr(entry, name)))
    return entry


def encode_entry(entry: Entry) -> str:
    """The entry as the JSON that stands in a shard."""
    return _encoder.encode(entry).decode()


def merge(shards: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    """All entries of all shards; of duplicates the higher seq wins."""
    merged: dict[str, Entry] = {}
    for shard in shards:
        for name, entry in shard.items():
            known = merged.get(name)
            if known is None or entry.seq > known.seq:
                merged[name] = entry
    return merged


def place(names: Iterable[str], shards: Mapping[int, Iterable[str]]) -> dict[int, list[str]]:
    """Which shard (by index) takes the entry of each node name.

    `shards` holds the node names that each shard has, readable or not. A node goes where it is, else to
    the first shard with room, else to a new index.
    """
    homes = {name: index for index in sorted(shards, reverse=True) for name in shards[index]}
    room = {index: SHARD_NODES - len(set(shards[index])) for index in sorted(shards)}
    placed: dict[int, list[str]] = {}
    for name in names:
        index = homes.get(name)
        if index is None:
            index = next((i for i in sorted(room) if room[i] > 0), max(room, default=-1) + 1)
            room[index] = room.get(index, SHARD_NODES) - 1
            homes[name] = index
        placed.setdefault(index, []).append(name)
    return placed
