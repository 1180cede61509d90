"""Which finished Pods may go.

Pure. A finished Pod is deleted only when the ledger has it. Without a TTL the last one of each node
stays for its logs; with one it goes when its time is over, but a node's last failed Pod stays until the
node succeeds. A floor after the record became known keeps names taken while another operator, one with
an older view, could still believe that the run is due.
"""

from collections.abc import Mapping
from typing import Final

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Pod
from caretaker.daemontask.ledger import Entry

TTL_FLOOR: Final = 30.0


def expired(
    spec: Spec, entry: Entry, pods: Mapping[str, Pod], known_since: float, now: float, scale: float
) -> tuple[list[Pod], float]:
    """(Pods to delete now, when the next one is due or 0). `known_since`: when `entry` was known stored."""
    gone: list[Pod] = []
    wake = 0.0
    for pod in pods.values():
        if not pod.terminal or pod.deletion or pod.seq > entry.ended:
            continue
        due = _due(spec, entry, pod)
        if due is None:
            continue
        due = max(due, known_since + TTL_FLOOR * scale)
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
