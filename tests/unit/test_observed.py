"""What is kept of the resources that are watched."""

import sys
from typing import Any

from caretaker.handlers import CustomResources
from caretaker.runtime.work_queue import Key


def test_of_the_annotations_a_digest_is_kept_and_each_change_is_a_pass() -> None:
    keys: list[Key] = []
    nothing: Any = None
    resources = CustomResources(nothing, (), None, keys.append)

    def change(**annotations: str) -> int:
        meta = {"namespace": "n", "name": "r", "uid": "u", "generation": 1, "annotations": annotations}
        resources._changed("DaemonTask", "MODIFIED", meta)
        return len(keys)

    large = "x" * 256 * 1024
    assert [change(a=large, b="1"), change(b="1", a=large), change(a=large, b="2")] == [1, 1, 2]
    assert [change(), change()] == [3, 3]
    change(a=large)
    (observed,) = resources._observed.values()
    assert sum(sys.getsizeof(part) for part in observed) < 500
