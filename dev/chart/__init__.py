"""The Helm chart as data, for tests and for what is generated from it.

Inputs: the chart in helm/caretaker and values. Rendering asks no cluster. It must not change the chart.
"""

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

import gotools
from testbed.paths import CHECKOUT

CHART: Final = CHECKOUT / "helm" / "caretaker"
RELEASE: Final = "caretaker"
NAMESPACE: Final = "caretaker-system"
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the CRDs take the other one a second

Json = dict[str, Any]


class ChartError(Exception):
    """Helm refuses chart or values, in its own words."""


def helm(*arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
    """What helm prints, with these variables beside its own; ChartError when it fails."""
    command, variables = [program(), *map(str, arguments)], {**os.environ, **(env or {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError((done.stderr or done.stdout).strip())
    return done.stdout


def text(*arguments: str, chart: Path = CHART, release: str = RELEASE, namespace: str = NAMESPACE) -> str:
    """The manifest of a release; `arguments` are helm's, such as `--set replicas=1`."""
    return helm("template", release, chart, "--namespace", namespace, *arguments)


def objects(*arguments: str, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Json]:
    """The objects of a release, those of its tests included."""
    return [one for one in yaml.load_all(_once(arguments, release, namespace), LOADER) if one]


def roles(*arguments: str, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Json]:
    """The roles of the operator in a release, as the chart ships them."""
    rendered = objects("--show-only", "templates/rbac.yaml", *arguments, release=release, namespace=namespace)
    return [one for one in rendered if one["kind"] in ("Role", "ClusterRole")]


@functools.cache
def program() -> str:
    """Where helm is."""
    return str(gotools.path("helm"))


@functools.cache
def _once(arguments: tuple[str, ...], release: str, namespace: str) -> str:
    return text(*arguments, release=release, namespace=namespace)
