"""No commit fails by chance: see testing/examples.py."""

import sys
from pathlib import Path
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings


def tried() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []

    @settings(max_examples=50)
    @given(st.integers(), st.text())
    def attempt(number: int, text: str) -> None:
        found.append((number, text))

    attempt()
    return found


def test_the_same_examples_are_tried_whatever_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = tried()
    loaded = ModuleType("loaded")
    loaded.__file__ = str(tmp_path / "loaded.py")
    (tmp_path / "loaded.py").write_text(f"NUMBERS = {list(range(1000, 1100))}\nWORD = 'a constant'\n")
    monkeypatch.setitem(sys.modules, "loaded", loaded)
    assert tried() == before
