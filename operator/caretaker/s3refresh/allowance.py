"""Decides how many calls may refresh a target's dirty folders, so that every event is refreshed in time.

Pure: seconds in, numbers of calls out.
"""

import math
from typing import Final

import msgspec

from caretaker.s3refresh.options import DebounceOptions

PLAIN_CALLS: Final = 4  # up to so many calls for single folders are preferred to one call for a tree


class Contention(msgspec.Struct, frozen=True):
    """The competition for a gateway's turns.

    waited  seconds for which this target has been due without a turn
    others  other dirty targets of the gateway, divided by the number of calls that it accepts at a time
    """

    waited: float = 0.0
    others: float = 0.0


UNCONTENDED: Final = Contention()


def allowance(
    age: float, durations: tuple[float, float], options: DebounceOptions, contention: Contention
) -> tuple[int, int]:
    """(calls allowed for the dirty folders, calls that take as long as one refresh of everything).

    The last call must begin in time for the oldest event, and the call after it in time for the next event:
    every event is to be followed by a refresh that has ended within maxDelay + minInterval + two refreshes.
    An event that is already too late, for example because no operator ran, gets this time again.

    age        seconds since the oldest event
    durations  seconds that (the last refresh took, a refresh of everything takes)
    """
    (took, whole), max_delay, min_interval = durations, options.max_delay, options.min_interval
    # Turns of others before this target's next one; one more for a target that becomes dirty meanwhile.
    turns = contention.others + 1 if contention.others else 0.0
    gap = max(min_interval, took, 1.0) + max(contention.waited, turns * took)  # between two calls
    patience = max(max_delay, min_interval) + min_interval + took
    if age > patience:
        age = min(age, max_delay)
    calls = min(1 + int((patience - age) / gap), int(patience / gap), PLAIN_CALLS)
    return max(calls, 1), 1 + math.ceil(max(whole - took, 0.0) / gap)
