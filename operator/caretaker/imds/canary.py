"""The first instances of a policy's generation: changed alone, and watched, before any other is. Pure.

    Changing   they are being changed; one that ends before it has stood is replaced
    Soaking    all are applied on nodes that are Ready, for spec.safety.canary.soak
    Passed     the others follow

What stands in status is all that is known, so that it survives a restart. A canary passes only if at least
one instance really changed: instances are chosen among those that have to change.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from caretaker.api.imds import CanaryStatus
from caretaker.api.times import format_time, parse_time

MAX_INSTANCES: Final = 50

State = Literal["gone", "to change", "under way", "done"]
Phase = Literal["Changing", "Soaking", "Passed"]


class Trial(msgspec.Struct, frozen=True):
    """What a canary is made from.

    number      of instances; 0 = no canary
    states      instance -> where it stands, of all that the policy means
    candidates  those that may be changed now, in the order in which they are chosen
    """

    generation: int
    number: int
    soak: float
    states: Mapping[str, State]
    candidates: Sequence[str]
    now: float  # Unix seconds


def step(before: CanaryStatus | None, trial: Trial) -> CanaryStatus | None:
    """Where the canary stands; None = there is none, since nothing has to change or none is wanted."""
    if not trial.number:
        return None
    if before is not None and before.generation != trial.generation:
        before = None
    if before is not None and before.phase == "Passed":
        return before
    if before is not None and (parse_time(before.since) or 0.0) > trial.now:
        # By a clock that was ahead of this one: what is left of its soak is not known.
        before = msgspec.structs.replace(before, phase="Changing")
    chosen = _chosen(before, trial)
    if not chosen:
        return None
    phase = _phase(before, trial, chosen)
    stamp = format_time(trial.now)
    kept = before is not None and before.phase == phase
    return CanaryStatus(
        trial.generation,
        chosen,
        phase,
        started_at=before.started_at if before is not None else stamp,
        since=before.since if before is not None and kept else stamp,
    )


def soaked_at(canary: CanaryStatus, soak: float) -> float:
    """When it will have stood long enough, in Unix seconds; `since` has lost its fraction of a second."""
    return (parse_time(canary.since) or 0.0) + 1.0 + soak


def _chosen(before: CanaryStatus | None, trial: Trial) -> tuple[str, ...]:
    """Those of before that are still there, and others for those that are not."""
    kept = [one for one in (before.instances if before else ()) if trial.states.get(one, "gone") != "gone"]
    others = [one for one in trial.candidates if one not in kept]
    return (*kept, *others[: max(trial.number - len(kept), 0)])


def _phase(before: CanaryStatus | None, trial: Trial, chosen: Sequence[str]) -> Phase:
    if any(trial.states[one] != "done" for one in chosen):
        return "Changing"
    if before is None or before.phase != "Soaking":
        return "Soaking" if trial.soak > 0 else "Passed"
    return "Passed" if trial.now >= soaked_at(before, trial.soak) else "Soaking"
