"""The payload of a refresh for a Job, an HTTP service, a topic, queue, bus or function: one JSON object.

Pure. A function of the parts that a claim never changes: the same call made again is the same to the letter.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.times import format_micros
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.folders import EVERYTHING
from caretaker.s3refresh.match import Share

MAX_BYTES: Final = 16 * 1024
# Kubernetes would expand a dollar in a variable's value; SQS refuses the other two (Amazon SQS API reference,
# SendMessage).
_ESCAPED: Final = {one.encode(): f"\\u{ord(one):04x}".encode() for one in ("$", "\ufffe", "\uffff")}


class Payload(msgspec.Struct, frozen=True, rename="camel"):
    """The scope and the call. Folders are named without slashes around them, the bucket's root is "/".

    recursive       with everything below them; else only the direct content of each
    all             everything below the prefix; `folders` is empty then
    first_event_at  when the first event that the refresh is for came on record; it was received before that
    last_event_at   no event is younger: the moment the refresh was decided on
    truncated       the folders did not fit, so it is everything
    """

    claim_id: str = msgspec.field(name="claimID")
    bucket: str
    prefix: str
    folders: tuple[str, ...]
    recursive: bool
    all: bool
    first_event_at: str
    last_event_at: str
    truncated: bool = False


def payload_of(share: Share, claim: Claim) -> bytes:
    """The object, at most MAX_BYTES, without the characters of _ESCAPED."""
    everything = claim.request.scope == EVERYTHING
    payload = Payload(
        claim_id=claim.id,
        bucket=share.bucket,
        prefix=share.prefix,
        folders=() if everything else claim.request.folders,
        recursive=claim.request.recursive,
        all=everything,
        first_event_at=format_micros(claim.since),
        last_event_at=format_micros(claim.started_at),
    )
    text = _encoded(payload)
    if len(text) > MAX_BYTES:
        text = _encoded(replace(payload, folders=(), recursive=True, all=True, truncated=True))
    return text


def _encoded(payload: Payload) -> bytes:
    # A key of JSON is ours, so these stand within a value only, where the escape means the same.
    text = msgspec.json.encode(payload)
    for one, escaped in _ESCAPED.items():
        text = text.replace(one, escaped)
    return text
