"""What a look that changes nothing has found, a cluster each. Pure data."""

from collections.abc import Iterator, Sequence

import msgspec

from caretaker.api.ecs import EcsSpec
from caretaker.cli.text import number


class Found(msgspec.Struct, frozen=True, rename="camel"):
    """One cluster. `would_be`: the desired count that would be set, None where it stays."""

    cluster: str
    instances: int | None = None
    desired: int | None = None
    would_be: int | None = None
    reason: str = ""
    message: str = ""
    problem: str = ""  # why it could not be looked at


def clusters_of(spec: EcsSpec, found: Sequence[Found]) -> str:
    """`3 clusters, 2 desired counts would be set`."""
    changes = sum(one.would_be is not None for one in found)
    which = "named" if spec.clusters else "that run it"
    return f"{number(len(found), 'cluster')} {which}, {number(changes, 'desired count')} would be set"


def unreached(spec: EcsSpec, found: Sequence[Found]) -> Iterator[str]:
    """What keeps the task from working whoever asks."""
    for one in found:
        if one.reason and one.instances is None:
            yield one.message
    if not spec.clusters and not found:
        yield f"no cluster in {spec.aws.region} runs the service {spec.service}"
