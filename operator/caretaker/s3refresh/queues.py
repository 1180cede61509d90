"""The queues of all resources: one poller for each, with all its readers.

Inputs: AWS, which queues have an owner (by ARN), and for each resource the queues that it reads;
queue_claims.py decides about readers. A completion queue may be read by many and may be another's source.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from caretaker.aws.calls import Aws
from caretaker.aws.identity import ClientKey
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.longpolls import LongPolls
from caretaker.s3refresh.poller import Poller, ReceiveOptions
from caretaker.s3refresh.worker_config import Reading

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0


class _Queue:
    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.task = asyncio.create_task(_run_forever(poller), name="sqs-poller")


async def _run_forever(poller: Poller) -> None:
    """Polls until it is cancelled: an unexpected answer must not end that."""
    while True:
        try:
            await poller.run()
        except Exception:
            logger.exception("polling failed; again in %.0f s", AGAIN_SECONDS)
        await asyncio.sleep(AGAIN_SECONDS)


def _options(reading: Reading) -> ReceiveOptions:
    return ReceiveOptions(reading.source, reading.wait, reading.visibility)


Address = tuple[ClientKey, str]


class Queues:
    """Pollers by queue."""

    def __init__(self, aws: Aws, owner_absent: Callable[[str], bool]) -> None:
        self._aws = aws
        self._owner_absent = owner_absent
        self._queues: dict[Address, _Queue] = {}
        self._long_polls = LongPolls()

    def join(self, key: Key, reading: Reading, on_news: Callable[[], None], *, owner: bool) -> Poller:
        """The queue's poller, with `key` among its readers."""
        # Readers of one queue share a poller; it uses the role session of the first reader.
        address = (reading.target.shared, reading.source.queue_url)
        queue = self._queues.get(address)
        if queue is None:
            sqs = self._aws.sqs(reading.target)
            absent = partial(self._owner_absent, reading.arn)
            poller = Poller(sqs, _options(reading), absent, self._long_polls)
            queue = self._queues[address] = _Queue(poller)
            self._long_polls.queues = len(self._queues)
        elif owner:
            queue.poller.read_as(_options(reading))
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
        self._long_polls.queues = len(self._queues)
        await cancel(*ended)

    async def close(self) -> None:
        """Stop all pollers."""
        tasks = [queue.task for queue in self._queues.values()]
        self._queues.clear()
        self._long_polls.queues = 0
        await cancel(*tasks)
