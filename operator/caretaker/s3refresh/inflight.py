"""Received messages that are not deleted or returned yet, and the parsing of their bodies.

A message stays until every reader that it concerns has answered for it. It must not call AWS.
"""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from caretaker.api.s3refresh import SQSSource
from caretaker.s3refresh.envelope import Parsed, parsing
from caretaker.s3refresh.snapshot import Message

LARGE_BYTES: Final = 64 * 1024  # a longer body yields to the event loop after it is parsed
# Messages that wait before no more are received: passes are behind, and receipts grow old.
MOST_WAITING: Final = 5000
# Of their bodies together, for a queue and for a namespace; one body has up to 1 MiB. Parsed they take twice
# as much.
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_BYTES_OF_ALL: Final = 16 * 1024 * 1024
# Seconds for which a message may wait before no more are received: the API server is away, or passes fail.
LONGEST_WAIT: Final = 15.0
LOOK_SECONDS: Final = 1.0
# Seconds for which the end of a refresh that is unknown here stays in the queue: after a start, its resource
# may join late, and this process may end before that. Shorter than a visibility timeout (the least is 30 s),
# so that the message is received once more at most. Then it is deleted, and remembered.
UNCLAIMED_SECONDS: Final = 25.0
MOST_UNCLAIMED: Final = 1000
MOST_UNCLAIMED_BYTES: Final = 1024 * 1024  # of their bodies, as they came

_numbers = itertools.count(1)  # of messages, over all queues: a plan names those of two


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message in flight: SQS's id, its latest receipt handle, the readers that have not answered for it."""

    name: str
    receipt: str
    size: int
    message: Message
    asked: set[Hashable]
    answered: bool = False  # at least one reader has answered
    returned: bool = False
    claimed: bool = False  # at least one reader claims it
    deleted: bool = False  # from the queue
    since: float = field(default_factory=time.monotonic)


async def parsed_of(body: str, source: SQSSource) -> Parsed:
    """Parse a body. A long one is parsed in slices, with a yield to the event loop after each."""
    steps = parsing(body, source.envelope)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            if len(body) > LARGE_BYTES:
                await asyncio.sleep(0)
            parsed: Parsed = end.value
            return parsed
        await asyncio.sleep(0)


Batch = Sequence[InFlightMessage]


class MessageMemory:
    """The bytes of the messages of all queues, by namespace."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()
        self._expected: Counter[str] = Counter()  # the same and what receives under way are likely to bring

    def change(self, namespace: str, size: int) -> None:
        """So many more bytes, or fewer."""
        _change(self._used, namespace, size)
        _change(self._expected, namespace, size)

    @contextlib.contextmanager
    def expecting(self, namespace: str, size: int) -> Iterator[None]:
        """A receive is likely to bring so many bytes."""
        _change(self._expected, namespace, size)
        try:
            yield
        finally:
            _change(self._expected, namespace, -size)

    def room(self, namespace: str, size: int = 0) -> bool:
        """Whether the namespace may receive more, and expect so many bytes. Where all together have too much,
        each has an equal share: those that stay within it go on."""
        return _room(self._expected, namespace, size)

    def fits(self, namespace: str, size: int) -> bool:
        """Whether a message that has come may be kept."""
        return _room(self._used, namespace, size)


def _change(used: Counter[str], namespace: str, size: int) -> None:
    used[namespace] += size
    if not used[namespace]:
        del used[namespace]


def _room(used: Counter[str], namespace: str, size: int) -> bool:
    own, share, total = used[namespace], MOST_BYTES_OF_ALL // max(len(used), 1), used.total()
    if not own:  # others whose passes fail keep theirs
        return total + size <= 2 * MOST_BYTES_OF_ALL
    return own < MOST_BYTES and (own + size <= share or total < MOST_BYTES_OF_ALL)


class InFlightMessages:
    """The messages of one queue, and its readers. One of these, the `owner`, gets everything; the others only
    events about refreshes that have ended. A message that is received again while it is here is the same
    message with a newer receipt."""

    def __init__(self, memory: MessageMemory | None = None, namespace: str = "") -> None:
        self.owner: Hashable | None = None
        self._memory = memory or MessageMemory()
        self.namespace = namespace
        self._on_news: dict[Hashable, Callable[[], None]] = {}  # by reader
        self._by_name: dict[str, InFlightMessage] = {}
        self._by_number: dict[int, InFlightMessage] = {}
        self._unclaimed: dict[int, InFlightMessage] = {}  # completion events that no reader has recognised
        self._bytes = 0  # of the messages here
        self._left = asyncio.Event()  # something was settled

    # ---------------------------------------------------------------- readers

    def join(self, reader: Hashable, on_news: Callable[[], None], *, owner: bool) -> None:
        """Ask this reader about messages from now on, the owner about all, also those that are here.
        `on_news` is called when there is something new for it."""
        self._on_news[reader] = on_news
        if owner:
            self.owner = reader
        for entry in self._unclaimed.values():
            entry.since = time.monotonic()
            self._memory.change(self.namespace, entry.size)
        self._by_number |= self._unclaimed
        self._unclaimed.clear()
        for entry in self._by_number.values():
            if owner or entry.message.completions:
                entry.asked.add(reader)
        on_news()

    def leave(self, reader: Hashable) -> None:
        """Ask this reader about none. Messages that the owner has not answered for go back to the queue by
        themselves, when their visibility timeout is over."""
        self._on_news.pop(reader, None)
        if self.owner == reader:
            self.owner = None
        for entry in list(self._by_number.values()):
            if reader not in entry.asked:
                continue
            entry.asked.discard(reader)
            if not entry.deleted:
                self._forget(entry)
            elif not entry.asked:  # it does not come again
                self._set_aside(entry)

    @property
    def idle(self) -> bool:
        """Whether there are no readers."""
        return not self._on_news

    def notify(self, readers: Iterable[Hashable] | None = None) -> None:
        """There is something new for these readers; None = for all."""
        for reader in list(self._on_news if readers is None else readers):
            on_news = self._on_news.get(reader)
            if on_news is not None:
                on_news()

    def waiting(self, reader: Hashable) -> tuple[tuple[Message, ...], float]:
        """(the messages that this reader has not answered for yet, oldest first; when the newest of them
        came, by time.monotonic())."""
        found = [entry for entry in self._by_number.values() if reader in entry.asked]
        return tuple(entry.message for entry in found), found[-1].since if found else 0.0

    # ---------------------------------------------------------------- messages

    def renew(self, name: str, receipt: str) -> bool:
        """The message was received again. Returns whether it is here."""
        entry = self._by_name.get(name)
        if entry is None:
            return False
        entry.receipt = receipt
        entry.deleted = False  # a deletion that failed
        return True

    def add(self, name: str, receipt: str, size: int, parsed: Parsed) -> set[Hashable]:
        """The message was received for the first time. Returns the readers to ask about it. One without an
        event to act on is every reader's to delete."""
        if self.renew(name, receipt):  # it came twice at a time
            return set()
        message = Message(next(_numbers), parsed.events, parsed.completions, bool(parsed.malformed))
        asked = set(self._on_news)
        if not message.completions and (message.events or message.malformed):
            asked &= {self.owner}
        # Without a reader: of no resource here, and perhaps of another operator, so not ours to delete.
        if asked:
            entry = InFlightMessage(name, receipt, size, message, asked)
            self._bytes += size
            self._memory.change(self.namespace, size)
            self._by_name[name] = self._by_number[message.id] = entry
        return asked

    def settle(
        self, reader: Hashable, done: Iterable[int], returned: Iterable[int], unclaimed: Iterable[int]
    ) -> tuple[Batch, Batch]:
        """See Poller.settle(). Returns (the messages to delete, the messages to return)."""
        gone: list[InFlightMessage] = []
        back: list[InFlightMessage] = []
        for ids, stay, own in ((done, False, True), (returned, True, True), (unclaimed, False, False)):
            for entry in self._answers(reader, ids):
                entry.returned = entry.returned or stay
                entry.claimed = entry.claimed or own
                if entry.asked:
                    continue
                if not entry.claimed:
                    self._set_aside(entry)
                    continue
                self._forget(entry)
                if not entry.deleted:
                    (back if entry.returned else gone).append(entry)
        self._left.set()
        return gone, [entry for entry in back if not entry.message.malformed]

    def _answers(self, reader: Hashable, numbers: Iterable[int]) -> Iterable[InFlightMessage]:
        """Those that this reader was asked about, and has answered for now."""
        for number in numbers:
            entry = self._by_number.get(number)
            if entry is not None and reader in entry.asked:
                entry.asked.discard(reader)
                entry.answered = True
                yield entry

    def unclaimed(self) -> Batch:
        """The ends that no reader has claimed in time: they are to be deleted. A reader that joins later is
        asked about them as well."""
        if not self._unclaimed:
            return ()
        since = time.monotonic() - UNCLAIMED_SECONDS
        size = sum(entry.size for entry in self._unclaimed.values())
        while len(self._unclaimed) > MOST_UNCLAIMED or size > MOST_UNCLAIMED_BYTES:
            oldest = next(iter(self._unclaimed.values()))
            size -= oldest.size
            self._forget(oldest)
        old = [entry for entry in self._unclaimed.values() if entry.since <= since and not entry.deleted]
        for entry in old:
            entry.deleted = True
        return old

    def fits(self, size: int) -> bool:
        """Whether a message that has come may be kept. A queue of completion events alone is read for other
        namespaces, too, and these are small."""
        return self.owner is None or self._memory.fits(self.namespace, size)

    def expecting(self, size: int) -> contextlib.AbstractContextManager[None]:
        """A receive is likely to bring so many bytes."""
        return self._memory.expecting(self.namespace, size)

    async def room(self, visibility: int, size: int = 0) -> None:
        """Wait while readers are behind, or others of the namespace, or there is no room for so many bytes.

        A message with some answers, but not all, is given up once it comes again: a reader whose passes fail
        must not keep the queue from the others. A message without any answer is kept: the API server is away,
        and to receive it again and again would make it dead.
        """
        while True:
            oldest = next(iter(self._by_number.values()), None)
            waited = time.monotonic() - oldest.since if oldest is not None else 0.0
            if oldest is not None and waited > visibility and oldest.answered:
                self._forget(oldest)
                continue
            room = len(self._by_number) < MOST_WAITING and self._bytes < MOST_BYTES and waited <= LONGEST_WAIT
            # As in fits().
            if (room or oldest is None) and (self.owner is None or self._memory.room(self.namespace, size)):
                return
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._left.wait()

    def _set_aside(self, entry: InFlightMessage) -> None:
        """No reader has recognised it. It stays until it is old, so it has a bound of its own."""
        self._unclaimed[entry.message.id] = self._by_number.pop(entry.message.id)
        self._memory.change(self.namespace, -entry.size)

    def clear(self) -> None:
        """The queue is not read any more."""
        for entry in list(self._by_name.values()):
            self._forget(entry)

    def _forget(self, entry: InFlightMessage) -> None:
        if self._by_name.pop(entry.name, None) is not None:
            self._bytes -= entry.size
        if self._by_number.pop(entry.message.id, None) is not None:
            self._memory.change(self.namespace, -entry.size)
        self._unclaimed.pop(entry.message.id, None)
        self._left.set()
