"""The queues of all resources: one poller for each, whoever reads it.

Inputs: AWS, and for each resource the queues that it reads. A queue has one owner, the oldest resource whose
source it is; where two have the same source the younger reads nothing. A completion queue may be read by many
and may be another's source.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from caretaker.aws.calls import Aws
from caretaker.aws.identity import Target
from caretaker.runtime.queue import Key
from caretaker.s3refresh.poller import Poller
from caretaker.s3refresh.setting import Reading

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0


class _Queue:
    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.task = asyncio.create_task(_for_ever(poller), name="sqs-poller")


async def _for_ever(poller: Poller) -> None:
    """An answer that nobody foresaw must not end the polling."""
    while True:
        try:
            await poller.run()
        except Exception:
            logger.exception("polling failed; again in %.0f s", AGAIN_SECONDS)
        await asyncio.sleep(AGAIN_SECONDS)


Address = tuple[Target, str]


class Queues:
    """Pollers by queue, and who owns which."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._queues: dict[Address, _Queue] = {}
        # By queue alone: two identities that reach one compete for its messages as well.
        self._claims: dict[str, dict[Key, tuple[tuple[bool, str], Callable[[], None]]]] = {}

    # ---------------------------------------------------------------- whose it is

    def claim(self, key: Key, queue: str, rank: tuple[bool, str], on_news: Callable[[], None]) -> Key:
        """`key`'s source is this queue (its ARN) and no other; the key that may read it: the first by rank,
        namespace and name. `on_news` is called when that changes.

        rank  (whether nobody has granted the queue, creationTimestamp): credentials of one's own are no
              claim to a queue that another was granted
        """
        if key not in self._claims.get(queue, {}):
            self.disclaim(key)
        self._claims.setdefault(queue, {})[key] = (rank, on_news)
        return self.owner(queue)

    def owner(self, queue: str) -> Key:
        """Who may read the source queue."""
        claims = self._claims[queue]
        return min(claims, key=lambda key: (claims[key][0], key.namespace, key.name))

    def disclaim(self, key: Key) -> None:
        """`key` is gone, or has another source."""
        for url, claims in list(self._claims.items()):
            if claims.pop(key, None) is None:
                continue
            for _, on_news in claims.values():
                on_news()
            if not claims:
                del self._claims[url]

    # ---------------------------------------------------------------- reading

    def join(self, key: Key, reading: Reading, on_news: Callable[[], None], *, owner: bool) -> Poller:
        """The queue's poller, with `key` among its readers."""
        address = (reading.target, reading.source.queue_url)
        queue = self._queues.get(address)
        if queue is None:
            sqs = self._aws.sqs(reading.target)
            poller = Poller(sqs, reading.source, reading.wait, reading.visibility)
            queue = self._queues[address] = _Queue(poller)
        elif owner:
            queue.poller.read_as(reading.source, reading.wait, reading.visibility)
        queue.poller.join(key, on_news, owner=owner)
        return queue.poller

    async def leave(self, key: Key) -> None:
        """`key` reads nothing any more. A poller without readers ends."""
        ended = []
        for address, queue in list(self._queues.items()):
            queue.poller.leave(key)
            if queue.poller.idle:
                ended.append(queue.task)
                del self._queues[address]
        await stop(*ended)

    async def close(self) -> None:
        """Nobody reads anything any more."""
        tasks = [queue.task for queue in self._queues.values()]
        self._queues.clear()
        self._claims.clear()
        await stop(*tasks)


async def stop(*tasks: "asyncio.Task[None]") -> None:
    """Cancel and wait."""
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
