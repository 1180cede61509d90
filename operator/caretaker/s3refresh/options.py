"""How the targets of a resource are debounced, called and called again. Pure data."""

from typing import Final, Literal

import msgspec

# Age of a claim, counted by this process, from which on its owner is taken for dead.
CLAIM_LOST_SECONDS: Final = 120.0


class DebounceOptions(msgspec.Struct, frozen=True):
    """The seconds that spec.debounce, retry and completion ask for."""

    quiet_period: float = 30.0
    max_delay: float = 600.0
    min_interval: float = 60.0
    retry_initial: float = 30.0
    retry_max: float = 900.0
    tracked: bool = False  # whether completions are heard of
    assume_after: float = 60.0  # how long a refresh in flight delays the changes that wait behind it
    completion_timeout: float = 6 * 3600.0
    on_timeout: Literal["RefreshAgain", "Assume"] = "RefreshAgain"
    max_folders: int = 50
    claim_lost: float = CLAIM_LOST_SECONDS
    resync: float = 0.0  # between two refreshes of everything; 0 = never


def at_once(options: DebounceOptions) -> DebounceOptions:
    """The options of a resource that is being deleted: dirty folders are refreshed without a wait."""
    return msgspec.structs.replace(options, quiet_period=0.0, max_delay=0.0)
