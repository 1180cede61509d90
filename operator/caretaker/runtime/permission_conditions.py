"""Writes the condition PermissionDenied when a missing permission has ended a pass.

Inputs: a client, the resource's path, the refusal. It writes conditions only: counts and lists stay as the
last complete pass wrote them, and the next complete pass replaces the conditions, too. Knows no kind.
"""

from collections.abc import Collection

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionStatus, Reason
from caretaker.api.objects import WireMeta
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError


class _Status(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class _Current(msgspec.Struct):
    metadata: WireMeta
    status: msgspec.Raw = msgspec.Raw(b"{}")


async def write(client: KubeClient, path: str, stopped: Collection[str], error: ApiError, now: str) -> str:
    """Write the conditions if they changed; returns the resource's uid if they are new, else "". `stopped`
    are the types that are False then, beside Ready.

    Raises ApiError: the permissions for this may be missing, too.
    """
    current = await client.get(path, _Current)
    meta, before = current.metadata, _conditions(current.status)
    after = conditions(before, stopped, meta.generation, error.message, now)
    if after == before:
        return ""
    body = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": after},
    }
    await client.patch(f"{path}/status", body)
    ready = c.find(before, c.READY)
    return "" if ready is not None and ready.reason == Reason.PERMISSION_DENIED else meta.uid


def _conditions(status: msgspec.Raw) -> tuple[Condition, ...]:
    try:
        return msgspec.json.decode(status, type=_Status).conditions
    except msgspec.ValidationError:
        return ()  # not written by this operator: replaced


def conditions(
    before: tuple[Condition, ...], stopped: Collection[str], generation: int, message: str, now: str
) -> tuple[Condition, ...]:
    """`before` with Ready and `stopped` False and Reconciling True; Stalled goes, since it is retried."""

    def condition(condition_type: str, status: ConditionStatus) -> Condition:
        return Condition(condition_type, status, Reason.PERMISSION_DENIED, message, generation)

    first = condition(c.READY, "False")
    last = [
        *(condition(condition_type, "False") for condition_type in stopped),
        condition(c.RECONCILING, "True"),
    ]
    replaced = {c.STALLED, *(x.type for x in (first, *last))}
    return c.merge(before, [first, *(x for x in before if x.type not in replaced), *last], now)
