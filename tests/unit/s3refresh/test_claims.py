"""Whose a queue is, and who else may hear from it."""

from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.admission import QueueClaim, QueueClaims

ELDER, YOUNGER, THIRD = (Key("S3AggregatedRefresh", "team", name) for name in ("elder", "younger", "third"))
OLD, NEW = (False, "2026-01-01T00:00:00Z"), (False, "2026-02-01T00:00:00Z")


class World:
    """Claims, and who has been told of news."""

    def __init__(self) -> None:
        self.claims = QueueClaims()
        self.told: list[Key] = []
        self._wanted: dict[Key, dict[str, QueueClaim]] = {}

    def source(self, key: Key, queue: str, rank: tuple[bool, str] = NEW, alike: str = "me") -> Key:
        claim = QueueClaim(rank, alike)
        owner = self.claims.owner(key, queue, claim)
        ends = {name: one for name, one in self._wanted.get(key, {}).items() if not one.source}
        self._declare(key, {queue: claim, **(ends if owner == key else {})})
        return owner

    def ends(self, key: Key, queue: str, rank: tuple[bool, str] = NEW, alike: str = "me") -> Key:
        claim = QueueClaim(rank, alike, source=False)
        source = {name: one for name, one in self._wanted[key].items() if one.source}
        reader = self.claims.reader(key, queue, claim) if queue else key
        self._declare(key, {queue: claim, **source} if queue else source)
        return reader

    def _declare(self, key: Key, wanted: dict[str, QueueClaim]) -> None:
        self._wanted[key] = wanted
        self.claims.declare(key, wanted, lambda: self.told.append(key))


def test_the_elder_owns_a_queue_whoever_came_first() -> None:
    world = World()
    assert world.source(YOUNGER, "q") == YOUNGER
    assert world.source(ELDER, "q", OLD) == ELDER
    assert world.told == [YOUNGER], "it has lost the queue"
    assert world.source(YOUNGER, "q") == ELDER
    world.claims.drop(ELDER)
    assert world.told == [YOUNGER, YOUNGER]
    assert world.source(YOUNGER, "q") == YOUNGER


def test_what_nobody_was_granted_yields_to_what_somebody_was() -> None:
    world = World()
    world.source(ELDER, "q", (True, OLD[1]))
    assert world.source(YOUNGER, "q") == YOUNGER


def test_nobody_is_told_twice_of_the_same() -> None:
    world = World()
    for _ in range(3):
        world.source(ELDER, "q", OLD)
        world.source(YOUNGER, "q")
        world.source(THIRD, "own")
        world.ends(THIRD, "q")
    assert sorted(world.told) == sorted([ELDER, ELDER, YOUNGER])  # of the younger, and of the third's ends


def test_a_queue_of_ends_is_shared_by_those_that_read_it_alike() -> None:
    world = World()
    world.source(ELDER, "a", OLD)
    world.source(YOUNGER, "b")
    world.source(THIRD, "c")
    assert world.ends(ELDER, "ends", OLD) == ELDER
    assert world.ends(YOUNGER, "ends") == YOUNGER
    assert world.ends(THIRD, "ends", alike="somebody else") == ELDER
    for key in (ELDER, YOUNGER):
        world.claims.drop(key)
    assert world.told == [ELDER, ELDER, YOUNGER, YOUNGER, THIRD, THIRD]
    assert world.ends(THIRD, "ends", alike="somebody else") == THIRD


def test_a_source_is_read_as_its_owner_does_even_if_it_comes_last() -> None:
    world = World()
    world.source(ELDER, "own", OLD, "somebody else")
    assert world.ends(ELDER, "q", OLD, "somebody else") == ELDER
    assert world.source(YOUNGER, "q") == YOUNGER
    assert world.told == [ELDER]
    assert world.ends(ELDER, "q", OLD, "somebody else") == YOUNGER


def test_who_may_read_nothing_keeps_nobody_from_a_queue_of_ends() -> None:
    world = World()
    world.source(YOUNGER, "q")
    world.ends(YOUNGER, "ends", OLD)
    assert world.source(ELDER, "q", OLD) == ELDER
    assert world.source(YOUNGER, "q") == ELDER
    assert world.ends(ELDER, "ends", NEW, "somebody else") == ELDER


def test_another_queue_or_none_lets_the_old_one_go() -> None:
    world = World()
    world.source(ELDER, "a", OLD)
    world.ends(ELDER, "ends", OLD)
    assert world.ends(ELDER, "", OLD) == ELDER
    world.source(YOUNGER, "own")
    assert world.ends(YOUNGER, "ends", alike="somebody else") == YOUNGER
    world.source(ELDER, "b", OLD)
    assert world.source(YOUNGER, "a") == YOUNGER
    world.claims.clear()
    assert world.source(THIRD, "a") == THIRD
