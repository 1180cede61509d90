"""Limits the values of a label that come from outside: a series is kept for ever, so there must not be many.

Input: a word from the response of an endpoint. Safe in any thread. It must not do I/O.
"""

import re
import threading
from typing import Final

OTHER: Final = "other"
MAX_VALUES: Final = 100  # different words of one LabelLimiter
_WORD: Final = re.compile(r"[A-Za-z][\w./]{0,79}")


class LabelLimiter:
    """Returns the first MAX_VALUES different words unchanged if they are valid; OTHER for all others."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, word: str) -> str:
        """`word`, or OTHER."""
        if not _WORD.fullmatch(word):
            return OTHER
        with self._lock:
            if word not in self._known and len(self._known) >= MAX_VALUES:
                return OTHER
            self._known.add(word)
        return word
