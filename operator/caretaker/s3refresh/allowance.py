"""In how many calls what waits may be refreshed, so that each event has its refresh in time.

Pure: seconds in, numbers of calls out.
"""

import math
from typing import Final

import msgspec

PLAIN_CALLS: Final = 4  # so many calls for single folders are better than one for a tree


class Line(msgspec.Struct, frozen=True):
    """Those who want a gateway's turns beside a target: for how long it has been due and waited for its own,
    and how many others wait or will, for each turn that the gateway gives at a time."""

    waited: float = 0.0
    others: float = 0.0


ALONE: Final = Line()


def allowance(
    age: float, took: float, whole: float, max_delay: float, min_interval: float, line: Line
) -> tuple[int, int]:
    """(in how many calls what waits is to be refreshed, how many calls everything is worth).

    The last of them has to begin in time for the oldest event, and the one after it in time for the event
    that comes next: each is to be refreshed, by a call that has ended, within maxDelay + minInterval + two
    refreshes. What is too late already, since nobody was there, has its time again.

    age    of the oldest event
    took   a refresh, of late; whole: one of everything
    """
    turns = line.others + 1 if line.others else 0.0  # before its next one, with one more who comes meanwhile
    gap = max(min_interval, took, 1.0) + max(line.waited, turns * took)  # between two calls
    patience = max(max_delay, min_interval) + min_interval + took
    if age > patience:
        age = min(age, max_delay)
    calls = min(1 + int((patience - age) // gap), int(patience // gap), PLAIN_CALLS)
    return max(calls, 1), 1 + math.ceil(max(whole - took, 0.0) / gap)
