"""What came in for a resource before a pass read it: messages, answers, ends.

Decides nothing. The events of a message that has very many are sifted here, in slices, since the plan cannot
be interrupted.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.s3refresh.aims import aim_of
from caretaker.s3refresh.match import Sieve, Sifted, by_bucket
from caretaker.s3refresh.plan import End, Message, Result, Shares
from caretaker.s3refresh.work import PASS_EVENTS, Work

SLICE: Final = 100  # events of a message with many, between two pauses


class Arrivals(msgspec.Struct, frozen=True):
    """What came in before the resource was read."""

    messages: tuple[Message, ...] = ()
    results: tuple[Result, ...] = ()
    ends: tuple[End, ...] = ()
    newest: float = 0.0  # when the newest of the messages came, by the clock that never goes back
    more: bool = False  # messages wait for the next pass
    shares: Shares = Shares()  # by which these were sifted
    sifted: Mapping[int, Sifted] = {}

    @classmethod
    def of(cls, work: Work | None) -> "Arrivals":
        if work is None:
            return cls()
        messages, newest, more = work.messages()
        return cls(messages, tuple(work.results), work.ends, newest, more)

    async def sifted_by(self, spec: Spec | None, shares: Shares) -> "Arrivals":
        """With the events of messages that have very many sifted, in slices: they hold nobody up."""
        sifted = {}
        for message in self.messages:
            if len(message.events) <= PASS_EVENTS or spec is None:
                continue
            sieve = Sieve(spec.filter, by_bucket(shares.known), whole=aim_of(spec).whole)
            for at in range(0, len(message.events), SLICE):
                sieve.add(message.events[at : at + SLICE])
                sifted[message.id] = sieve.sifted()
                await asyncio.sleep(0)
        return msgspec.structs.replace(self, shares=shares, sifted=sifted)
