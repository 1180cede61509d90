"""The subjects of fuzzing: one call for each decoder and planner of foreign input.

A subject takes a recipe to a call. Its limit is what lets inputs through: the API server (1.5 MiB an
object), SQS (1 MiB), a ConfigMap (1 MiB), S3 (keys of 1,024 bytes), a kubelet (messages of 4 KiB), a CRD.
"""

import logging
import time
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Final

import msgspec

from caretaker.api import durations, times
from caretaker.api.aws import AwsSpec
from caretaker.api.conditions import ObjectRef
from caretaker.api.daemontask import Result, Status
from caretaker.api.grants import Grants, refusals
from caretaker.api.objects import Node, Pod, WireMeta, WireNode, WirePod
from caretaker.api.s3refresh import CostSpec, Filter
from caretaker.cli import manifest
from caretaker.cli.common import CommandError
from caretaker.daemontask import cron_calendar, results
from caretaker.daemontask.bulk import cost_of
from caretaker.daemontask.ecs import instances as ecs_instances
from caretaker.daemontask.ledger import decode_entry
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.pods import PodEncoder, Start, hashes_of, revisions_of
from caretaker.daemontask.resource import RawTask, read_ecs, read_task
from caretaker.daemontask.shard import WireConfigMap, decode
from caretaker.daemontask.task_state import SpecCache
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.imds import probe, selection
from caretaker.imds import resource as imds_resource
from caretaker.imds.instance_ref import instance_ref_of
from caretaker.kube import errors, metadata
from caretaker.kube.errors import error_from
from caretaker.kube.store import Store
from caretaker.obs import log
from caretaker.obs.series import LabelLimiter
from caretaker.runtime.events import cut, event_name
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import costs, envelope, folders, match
from caretaker.s3refresh import plan as refresh_plan
from caretaker.s3refresh import resource as s3_resource
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.targets import registry
from fuzz import answers, fleet, marks, planners, s3samples, samples
from fuzz.cost import SECONDS
from fuzz.making import (
    MIB,
    OBJECT,
    READ_ERRORS,
    Subject,
    of_json,
    of_text,
    planner,
    prepared,
    prepared_text,
    sound,
)

TEMPLATE: Final = 256 * 1024
KEY: Final = 1024
TASKS: Final = 20  # that one Node concerns
META: Final = WireMeta(name="a", namespace="ns", uid="u", resource_version="7")
SHARES: Final = {"media": [Share(f"s{i}", "", "media", "in/" if i % 2 else "") for i in range(12)]}
DECLARED: Final = tuple(Result(f"r{i}", "Text" if i % 2 else "Number") for i in range(8))
EMPTY: Final = msgspec.Raw(b"{}")


def _task(spec: bytes) -> Any:
    return read_task(RawTask(META, msgspec.Raw(sound(spec))))


def _template(content: bytes) -> Any:
    """The task of a template, as a pass has it; None where it is read with a fault."""
    task, invalid = read_task(RawTask(META, msgspec.Raw(b'{"template":' + sound(content) + b"}")))
    return None if invalid else task


def _of_template(call: Callable[[Any], Any], sample: Any = samples.TEMPLATE) -> Subject:
    return Subject(prepared(TEMPLATE - 64, _template, call, sample))


def _pod(task: Any) -> Any:
    return msgspec.json.encode(PodEncoder(META, task.spec, "r").body(Start("n", "u", 1, 1, "k", "", "", "")))


def _watched_tasks(content: bytes) -> Any:
    """A Node of many tasks with this template, before it changes."""
    task = _template(content)
    if task is None:
        return None
    nodes, rules = Store[Node](), EligibilityRules(task.spec.template)
    states = WatchHandlers(nodes, Store[Pod](), lambda *_, **__: None).task_states
    for number in range(TASKS):
        state = states.of(Key("DaemonTask", "ns", str(number)), str(number))
        state.spec = SpecCache(revision="r", rules=copy(rules))
        state.spec.rules._memo = {}
    return nodes


def _changed_node(nodes: Store[Node]) -> Any:
    version = time.monotonic_ns()
    labels = {**fleet.NODE.labels, "version": str(version)}
    nodes.apply(msgspec.structs.replace(fleet.NODE, labels=labels), version)


def _shard(content: bytes) -> Any:
    try:
        data = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (*READ_ERRORS, RecursionError):
        return None
    return WireConfigMap(META, {key[:253]: bytes(one).decode(errors="replace") for key, one in data.items()})


def _cron(expression: str) -> Any:
    found = cron_calendar.read(expression, "Europe/Berlin")
    return found.last(1.8e9), found.after(1.8e9)


def _message(body: bytes) -> Any:
    parsed = envelope.parse(body.decode(errors="surrogatepass"))
    return _matched(parsed.events)


def _parts(content: bytes) -> tuple[msgspec.Raw, msgspec.Raw] | None:
    """Spec and status of an object."""
    try:
        found = msgspec.json.decode(sound(content), type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return None
    return found.get("spec", EMPTY), found.get("status", EMPTY)


def _task_to_plan(content: bytes) -> Any:
    parts = _parts(content)
    task, invalid = read_task(RawTask(META, *parts)) if parts is not None else (None, "")
    return None if task is None or invalid else planners.task(task)


def _policy_to_plan(content: bytes) -> Any:
    parts = _parts(content)
    found = imds_resource.read(imds_resource.RawPolicy(META, *parts)) if parts is not None else None
    return None if found is None or found.spec is None else planners.policy(found)


def _message_to_plan(body: bytes) -> Any:
    try:
        return envelope.parse(body.decode(errors="surrogatepass"))
    except envelope.MalformedError:
        return None


def _key(key: str) -> Any:
    key = key.encode(errors="replace").decode()  # the envelope refuses keys that are not UTF-8
    return _matched([envelope.ObjectEvent("ObjectCreated", "media", f"in/{key}")])


def _matched(events: Iterable[envelope.ObjectEvent]) -> Any:
    matcher = match.EventMatcher(Filter(), SHARES)
    matcher.add(events)
    return matcher.matches()


def _grants(content: bytes) -> Any:
    found = Grants.decode(msgspec.json.decode(content))
    return refusals(
        found, "team-a", AwsSpec("eu-west-1", "arn:aws:iam::1:role/a-b"), {"q": "https://sqs/1/a"}
    )


def _role(arn: str) -> Any:
    grants = Grants.decode(samples.GRANTS)
    return refusals(grants, "team-a", AwsSpec("eu-west-1", arn, endpoint_urls={"sqs": arn}), {"q": arn})


def _log(message: str, formatter: logging.Formatter) -> Any:
    record = logging.makeLogRecord({"msg": message, "levelname": "INFO", "found": {"a": [message]}})
    return formatter.format(record)


def _failure(content: bytes) -> Any:
    error = error_from(422, content, {"Retry-After": "3"})
    forbidden = error_from(403, content)
    return (
        errors.faults_in(error),
        errors.by_admission(error),
        error.conflict,
        forbidden.missing_permission,
        str(error),
    )


def _told(message: str) -> Any:
    ends = ({"name": "main", "state": {"terminated": {"exitCode": 0, "message": message}}},)
    status = {"phase": "Succeeded", "containerStatuses": ends}
    pod = msgspec.convert({"metadata": {"name": "p"}, "status": status}, WirePod).record()
    return results.read(DECLARED, pod)


def _imds(spec: bytes) -> Any:
    return imds_resource.read(imds_resource.RawPolicy(META, msgspec.Raw(sound(spec))))


def _selects(spec: bytes) -> Any:
    mine = _imds(spec)
    groups = [("EKSManagedNodegroup", "apps-" + "a" * 58), ("AutoScalingGroup", "a" * 255)]
    return mine.spec is not None and selection.selects(mine.spec.selector, fleet.NODE.labels, groups)


def _refresh(spec: bytes) -> Any:
    return s3_resource.read(s3_resource.RawRefresh(META, msgspec.Raw(sound(spec))), registry().spec)


def _refresh_status(status: bytes) -> Any:
    """The record of every target, as a pass reads it."""
    found = s3_resource.read(s3_resource.RawRefresh(META, EMPTY, msgspec.Raw(sound(status))), registry().spec)
    cost = found.status.cost
    if cost is not None:
        spec = CostSpec(max_estimated_cost_per_day="2")
        costs.widened(found.options, spec, cost)
        costs.view_of(costs.CostInput(spec, cost, fleet.NOW, complete=False), (), lambda _: None)
    return [s3_resource.decode_target(one, fleet.NOW) for one in found.status.targets]


def _ecs_to_plan(content: bytes) -> Any:
    parts = _parts(content)
    task, invalid = read_ecs(RawTask(META, *parts)) if parts is not None else (None, "")
    return None if task is None or invalid or task.spec.ecs is None else planners.ecs(task)


SUBJECTS: Final[dict[str, Subject]] = {
    "daemontask-spec": Subject(of_json(OBJECT, _task, samples.TASK, schema="daemontasks.spec")),
    "daemontask-ecs": Subject(
        of_json(
            OBJECT,
            lambda spec: read_ecs(RawTask(META, msgspec.Raw(sound(spec)))),
            samples.ECS_TASK,
            schema="daemontasks.spec",
        )
    ),
    "daemontask-status": Subject(
        of_json(
            OBJECT,
            lambda status: read_task(RawTask(META, msgspec.Raw(b"{}"), msgspec.Raw(sound(status)))),
            samples.TASK_STATUS,
            schema="daemontasks.status",
        )
    ),
    "daemontask-plan": planner(
        _task_to_plan,
        planners.planned_task,
        {"spec": samples.PLANNED_TASK, "status": samples.PLANNED_STATUS},
        {"spec": {"template": samples.EVERY_NODE}},
        "daemontasks",
    ),
    "daemontask-revision": _of_template(
        lambda task: revisions_of(task.spec, Status(), hashes_of(task.spec.template))
    ),
    "daemontask-fit": _of_template(lambda task: EligibilityRules(task.spec.template).check(fleet.NODE)),
    "daemontask-pod": _of_template(_pod),
    "daemontask-cost": _of_template(lambda task: cost_of(1, task.spec.template), samples.EMPTY_PARTS),
    "daemontask-empty-fit": _of_template(
        lambda task: EligibilityRules(task.spec.template).check(fleet.NODE), samples.EMPTY_PARTS
    ),
    "daemontask-empty-pod": _of_template(_pod, samples.EMPTY_PARTS),
    "daemontask-events": Subject(prepared(TEMPLATE - 64, _watched_tasks, _changed_node, samples.EMPTY_PARTS)),
    "ledger-shard": Subject(
        prepared(MIB, _shard, lambda item: decode(0, item), {f"n{i}": samples.ENTRY for i in range(8)})
    ),
    "ledger-entry": Subject(
        of_json(MIB, lambda entry: decode_entry(entry.decode(errors="replace")), samples.ENTRY)
    ),
    "results": Subject(of_text(4096, _told)),
    "cron": Subject(of_text(256, _cron), (ValueError,)),
    "durations": Subject(of_text(MIB, durations.seconds), (ValueError,)),
    "times": Subject(of_text(MIB, times.parse_time)),
    "s3-message": Subject(of_json(MIB, _message, samples.S3, samples.BRIDGE, samples.GATEWAY, samples.SNS)),
    "s3-plan": Subject(
        prepared(MIB, _message_to_plan, lambda parsed: planners.refresh(parsed, SHARES), samples.S3)
    ),
    "s3-garbage": Subject(of_text(MIB, envelope.parse)),
    "s3-shares": Subject(prepared_text(KEY - 16, planners.storm, refresh_plan.plan)),
    "s3-records": Subject(prepared_text(KEY - 16, planners.full, refresh_plan.plan)),
    "s3-merge": Subject(prepared_text(KEY - 16, planners.merged, lambda scopes: folders.merge(*scopes))),
    "s3-key": Subject(of_text(KEY - 3, _key)),
    "s3-spec": Subject(of_json(OBJECT, _refresh, s3samples.REFRESH, schema="s3aggregatedrefreshes.spec")),
    "s3-status": Subject(
        of_json(OBJECT, _refresh_status, s3samples.REFRESH_STATUS, schema="s3aggregatedrefreshes.status")
    ),
    "s3-targets": planner(
        _refresh_status,
        planners.targets,
        s3samples.REFRESH_STATUS,
        {},
        "s3aggregatedrefreshes.status",
    ),
    "ecs-plan": planner(
        _ecs_to_plan,
        planners.planned_ecs,
        {"spec": samples.ECS_TASK, "status": samples.ECS_STATUS},
        {"spec": samples.ECS_TASK},
        "daemontasks",
    ),
    **answers.SUBJECTS,
    **marks.SUBJECTS,
    "ecs-message": Subject(
        of_json(MIB, lambda body: ecs_instances.parse(body.decode(errors="replace")), samples.ECS)
    ),
    "ecs-garbage": Subject(of_text(MIB, ecs_instances.parse)),
    "imds-spec": Subject(of_json(OBJECT, _imds, samples.POLICY, schema="imdspolicies.spec")),
    "imds-plan": planner(
        _policy_to_plan,
        planners.planned_policy,
        {"spec": samples.PLANNED_POLICY, "status": samples.POLICY_STATUS},
        {"spec": samples.LEAST_POLICY},
        "imdspolicies",
    ),
    "imds-selector": Subject(of_json(OBJECT, _selects, samples.POLICY, schema="imdspolicies.spec")),
    "imds-provider": Subject(
        of_text(OBJECT, lambda value: instance_ref_of(Node("n", "u", {}, provider_id=value)))
    ),
    "imds-probe": Subject(
        of_json(
            MIB,
            lambda entry: probe.findings([{"n": entry.decode(errors="replace")}], {"n": fleet.NODE}),
            samples.ENTRY,
        )
    ),
    # The file is written by whoever runs the operator, and is read once.
    "grants-file": Subject(of_json(TEMPLATE, _grants, samples.GRANTS), (ValueError,), 1.0),
    "grants-role": Subject(of_text(2048, _role)),
    "redact": Subject(of_text(MIB, log.redact)),
    "log-json": Subject(of_text(MIB, lambda said: _log(said, log.JsonFormatter()))),
    "log-text": Subject(of_text(MIB, lambda said: _log(said, log.TextFormatter(colour=False)))),
    "api-error": Subject(of_json(MIB, _failure, samples.FAILURE)),
    "api-garbage": Subject(of_text(MIB, lambda said: _failure(said.encode(errors="replace")))),
    # 1.5 MiB of labels take msgspec 40 to 60 ms, and the API server seconds.
    "node": Subject(
        of_json(OBJECT, lambda found: msgspec.json.decode(found, type=WireNode).record(), samples.NODE),
        READ_ERRORS,
        2 * SECONDS,
    ),
    "pod": Subject(
        of_json(OBJECT, lambda found: msgspec.json.decode(found, type=WirePod).record(), samples.POD),
        READ_ERRORS,
        2 * SECONDS,
    ),
    "watch-line": Subject(
        of_json(OBJECT, metadata.event_of, {"type": "ADDED", "object": {"metadata": samples.META}}),
        (ValueError,),
    ),
    "event": Subject(
        of_text(
            MIB, lambda said: (cut(said), event_name(ObjectRef("v1", "K", "ns", said[:253], "u"), "k", 1.0))
        )
    ),
    "label": Subject(of_text(MIB, LabelLimiter())),
    # By the command line, of one's own file.
    "manifest": Subject(
        of_text(KEY * 8, lambda file: manifest.read("f", samples.MANIFEST + file)), (CommandError,), 5.0
    ),
}
