"""The inputs that arrived before a pass read its resource: messages, results of calls, ends of refreshes.

Decides nothing. A message with many events is matched here, in slices: the plan cannot be interrupted.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.s3refresh.match import EventMatcher, Matches, by_bucket
from caretaker.s3refresh.receiver import PASS_EVENTS
from caretaker.s3refresh.snapshot import Discovery, End, Message, Result
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.worker import Worker

SLICE: Final = 100  # events that are matched between two yields to the event loop


class Arrivals(msgspec.Struct, frozen=True):
    """The inputs that arrived before the resource was read."""

    messages: tuple[Message, ...] = ()
    results: tuple[Result, ...] = ()
    ends: tuple[End, ...] = ()
    newest: float = 0.0  # when the newest message arrived, by time.monotonic()
    more: bool = False  # further messages wait for the next pass
    discovery: Discovery = Discovery()  # the shares that `matches` was matched against
    matches: Mapping[int, Matches] = {}

    @classmethod
    def of(cls, worker: Worker | None) -> "Arrivals":
        if worker is None:
            return cls()
        messages, newest, more = worker.receiver.messages()
        return cls(messages, tuple(worker.calls.results), worker.ends.ends, newest, more)

    async def with_matches(self, spec: Spec | None, discovery: Discovery) -> "Arrivals":
        """Adds the matched events of large messages. It yields to the event loop after each slice."""
        matches = {}
        for message in self.messages:
            if len(message.events) <= PASS_EVENTS or spec is None:
                continue
            matcher = EventMatcher(spec.filter, by_bucket(discovery.shares), whole=target_type_of(spec).whole)
            for at in range(0, len(message.events), SLICE):
                matcher.add(message.events[at : at + SLICE])
                matches[message.id] = matcher.matches()
                await asyncio.sleep(0)
        return msgspec.structs.replace(self, discovery=discovery, matches=matches)
