"""A further kind, PoolStamp: a ConfigMap with a time stamp for every node pool.

It shows what a kind brings and which shared files it edits. `install` adds it to a copy of the operator:

    wiring.py   -> caretaker/poolstamp/wiring.py      controller, watched resources, metrics
    views.py    -> caretaker/cli/poolstamp/__init__.py   `caretaker plan` and `status`
    EDITED      the shared files of the operator that get a line
"""

import shutil
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
SOURCES: Final = HERE.parents[2] / "operator"
# Shared file of the operator -> what is replaced in it, and by what.
EDITED: Final = {
    "registry.py": (
        "KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY)",
        'POOL_STAMP: Final = KindInfo("PoolStamp", "poolstamps", True, "pstamp", package="poolstamp")\n'
        "KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY, POOL_STAMP)",
    ),
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
    """A copy of the operator with the kind, for PYTHONPATH."""
    made = folder / "operator"
    shutil.copytree(SOURCES, made, ignore=shutil.ignore_patterns("__pycache__"))
    package = made / "caretaker"
    for name, (before, after) in EDITED.items():
        text = (package / name).read_text()
        assert text.count(before) == 1
        (package / name).write_text(text.replace(before, after))
    for source, target in (("wiring.py", "poolstamp/wiring.py"), ("views.py", "cli/poolstamp/__init__.py")):
        (package / target).parent.mkdir()
        shutil.copy(HERE / source, package / target)
    (package / "poolstamp" / "__init__.py").touch()
    return made


def changed(copy: Path) -> list[str]:
    """Files of the operator that differ from the copy's."""
    files = [file.relative_to(SOURCES) for file in SOURCES.rglob("*.py")]
    return sorted(str(file) for file in files if (SOURCES / file).read_bytes() != (copy / file).read_bytes())
