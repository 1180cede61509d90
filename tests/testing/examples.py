"""How many random examples or histories are tried: a few in `make unit`, all of them in `make test`.

The models of the kinds take as long as all other unit tests together, the rest of what hypothesis tries a
fifth of that. `MODEL_PERCENT=100` (`make models`) is their measure; a larger one tries more than that.
"""

import os
from typing import Final

QUICK_PERCENT: Final = 8


def examples(full: int, quick_percent: int = QUICK_PERCENT) -> int:
    """The share of `full` that is asked for, at least one."""
    return max(1, full * int(os.environ.get("MODEL_PERCENT", quick_percent)) // 100)
