"""Files as `caretaker plan -f` reads them: what is taken, and where a fault is shown."""

from textwrap import dedent

import pytest

from caretaker.cli.common import CommandError
from caretaker.cli.manifest import Manifest, read

TASK = """\
apiVersion: caretaker.dev/v1alpha1
kind: DaemonTask
metadata:
  name: hello
spec:
  parallelism: 1
  template:
    spec:
      containers:
        - name: main
          image: busybox
        - {name: second, image: busybox}
"""
REFRESH = """\
apiVersion: caretaker.dev/v1alpha1
kind: S3AggregatedRefresh
metadata: {name: exports}
spec: {}
"""
OTHER = "apiVersion: v1\nkind: Namespace\nmetadata: {name: ops}\n"


def taken(text: str) -> Manifest:
    return read("task.yaml", dedent(text))


@pytest.mark.parametrize(
    ("text", "tasks", "others"),
    [
        pytest.param(TASK, ["hello"], [], id="one task"),
        pytest.param(REFRESH, ["exports"], [], id="one refresh"),
        pytest.param(f"{REFRESH}---\n{TASK}", ["exports", "hello"], [], id="two kinds, in their order"),
        pytest.param(f"---\n{TASK}---\n", ["hello"], [], id="empty documents are nothing"),
        pytest.param(f"{OTHER}---\n{TASK}", ["hello"], ["Namespace ops"], id="other kinds are named"),
        pytest.param(
            TASK + "---\n" + TASK.replace("hello", "again"), ["hello", "again"], [], id="two tasks in a file"
        ),
        pytest.param(
            "kind: List\napiVersion: v1\nitems:\n- "
            + TASK.replace("\n", "\n  ").rstrip()
            + "\n- "
            + OTHER.replace("\n", "\n  "),
            ["hello"],
            ["Namespace ops"],
            id="the items of a List",
        ),
        pytest.param(
            '{"apiVersion": "caretaker.dev/v1alpha1", "kind": "DaemonTask", "metadata": {"name": "json"}}',
            ["json"],
            [],
            id="JSON is YAML",
        ),
    ],
)
def test_tasks_are_found(text: str, tasks: list[str], others: list[str]) -> None:
    found = taken(text)
    assert ([document.name for document in found.documents], found.others) == (tasks, others)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "", "task.yaml: there is nothing of caretaker.dev (it is empty); give a file", id="an empty file"
        ),
        pytest.param(
            OTHER,
            "task.yaml:2: there is nothing of caretaker.dev (found Namespace ops)",
            id="another kind alone",
        ),
        pytest.param(
            TASK.replace("DaemonTask", "DaemonTsk"),
            "task.yaml:2: kind: DaemonTsk is not known in caretaker.dev; write kind: DaemonTask",
            id="a misspelt kind",
        ),
        pytest.param(
            REFRESH.replace("S3Agg", "Agg"),
            "task.yaml:2: kind: AggregatedRefresh is not known in caretaker.dev; write kind: S3Agg",
            id="a misspelt kind that looks like the other",
        ),
        pytest.param(
            TASK.replace("DaemonTask", "Pod"),
            "task.yaml:2: kind: Pod is not known in caretaker.dev; write kind: DaemonTask or kind: S3Agg",
            id="a kind that looks like none",
        ),
        pytest.param(
            f"{OTHER}---\n" + TASK.replace("v1alpha1", "v1"),
            "task.yaml:5: apiVersion: caretaker.dev/v1; write apiVersion: caretaker.dev/v1alpha1",
            id="another version, in the second document",
        ),
        pytest.param(
            TASK.replace("apiVersion: caretaker.dev/v1alpha1\n", ""),
            "task.yaml:1: apiVersion: missing; write apiVersion: caretaker.dev/v1alpha1",
            id="no version",
        ),
        pytest.param("- a\n- b\n", "task.yaml:1: not a Kubernetes object: add apiVersion", id="a list"),
        pytest.param("just words\n", "task.yaml:1: not a Kubernetes object: add apiVersion", id="a text"),
        pytest.param("a: 1\n", "task.yaml:1: not a Kubernetes object: add apiVersion", id="no kind"),
        pytest.param(
            TASK.replace("  name: hello", "  labels: {}"),
            "task.yaml:4: metadata.name is missing",
            id="no name",
        ),
        pytest.param(
            TASK.replace("name: hello", "name: 12"),
            "task.yaml:4: metadata.name is missing",
            id="a number for a name",
        ),
        pytest.param(
            TASK.replace("  parallelism: 1", "  parallelism: 1\n   template:"),
            "task.yaml:7:12: not YAML: mapping values are not allowed here; correct the file",
            id="a wrong indent",
        ),
        pytest.param(
            TASK.replace("  parallelism: 1", "\tparallelism: 1"),
            "task.yaml:6:1: not YAML: found character",
            id="a tab",
        ),
        pytest.param(
            TASK.replace("name: hello", "name: [hello"), "task.yaml:5:5: not YAML", id="an open bracket"
        ),
        pytest.param(
            TASK.replace("  parallelism: 1", "  parallelism: 1\n  parallelism: 2"),
            "task.yaml:7:3: not YAML: the key parallelism stands here a second time",
            id="a repeated key",
        ),
        pytest.param("a: \x07\n", "task.yaml: not YAML: ", id="a control character"),
    ],
)
def test_faults_are_shown_at_their_line(text: str, words: str) -> None:
    with pytest.raises(CommandError) as failure:
        taken(text)
    assert str(failure.value).startswith(words)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("field", "line"),
    [
        pytest.param("spec.parallelism", 6, id="a field"),
        pytest.param("spec.template.spec.containers[1].image", 12, id="a field in a list"),
        pytest.param("spec.template.spec.containers[7].image", 10, id="an index that is not there: the list"),
        pytest.param(
            "spec.template.spec.nodeSelector", 9, id="a field that is missing: what it is missing in"
        ),
        pytest.param("", 1, id="no field: the object"),
    ],
)
def test_a_field_has_a_place(field: str, line: int) -> None:
    assert taken(TASK).documents[0].place(field) == f"task.yaml:{line}"


def test_a_timestamp_stays_a_string_as_the_api_server_wants_it() -> None:
    annotated = TASK.replace(
        "name: hello", "name: hello\n  annotations: {at: 2026-01-31T12:00:00Z, day: 2026-01-31}"
    )
    assert taken(annotated).documents[0].body["metadata"]["annotations"] == {
        "at": "2026-01-31T12:00:00Z",
        "day": "2026-01-31",
    }


def test_what_the_server_sets_is_left_out() -> None:
    stored = TASK.replace("name: hello", "name: hello\n  uid: u\n  resourceVersion: '7'\n  generation: 2")
    body = taken(f"{stored}status: {{active: 1}}\n").documents[0].body
    assert body["metadata"] == {"name": "hello"}
    assert "status" not in body


def test_anchors_and_merge_keys_work() -> None:
    found = taken(
        TASK.replace("  parallelism: 1", "  parallelism: 1\n  x: &x {a: 1, b: 2}\n  y: {<<: *x, b: 3}")
    )
    assert found.documents[0].body["spec"]["y"] == {"a": 1, "b": 3}
