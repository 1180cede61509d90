"""How many nodes and how long, where a spec says so in text: whether it can be computed with.

Pure: Spec -> (Spec, faults). The CRD lets no other text in; text that an older and looser CRD let in is found
here, before a plan counts with it.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from caretaker.api import durations
from caretaker.api.daemontask import Budget, Canary, Exclusive, FailurePolicy, IntOrPercent, Spec

_PERCENT: Final = re.compile(r"[0-9]{1,9}%")
_COUNT: Final = re.compile(r"[0-9]{1,9}%?")  # Karpenter writes the numbers of budgets as text, too


def readable(spec: Spec) -> tuple[Spec, str]:
    """(the spec without amounts that cannot be read, why not, with the fields' paths). Nothing is started
    meanwhile, but runs still end and are recorded."""
    found: list[str] = []
    rest: dict[str, Any] = {}
    for field, instead, faults in (
        ("parallelism", None, _number("spec.parallelism", spec.parallelism, _PERCENT)),
        ("exclusive", _of_group(spec.exclusive), _exclusive(spec.exclusive)),
        ("failure_policy", FailurePolicy(), _policy(spec.failure_policy)),
        ("budgets", (), _budgets(spec.budgets)),
        ("canary", Canary(), _canary(spec.canary)),
    ):
        if messages := list(faults):
            found += messages
            rest[field] = instead
    return msgspec.structs.replace(spec, **rest) if rest else spec, "; ".join(found)


def _policy(policy: FailurePolicy) -> Iterator[str]:
    return _number("spec.failurePolicy.maxFailedNodes", policy.max_failed_nodes, _PERCENT)


def _of_group(exclusive: Exclusive | None) -> Exclusive | None:
    """It stays in its group: its Pods hold their nodes."""
    return Exclusive(exclusive.group) if exclusive is not None else None


def _exclusive(exclusive: Exclusive | None) -> Iterator[str]:
    if exclusive is not None:
        yield from _number("spec.exclusive.parallelism", exclusive.parallelism, _PERCENT)


def _canary(canary: Canary | None) -> Iterator[str]:
    if canary is not None:
        yield from _number("spec.canary.nodes", canary.nodes, _PERCENT)


def _budgets(budgets: tuple[Budget, ...]) -> Iterator[str]:
    for place, budget in enumerate(budgets):
        path = f"spec.budgets[{place}]"
        yield from _number(f"{path}.nodes", budget.nodes, _COUNT)
        try:
            durations.seconds(budget.duration or "")
        except ValueError as error:
            yield f"{path}.duration: {error}"


def _number(path: str, value: IntOrPercent | None, text: re.Pattern[str]) -> Iterator[str]:
    if isinstance(value, str) and not text.fullmatch(value):
        yield f'{path}: {value!r} is neither a whole number nor a percentage such as "10%"'
