"""Says on a custom resource that its pass was stopped by a permission that we lack.

Inputs: a client, the resource's path, the refusal. It touches conditions only: counts and lists stand as the
last whole pass left them, and the next whole pass replaces the conditions, too. Knows no kind.
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


class _Standing(msgspec.Struct):
    metadata: WireMeta
    status: msgspec.Raw = msgspec.Raw(b"{}")


async def show(client: KubeClient, path: str, stopped: Collection[str], error: ApiError, now: str) -> str:
    """Write the conditions unless they stand already; the resource's uid if they are new, else "". `stopped`
    are the types that are False then, beside Ready.

    Raises ApiError: whoever lacks one permission may lack those of this, too.
    """
    standing = await client.get(path, _Standing)
    meta, before = standing.metadata, _conditions(standing.status)
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
        return ()  # written by somebody else: replaced


def conditions(
    before: tuple[Condition, ...], stopped: Collection[str], generation: int, message: str, now: str
) -> tuple[Condition, ...]:
    """`before` with Ready and `stopped` False and Reconciling True; Stalled goes, since it is retried."""

    def denied(kind: str, status: ConditionStatus) -> Condition:
        return Condition(kind, status, Reason.PERMISSION_DENIED, message, generation)

    first = denied(c.READY, "False")
    last = [*(denied(kind, "False") for kind in stopped), denied(c.RECONCILING, "True")]
    replaced = {c.STALLED, *(x.type for x in (first, *last))}
    return c.merge(before, [first, *(x for x in before if x.type not in replaced), *last], now)
