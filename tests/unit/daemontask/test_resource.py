"""Whether a refused dry run says that the template is invalid; what is left of a spec that cannot be read."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from caretaker.api.daemontask import MAX_TEMPLATE_BYTES, LedgerStatus, Spec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.resource import TOO_LARGE, RawTask, by_admission, has_ecs, read_ecs, read_task
from caretaker.kube.errors import ApiError
from unit.daemontask.build import TEMPLATE, entry, failed, node, planned, started

POLICY = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
WEBHOOK = 'admission webhook "pods.example.com" denied the request: no'
INVALID = 'Pod "x" is invalid: spec.containers[0].image: Required value'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ApiError(403, "Forbidden", 'pods "x" is forbidden: exceeded quota'), True, id="a quota"),
        pytest.param(ApiError(422, "Invalid", POLICY), True, id="an admission policy, by default 422"),
        pytest.param(ApiError(400, "", WEBHOOK), True, id="a webhook that answers 400"),
        pytest.param(ApiError(422, "Invalid", INVALID), False, id="a field of the Pod"),
        pytest.param(ApiError(400, "BadRequest", "strict decoding error"), False, id="an unknown field"),
    ],
)
def test_a_refusal_by_admission_is_told_from_an_invalid_pod(error: ApiError, expected: bool) -> None:
    assert by_admission(error) is expected


ECS = {"aws": {"region": "eu-west-1"}, "service": "agent", "events": {"sqsQueueURL": "https://sqs/1/q"}}


def raw(spec: object) -> RawTask:
    body = {"metadata": {"name": "t", "namespace": "ns", "uid": "u"}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(body), type=RawTask)


@pytest.mark.parametrize(
    ("spec", "target", "invalid"),
    [
        pytest.param({"template": {"spec": {"containers": []}}}, False, "", id="a template"),
        pytest.param({"ecs": ECS}, True, "", id="an ECS service"),
        pytest.param({}, False, "spec has neither template nor ecs", id="neither, past the CRD's rules"),
        pytest.param({"ecs": {**ECS, "service": 7}}, True, "at `spec.ecs.service`", id="unreadable"),
        pytest.param({"ecs": "x"}, True, "at `spec.ecs`", id="not even an object"),
    ],
)
def test_whose_a_task_is_and_whether_it_can_be_read(spec: object, target: bool, invalid: str) -> None:
    found = raw(spec)
    assert has_ecs(found) is target
    task, told = read_ecs(found) if target else read_task(found)
    assert (invalid in told) if invalid else (told == "")
    assert (task.spec.ecs is not None) == (target and not invalid)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        pytest.param({"template": {"spec": {"containers": "none"}}}, "spec.template", id="of its template"),
        pytest.param({"backoffLimit": "none"}, "spec.backoffLimit", id="of a number"),
        pytest.param({"template": None}, "spec.template", id="for want of a template"),
    ],
)
def test_a_spec_that_cannot_be_read_keeps_its_other_fields(wrong: dict[str, Any], named: str) -> None:
    good = {"template": {}, "schedule": "0 3 * * *", "runGuarantee": "AtMostOnce"}
    raw = RawTask(WireMeta(name="task"), spec=msgspec.Raw(msgspec.json.encode({**good, **wrong})))
    task, invalid = read_task(raw)
    assert named in invalid
    assert task.spec == Spec(template={}, schedule="0 3 * * *", run_guarantee="AtMostOnce")


WINDOW = {"nodes": 1, "schedule": "0 9 * * *"}


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        pytest.param({"parallelism": "ten"}, "spec.parallelism: 'ten'", id="parallelism in words"),
        pytest.param(
            {"parallelism": "10"}, "spec.parallelism: '10'", id="a number that would be a percentage"
        ),
        pytest.param({"parallelism": ""}, "spec.parallelism: ''", id="parallelism without any"),
        pytest.param(
            {"failurePolicy": {"maxFailedNodes": "x", "action": "Fail"}},
            "spec.failurePolicy.maxFailedNodes: 'x'",
            id="maxFailedNodes in words",
        ),
        pytest.param(
            {"budgets": [WINDOW | {"duration": "1h"}, {"nodes": "²"}]},
            "spec.budgets[1].nodes: '²'",
            id="a budget's nodes",
        ),
        pytest.param(
            {"budgets": [WINDOW | {"duration": "for ever"}]},
            "spec.budgets[0].duration: 'for ever'",
            id="a budget's duration",
        ),
        pytest.param(
            {"parallelism": "ten", "schedule": "never"},
            "'ten' is neither a whole number nor a percentage such as \"10%\"; spec.schedule: ",
            id="beside a schedule that cannot be read either",
        ),
        pytest.param(
            {"parallelism": "ten", "budgets": [WINDOW | {"nodes": "few", "duration": "1h"}]},
            "'ten' is neither a whole number nor a percentage such as \"10%\"; spec.budgets[0].nodes: 'few'",
            id="beside another amount",
        ),
        pytest.param({"parallelism": "ten", "backoffLimit": "3"}, "spec.backoffLimit", id="and a wrong type"),
    ],
)
def test_an_amount_that_an_older_crd_let_in_is_told_and_raises_nothing(
    odd: dict[str, Any], named: str
) -> None:
    """A plan counts with it; what has ended is recorded all the same."""
    given, invalid = read_task(raw({"template": TEMPLATE, **odd}))
    assert named in invalid
    a, b = node("a"), node("b")
    found = planned(given, [a, b], [failed(a)], {"b": entry(b, "Failed")}, invalid=invalid)
    assert (list(found.records), started(found), found.hold) == (["a"], [], "InvalidSpec")


@pytest.mark.parametrize("nodes", [0, 3, "0", "3", "0%", "100%"])
def test_an_amount_as_people_write_it_is_read(nodes: int | str) -> None:
    budget = {"nodes": nodes, "schedule": "0 9 * * *", "duration": "1h30m"}
    share = nodes if isinstance(nodes, int) or nodes.endswith("%") else 1
    spec = {"template": TEMPLATE, "parallelism": share, "budgets": [budget]}
    task, invalid = read_task(raw(spec | {"failurePolicy": {"maxFailedNodes": share}}))
    assert (invalid, task.spec.parallelism, task.spec.budgets[0].nodes) == ("", share, nodes)


LEDGER = {"shards": 2, "recorded": 9, "writes": [4, 5], "doneRun": "r", "doneAt": "2026-01-31T12:00:00Z"}
TOLD = LedgerStatus(2, 9, (4, 5), "r", "2026-01-31T12:00:00Z")


@pytest.mark.parametrize(
    ("status", "ledger"),
    [
        pytest.param({"observedGeneration": "x"}, TOLD, id="a number that is none"),
        pytest.param({"conditions": [{"type": 7}]}, TOLD, id="conditions of another shape"),
        pytest.param(
            {"ledger": {**LEDGER, "writes": "4,5"}},
            structs.replace(TOLD, writes=()),
            id="the counts of writes",
        ),
        pytest.param(
            {"ledger": {**LEDGER, "shards": "two"}},
            structs.replace(TOLD, shards=-1),
            id="the number of shards",
        ),
        pytest.param({"ledger": "two"}, LedgerStatus(shards=-1), id="the ledger as a whole"),
        pytest.param({"ledger": {**LEDGER, "recorded": -1}}, structs.replace(TOLD, recorded=0), id="a count"),
    ],
)
def test_of_a_status_that_cannot_be_read_the_rest_is_and_no_shard_is_forgotten(
    status: dict[str, Any], ledger: LedgerStatus
) -> None:
    given = {"ledger": LEDGER, "lastScheduleTime": "2026-01-31T03:00:00Z", "currentRevision": "r1", **status}
    task, _ = read_task(
        structs.replace(raw({"template": TEMPLATE}), status=msgspec.Raw(msgspec.json.encode(given)))
    )
    assert task.status.ledger == ledger
    assert (task.status.last_schedule_time, task.status.current_revision) == ("2026-01-31T03:00:00Z", "r1")


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("one", ["x", "\u2028", "<", "&", "\\", '"'])
def test_of_a_template_that_is_too_large_nothing_is_made(one: str, beyond: int) -> None:
    """A spec may have 1.5 MiB. Its other fields do not count, nor do the escapes of <, > and &."""
    of: dict[str, Any] = {"spec": {"containers": [{"name": "a", "args": [""]}]}}
    room = MAX_TEMPLATE_BYTES + beyond - len(msgspec.json.encode(of))
    width = len(msgspec.json.encode(one)) - 2
    of["spec"]["containers"][0]["args"][0] = one * (room // width) + "x" * (room % width)
    content = msgspec.json.encode({"template": of, "results": [{"name": "r", "unit": "u" * 1000}]})
    for plain, spelt in ((b"<", b"\\u003c"), (b"&", b"\\u0026")):
        content = content.replace(plain, spelt)
    task, invalid = read_task(RawTask(WireMeta(), msgspec.Raw(content)))
    assert (invalid == TOO_LARGE, task.spec.template == {}) == (bool(beyond), bool(beyond))
    assert task.spec.results[0].name == "r"
    if not beyond:
        assert task.spec.template == of
