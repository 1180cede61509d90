"""Argo CD's view of an object's health, by docs/argocd-health.lua.

The script runs in Lua 5.1, the language of Argo CD's own interpreter (gopher-lua), with the libraries that
Argo CD leaves to a script unless told otherwise: base and table
(github.com/argoproj/argo-cd/blob/master/util/lua/lua.go).
"""

import json
from pathlib import Path
from typing import Any, Final

from lupa.lua51 import LuaRuntime

SCRIPT: Final = Path(__file__).parents[2] / "docs" / "argocd-health.lua"
# The words that a script may answer.
WORDS: Final = frozenset(("Healthy", "Progressing", "Degraded", "Suspended"))
_CLOSED: Final = ("os", "io", "string", "math", "debug", "package", "require", "python", "coroutine")


def health(resource: dict[str, Any]) -> tuple[str, str]:
    """(word, message) that Argo CD shows."""
    # gitops-engine judges this before it asks a script: pkg/health/health.go, GetResourceHealth.
    if resource["metadata"].get("deletionTimestamp"):
        return "Progressing", "Pending deletion"
    lua = LuaRuntime(register_eval=False, register_builtins=False, unpack_returned_tuples=True)
    for name in _CLOSED:
        lua.globals()[name] = None
    # Through JSON: Python's own objects would answer to things that a Lua table does not.
    lua.globals().obj = lua.table_from(json.loads(json.dumps(resource)), recursive=True)
    found = lua.execute(SCRIPT.read_text())
    word, message = str(found.status), str(found.message or "")
    if word not in WORDS:
        raise ValueError(f"{word} is no health of Argo CD")
    return word, message
