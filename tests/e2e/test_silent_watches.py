"""harvester#9880: watches that stay open and tell nothing any more are noticed, and recover by themselves.

Nothing scales the 70 s of silence that this takes, so it goes on beside the other tests of this folder: it
begins with the first of them (conftest.py), and the test here waits for what is left.
"""

import pytest

from testing.meanwhile import Meanwhile

RESOURCES = ("nodes", "pods", "daemontasks")


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_watch_that_falls_silent_recovers_by_itself(silent_watches: Meanwhile, resource: str) -> None:
    silent_watches.result(resource)
