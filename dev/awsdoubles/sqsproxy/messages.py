"""What the proxy changes in SQS requests and answers of the JSON protocol.

Pure: bodies in, bodies out, chance as an argument. It must not lose a message: what is kept back is
delivered later.
"""

import copy
import random
from typing import Any, Final

from awsdoubles.sqsproxy.rules import Duplicate, FailEntries, Reorder

Json = dict[str, Any]
AGAIN: Final = "again-"  # marks the receipt handle of a copy: again-7:HANDLE
BATCHES: Final = ("DeleteMessageBatch", "SendMessageBatch", "ChangeMessageVisibilityBatch")


def success(operation: str, body: Json) -> Json:
    """What a delete answers that did not delete."""
    if operation == "DeleteMessage":
        return {}
    return {"Successful": [{"Id": entry["Id"]} for entry in body.get("Entries", [])], "Failed": []}


def split(body: Json, fault: FailEntries) -> tuple[Json, list[Json]]:
    """The batch that goes on, and the entries that fail."""
    entries = body.get("Entries", [])
    failed = [
        {
            "Id": entry["Id"],
            "Code": fault.code,
            "Message": "injected by the test",
            "SenderFault": fault.sender_fault,
        }
        for entry in entries[: fault.entries]
    ]
    return {**body, "Entries": entries[fault.entries :]}, failed


def original(body: Json) -> tuple[Json, set[str]]:
    """A request with the true receipt handles, and the Ids (or "") of the entries that named a copy."""
    changed: set[str] = set()
    body = copy.deepcopy(body)
    for entry in [body, *body.get("Entries", [])]:
        handle = entry.get("ReceiptHandle", "")
        if handle.startswith(AGAIN):
            entry["ReceiptHandle"] = handle.split(":", 1)[1]
            changed.add(entry.get("Id", ""))
    return body, changed


def forgive(answer: Json, copies: set[str]) -> Json:
    """A batch's answer in which the handle of a copy always works: SQS says 200 to stale handles."""
    failed = [e for e in answer.get("Failed", []) if e["Id"] not in copies or not _stale(e["Code"])]
    forgiven = {e["Id"] for e in answer.get("Failed", [])} - {e["Id"] for e in failed}
    good = [*answer.get("Successful", []), *({"Id": one} for one in sorted(forgiven))]
    return {**answer, "Successful": good, "Failed": failed}


def _stale(code: str) -> bool:
    return code.rsplit(".", 1)[-1] in {"ReceiptHandleIsInvalid", "InvalidParameterValue"}


class Backlog:
    """What one queue's receivers are still to get from the proxy: messages held back, and copies."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._waiting: list[Json] = []
        self._copies = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, messages: list[Json]) -> None:
        """For the next receive."""
        self._waiting += messages

    def deliver(self, fresh: list[Json], limit: int, faults: list[Duplicate | Reorder]) -> list[Json]:
        """The messages of one receive, at most `limit`; what does not fit waits for the next."""
        found = [*self._waiting, *fresh]
        later: list[Json] = []
        for fault in faults:
            if isinstance(fault, Duplicate):
                copies = [self._copy(one) for one in fresh for _ in range(fault.copies)]
                found += copies if fault.at_once else []
                later += [] if fault.at_once else copies
        for fault in faults:
            if isinstance(fault, Reorder):
                self._chance.shuffle(found)
                # Something must get through, or a receiver of single messages would never see one.
                held = min(fault.hold, max(0, len(found) - 1))
                later += found[len(found) - held :]
                del found[len(found) - held :]
        self._waiting = [*found[limit:], *later]
        return found[:limit]

    def _copy(self, message: Json) -> Json:
        self._copies += 1
        handle = message["ReceiptHandle"].split(":", 1)[-1] if _is_copy(message) else message["ReceiptHandle"]
        return {**message, "ReceiptHandle": f"{AGAIN}{self._copies}:{handle}"}


def _is_copy(message: Json) -> bool:
    return str(message["ReceiptHandle"]).startswith(AGAIN)
