"""The files of examples/."""

import re
from pathlib import Path
from typing import Final

from caretaker.registry import KindInfo

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


def examples_of(info: KindInfo) -> list[Path]:
    """The files of examples/ that hold this kind, and hold no other."""
    files = sorted(EXAMPLES.glob("*.yaml"))
    kinds = {file: set(re.findall(r"^kind: (\w+)$", file.read_text(), re.MULTILINE)) for file in files}
    return [file for file in files if kinds[file] == {info.kind}]
