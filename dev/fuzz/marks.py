"""Subjects: the metadata of each kind's resources, as their authors write it.

Annotations are 256 KiB at the most. Ours are made of their own parts of a sample, so that recipes make many
of them: names under our prefix, and the nodes, or folders, in the one that holds JSON.
"""

from typing import Any, Final

import msgspec

from caretaker.api import names, times
from caretaker.api.daemontask import DaemonTask, Spec
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import RequestsStatus
from caretaker.daemontask.pods import Start, build
from caretaker.imds import resource as imds_resource
from caretaker.s3refresh import resource as s3_resource
from caretaker.s3refresh.annotation_requests import read_requests
from caretaker.s3refresh.targets import registry
from fuzz import fleet, planners, samples
from fuzz.making import READ_ERRORS, Subject, prepared, sound

ANNOTATIONS: Final = 256 * 1024
NODES: Final = 20
EMPTY: Final = msgspec.Raw(b"{}")
SPEC: Final = Spec(template=samples.EVERY_NODE)
START: Final = Start("n", "u", 1, 1, "k", "", "", "")


class _Marked(msgspec.Struct):
    metadata: WireMeta = msgspec.field(default_factory=WireMeta)
    ours: dict[str, str] = {}
    nodes: msgspec.Raw = msgspec.Raw(b"{}")


def _meta(content: bytes) -> WireMeta | None:
    try:
        found = msgspec.json.decode(sound(content), type=_Marked)
    except (*READ_ERRORS, RecursionError):
        return None
    ours = {f"{names.GROUP}/{name}"[:77]: value for name, value in found.ours.items()}
    nodes = dict.fromkeys(
        (names.RERUN_NODES, names.REFRESH_FOLDERS), bytes(found.nodes).decode(errors="replace")
    )
    annotations = {**(found.metadata.annotations or {}), **nodes, **ours}
    return msgspec.structs.replace(found.metadata, annotations=annotations)


def _task(content: bytes) -> Any:
    meta = _meta(content)
    if meta is None:
        return None
    some = {name: fleet.BY_NAME[name] for name in list(fleet.BY_NAME)[:NODES]}
    return msgspec.structs.replace(planners.task(DaemonTask(meta, SPEC)), nodes=some, pods={})


def _planned(snapshot: Any) -> Any:
    meta = snapshot.task.metadata
    return build(meta, SPEC, "r", START), planners.planned_task(snapshot)


def _refresh(meta: WireMeta) -> Any:
    read = s3_resource.read(s3_resource.RawRefresh(meta, EMPTY), registry().spec)
    return read.active, read.flushing, read_requests(meta, RequestsStatus(times.format_time(0)), 1.8e9)


def _policy(meta: WireMeta) -> Any:
    read = imds_resource.read(imds_resource.RawPolicy(meta, EMPTY))
    return read.policy(), times.parse_time((meta.annotations or {}).get(names.RESUME_AT))


SUBJECTS: Final[dict[str, Subject]] = {
    "daemontask-metadata": Subject(prepared(ANNOTATIONS, _task, _planned, *samples.MARKED)),
    "s3-metadata": Subject(prepared(ANNOTATIONS, _meta, _refresh, *samples.MARKED)),
    "imds-metadata": Subject(prepared(ANNOTATIONS, _meta, _policy, *samples.MARKED)),
}
