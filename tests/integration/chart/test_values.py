"""Values at their edges: emptied by null, names that YAML takes for something else, refused flags."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from chart import CHART, ChartError

Json = dict[str, Any]

DEFAULTS: Json = yaml.safe_load((CHART / "values.yaml").read_text())
# Every template renders something; the CRDs have no value in them.
ON: Json = {
    "crds": {"install": False},
    **{
        part: {"enabled": True}
        for part in ("authorPolicy", "admissionPolicy", "flowSchema", "dashboard", "datadog")
    },
    **{part: {"enabled": True} for part in ("serviceMonitor", "prometheusRule")},
    "networkPolicy": {"egress": {"enabled": True}},
}
# Not empty by default, and nothing is wrong where they are.
MAY_BE_EMPTY = (
    "resources",
    "resources.requests",
    "resources.requests.cpu",
    "resources.requests.memory",
    "resources.limits",
    "resources.limits.memory",
    "nodeSelector",
    "dashboard.labels",
    "dashboard.labels.grafana_dashboard",
)


def paths(content: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value, and each map of values, with its path. Keys of labels have dots and are left out."""
    for key, value in content.items():
        if "." not in key:
            yield prefix + key, value
            if isinstance(value, dict):
                yield from paths(value, f"{prefix}{key}.")


def with_null(where: Iterable[str], content: Json) -> Json:
    """A copy of the values with null at these places."""
    made = {key: with_null((), value) if isinstance(value, dict) else value for key, value in content.items()}
    for path in where:
        *parents, last = path.split(".")
        inner = made
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = None
    return made


def rendered(
    folder: Path, content: Json, release: str = chart.RELEASE, namespace: str = chart.NAMESPACE
) -> str:
    """What helm makes of these values, as JSON: PyYAML leaves strings bare that helm takes for numbers."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(content))
    return chart.text("--values", str(file), release=release, namespace=namespace)


EMPTY = [path for path, value in paths(DEFAULTS) if value in ("", [], {}, None)]
NEEDED = [path for path, _ in paths(DEFAULTS) if path not in (*EMPTY, *MAY_BE_EMPTY)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With no value emptied."""
    return rendered(tmp_path_factory.mktemp("usual"), ON)


@pytest.mark.parametrize("path", EMPTY)
def test_null_is_as_empty_as_the_default(path: str, usual: str, tmp_path: Path) -> None:
    assert rendered(tmp_path, with_null([path], ON)) == usual


@pytest.mark.parametrize("path", MAY_BE_EMPTY)
def test_null_takes_a_default_away(path: str, usual: str, tmp_path: Path) -> None:
    found = rendered(tmp_path, with_null([path], ON))
    assert found != usual
    assert not [node for node in scalars(found) if node.tag == "tag:yaml.org,2002:null"], "no half of a field"


@pytest.mark.parametrize("depth", range(3))
def test_null_is_refused_where_nothing_can_be_empty(depth: int, tmp_path: Path) -> None:
    gone = [path for path in NEEDED if path.count(".") == depth]
    assert gone
    with pytest.raises(ChartError) as refused:
        rendered(tmp_path, with_null(gone, {}))
    told = {
        f"{at}/{name}".lstrip("/").replace("/", ".")
        for at, names in re.findall(r"at '([^']*)': missing propert(?:y|ies) (.*)", str(refused.value))
        for name in re.findall(r"'([^']+)'", names)
    }
    assert told == set(gone)


# Names that the API takes, and that YAML's readers take for numbers, truth values or null.
NAMES = {
    "numbers": ("123", "1234", "1e3", "0x1f", "0777", "0b1", "12e4"),
    "words": ("9" * 53, "null", "no", "yes", "on", "off", "true"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize("one_namespace", [True, False], ids=["one namespace", "every namespace"])
def test_a_name_stays_a_string_whatever_it_looks_like(
    names: tuple[str, ...], one_namespace: bool, tmp_path: Path
) -> None:
    release, namespace, watched, account, priority, secrets, jobs = names
    content = {
        **ON,
        "crds": {"install": True},
        "watchNamespace": watched if one_namespace else "",
        "serviceAccount": {"name": account, "annotations": {"note": "1"}},
        "priorityClass": {"create": True, "name": priority},
        "aws": {"clusterName": "blue: 1 # x", "identities": [{"namespaces": [secrets]}]},
        "awsKeySecrets": [{"namespace": secrets, "names": ["1", "no"]}],
        "headerSecrets": [{"namespace": secrets, "names": ["1e3"]}],
        "jobNamespaces": [jobs],
        "egressAllow": ["1.5"],
        "extraArgs": ["7"],
        "extraEnv": [{"name": "null", "value": "1"}],
        "podLabels": {"a": "no"},
        "podAnnotations": {"b": "1e3"},
        "nodeSelector": {"c": "true"},
        "imagePullSecrets": [{"name": "0"}],
        "image": {"repository": "12", "tag": "30"},  # by YAML 1.1: a number of base 60
        "test": {"command": ["1"]},
    }
    found = rendered(tmp_path, content, release=release, namespace=namespace)
    given = {*names, f"{release}-caretaker"[:50], "12:30"}
    # Readers differ in what they take for a number, so what has no quotes must not be any of them.
    bare = [
        f"line {n.start_mark.line}: {n.value}" for n in scalars(found) if n.style is None and n.value in given
    ]
    assert bare == []
    for body in filter(None, yaml.safe_load_all(found)):
        assert wrong(body) == [], body["kind"]
    pod = next(b for b in yaml.safe_load_all(found) if b and b["kind"] == "Deployment")["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == account
    assert pod["spec"]["priorityClassName"] == priority
    arguments = pod["spec"]["containers"][0]["args"]
    assert "--cluster-name=blue: 1 # x" in arguments
    assert (f"--namespace={watched}" in arguments) == one_namespace


def scalars(text: str) -> Iterator[yaml.ScalarNode]:
    """The scalars of a manifest as they are written."""
    left: list[yaml.Node] = [node for node in yaml.compose_all(text, yaml.CSafeLoader) if node]
    while left:
        node = left.pop()
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            left += (part for pair in node.value for part in pair)


STRINGS = {"name", "namespace", "serviceAccountName", "priorityClassName", "image", "policyName", "value"}
LISTS = {"args", "command", "resourceNames", "namespaces", "matchNames"}
MAPS = {"labels", "annotations", "matchLabels", "nodeSelector", "data"}


def wrong(content: Any, at: str = "") -> list[str]:
    """Where a name, a label or an argument is no string."""
    if isinstance(content, list):
        return [fault for i, one in enumerate(content) for fault in wrong(one, f"{at}[{i}]")]
    if not isinstance(content, dict) or content.get("kind") in ("CustomResourceDefinition", "PriorityClass"):
        return []  # a CRD has fields of these names, and a PriorityClass has a number for its value
    faults = []
    for key, value in content.items():
        inside = {"one": [value], "list": value, "map": value.values() if isinstance(value, dict) else ()}
        how = "one" if key in STRINGS else "list" if key in LISTS else "map" if key in MAPS else ""
        if how and not all(isinstance(one, str) for one in inside[how]):
            faults.append(f"{at}.{key}: {value!r}")
        faults += wrong(value, f"{at}.{key}")
    return faults


REFUSED = (
    "kinds",
    "namespace",
    "lease-name",
    "operator-namespace",
    "metrics-port",
    "health-port",
    "bind-host",
)


@pytest.mark.parametrize("flag", REFUSED)
def test_flags_that_the_rest_of_the_chart_is_made_for_are_refused_and_told(flag: str) -> None:
    for given in (f"--{flag}=1", f"--{flag}"):
        with pytest.raises(ChartError, match="at '/extraArgs/1': 'not' failed"):
            chart.text("--set", f"extraArgs={{--log-level=INFO,{given}}}")
    table = (CHART / "README.md").read_text()
    (row,) = (line for line in table.splitlines() if line.startswith("| `extraArgs` |"))
    assert f"`--{flag}`" in row
    variable = f"CARETAKER_{flag.replace('-', '_').upper()}".replace("CARETAKER_OPERATOR", "POD")
    with pytest.raises(ChartError, match="at '/extraEnv/0/name': 'not' failed"):
        chart.text("--set", f"extraEnv[0].name={variable},extraEnv[0].value=1")
