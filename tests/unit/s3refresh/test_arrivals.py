"""The matched events of a large message, as a pass receives them."""

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import Scope
from caretaker.s3refresh.gather import SLICE, Arrivals
from caretaker.s3refresh.match import Matches, of_buckets
from caretaker.s3refresh.receiver import PASS_EVENTS
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.snapshot import Discovery, Message
from caretaker.s3refresh.targets import registry
from testing.s3refreshes import refresh
from testing.turns import beside_others

SHARES = Discovery(complete=True, shares=of_buckets(["media"]))
MANY = PASS_EVENTS + 1


def message(number: int, count: int) -> Message:
    return Message(number, tuple(ObjectEvent("ObjectCreated", "media", f"{n % 3}/x") for n in range(count)))


async def test_its_events_are_sifted_in_slices_and_those_of_others_are_left_to_the_plan() -> None:
    spec = refresh(filter={"buckets": ["media"]}, target={"http": {"url": "https://cdn.example.com/purge"}})
    raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
    found = Arrivals((message(1, 5), message(2, MANY)))
    matches, turns = await beside_others(found.with_matches(read(raw, registry().spec).spec, SHARES))
    some = Scope(folders=frozenset({"/", "0", "1", "2"}))
    assert matches.matches == {2: Matches({"media": some}, matched=MANY)}
    assert matches.discovery == SHARES
    assert turns >= MANY // SLICE


@pytest.mark.parametrize("count", [MANY, 1])
async def test_without_a_spec_nothing_is_sifted(count: int) -> None:
    found = Arrivals((message(1, count),))
    assert (await found.with_matches(None, SHARES)).matches == {}
