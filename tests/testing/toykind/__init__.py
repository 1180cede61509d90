"""A further kind, PoolStamp: a ConfigMap with a time stamp for every node pool.

It shows what a kind brings and which shared files it edits. `install` adds it to a copy of the checkout:

    CRD       its CRD
    BROUGHT   files of its own, by where they go
    EDITED    the shared files that get a line
    MADE      files that `make chart` and dev/observability write anew
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from testbed.paths import CHECKOUT

HERE: Final = Path(__file__).parent
_COPIED: Final = (
    "operator",
    "dev",
    "tests",
    "helm",
    "crds",
    "deploy",
    "docs",
    "pyproject.toml",
)
BROUGHT: Final = {
    "wiring.py": "operator/caretaker/poolstamp/wiring.py",
    "views/__init__.py": "operator/caretaker/cli/poolstamp/__init__.py",
    "views/plan.py": "operator/caretaker/cli/poolstamp/plan.py",
    "views/status.py": "operator/caretaker/cli/poolstamp/status.py",
    "rules.tpl": "helm/caretaker/templates/kinds/_poolstamps.tpl",
    "alerts.yaml": "helm/caretaker/files/alerts/poolstamps.yaml",
    "alertcases.py": "tests/testing/alertcases/poolstamp.py",
    "kindrights.py": "tests/testing/kindrights/poolstamp.py",
    "watched.py": "dev/observability/kinds/poolstamp.py",
}
_ALERT: Final = """
### PoolStampNotReady

Its Ready condition has the reason.
"""
# Shared file -> the line before which something is put, and what.
EDITED: Final = {
    "operator/caretaker/registry.py": (
        "KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY)",
        'POOL_STAMP: Final = KindInfo("PoolStamp", "poolstamps", True, "pstamp", "poolstamp", "stamps")\n'
        "KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY, POOL_STAMP)",
    ),
    "helm/caretaker/values.yaml": (
        "\ncrds:\n",
        "  poolStamp:\n    # -- Serve PoolStamps.\n    enabled: true\n\ncrds:\n",
    ),
    "docs/operations.md": ("\n### DaemonTaskStalled\n", f"{_ALERT}\n### DaemonTaskStalled\n"),
}
MADE: Final = {
    "deploy/operator.yaml",
    "docs/metrics.md",
    "helm/caretaker/README.md",
    "helm/caretaker/files/dashboard.json",
    "helm/caretaker/files/kinds.yaml",
    "helm/caretaker/values.schema.json",
    "pyproject.toml",
}
_STATUS: Final = {
    "type": "object",
    "properties": {
        "observedGeneration": {"type": "integer"},
        "pools": {"type": "array", "items": {"type": "string"}},
        "conditions": {
            "type": "array",
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    },
}
_SPEC: Final = {
    "type": "object",
    "required": ["label"],
    "properties": {"label": {"type": "string", "minLength": 1}},
}
CRD: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "poolstamps.caretaker.dev"},
    "spec": {
        "group": "caretaker.dev",
        "scope": "Namespaced",
        "names": {
            "kind": "PoolStamp",
            "plural": "poolstamps",
            "singular": "poolstamp",
            "shortNames": ["pstamp"],
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _STATUS}}
                },
            }
        ],
    },
}


def install(folder: Path) -> Path:
    """A copy of the checkout with the kind."""
    made = folder / "checkout"
    skipped = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in _COPIED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, made / name, ignore=skipped)
        else:
            shutil.copy(CHECKOUT / name, made / name)
    for name, (before, after) in EDITED.items():
        text = (made / name).read_text()
        assert text.count(before) == 1
        (made / name).write_text(text.replace(before, after))
    for source, target in BROUGHT.items():
        (made / target).parent.mkdir(exist_ok=True)
        shutil.copy(HERE / source, made / target)
    (made / "operator" / "caretaker" / "poolstamp" / "__init__.py").touch()
    (made / "crds" / "poolstamps.yaml").write_text(yaml.safe_dump(CRD))
    return made


def environment(copy: Path) -> Mapping[str, str]:
    """For programs of the copy."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CARETAKER_", "POD_"))}
    roots = os.pathsep.join(str(copy / name) for name in ("operator", "dev", "tests"))
    return {**clean, "PYTHONPATH": roots, "PYTHONDONTWRITEBYTECODE": "1"}


def run(copy: Path, *module: str) -> str:
    """What `python -m` prints in the copy."""
    command = [sys.executable, "-m", *module]
    done = subprocess.run(
        command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(copy: Path) -> set[str]:
    """Files of the checkout that are others in the copy."""
    found = (file.relative_to(copy) for file in copy.rglob("*") if file.is_file())
    return {
        str(f)
        for f in found
        if (CHECKOUT / f).exists() and (CHECKOUT / f).read_bytes() != (copy / f).read_bytes()
    }
