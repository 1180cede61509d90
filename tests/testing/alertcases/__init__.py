"""The chart's alerts, and when each fires and when not: series as they are scraped, one sample a minute.

Data in the notation of `promtool test rules`: "0x30" is 0 thirty-one times, "0+2x30" counts up by 2.
The operator's are in operator.py, each kind's in a module that is named as its package.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from caretaker.registry import KINDS
from testing.alertcases import operator
from testing.alertcases.notation import Cases

_FOLDER: Final = Path(__file__).resolve().parents[3] / "helm" / "caretaker" / "files" / "alerts"
FILES: Final = tuple(_FOLDER / f"{name}.yaml" for name in ("operator", *(info.plural for info in KINDS)))
GROUPS: Final[list[dict[str, Any]]] = [
    group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]
]
RULES: Final[dict[str, dict[str, Any]]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
_KINDS: Final[list[Cases]] = [import_module(f"{__name__}.{info.package}").CASES for info in KINDS]
CASES: Final[Cases] = {alert: cases for part in (operator.CASES, *_KINDS) for alert, cases in part.items()}
