"""The subjects of fuzzing: one call for each decoder and planner of foreign input.

A subject takes a recipe to a call. Its limit is what lets inputs through: the API server (1.5 MiB an
object), SQS (1 MiB), a ConfigMap (1 MiB), S3 (keys of 1,024 bytes), a kubelet (messages of 4 KiB), a CRD.
"""

import logging
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from caretaker.api import durations, times
from caretaker.api.aws import AwsSpec
from caretaker.api.daemontask import Result, Status
from caretaker.api.events import ObjectRef
from caretaker.api.grants import Grants, refusals
from caretaker.api.objects import Node, WireMeta, WireNode, WirePod
from caretaker.api.s3refresh import Filter, SQSSource
from caretaker.aws.answers import fault_of
from caretaker.cli import manifest
from caretaker.cli.common import Failure
from caretaker.daemontask import calendar, results
from caretaker.daemontask.ecs import envelope as ecs_envelope
from caretaker.daemontask.fit import NodeFit
from caretaker.daemontask.ledger import decode_entry
from caretaker.daemontask.pods import PodEncoder, Start, hashes_of, revisions_of
from caretaker.daemontask.resource import RawTask, read_ecs, read_task
from caretaker.daemontask.shard import WireConfigMap, decode
from caretaker.imds import probe, select
from caretaker.imds import resource as imds_resource
from caretaker.imds.inventory import cluster_tag, seen_of
from caretaker.imds.place import place_of
from caretaker.kube import dryrun, metadata
from caretaker.kube.errors import error_from
from caretaker.obs import log
from caretaker.obs.bounded import Bounded
from caretaker.runtime.events import cut, event_name
from caretaker.s3refresh import envelope, match, queue
from caretaker.s3refresh import resource as s3_resource
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.targets.making import known
from fuzz import fleet, planners, samples
from fuzz.cost import SECONDS
from fuzz.inputs import Recipe, built, count, encoded, fitted, text

OBJECT: Final = 3 << 19  # bytes of an object in etcd
MIB: Final = 1 << 20
TEMPLATE: Final = 256 * 1024
KEY: Final = 1024
CRDS: Final = Path(__file__).parents[2] / "crds"
META: Final = WireMeta(name="a", namespace="ns", uid="u", resource_version="7")
SHARES: Final = {"media": [Share(f"s{i}", "", "media", "in/" if i % 2 else "") for i in range(12)]}
DECLARED: Final = tuple(Result(f"r{i}", "Text" if i % 2 else "Number") for i in range(8))
EMPTY: Final = msgspec.Raw(b"{}")
READ_ERRORS: Final = (msgspec.ValidationError, msgspec.DecodeError, UnicodeError)

Call = Callable[[], Any]


class Inputs(msgspec.Struct, frozen=True):
    """Calls of recipes."""

    make: Callable[[Recipe], tuple[Call, int]]  # (the call, bytes of its input)
    places: int = 0  # of the samples; 0: a text


class Subject(msgspec.Struct, frozen=True):
    """One call. `typed`: errors that its callers expect; `seconds`: CPU time that it may take, beyond that of
    `base`, which does the same for the least input."""

    inputs: Inputs
    typed: tuple[type[Exception], ...] = ()
    seconds: float = SECONDS
    base: Call | None = None


def _text(limit: int, call: Callable[[str], Any]) -> Inputs:
    def make(recipe: Recipe) -> tuple[Call, int]:
        made = text(recipe, limit)
        return partial(call, made), len(made)

    return Inputs(make)


def _json(limit: int, call: Callable[[bytes], Any], *of: Any, schema: str = "") -> Inputs:
    """Inputs of one of these samples, within the bounds of `schema`: a CRD, or its spec or status."""

    def make(recipe: Recipe) -> tuple[Call, int]:
        made = built(of, recipe, limit)
        content = encoded(fitted(made, _schema(schema)) if schema else made)[:limit]
        return partial(call, content), len(content)

    return Inputs(make, count(of))


@cache
def _schema(name: str) -> Any:
    plural, _, part = name.partition(".")
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    whole = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return whole["properties"][part] if part else whole


def _task(spec: bytes) -> Any:
    return read_task(RawTask(META, msgspec.Raw(_sound(spec))))


def _template(content: bytes) -> Any:
    """The task of a template, as a pass has it; None where it is read with a fault."""
    task, invalid = read_task(RawTask(META, msgspec.Raw(b'{"template":' + _sound(content) + b"}")))
    return None if invalid else task


def _sound(content: bytes) -> bytes:
    """JSON as the API server hands it out: what was cut is none."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return b"{}"
    return content


def _prepared(
    limit: int, prepare: Callable[[bytes], Any], call: Callable[[Any], Any], sample: Any, schema: str = ""
) -> Inputs:
    """What `prepare` makes of the input is not judged: it is another subject's, or nobody's."""
    raw = _json(limit, prepare, sample, schema=schema)

    def make(recipe: Recipe) -> tuple[Call, int]:
        prepared, size = raw.make(recipe)
        found = prepared()
        return (lambda: None) if found is None else partial(call, found), size

    return Inputs(make, raw.places)


def _of_template(call: Callable[[Any], Any]) -> Subject:
    return Subject(_prepared(TEMPLATE, _template, call, samples.TEMPLATE))


def _pod(task: Any) -> Any:
    return msgspec.json.encode(PodEncoder(META, task.spec, "r").body(Start("n", "u", 1, 1, "k", "", "", "")))


def _shard(content: bytes) -> Any:
    try:
        data = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (*READ_ERRORS, RecursionError):
        return None
    return WireConfigMap(META, {key[:253]: bytes(one).decode(errors="replace") for key, one in data.items()})


def _cron(expression: str) -> Any:
    found = calendar.read(expression, "Europe/Berlin")
    return found.last(1.8e9), found.after(1.8e9)


def _message(body: bytes) -> Any:
    parsed = envelope.parse(body.decode(errors="surrogatepass"))
    return _matched(parsed.events)


def _planner(
    prepare: Callable[[bytes], Any], call: Callable[[Any], Any], sample: Any, least: Any, schema: str
) -> Subject:
    """A pass over many nodes. That of `least` shows what the nodes cost, the others what an input adds."""

    @cache
    def prepared() -> Any:
        return prepare(encoded(least))

    return Subject(_prepared(OBJECT, prepare, call, sample, schema), base=lambda: call(prepared()))


def _parts(content: bytes) -> tuple[msgspec.Raw, msgspec.Raw] | None:
    """Spec and status of an object."""
    try:
        found = msgspec.json.decode(_sound(content), type=dict[str, msgspec.Raw])
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
        dryrun.faults_in(error),
        dryrun.by_admission(error),
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
    return imds_resource.read(imds_resource.RawPolicy(META, msgspec.Raw(_sound(spec))))


def _selects(spec: bytes) -> Any:
    mine = _imds(spec)
    groups = [("EKSManagedNodegroup", "apps-" + "a" * 58), ("AutoScalingGroup", "a" * 255)]
    return mine.spec is not None and select.selects(mine.spec.selector, fleet.NODE.labels, groups)


def _refresh(spec: bytes) -> Any:
    return s3_resource.read(s3_resource.RawRefresh(META, msgspec.Raw(_sound(spec))), known().spec)


def _answer(operation: str, read: Callable[[Any], Any], sample: Any) -> Subject:
    """A response of AWS, as botocore has parsed it."""

    def call(content: bytes) -> Any:
        answer = msgspec.json.decode(content)
        return None if fault_of(operation, answer) else read(answer)

    return Subject(_json(MIB, call, sample), (*READ_ERRORS, RecursionError))


def _instances(answer: Any) -> Any:
    every = [one for group in answer["Reservations"] for one in group["Instances"]]
    return [seen_of(one, 1.0) for one in every], cluster_tag(every)


def _attributes(answer: Any) -> Any:
    found = answer["Attributes"]
    return queue.view_of(found, SQSSource("https://sqs/1/a"), None), queue.dead_letter_queue(found)


def _watched(line: bytes) -> Any:
    return metadata.shallow(metadata.read(line.decode(errors="replace")))


SUBJECTS: Final[dict[str, Subject]] = {
    "daemontask-spec": Subject(_json(OBJECT, _task, samples.TASK, schema="daemontasks.spec")),
    "daemontask-ecs": Subject(
        _json(
            OBJECT,
            lambda spec: read_ecs(RawTask(META, msgspec.Raw(_sound(spec)))),
            {
                "ecs": {
                    "aws": {"region": "r"},
                    "service": "s",
                    "clusters": ["a"],
                    "events": {"sqsQueueURL": "q"},
                }
            },
            schema="daemontasks.spec",
        )
    ),
    "daemontask-status": Subject(
        _json(
            OBJECT,
            lambda status: read_task(RawTask(META, msgspec.Raw(b"{}"), msgspec.Raw(_sound(status)))),
            samples.TASK_STATUS,
            schema="daemontasks.status",
        )
    ),
    "daemontask-plan": _planner(
        _task_to_plan,
        planners.planned_task,
        {"spec": samples.PLANNED_TASK, "status": samples.PLANNED_STATUS},
        {"spec": {"template": samples.EVERY_NODE}},
        "daemontasks",
    ),
    "daemontask-revision": _of_template(
        lambda task: revisions_of(task.spec, Status(), hashes_of(task.spec.template))
    ),
    "daemontask-fit": _of_template(lambda task: NodeFit(task.spec.template).verdict(fleet.NODE)),
    "daemontask-pod": _of_template(_pod),
    "ledger-shard": Subject(
        _prepared(MIB, _shard, lambda item: decode(0, item), {f"n{i}": samples.ENTRY for i in range(8)})
    ),
    "ledger-entry": Subject(
        _json(MIB, lambda entry: decode_entry(entry.decode(errors="replace")), samples.ENTRY)
    ),
    "results": Subject(_text(4096, _told)),
    "cron": Subject(_text(256, _cron), (ValueError,)),
    "durations": Subject(_text(MIB, durations.seconds), (ValueError,)),
    "times": Subject(_text(MIB, times.parse_time)),
    "s3-message": Subject(_json(MIB, _message, samples.S3, samples.BRIDGE, samples.GATEWAY, samples.SNS)),
    "s3-plan": Subject(
        _prepared(MIB, _message_to_plan, lambda parsed: planners.refresh(parsed, SHARES), samples.S3)
    ),
    "s3-garbage": Subject(_text(MIB, envelope.parse)),
    "s3-key": Subject(_text(KEY - 3, _key)),
    "s3-spec": Subject(_json(OBJECT, _refresh, samples.REFRESH, schema="s3aggregatedrefreshes.spec")),
    "ecs-message": Subject(
        _json(MIB, lambda body: ecs_envelope.parse(body.decode(errors="replace")), samples.ECS)
    ),
    "ecs-garbage": Subject(_text(MIB, ecs_envelope.parse)),
    "imds-spec": Subject(_json(OBJECT, _imds, samples.POLICY, schema="imdspolicies.spec")),
    "imds-plan": _planner(
        _policy_to_plan,
        planners.planned_policy,
        {"spec": samples.PLANNED_POLICY, "status": samples.POLICY_STATUS},
        {"spec": samples.LEAST_POLICY},
        "imdspolicies",
    ),
    "imds-selector": Subject(_json(OBJECT, _selects, samples.POLICY, schema="imdspolicies.spec")),
    "imds-provider": Subject(_text(OBJECT, lambda told: place_of(Node("n", "u", {}, provider_id=told)))),
    "imds-probe": Subject(
        _json(
            MIB,
            lambda entry: probe.findings([{"n": entry.decode(errors="replace")}], {"n": fleet.NODE}),
            samples.ENTRY,
        )
    ),
    "aws-instances": _answer("DescribeInstances", _instances, samples.INSTANCES),
    "aws-queue": _answer("GetQueueAttributes", _attributes, samples.QUEUE),
    # The file is written by whoever runs the operator, and is read once.
    "grants-file": Subject(_json(TEMPLATE, _grants, samples.GRANTS), (ValueError,), 1.0),
    "grants-role": Subject(_text(2048, _role)),
    "redact": Subject(_text(MIB, log.redact)),
    "log-json": Subject(_text(MIB, lambda said: _log(said, log.JsonFormatter()))),
    "log-text": Subject(_text(MIB, lambda said: _log(said, log.TextFormatter(colour=False)))),
    "api-error": Subject(_json(MIB, _failure, samples.FAILURE)),
    "api-garbage": Subject(_text(MIB, lambda said: _failure(said.encode(errors="replace")))),
    "node": Subject(
        _json(OBJECT, lambda found: msgspec.json.decode(found, type=WireNode).record(), samples.NODE),
        READ_ERRORS,
    ),
    "pod": Subject(
        _json(OBJECT, lambda found: msgspec.json.decode(found, type=WirePod).record(), samples.POD),
        READ_ERRORS,
    ),
    # In a thread of its own (kopf's).
    "watch-line": Subject(
        _json(OBJECT, _watched, {"type": "ADDED", "object": {"metadata": samples.META}}), (ValueError,), 2.0
    ),
    "event": Subject(
        _text(
            MIB, lambda said: (cut(said), event_name(ObjectRef("v1", "K", "ns", said[:253], "u"), "k", 1.0))
        )
    ),
    "label": Subject(_text(MIB, Bounded())),
    # By the command line, of one's own file.
    "manifest": Subject(
        _text(KEY * 8, lambda file: manifest.read("f", samples.MANIFEST + file)), (Failure,), 5.0
    ),
}
