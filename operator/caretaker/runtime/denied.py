"""Says on a custom resource that its pass was stopped by a permission that we lack.

Inputs: a client, the resource's path, the refusal. It touches conditions only: counts and lists stand as the
last whole pass left them, and the next whole pass replaces the conditions, too. Knows no kind.
"""

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, Reason
from caretaker.api.objects import WireMeta
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError


class _Status(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class _Standing(msgspec.Struct):
    metadata: WireMeta
    status: msgspec.Raw = msgspec.Raw(b"{}")


async def show(client: KubeClient, path: str, error: ApiError, now: str) -> str:
    """Write the conditions unless they stand already; the resource's uid if they are new, else "".

    Raises ApiError: whoever lacks one permission may lack those of this, too.
    """
    standing = await client.get(path, _Standing)
    meta, before = standing.metadata, _conditions(standing.status)
    after = conditions(before, meta.generation, error.message, now)
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
    before: tuple[Condition, ...], generation: int, message: str, now: str
) -> tuple[Condition, ...]:
    """`before` with Ready and Progressing False and Reconciling True; Stalled goes, since it is retried."""
    denied = {
        c.READY: Condition(c.READY, "False", Reason.PERMISSION_DENIED, message, generation),
        c.PROGRESSING: Condition(c.PROGRESSING, "False", Reason.PERMISSION_DENIED, message, generation),
        c.RECONCILING: Condition(c.RECONCILING, "True", Reason.ROLLING_OUT, message, generation),
    }
    others = [x for x in before if x.type not in denied and x.type != c.STALLED]
    return c.merge(before, [denied[c.READY], *others, denied[c.PROGRESSING], denied[c.RECONCILING]], now)
