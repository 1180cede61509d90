"""Nothing is sent that the API server does not have; the operator's own code in virtual time."""

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest

from caretaker.api.imds import Status
from caretaker.imds.resource import RawPolicy
from simulation.imds.world import World

GROUP = ("EKSManagedNodegroup", "a")
_NUMBERS = itertools.count(1)


@pytest.fixture
def world() -> Iterator[World]:
    made = World({GROUP: {}})
    for _ in range(3):
        made.join(GROUP)
    safety = {"allowLoosening": ["HopLimit"]}
    made.apply("p", mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety)
    yield made
    made.close()


def pruned(raw: RawPolicy) -> RawPolicy:
    """As a CRD has it that knows no canaries of groups."""
    status = msgspec.json.decode(raw.status, type=Status)
    if status.canary is not None:
        status = msgspec.structs.replace(status, canary=msgspec.structs.replace(status.canary, groups=()))
    return msgspec.structs.replace(raw, status=msgspec.Raw(msgspec.json.encode(status)))


def edited(raw: RawPolicy) -> RawPolicy:
    later = msgspec.structs.replace(raw.metadata, generation=raw.metadata.generation + next(_NUMBERS))
    return msgspec.structs.replace(raw, metadata=later)


def made_anew(raw: RawPolicy) -> RawPolicy:
    other = msgspec.structs.replace(raw.metadata, uid=f"other-{next(_NUMBERS)}")
    return msgspec.structs.replace(raw, metadata=other)


def test_what_stands_is_sent(world: World) -> None:
    world.run(30.0)
    assert len(world.judge.sends) == 1


@pytest.mark.parametrize(
    "again",
    [pytest.param(pruned, marks=pytest.mark.slow), edited, pytest.param(made_anew, marks=pytest.mark.slow)],
)
def test_what_the_api_server_does_not_have_is_not_sent(
    world: World, again: Callable[[RawPolicy], RawPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each instance would be a canary, one after the other; or one of another spec."""
    read = world.cluster.get

    def reads(path: str) -> object:
        found = read(path)
        written = isinstance(found, RawPolicy) and found.status != msgspec.Raw(b"{}")
        return again(found) if written else found

    monkeypatch.setattr(world.cluster, "get", reads)
    world.run(120.0)
    assert world.judge.sends == []
