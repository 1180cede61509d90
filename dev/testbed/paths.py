"""Where the testbed keeps things: inputs in the checkout, state in `.dev/`, built programs in the cache."""

import os
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
MODULE: Final = CHECKOUT / "dev" / "controlplane"
STAGES: Final = Path(__file__).with_name("stages.yaml")
STATE: Final = CHECKOUT / ".dev"


def cache() -> Path:
    """The folder of built programs, shared by all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "caretaker" / "controlplane"
