"""Which random examples and histories are tried, and how many: a few in `make test`, all in `make models`.

Every run of a commit tries the same ones, so that no commit fails by chance. `MODEL_SEED=n` tries others.

`MODEL_PERCENT=100` (`make models`) is their measure; a larger one tries more than that.
"""

import os
from typing import Final

QUICK_PERCENT: Final = 4
OTHERS: Final = "MODEL_SEED" in os.environ
SEED: Final = int(os.environ.get("MODEL_SEED", "0"))


def examples(full: int, quick_percent: int = QUICK_PERCENT) -> int:
    """The share of `full` that is asked for; at least three, because the first is the simplest there is."""
    return max(3, full * int(os.environ.get("MODEL_PERCENT", quick_percent)) // 100)
