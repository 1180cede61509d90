"""Words that come from elsewhere, made fit for a label: a series is kept for ever, so there must not be many.

Input: a word from the answer of whoever listens at an address. Safe in any thread. It must not do I/O.
"""

import re
import threading
from typing import Final

OTHER: Final = "other"
MOST: Final = 100  # different words of one Bounded
_WORD: Final = re.compile(r"[A-Za-z][\w./]{0,79}")


class Bounded:
    """Lets the first MOST different words through, if they look like one; all others are OTHER."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, word: str) -> str:
        """`word`, or OTHER."""
        if not _WORD.fullmatch(word):
            return OTHER
        with self._lock:
            if word not in self._known and len(self._known) >= MOST:
                return OTHER
            self._known.add(word)
        return word
