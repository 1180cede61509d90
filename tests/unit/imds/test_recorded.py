"""Nothing is sent but what stands in the API server before; the operator's own code in virtual time."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from caretaker.api.imds import Status
from caretaker.imds.resource import RawPolicy
from caretaker.runtime.controller import Conflict, Retry
from unit.imds.enforceworld import World


class Forgetful(World):
    """What the policy is when it is read once more, after its status was written."""

    again: Callable[[RawPolicy], RawPolicy] = staticmethod(lambda raw: raw)

    async def get(self, path: str, _: type | None = None) -> RawPolicy:
        raw = await super().get(path)
        return self.again(raw) if raw.status != self.seen else raw

    seen = msgspec.Raw(b"{}")


@pytest.fixture
def world() -> Iterator[Forgetful]:
    made = Forgetful(canary=1, nodes=3)
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
    later = msgspec.structs.replace(raw.metadata, generation=raw.metadata.generation + 1)
    return msgspec.structs.replace(raw, metadata=later)


def made_anew(raw: RawPolicy) -> RawPolicy:
    return msgspec.structs.replace(raw, metadata=msgspec.structs.replace(raw.metadata, uid="other"))


def test_what_stands_is_sent(world: Forgetful) -> None:
    world.run(30.0)
    assert len(world.sends) == 1


def test_what_the_api_server_leaves_out_is_not_sent(world: Forgetful) -> None:
    """Else each instance would be a canary, one after the other."""
    world.again = pruned
    for _ in range(3):
        with pytest.raises(Retry, match="the CRD"):
            world.run(30.0)
    assert world.sends == []


@pytest.mark.parametrize("again", [edited, made_anew])
def test_what_was_planned_from_another_spec_is_not_sent(
    world: Forgetful, again: Callable[[RawPolicy], RawPolicy]
) -> None:
    world.again = again
    with pytest.raises(Conflict):
        world.run(30.0)
    assert world.sends == []
