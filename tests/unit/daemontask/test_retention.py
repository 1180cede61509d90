"""Which finished Pods may go, and when the next one may."""

from typing import Any

import msgspec
import pytest

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Pod
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.retention import expired
from unit.daemontask.build import NOW, TEMPLATE, entry, failed, node, pod, succeeded

A = node("a")
DONE = entry(A, seq=3, pod_uid="pod-a-3")
BAD = entry(A, "Failed", seq=3, pod_uid="pod-a-3")
FAR = NOW + 1000


def look(
    pods: list[Pod], *, of: Entry = DONE, ttl: int | None = None, floor: float = 0.0
) -> tuple[list[int], float]:
    """(seqs of the Pods that go, when the next one is due)."""
    own = next((p for p in pods if p.uid == of.pod_uid), None)
    of = msgspec.structs.replace(of, finished_at=int(own.finished if own is not None else NOW))
    spec = Spec(template=TEMPLATE, ttl_seconds_after_finished=ttl)
    gone, wake = expired(spec, of, {p.name: p for p in pods}, floor, NOW)
    return [p.seq for p in gone], wake


def ended(seq: int, ago: float = 100.0, **changes: Any) -> Pod:
    return succeeded(A, seq, finished=NOW - ago, **changes)


@pytest.mark.parametrize(
    ("pods", "how", "gone", "wake"),
    [
        pytest.param([], {}, [], 0.0, id="no Pods"),
        pytest.param([ended(3)], {}, [], 0.0, id="without a TTL the last one stays"),
        pytest.param([ended(2), ended(3)], {}, [2], 0.0, id="and the others go"),
        pytest.param([ended(2, 0)], {}, [2], 0.0, id="at once"),
        pytest.param([ended(3), ended(2), ended(1)], {}, [2, 1], 0.0, id="in any order"),
        pytest.param([ended(3)], {"ttl": 60}, [3], 0.0, id="its time is over"),
        pytest.param([ended(3)], {"ttl": 100}, [3], 0.0, id="to the second"),
        pytest.param([ended(3)], {"ttl": 101}, [], NOW + 1, id="its time is not over"),
        pytest.param([ended(2)], {"ttl": 101}, [], NOW + 1, id="that of one before neither"),
        pytest.param([ended(3)], {"ttl": 0}, [3], 0.0, id="no time is over at once"),
        pytest.param([ended(3)], {"ttl": 60, "of": BAD}, [], 0.0, id="the last failed one stays"),
        pytest.param(
            [failed(A, 2, finished=NOW - 100), failed(A, 3)],
            {"ttl": 60, "of": BAD},
            [2],
            0.0,
            id="of several",
        ),
        pytest.param(
            [ended(1, 50), ended(2, 70), ended(3, 60)], {"ttl": 100}, [], NOW + 30, id="the next one is told"
        ),
        pytest.param([ended(1, 70), ended(2, 70)], {"ttl": 100}, [], NOW + 30, id="also of two at once"),
        pytest.param([ended(1, 200), ended(2, 70)], {"ttl": 100}, [1], NOW + 30, id="beside what goes"),
        pytest.param([pod(A, 2), ended(1)], {}, [1], 0.0, id="one that runs stays"),
        pytest.param(
            [ended(2, deletion=FAR), ended(1)], {}, [1], 0.0, id="one that goes is not asked to again"
        ),
        pytest.param([ended(4), ended(1)], {}, [1], 0.0, id="one that is not recorded stays"),
        pytest.param([ended(2)], {"floor": NOW + 1}, [], NOW + 1, id="it stays while its record is young"),
        pytest.param([ended(2)], {"floor": NOW}, [2], 0.0, id="no longer"),
        pytest.param(
            [ended(3)], {"ttl": 150, "floor": NOW + 1}, [], NOW + 50, id="its own time may be longer"
        ),
    ],
)
def test_expired(pods: list[Pod], how: dict[str, Any], gone: list[int], wake: float) -> None:
    assert look(pods, **how) == (gone, wake)
