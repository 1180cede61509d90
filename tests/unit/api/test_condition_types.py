"""Types of conditions by kind: the code sets them, the CRD lists them, the page has rows for them.

The description of status.conditions in the CRD is the table of a kind's types. No other list is kept.
"""

import re
from pathlib import Path

import pytest

from caretaker.api import conditions
from caretaker.registry import KINDS, KindInfo
from testing import manifests

ROOT = Path(__file__).parents[3]
# Name in the module -> type.
TYPES = {
    name: text
    for name, text in vars(conditions).items()
    if name.isupper() and isinstance(text, str) and re.fullmatch(r"[A-Z][A-Za-z]+", text)
}
EVERY_KIND = {conditions.CPU_THROTTLED}  # set by runtime/cpu.py
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.kind for kind in KINDS])


def listed(kind: KindInfo) -> set[str]:
    """The types that the CRD lists."""
    crd = manifests.load((ROOT / "crds" / f"{kind.plural}.yaml").read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    words = re.findall(r"\w+", status["properties"]["conditions"]["description"])
    return set(words) & set(TYPES.values())


def set_by(kind: KindInfo) -> set[str]:
    """The types that conditions.py of the kind and of its targets name."""
    files = sorted((ROOT / "operator" / "caretaker" / kind.package).rglob("conditions.py"))
    assert files, f"operator/caretaker/{kind.package}/conditions.py"
    named = set(re.findall(r"\bc\.([A-Z_]+)\b", "".join(file.read_text() for file in files)))
    return {TYPES[name] for name in named & TYPES.keys()}


@each_kind
def test_the_crd_lists_the_types_that_the_code_sets(kind: KindInfo) -> None:
    place = f"the description of status.conditions in crds/{kind.plural}.yaml, then `make chart`"
    assert sorted(set_by(kind) - listed(kind)) == [], f"missing in {place}"
    assert sorted(listed(kind) - set_by(kind)) == [], f"conditions.py of the kind sets no such type: {place}"


@each_kind
def test_the_page_has_every_type(kind: KindInfo) -> None:
    page = f"docs/spec/{kind.kind.lower()}.md"
    text = (ROOT / page).read_text()
    missing = [f"{one}=" for one in sorted(listed(kind) | EVERY_KIND) if not re.search(rf"\b{one}=", text)]
    rows = ", ".join(f"`| {one}True | ... |`" for one in missing)
    assert missing == [], f"{page}, the table of conditions: a row {rows}"


def test_every_type_is_one_of_a_kind() -> None:
    used = EVERY_KIND.union(*map(set_by, KINDS))
    left = sorted(set(TYPES.values()) - used)
    assert left == [], (
        "operator/caretaker/api/conditions.py has a type that no conditions.py sets as `c.NAME`"
    )
