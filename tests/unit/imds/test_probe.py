"""The probe's DaemonTask, and what its ledger says of each node."""

import json
from typing import Any, get_args

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import MAX_TEMPLATE_BYTES, DaemonTask, Spec
from caretaker.api.objects import Node, Taint, WireMeta
from caretaker.api.template import wrong_type
from caretaker.daemontask.annotation_requests import read_requests
from caretaker.daemontask.ledger import Entry, encode_entry
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.pods import Start, build
from caretaker.daemontask.results import VALUES_BYTES
from caretaker.imds.probe import (
    EMULATED,
    LEDGER_SELECTOR,
    RESULTS,
    TASK_NAME,
    UNKNOWN,
    Finding,
    answered,
    findings,
    fitting,
    needs_write,
    task,
)
from caretaker_probe import __main__ as main
from caretaker_probe import classify

MARK = "2026-01-31T12:00:00Z"
NONCE = "2026-01-31T12:00:00.000000+00:00"
ID = "i-0123456789abcdef0"
A = Node("a", "uid-a", {"kubernetes.io/os": "linux"}, provider_id=f"aws:///eu-west-1a/{ID}", ready=True)
REACHABLE = {"verdict": "Reachable", "latencyMs": 3.5, "neededHops": 2, "imdsv1": "Closed", "instanceId": ID}


def body(**marks: str) -> dict[str, Any]:
    made = task("ops", "registry.example/caretaker:1", marks)
    assert made is not None
    return made


def read(made: dict[str, Any]) -> DaemonTask:
    """As the operator reads it."""
    meta = msgspec.convert(made["metadata"], WireMeta)
    return DaemonTask(meta, msgspec.convert(made["spec"], Spec))


def test_without_nodes_there_is_no_task() -> None:
    assert task("ops", "image", {}) is None


def test_it_selects_the_chosen_nodes_whatever_keeps_others_away() -> None:
    chosen = EligibilityRules(read(body(a="", b="")).spec.template)
    tainted = msgspec.structs.replace(A, taints=(Taint("gpu", "NoSchedule"), Taint("x", "NoExecute")))
    assert chosen.check(tainted).kind == "fits"
    assert chosen.check(msgspec.structs.replace(A, name="c", uid="c")).kind == "excluded"


def test_it_runs_once_and_again_for_a_mark_and_for_nothing_else() -> None:
    made = read(body(b=MARK, a=""))
    assert made.spec.rerun_on == ()
    requests = read_requests(made)
    assert (requests.errors, requests.rerun_nodes) == ((), {"b": NONCE})
    assert made.metadata.name == TASK_NAME


def test_its_pod_has_no_right_of_any_kind() -> None:
    spec = read(body(a="")).spec
    assert wrong_type(spec.template) == ""
    pod = build(WireMeta(name="t", uid="u"), spec, "r", Start("a", "ua", 1, 1, "k", "", "", ""))["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes", "serviceAccountName"} & pod.keys()
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "runAsGroup": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "envFrom" not in container


def test_a_pod_of_many_chosen_nodes_names_its_own_alone() -> None:
    spec = read(body(**{f"n{number}": "" for number in range(200)})).spec
    pod = build(WireMeta(name="t", uid="u"), spec, "r", Start("n7", "u7", 1, 1, "k", "", "", ""))["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    named = {"key": "metadata.name", "operator": "In", "values": ["n7"]}
    assert required == {"nodeSelectorTerms": [{"matchFields": [named]}]}


def test_it_asks_over_the_protocol_that_is_wanted() -> None:
    made = task("ops", "image", {"a": ""}, mode="IPv6")
    assert made is not None
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "value": "IPv6"}]
    assert container["command"] == ["python3", "-m", "caretaker_probe"]


def test_it_asks_nothing_without_a_token_where_ec2_would_count_that() -> None:
    made = task("ops", "image", {"a": ""}, tokenless=False)
    assert made is not None
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["env"][1:] == [{"name": main.IMDSV1, "value": "off"}]


def test_the_whole_task() -> None:
    def term(name: str) -> dict[str, Any]:
        return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}

    made = body(b=MARK, a="")
    template = made["spec"].pop("template")
    assert made == {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {
            "name": TASK_NAME,
            "namespace": "ops",
            "labels": {"app.kubernetes.io/managed-by": "caretaker"},
            "annotations": {"caretaker.dev/rerun-nodes": f'{{"b":"{MARK}"}}'},
        },
        "spec": {
            "rerunOn": [],
            "parallelism": 20,
            "backoffLimit": 1,
            "failurePolicy": {"maxFailedNodes": "100%", "action": "Continue"},
            "activeDeadlineSeconds": 60,
            "progressDeadlineSeconds": 600,
            "ttlSecondsAfterFinished": 300,
            "results": list(RESULTS),
        },
    }
    pod = template.pop("spec")
    assert template == {"metadata": {"labels": {"app.kubernetes.io/name": TASK_NAME}}}
    (container,) = pod.pop("containers")
    del pod["securityContext"], container["securityContext"]
    affinity = pod.pop("affinity")
    assert affinity == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term("a"), term("b")]}
        }
    }
    assert pod == {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
    }
    assert container == {
        "name": "probe",
        "image": "registry.example/caretaker:1",
        "command": ["python3", "-m", "caretaker_probe"],
        "env": [{"name": "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "value": "IPv4"}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
    }


def test_its_results_are_what_the_probe_writes() -> None:
    longest = max(get_args(classify.Verdict), key=len)
    found = classify.Finding(longest, "", 12345.67, 8, "Closed", "i" * 64).as_json()
    assert [result["name"] for result in RESULTS] == [name for name in found if name != "detail"]
    for result in RESULTS:
        assert isinstance(found[result["name"]], str) == (result["type"] == "Text")
    del found["detail"]
    assert len(msgspec.json.encode(found)) < VALUES_BYTES


def test_the_selector_finds_its_ledger() -> None:
    assert f"caretaker.dev/ledger,caretaker.dev/daemontask={TASK_NAME}" == LEDGER_SELECTOR


def stored(**spec: Any) -> dict[str, Any]:
    """The task of node a as the API server has it, with changes of its spec."""
    made: dict[str, Any] = json.loads(json.dumps(body(a="")))
    return {**made, "status": {"observedGeneration": 1}, "spec": {**made["spec"], **spec}}


@pytest.mark.parametrize(
    ("current", "needed"),
    [
        pytest.param(stored(), False, id="the same"),
        pytest.param(stored(suspend=False), False, id="a default that the server added"),
        pytest.param(None, True, id="nothing"),
        pytest.param(stored(parallelism=1), True, id="another value"),
        pytest.param(stored(results=[]), True, id="results that were removed"),
        pytest.param({"metadata": stored()["metadata"]}, True, id="a part is missing"),
        pytest.param(body(a="", b=""), True, id="a node too many"),
        pytest.param(body(a=MARK), True, id="another mark"),
    ],
)
def test_a_write_is_needed_for_a_difference_only(current: Any, needed: bool) -> None:
    assert needs_write(current, body(a="")) == needed


def shard(results: dict[str, Any] | None = None, node: str = "a", **changes: Any) -> dict[str, str]:
    """A ledger's data, as DaemonTask writes it."""
    entry = Entry("uid-a", "r", "k", "Succeeded", 1, nonce=NONCE, finished_at=1000, results=results)
    return {node: encode_entry(msgspec.structs.replace(entry, **changes))}


@pytest.mark.parametrize(
    ("shards", "found"),
    [
        pytest.param(
            [shard(REACHABLE)],
            Finding("Reachable", 1000, NONCE, 3.5, 2, "Closed"),
            id="a place that is reached",
        ),
        pytest.param(
            [shard({"verdict": "HopLimited", "neededHops": 3, "imdsv1": "Open"})],
            Finding("HopLimited", 1000, NONCE, None, 3, "Open"),
            id="what was not measured is not there",
        ),
        pytest.param(
            [shard({**REACHABLE, "instanceId": "i-1"})],
            Finding(EMULATED, 1000, NONCE, detail=f"it reports instance i-1, the node is {ID}"),
            id="another instance answers",
        ),
        pytest.param(
            [shard(None, result="Failed", reason="DeadlineExceeded", message="too long")],
            Finding(UNKNOWN, 1000, NONCE, detail="DeadlineExceeded: too long"),
            id="the run failed",
        ),
        pytest.param(
            [shard(REACHABLE, seq=1), shard({"verdict": "Blocked"}, seq=2)],
            Finding("Blocked", 1000, NONCE),
            id="of two entries that with the higher seq",
        ),
        pytest.param(
            [shard({"verdict": "Blocked"}, seq=2), shard(REACHABLE, seq=1)],
            Finding("Blocked", 1000, NONCE),
            id="whichever comes first",
        ),
        pytest.param(
            [{**shard(REACHABLE, node="gone"), "b": "{", **shard(REACHABLE)}],
            Finding("Reachable", 1000, NONCE, 3.5, 2, "Closed"),
            id="beside one that is gone and one that cannot be read",
        ),
        pytest.param(
            [shard(None, result="Failed", message="too long")],
            Finding(UNKNOWN, 1000, NONCE, detail="too long"),
            id="the run failed without a reason",
        ),
        pytest.param(
            [shard(None, result="Failed")],
            Finding(UNKNOWN, 1000, NONCE, detail="the probe failed"),
            id="the run failed, and nothing is told",
        ),
        pytest.param([shard(REACHABLE, node_uid="earlier")], None, id="the node was replaced"),
        pytest.param([shard(REACHABLE, node="gone")], None, id="a node that is gone"),
        pytest.param([{"a": "{"}], None, id="an entry that cannot be read"),
        pytest.param([{"a": "[" * 100_000}], None, id="an entry that nests without end"),
        pytest.param([], None, id="no ledger yet"),
    ],
)
def test_findings(shards: list[dict[str, str]], found: Finding | None) -> None:
    assert findings(shards, {"a": A}) == ({"a": found} if found else {})


@pytest.mark.parametrize("results", [None, {}, {"verdict": 3}, {"verdict": "Reachable", "neededHops": "two"}])
def test_results_that_are_none_are_no_verdict(results: Any) -> None:
    found = findings([shard(results)], {"a": A})["a"]
    assert (found.verdict, found.at, found.mark) == (UNKNOWN, 1000, NONCE)
    assert found.detail.startswith("the probe reported nothing of use: ")


def test_a_node_without_a_known_instance_is_compared_with_none() -> None:
    anywhere = msgspec.structs.replace(A, provider_id="")
    assert findings([shard({**REACHABLE, "instanceId": "i-1"})], {"a": anywhere})["a"].verdict == "Reachable"


@pytest.mark.parametrize(
    ("mark", "done"),
    [("", True), (MARK, True), ("2026-01-31T11:59:59Z", True), ("2026-01-31T12:00:00.000001Z", False)],
)
def test_a_finding_answers_marks_up_to_its_own(mark: str, done: bool) -> None:
    assert answered(Finding("Blocked", 1000, NONCE), mark) == done
    assert not answered(None, mark)


def test_names_are_those_of_the_code() -> None:
    assert names.RERUN_NODES in body(a="")["metadata"]["annotations"]
    assert EMULATED in get_args(classify.Verdict)
    assert UNKNOWN not in get_args(classify.Verdict)


MANY = [f"ip-10-{n >> 8}-{n & 255}-100.eu-west-1.compute.internal" for n in range(5000)]


@pytest.mark.parametrize("every", [MANY, [f"{n:05d}{'n' * 248}" for n in range(2000)]], ids=["many", "long"])
def test_the_task_fits_into_the_api_whatever_is_asked_for(every: list[str]) -> None:
    kept = fitting(dict.fromkeys(every, NONCE), (), {})
    made = task("ops", "image", kept)
    assert made is not None
    template = len(json.dumps(made["spec"]["template"], separators=(",", ":")))
    annotation = len(made["metadata"]["annotations"][names.RERUN_NODES])
    assert template < MAX_TEMPLATE_BYTES
    assert annotation < 256 * 1024
    assert len(kept) > 300
    assert fitting(dict.fromkeys(every[:300], NONCE), (), {}).keys() == set(every[:300])


def test_a_task_names_nodes_with_their_marks_up_to_128_kib_of_names() -> None:
    """A term takes 80 bytes beside the name of its node."""
    marks = dict.fromkeys((f"{n:048d}" for n in range(1025)), NONCE)
    assert fitting(marks, (), {}) == dict.fromkeys(list(marks)[:1024], NONCE)


def test_canaries_come_first_then_who_has_waited_longest_then_who_is_answered() -> None:
    """Of the answered the ledger knows; all the others have their turn as these are answered."""
    marks = dict.fromkeys(MANY, NONCE)
    early = "2026-01-31T11:00:00.000000+00:00"
    marks[MANY[-2]] = early
    kept = fitting(marks, {MANY[-1]}, {})
    assert list(kept)[:3] == [MANY[-1], MANY[-2], MANY[0]]
    found, turns = dict[str, Finding](), 0
    while len(found) < len(marks):
        named = fitting(marks, (), found)
        assert len(named) > 1000, "as many as there is room for"
        found |= {name: Finding("Reachable", 1.0, NONCE) for name in named}
        turns += 1
    assert turns == 5, "nobody twice before all others"
    assert next(iter(fitting(marks, (), found))) == MANY[0], "the answered by name, whenever they were asked"
    asked = {**marks, MANY[7]: "2026-01-31T13:00:00.000000+00:00"}
    assert next(iter(fitting(asked, {MANY[-1]}, found))) == MANY[7], (
        "a canary that is answered waits for nothing"
    )
