"""The state of a queue between two receives: its readers, its problems, whether it has a backlog.

Memory only, no I/O. Readers are notified of each change.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from caretaker.aws.errors import AwsError
from caretaker.s3refresh.snapshot import Message

logger = logging.getLogger(__name__)

REFUSED_SECONDS: Final = 600.0  # for which a refused deletion is reported
RECEIVE: Final = "receive"


class Readers:
    """The readers of a queue. One, the `owner`, gets everything; the others only events about refreshes that
    have ended."""

    def __init__(self) -> None:
        self.owner: Hashable | None = None
        self._on_news: dict[Hashable, Callable[[], None]] = {}

    def add(self, reader: Hashable, on_news: Callable[[], None], *, owner: bool) -> None:
        """`on_news` is called when there is something new for this reader."""
        self._on_news[reader] = on_news
        if owner:
            self.owner = reader

    def remove(self, reader: Hashable) -> None:
        """The reader is not asked any more."""
        self._on_news.pop(reader, None)
        if self.owner == reader:
            self.owner = None

    @property
    def idle(self) -> bool:
        """Whether there are no readers."""
        return not self._on_news

    def concerned(self, message: Message) -> set[Hashable]:
        """The readers to ask about a message. One without an event to act on is every reader's to delete."""
        if message.completions or not (message.events or message.malformed):
            return set(self._on_news)
        return {self.owner} & set(self._on_news)

    def notify(self, readers: Iterable[Hashable] | None = None) -> None:
        """There is something new for these readers; None = for all."""
        for reader in list(self._on_news if readers is None else readers):
            on_news = self._on_news.get(reader)
            if on_news is not None:
                on_news()


class QueueProblems:
    """Why the queue cannot be read or messages not be deleted."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._by_operation: dict[str, tuple[AwsError, float]] = {}  # the last error, and when

    @property
    def current(self) -> AwsError | None:
        """None while there is none. Receiving goes on for ever; the others happen when there is a reason to:
        a refusal of one counts for a while only."""
        since = time.monotonic() - REFUSED_SECONDS
        found = self._by_operation.items()
        return next((error for what, (error, at) in found if what == RECEIVE or at > since), None)

    def failed(self, operation: str, error: AwsError) -> None:
        """The operation has failed."""
        before, _ = self._by_operation.get(operation, (None, 0.0))
        self._by_operation[operation] = (error, time.monotonic())
        if before is None or str(before) != str(error):
            logger.warning("the queue cannot be used: %s", error)
            self._readers.notify()

    def recovered(self, operation: str) -> None:
        """The operation has succeeded."""
        if self._by_operation.pop(operation, None) is not None:
            self._readers.notify()


class Backlog:
    """Whether the queue may hold messages that have not been received: `behind`."""

    def __init__(self, readers: Readers) -> None:
        self.behind = False
        self._readers = readers
        self._full_at = 0.0  # when receives last came back full
        self._empty_at = 0.0  # when a long poll last came back empty

    def received(self, *, full: bool, empty: bool, wait: int) -> None:
        """Full receives mean that more messages wait; an empty long poll means that none do. An empty short
        poll means nothing: it queries only some of SQS's servers."""
        now = time.monotonic()
        if full:
            self._full_at = now
            self._set(behind=True)
        elif empty and wait:
            self._empty_at = now
            self._set(behind=False)

    def saw(self, visible: int, at: float) -> None:
        """The queue's attributes, as of time.monotonic() `at`, report so many visible messages."""
        if visible and self._empty_at < at:
            self._set(behind=True)
        elif not visible and self._full_at < at:
            self._set(behind=False)

    def _set(self, *, behind: bool) -> None:
        if self.behind != behind:
            self.behind = behind
            self._readers.notify()
