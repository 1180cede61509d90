"""The ledger: the last recorded run of each node, its encoding and its shard.

Pure. A shard is a ConfigMap of at most SHARD_NODES entries: data key = node name, value = Entry as JSON.
A new entry goes to the first shard with room and never moves. Of two entries of one node the higher seq
wins. shards.py reads and writes the shards.
"""

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import force_setattr

from caretaker.api.objects import MAX_SEQ

SHARD_NODES: Final = 1000

Result = Literal["Succeeded", "Failed", "Retry"]

OUTCOME_UNKNOWN: Final = "OutcomeUnknown"  # reason of a run whose end was not seen


# A value outside these bounds was edited by hand. Its entry is corrupt, so status never gets a date that no
# calendar has or a count that the CRD refuses.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Seq = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQ)]
Seconds = Annotated[int, msgspec.Meta(ge=0, lt=253402300800)]  # since the epoch, until the year 9999


# One result of a run, as spec.results declares it.
Value = int | float | str


class Fault(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why the results of a run are incomplete; results.py makes the message."""

    name: str  # of the result; empty: the message as a whole
    code: str
    found: str = ""  # the value in its place, at most 24 bytes


class Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The last recorded run of a node: about 250 bytes and its results."""

    node_uid: str = msgspec.field(name="nodeUID")
    revision: str
    run_key: str
    result: Result  # Retry: failed or disrupted, with attempts left
    seq: Seq  # of the node's last Pod, or higher: no Pod name up to this seq is used again
    pod_uid: str = msgspec.field(name="podUID", default="")
    pod_seq: Seq = 0  # of the recorded Pod, where `seq` is higher
    nonce: str = ""
    boot_id: str = msgspec.field(name="bootID", default="")
    tick: Seconds = 0  # the tick of the schedule that the run is for; 0 = none
    attempts: Count = 0  # counted failures under run_key
    disruptions: Count = 0  # uncounted failures under run_key, until it succeeds
    rejections: Count = 0  # Pods in a row, under run_key, of which the kubelet created no container
    # End of the first attempt under run_key that failed and was counted; of a success: resting.py.
    failing_since: Seconds = 0
    started_at: Seconds = 0
    finished_at: Seconds = 0
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    reason: str = ""
    message: str = ""  # at most 200 bytes
    boot_absorbed: bool = False  # the run's own reboot has been seen
    # When NodeReboot started runs, newest last.
    reboot_runs: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=3)] = ()
    fail_task: bool = False  # a FailJob rule matched
    # Of a run that succeeded: at most 216 bytes, which are fewer than 36 values.
    results: Annotated[dict[str, Value], msgspec.Meta(max_length=36)] | None = None
    fault: Fault | None = None  # the first result that is not as declared
    intent: str = ""  # intents.py: token of the pass that writes it before it creates the Pod
    before: "Entry | None" = None  # the entry before the intent, without its large fields

    @property
    def ended(self) -> int:
        """The seq up to which the ends of the node's Pods are recorded."""
        return self.seq - 1 if self.intent else self.seq


class Ledger(msgspec.Struct, frozen=True):
    """The ledger of one task, as a pass reads it."""

    entries: Mapping[str, Entry]  # by node name
    corrupt: Mapping[str, str] = {}  # node name -> why the entry cannot be read
    shards: int = 0  # shards that exist
    # The highest resourceVersion of the shards where an entry is corrupt; 0 where none is, or where versions
    # are not numbers. With AtMostOnce no seq exceeds it: a shard is written before each Pod is created.
    version: int = 0
    lost: int = 0  # shards that are gone, or hold less than they did
    loss: str = ""  # which shards, and the evidence
    older: frozenset[str] = frozenset()  # nodes whose entry is from an older copy of a shard
    since: Mapping[str, float] = {}  # node name -> when this process first saw the entry stored


_REASON: Final = 100  # characters

_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def decode_entry(text: str) -> Entry | str:
    """The entry, or why it cannot be decoded. A corrupt entry affects its own node alone."""
    try:
        return shared(_decoder.decode(text))
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeError) as error:
        return str(error)[:_REASON]  # it may quote the entry


def shared(entry: Entry) -> Entry:
    """The same entry with interned strings: entries of one node, and of one task, share their UIDs, boot IDs,
    revisions and nonces. With hundreds of tasks on a thousand nodes this saves a third of the ledgers'
    memory."""
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
            newest = merged.get(name)
            if newest is None or entry.seq > newest.seq:
                merged[name] = entry
    return merged


def place(names: Iterable[str], shards: Mapping[int, Iterable[str]]) -> dict[int, list[str]]:
    """Shard index -> node names whose entries it takes.

    `shards` has the node names of each shard, readable or not. A node stays in its shard; a new node goes to
    the first shard with room, else to a new shard.
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
