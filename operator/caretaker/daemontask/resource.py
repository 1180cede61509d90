"""A DaemonTask as the API server holds it: where it is, how it is read, whether its Pods are accepted.

Inputs: a client and the object. It must not change anything: the check of a template is a dry run.
"""

import contextlib
from typing import Any, Final

import msgspec

from caretaker.api.daemontask import (
    MAX_TEMPLATE_BYTES,
    NOT_KNOWN,
    DaemonTask,
    LedgerStatus,
    Spec,
    Status,
)
from caretaker.api.objects import WireMeta
from caretaker.api.template import wrong_type
from caretaker.daemontask import amounts, ticks
from caretaker.daemontask.bulk import ENTRY
from caretaker.daemontask.pods import Start, build
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import STRICT_DRY_RUN, ApiError, by_admission, faults_in
from caretaker.registry import DAEMON_TASK

KIND: Final = DAEMON_TASK.kind
TOO_LARGE: Final = (
    f"spec.template: is more than {MAX_TEMPLATE_BYTES} bytes as JSON; "
    "move scripts and data into a ConfigMap and mount it"
)
DRY_RUN_NODE: Final = "caretaker-dry-run"


class RawTask(msgspec.Struct):
    """A DaemonTask whose spec has not been judged yet."""

    metadata: WireMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def size_of(raw: RawTask) -> int:
    """Bytes of it that its authors write: the spec, the labels and the annotations, each with ENTRY. A status
    update of a task with 9,000 annotations takes three times the CPU of the API server that one with as many
    bytes of a template takes."""
    marks = (raw.metadata.labels or {}, raw.metadata.annotations or {})
    return len(raw.spec) + sum(len(k) + len(v) + ENTRY for one in marks for k, v in one.items())


def read_task(raw: RawTask) -> tuple[DaemonTask, str]:
    """(the task, why its spec cannot be read or ""). A spec older than a stricter CRD is shown."""
    status = _status(raw.status)
    try:
        spec, invalid = _spec(raw.spec)
    except msgspec.ValidationError as error:
        spec, invalid = _readable(raw.spec), str(error).replace("`$", "`spec")
    if invalid:
        spec = msgspec.structs.replace(spec, template={})
    readable, odd = amounts.readable(spec)
    faults = "; ".join(fault for fault in (odd, ticks.faults_of(spec)) if fault)
    return DaemonTask(raw.metadata, readable, status), invalid or faults


def _spec(raw: msgspec.Raw) -> tuple[Spec, str]:
    """(the spec, the reason why its template is invalid or ""). Raises msgspec.ValidationError."""
    if len(raw) > MAX_TEMPLATE_BYTES and _is_too_large((given := _given(raw)).get("template", b"")):
        rest = {name: part for name, part in given.items() if name != "template"}
        return msgspec.json.decode(msgspec.json.encode(rest), type=Spec), TOO_LARGE
    spec = msgspec.json.decode(raw, type=Spec)
    if not spec.template and spec.ecs is None:  # stored by hand, past the CRD's rules
        return spec, "spec has neither template nor ecs"
    return spec, wrong_type(spec.template)


def _is_too_large(template: msgspec.Raw | bytes) -> bool:
    """Whether the encoded template is too long. The API server escapes <, > and & as \\u003c, \\u003e and
    \\u0026: the extra characters do not count. It is not decoded for this: 1.5 MiB would take 50 ms."""
    text = bytes(template)
    return len(text) - 5 * text.count(b"\\u00") > MAX_TEMPLATE_BYTES


def _status(raw: msgspec.Raw) -> Status:
    """The readable part; a newer version, or a user, may have written the rest. The next write repairs it. An
    unreadable number of shards is never taken for none."""
    try:
        return msgspec.json.decode(raw, type=Status)
    except msgspec.ValidationError:
        found = _parts(raw, Status)
    if "ledger" not in found:
        ledger = _given(raw).get("ledger", msgspec.Raw(b"{}"))
        found["ledger"] = LedgerStatus(**{"shards": NOT_KNOWN, **_parts(ledger, LedgerStatus)})
    return Status(**found)


def _readable(raw: msgspec.Raw) -> Spec:
    """The fields that can be read, but for the template. While another is wrong, runs still end and ticks
    count: by defaults a run might be repeated that may be made only once, and a tick be forgotten."""
    return Spec(**{**_parts(raw, Spec), "template": {}})


def _parts(raw: msgspec.Raw, of: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `of` that can be read, by name."""
    found: dict[str, Any] = {}
    given = _given(raw)
    for field in msgspec.structs.fields(of):
        if field.encode_name in given:
            with contextlib.suppress(msgspec.ValidationError):
                found[field.name] = msgspec.json.decode(given[field.encode_name], type=field.type)
    return found


def _given(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    with contextlib.suppress(msgspec.ValidationError):  # no object at all
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return {}


def has_ecs(raw: RawTask) -> bool:
    """Whether the ECS target is meant, be it readable or not."""
    try:
        return bool(msgspec.json.decode(raw.spec, type=_Target).ecs)
    except msgspec.ValidationError:
        return False


def read_ecs(raw: RawTask) -> tuple[DaemonTask, str]:
    """read_task() of one for which has_ecs() is true; without spec.ecs where its spec cannot be read."""
    task, invalid = read_task(raw)
    suspend = not invalid and task.spec.suspend
    spec = Spec(suspend=suspend) if invalid else task.spec
    return msgspec.structs.replace(task, spec=spec), invalid


class _Target(msgspec.Struct):
    ecs: Any = None


async def refusal_of(client: KubeClient, task: DaemonTask, revision: str) -> str:
    """refusals_of() in one line; "" when there is none."""
    return "; ".join(await refusals_of(client, task, revision))


async def refusals_of(client: KubeClient, task: DaemonTask, revision: str) -> list[str]:
    """Why the API server refuses the template's Pods as invalid, each as `field: reason`.

    A server-side dry-run create: before a rollout it reports faults that CEL cannot see, and their paths.
    Raises ApiError when the server did not judge the Pod: no permission, a quota, an admission policy, no
    answer. None of these says that the spec is invalid, and each may pass later.
    """
    start = Start(DRY_RUN_NODE, "", 0, 1, "", "", "", "DryRun")
    body = build(task.metadata, task.spec, revision, start)
    path = f"/api/v1/namespaces/{task.metadata.namespace}/pods"
    try:
        await client.create(path, body, bytes, params=STRICT_DRY_RUN)
    except ApiError as error:
        if (error.invalid or error.status == 400) and not by_admission(error):
            # Paths as the user wrote them: the Pod's `spec.x` is `spec.template.spec.x` in the task.
            return [
                f"spec.template.{field}: {message}" if field else f"spec.template: {message}"
                for field, message in faults_in(error)
            ]
        raise
    return []
