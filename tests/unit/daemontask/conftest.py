"""A simulated world for the tests of what operators do in one."""

from collections.abc import Iterator
from typing import Any

import pytest

from unit.daemontask.simworld import Make, SimWorld, virtual_time


@pytest.fixture
def make() -> Iterator[Make]:
    """A world of a task with such a spec."""
    made: list[SimWorld] = []
    with virtual_time() as clock:

        def one(**spec: Any) -> SimWorld:
            made.append(SimWorld(clock, **spec))
            return made[-1]

        yield one
        for world in made:
            world.close()
