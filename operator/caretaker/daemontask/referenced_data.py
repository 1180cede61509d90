"""The part of a revision that stands for the data of spec.dataRefs.

Pure. A revision is `<of the template>` or `<of the template>-<of the data>`. The data part is a slow hash,
salted with the UID of the task: status and Pods show it, and readers of those may not read the Secrets.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Final

import msgspec

from caretaker.api.daemontask import DataRef
from caretaker.api.hashing import h10

TEMPLATE_CHANGE: Final = "TemplateChange"
DATA_CHANGE: Final = "ReferencedDataChange"
# scrypt with 4 MiB and about 10 ms of CPU: https://www.rfc-editor.org/rfc/rfc7914#section-2
_COST: Final = {"n": 2**12, "r": 8, "p": 1}


class Content(msgspec.Struct, frozen=True):
    """The data of a ConfigMap or Secret. Neither metadata nor `immutable` nor a Secret's `type` counts."""

    data: Mapping[str, str] | None = None
    binary_data: Mapping[str, str] | None = msgspec.field(default=None, name="binaryData")


class ReferencedData(msgspec.Struct, frozen=True):
    """The data of a task as last read.

    refs      spec.dataRefs then
    versions  UID and resourceVersion of each object
    part      the data part of the revision: that of the last data that could be read
    fault     why there is no data, with the field and the remedy; empty where there is
    unread    for the command line: the object that this user may not get
    """

    refs: tuple[DataRef, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    part: str = ""
    fault: str = ""
    unread: str = ""


class DataCache(msgspec.Struct):
    """The data of a task, as a process keeps it.

    last    as last read
    read    time.monotonic() of that
    due     likewise, from which it is read again
    turn    likewise, when the bytes that the namespace has used are refilled for the next read; None: no read
            has asked for a turn
    asked   likewise, when the read that waits has asked for its first turn
    settled Snapshot.token of a plan that is made anew in a pass that has read the data for its starts. It is
            not read again: data that changes between any two reads would end every pass without a record
    """

    last: ReferencedData = ReferencedData()
    read: float = -math.inf
    due: float = -math.inf
    turn: float | None = None
    asked: float = 0.0
    settled: str = ""


def digest_of(content: Content) -> bytes:
    """A digest of the data. The order of keys is of no account, and an empty map is none."""
    found = (content.data or {}, content.binary_data or {})
    return hashlib.blake2b(msgspec.json.encode(found, order="sorted")).digest()


def part_for(uid: str, refs: Sequence[DataRef], digests: Sequence[bytes]) -> str:
    """The data part for the task of this UID. Takes about 10 ms. The order of the references is of no
    account."""
    found = sorted(
        [(ref.kind, ref.name, digest.hex()) for ref, digest in zip(refs, digests, strict=True)],
        key=itemgetter(0, 1),
    )
    encoded = hashlib.blake2b(msgspec.json.encode(found)).digest()
    return h10(hashlib.scrypt(encoded, salt=uid.encode(), dklen=32, **_COST).hex())


def with_data(revision: str, part: str) -> str:
    """The revision of a template together with the data part, if there is one."""
    return f"{revision}-{part}" if part else revision


def template_part(revision: str) -> str:
    """The part for the template."""
    return revision.partition("-")[0]


def data_part(revision: str) -> str:
    """The part for the data; empty where there is none."""
    return revision.partition("-")[2]


def change_of(rerun_on: Collection[str], recorded: str, wanted: str) -> str:
    """The trigger by which a run of the recorded revision is due again; empty when none applies. A record
    without a data part is from before spec.dataRefs: the data that it ran with is not known."""
    if recorded == wanted:
        return ""
    if TEMPLATE_CHANGE in rerun_on and template_part(recorded) != template_part(wanted):
        return TEMPLATE_CHANGE
    part = data_part(wanted)
    return DATA_CHANGE if DATA_CHANGE in rerun_on and part and data_part(recorded) != part else ""
