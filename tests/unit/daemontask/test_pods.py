"""The Pod of a run: what is asked of the API server, and names that no release may change."""

import time
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api import names
from caretaker.api.daemontask import Spec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.node_eligibility import DEFAULT_TOLERATIONS
from caretaker.daemontask.pods import (
    PodEncoder,
    Start,
    build,
    owner_reference,
    pod_name,
    revision_of,
    run_key,
    tick_of,
)
from unit.daemontask.build import node, pod

TASK = WireMeta(name="my.task", namespace="ops", uid="u-1")
START = Start(
    node_name="n1", node_uid="nu-1", seq=3, attempt=2, run_key="key", nonce="", boot_id="b", trigger="Retry"
)
HERE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
PINNED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [HERE]}]}}
ENV: list[dict[str, Any]] = [
    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "DAEMONTASK_RUN_KEY", "value": "key"},
    {"name": "DAEMONTASK_ATTEMPT", "value": "2"},
]
NAME, ENV_KEY, ATTEMPT = ENV
MAIN = {"name": "main", "image": "busybox"}


def body(template: dict[str, Any] | None = None, start: Start = START, **spec: Any) -> dict[str, Any]:
    return build(TASK, Spec(template=template or {"spec": {"containers": [MAIN]}}, **spec), "rev", start)


def pod_spec(**of: Any) -> dict[str, Any]:
    found: dict[str, Any] = body({"spec": of})["spec"]
    return found


def test_the_whole_pod() -> None:
    template = {
        "metadata": {
            "labels": {"app": "x", names.LABEL_TASK: "other"},
            "annotations": {"note": "y", names.POD_SEQ: "9"},
        },
        "spec": {"containers": [MAIN], "priorityClassName": "high"},
    }
    assert body(template) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "my-task-52mxp5oouu-3",
            "namespace": "ops",
            "labels": {
                "app": "x",
                "app.kubernetes.io/managed-by": "caretaker",
                "caretaker.dev/daemontask": "my.task",
                "caretaker.dev/node-hash": "m5vyxocm44",
                "caretaker.dev/revision": "rev",
            },
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
                "note": "y",
                "caretaker.dev/node-name": "n1",
                "caretaker.dev/node-uid": "nu-1",
                "caretaker.dev/run-key": "key",
                "caretaker.dev/nonce": "",
                "caretaker.dev/boot-id": "b",
                "caretaker.dev/trigger": "Retry",
                "caretaker.dev/attempt": "2",
                "caretaker.dev/seq": "3",
            },
            "ownerReferences": [
                {
                    "apiVersion": "caretaker.dev/v1alpha1",
                    "kind": "DaemonTask",
                    "name": "my.task",
                    "uid": "u-1",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "priorityClassName": "high",
            "restartPolicy": "Never",
            "affinity": {"nodeAffinity": PINNED},
            "tolerations": [*DEFAULT_TOLERATIONS],
            "containers": [{**MAIN, "env": ENV}],
        },
    }


def test_what_a_schedule_adds() -> None:
    ticked = Start("n1", "nu-1", 3, 2, "key", "x", "", "Schedule", tick=1769860800)
    marks = body(start=ticked)["metadata"]["annotations"]
    assert marks["caretaker.dev/scheduled-at"] == "2026-01-31T12:00:00Z"
    assert (marks["caretaker.dev/nonce"], marks["caretaker.dev/trigger"]) == ("x", "Schedule")


def test_the_template_may_let_the_autoscaler_wait() -> None:
    meta = {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}
    marks = body({"metadata": meta, "spec": {"containers": [MAIN]}})["metadata"]["annotations"]
    assert marks["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


@pytest.mark.parametrize(
    "template",
    [{"spec": {}}, {"metadata": None, "spec": None}, {"metadata": {"labels": None, "annotations": None}}],
)
def test_what_a_template_lacks_is_no_fault_of_the_operator(template: dict[str, Any]) -> None:
    found = body(template)
    assert len(found["metadata"]["labels"]) == 4
    assert set(found["spec"]) == {"restartPolicy", "affinity", "tolerations"}


def test_the_template_is_left_as_it_is() -> None:
    template = {"spec": {"containers": [dict(MAIN)], "tolerations": [{"operator": "Exists"}]}}
    body(template, active_deadline_seconds=60)
    assert template == {"spec": {"containers": [MAIN], "tolerations": [{"operator": "Exists"}]}}


def test_what_the_template_says_itself_stands() -> None:
    own = {"restartPolicy": "OnFailure", "activeDeadlineSeconds": 5}
    found = body({"spec": own}, active_deadline_seconds=60)["spec"]
    assert (found["restartPolicy"], found["activeDeadlineSeconds"]) == ("OnFailure", 5)
    assert body({"spec": {}}, active_deadline_seconds=60)["spec"]["activeDeadlineSeconds"] == 60
    empty = body({"spec": {"restartPolicy": "", "activeDeadlineSeconds": None}}, active_deadline_seconds=60)
    assert (empty["spec"]["restartPolicy"], empty["spec"]["activeDeadlineSeconds"]) == ("Never", 60)


def test_its_tolerations_come_first() -> None:
    assert pod_spec(tolerations=[{"key": "k"}])["tolerations"] == [{"key": "k"}, *DEFAULT_TOLERATIONS]
    assert pod_spec(hostNetwork=True)["tolerations"][-1]["key"] == "node.kubernetes.io/network-unavailable"


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_every_container_is_told_of_its_run(group: str) -> None:
    """Ours come before its own, which may refer to them; a name that it has taken stays its own."""
    own = [
        {"name": "X", "value": "$(NODE_NAME)"},
        {"name": "DAEMONTASK_RUN_KEY", "value": "mine"},
        {"value": "odd"},
    ]
    found = pod_spec(**{group: [{"name": "a", "env": own}, {"name": "b", "env": None}]})[group]
    assert found == [{"name": "a", "env": [NAME, ATTEMPT, *own]}, {"name": "b", "env": ENV}]


# ---------------------------------------------------------------- the node

LABEL = {"key": "gpu", "operator": "Exists"}
OTHER = {"key": "zone", "operator": "In", "values": ["a"]}
ANY_NAME = {"key": "metadata.name", "operator": "NotIn", "values": ["z"]}


def affinity(required: Any, **more: Any) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required, **more}}


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        pytest.param(None, [{"matchFields": [HERE]}], id="no affinity"),
        pytest.param({"nodeAffinity": None}, [{"matchFields": [HERE]}], id="no node affinity"),
        pytest.param(affinity(None), [{"matchFields": [HERE]}], id="nothing required"),
        pytest.param(
            affinity({"nodeSelectorTerms": [{"matchExpressions": [LABEL]}]}),
            [{"matchExpressions": [LABEL], "matchFields": [HERE]}],
            id="what is required stays",
        ),
        pytest.param(
            affinity({"nodeSelectorTerms": [{"matchExpressions": [LABEL], "matchFields": [ANY_NAME]}]}),
            [{"matchExpressions": [LABEL], "matchFields": [HERE]}],
            id="names give way to the name",
        ),
        pytest.param(
            affinity({"nodeSelectorTerms": [{"matchFields": [HERE]}, {"matchFields": [ANY_NAME]}]}),
            [{"matchFields": [HERE]}],
            id="terms that become the same are one",
        ),
        pytest.param(
            affinity({"nodeSelectorTerms": [{"matchExpressions": [LABEL]}, {"matchFields": [ANY_NAME]}]}),
            [{"matchFields": [HERE]}],
            id="one that asks for the name alone is enough",
        ),
        pytest.param(
            affinity({"nodeSelectorTerms": [{"matchExpressions": [LABEL]}, {"matchExpressions": [OTHER]}]}),
            [{"matchExpressions": [label], "matchFields": [HERE]} for label in (LABEL, OTHER)],
            id="others stay beside each other",
        ),
        pytest.param(
            affinity({"nodeSelectorTerms": [{}, {"matchExpressions": [LABEL]}]}),
            [{"matchExpressions": [LABEL], "matchFields": [HERE]}],
            id="an empty term, which matches no node, does not come to match one",
        ),
    ],
)
def test_a_pod_goes_to_its_node_alone(given: dict[str, Any] | None, terms: list[Any]) -> None:
    found = pod_spec(affinity=given)["affinity"]
    assert found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": terms
    }


def test_other_affinity_stays() -> None:
    given = {
        **affinity(None, preferredDuringSchedulingIgnoredDuringExecution=[1]),
        "podAntiAffinity": {"x": 1},
    }
    found = pod_spec(affinity=given)["affinity"]
    assert found["podAntiAffinity"] == {"x": 1}
    assert found["nodeAffinity"] == {**PINNED, "preferredDuringSchedulingIgnoredDuringExecution": [1]}


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("task", "seq", "expected"),
    [
        pytest.param("my.task", 3, "my-task-52mxp5oouu-3", id="dots become dashes"),
        pytest.param("t" * 50, 3, f"{'t' * 40}-52mxp5oouu-3", id="40 characters of the task"),
        pytest.param("t" * 50, 10**10, f"{'t' * 40}-52mxp5oouu-{10**10}", id="and eleven digits"),
        pytest.param(
            "t" * 50, 10**11, f"{'t' * 39}-52mxp5oouu-{10**11}", id="one less for each that is more"
        ),
        pytest.param("t" * 50, 2**62, f"{'t' * 32}-52mxp5oouu-{2**62}", id="up to the largest"),
        pytest.param(f"{'t' * 39}.x", 3, f"{'t' * 39}-52mxp5oouu-3", id="no dash where it is cut"),
    ],
)
def test_names(task: str, seq: int, expected: str) -> None:
    name = pod_name(task, "u-1", "nu-1", seq)
    assert name == expected
    assert len(name) <= 63


def test_what_is_stored_is_read_by_other_releases() -> None:
    """A revision or key that came out otherwise would run every task on every node anew."""
    assert revision_of(Spec(template={"spec": {"b": 1, "a": [2]}})) == "x342srkhsu"
    assert revision_of(Spec(template={"spec": {"a": [2], "b": 1}}, parallelism=3)) == "x342srkhsu"
    assert run_key("u", "r", "n", "", "") == "zxrq6vobes"
    assert run_key("u", "r", "n", "", "", 5) == "4meikmpmlz"
    assert run_key("u", "r", "n", "x", "b") == "7kjxghueue"


def test_no_part_of_a_run_key_is_left_out() -> None:
    parts = ("u", "r", "n", "x", "b")
    others = [run_key(*parts[:i], "other", *parts[i + 1 :]) for i in range(5)]
    assert len({run_key(*parts), run_key(*parts, 7), run_key(*parts, 8), *others}) == 8


@pytest.mark.parametrize(
    ("mark", "tick"),
    [(None, 0), ("", 0), ("soon", 0), ("2026-01-31T12:00:00Z", 1769860800)],
)
def test_the_tick_of_a_pod(mark: str | None, tick: int) -> None:
    marks = {} if mark is None else {names.POD_SCHEDULED_AT: mark}
    assert tick_of(pod(node(), marks=marks)) == tick


def test_a_pod_goes_with_its_task_and_does_not_hold_it() -> None:
    assert "blockOwnerDeletion" not in owner_reference(TASK.name, TASK.uid)


class Watched(dict[str, Any]):
    """Of which comparisons are counted."""

    count: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Watched.count += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def test_thousands_of_terms_are_not_compared_with_each_other() -> None:
    terms = [{"matchExpressions": [Watched(key=f"k{number}", operator="Exists")]} for number in range(4000)]
    found = pod_spec(affinity=affinity({"nodeSelectorTerms": terms}))["affinity"]["nodeAffinity"]
    assert len(found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == 4000
    assert Watched.count == 0


TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.just('a"b\\c\n</&\u2028')
TERMS = st.lists(
    st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(st.fixed_dictionaries({"key": TEXT}))}),
    max_size=3,
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": TEXT},
        optional={
            "env": st.lists(st.fixed_dictionaries({"name": TEXT | st.just("NODE_NAME"), "value": TEXT}))
        },
    ),
    max_size=3,
)


@given(
    spec=st.fixed_dictionaries(
        {"containers": CONTAINERS},
        optional={
            "initContainers": CONTAINERS,
            "hostNetwork": st.booleans(),
            "affinity": TERMS.map(
                lambda terms: {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                    }
                }
            ),
        },
    ),
    node_name=TEXT,
    key=TEXT,
    nonce=TEXT,
    attempt=st.integers(1, 10**6),
    deadline=st.none() | st.integers(1, 10),
)
def test_a_mould_makes_the_same_pods(
    spec: dict[str, Any], node_name: str, key: str, nonce: str, attempt: int, deadline: int | None
) -> None:
    of = Spec(template={"metadata": {"labels": {"app": "x"}}, "spec": spec}, active_deadline_seconds=deadline)
    encoder = PodEncoder(TASK, of, "rev")
    for change in (
        {"node_name": node_name, "run_key": key},
        {"attempt": attempt, "nonce": nonce, "tick": 60},
    ):
        start = msgspec.structs.replace(START, **change)
        made = msgspec.json.decode(msgspec.json.encode(encoder.body(start)))
        assert made == msgspec.json.decode(msgspec.json.encode(build(TASK, of, "rev", start)))


def test_what_does_not_differ_is_put_together_once_however_many_pods_there_are() -> None:
    of = Spec(template={"spec": {"containers": [{"name": f"c{n}"} for n in range(5000)]}})
    encoder, began = PodEncoder(TASK, of, "rev"), time.thread_time()
    for _ in range(10):
        encoder.body(START)
    filled, began = time.thread_time() - began, time.thread_time()
    for _ in range(10):
        msgspec.json.encode(build(TASK, of, "rev", START))
    assert filled < (time.thread_time() - began) / 3
