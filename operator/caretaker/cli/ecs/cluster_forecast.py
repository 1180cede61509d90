"""The result of a read-only check, for each cluster. Pure data."""

from collections.abc import Iterator, Sequence

import msgspec

from caretaker.api.ecs import EcsSpec
from caretaker.cli.text import number


class ClusterForecast(msgspec.Struct, frozen=True, rename="camel"):
    """One cluster. `would_be`: the desired count that would be set, None where it stays."""

    cluster: str
    instances: int | None = None
    desired: int | None = None
    would_be: int | None = None
    reason: str = ""
    message: str = ""
    problem: str = ""  # why it could not be checked


def clusters_of(spec: EcsSpec, found: Sequence[ClusterForecast], problem: str = "") -> str:
    """`3 clusters, 2 desired counts would be set`. `problem`: why they could not be listed."""
    if problem:
        return "its clusters could not be listed"
    changes = sum(one.would_be is not None for one in found)
    which = "named" if spec.clusters else f"that run{'s' * (len(found) == 1)} it"
    return f"{number(len(found), 'cluster')} {which}, {number(changes, 'desired count')} would be set"


def problems_of(spec: EcsSpec, found: Sequence[ClusterForecast], problem: str = "") -> Iterator[str]:
    """The problems of the task that do not depend on the user's credentials; `problem`: why the clusters
    could not be listed."""
    if problem:
        yield f"the clusters that run the service {spec.service} could not be listed: {problem}"
        return
    for one in found:
        if one.reason and one.instances is None:
            yield one.message
    if not spec.clusters and not found:
        yield f"no cluster in {spec.aws.region} runs the service {spec.service}"
