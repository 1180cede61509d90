"""Which finished Pods and which entries of the ledger may go.

Pure. A finished Pod is deleted only when the ledger has it. Without a TTL the last one of each node
stays for its logs; with one it goes when its time is over, but a node's last failed Pod stays until the
node succeeds. A floor after the record became known keeps names taken while another operator, one with
an older view, could still believe that the run is due.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.ledger import Entry

TTL_FLOOR: Final = 30.0  # seconds after an entry was known stored
ABSENCE: Final = 600.0  # seconds a node must be gone before its ledger entry goes
ABSENCE_CHECK: Final = 600.0


class Absence(msgspec.Struct, frozen=True):
    """The nodes that have entries and are gone: all, since when, and those whose entries may go."""

    checked: float = 0.0
    since: Mapping[str, float] = {}
    due: tuple[str, ...] = ()

    def look(self, recorded: Iterable[str], nodes: Mapping[str, Node], now: float) -> "Absence":
        """Those that are gone now. Looked at once in ABSENCE_CHECK seconds, never on an event."""
        if now < self.checked + ABSENCE_CHECK:
            return msgspec.structs.replace(self, due=())
        since = {name: self.since.get(name, now) for name in recorded if name not in nodes}
        return Absence(now, since, tuple(name for name, at in since.items() if now - at >= ABSENCE))


def expired(
    spec: Spec, entry: Entry, pods: Mapping[str, Pod], floor: float, now: float
) -> tuple[list[Pod], float]:
    """(Pods to delete now, when the next one is due or 0). `floor`: no Pod goes before."""
    gone: list[Pod] = []
    wake = 0.0
    for pod in pods.values():
        if not pod.terminal or pod.deletion or pod.seq > entry.ended:
            continue
        due = _due(spec, entry, pod)
        if due is None:
            continue
        due = max(due, floor)
        if due <= now:
            gone.append(pod)
        elif not wake or due < wake:
            wake = due
    return gone, wake


def _due(spec: Spec, entry: Entry, pod: Pod) -> float | None:
    """When this recorded Pod's time is over; None = it stays."""
    ttl = spec.ttl_seconds_after_finished
    # The entry has the moment of its own Pod's end, which others came before, by our clock at the latest.
    if pod.uid == entry.pod_uid:
        if ttl is None or entry.result != "Succeeded":
            return None
        return entry.finished_at + ttl
    return min(pod.finished, entry.finished_at or pod.finished) + (ttl or 0)
