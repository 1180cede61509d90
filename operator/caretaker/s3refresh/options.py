"""How the targets of a resource are debounced and called, and in how many calls their dirty folders.

Pure: seconds in, numbers of calls out.
"""

import math
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

# Age of a claim, counted by this process, from which on its owner is taken for dead.
CLAIM_LOST_SECONDS: Final = 120.0
PLAIN_CALLS: Final = 4  # up to so many calls for single folders are preferred to one call for a tree


class DebounceOptions(msgspec.Struct, frozen=True):
    """The seconds that spec.debounce, retry, completion and cost ask for."""

    quiet_period: float = 30.0
    max_delay: float = 600.0
    min_interval: float = 60.0
    retry_initial: float = 30.0
    retry_max: float = 900.0
    tracked: bool = False  # whether completions are heard of
    assume_after: float = 60.0  # how long a refresh in flight delays the changes that wait behind it
    completion_timeout: float = 6 * 3600.0  # 0 = no end is ever reported
    on_timeout: Literal["RefreshAgain", "Assume"] = "RefreshAgain"
    max_folders: int = 50
    claim_lost: float = CLAIM_LOST_SECONDS
    resync: float = 0.0  # between two refreshes of everything; 0 = never
    budget_interval: float = 0.0  # between two refreshes, by spec.cost; the calls for one dirty scope are one


def at_once(options: DebounceOptions) -> DebounceOptions:
    """The options of a resource that is being deleted: dirty folders are refreshed without a wait, and a
    budget does not hold them back."""
    return replace(options, quiet_period=0.0, max_delay=0.0, budget_interval=0.0)


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
