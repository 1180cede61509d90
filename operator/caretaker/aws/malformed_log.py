"""Logs the malformed messages of one queue: the first at once, then one line a minute with their number.

Inputs: message ids and faults, in the event loop. Every sender to a queue may send any number
of them.
"""

import asyncio
import logging
from typing import Final

from caretaker.aws.errors import word

EVERY_SECONDS: Final = 60.0


class MalformedLog:
    """Of one queue."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._open = False  # a line was written less than a minute ago
        self._count = 0  # of messages since then
        self._last = ("", "")

    def add(self, message_id: str, fault: str) -> None:
        """A message cannot be read."""
        self._count += 1
        self._last = (word(message_id), fault)
        if not self._open:
            self._write()

    def _write(self) -> None:
        self._open = self._count > 0
        if not self._open:
            return
        (message_id, fault), count = self._last, self._count
        self._count = 0
        if count == 1:
            self._logger.warning("message %s cannot be read: %s", message_id, fault)
        else:
            self._logger.warning(
                "%d messages cannot be read within a minute, the last, %s: %s", count, message_id, fault
            )
        asyncio.get_running_loop().call_later(EVERY_SECONDS, self._write)
