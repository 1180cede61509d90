"""Inputs of a recipe: a sample with changes that make it large, deep, odd or wrong.

Pure. A recipe is short, however large its input is, so that it can stand in a test. `fitted` cuts an input to
what a CRD lets through.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

UNITS: Final = (
    *(
        "a",
        "/",
        "%",
        "+",
        "*",
        ".",
        "é",
        "\u2028",
        "\\",
        '"',
        "{",
        "[",
        "=",
        ":",
        "0",
        "9",
        "-",
        "\x00",
        "😀",
        " ",
    ),
    *(
        "%C3",
        "a/",
        "../",
        "://",
        "a.",
        "Bearer ",
        "eyJhbGciOi.",
        "secret_key=",
        "authorization: ",
        "arn:aws:",
    ),
    *(
        "*a",
        "?*",
        "1,",
        "*/1,",
        "1h",
        "1-9/",
        "a b",
        "\ud800",
        "\n",
        "- a\n",
        "{a: ",
        "&a ",
        "cannot ",
        "(a",
        "| ",
    ),
)
OTHERS: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    {},
    [None],
    {"": None},
    [[]],
    "1",
    "10%",
)
DEEPEST: Final = 10_000  # what the API server lets through

LARGEST: Final = 10**9  # bytes, of which the limit is left

Path = tuple[str | int, ...]


class Step(msgspec.Struct, frozen=True):
    """One change. `place` counts the places that the sample has, round and round."""

    place: int
    how: str  # text, items, keys, nest, drop, or other
    unit: str = "a"
    size: int = 0  # bytes, about


Recipe = tuple[Step, ...]

STEPS: Final = st.builds(
    Step,
    place=st.integers(0, 400),
    how=st.sampled_from(("text", "items", "items", "keys", "nest", "drop", "other")),
    unit=st.sampled_from(UNITS) | st.lists(st.sampled_from(UNITS), min_size=2, max_size=3).map("".join),
    size=st.sampled_from((1, 64, 1024, LARGEST)) | st.integers(0, 10**6),
)
RECIPES: Final = st.lists(STEPS, min_size=1, max_size=3).map(tuple)


def text(recipe: Recipe, limit: int) -> str:
    """The units one after the other, each as often as its size says; `limit` bytes at the most."""
    room = limit // len(recipe)
    parts = (step.unit * (min(step.size, room) // len(step.unit.encode(errors="replace"))) for step in recipe)
    return "".join(parts)


def sweep(places: int) -> Iterator[Recipe]:
    """Each place made as large as can be in each way, one at a time; without places each unit."""
    for place in range(places):
        for how in ("items", "keys", "text", "nest"):
            yield (Step(place, how, "a", LARGEST),)
        yield (Step(place, "drop"),)
        for other in range(len(OTHERS)):
            yield (Step(place, "other", size=other),)
    for unit in UNITS if not places else ():
        yield (Step(0, "text", unit, LARGEST),)


def count(of: tuple[Any, ...]) -> int:
    """Places in all samples, about."""
    return len(of) * max(sum(1 for _ in paths(sample)) for sample in of)


def built(of: tuple[Any, ...], recipe: Recipe, limit: int) -> Any:
    """A sample, changed; `limit` bytes as JSON at the most, about. What nests is msgspec.Raw."""
    made, room = copy.deepcopy(of[recipe[0].place % len(of)]), limit // len(recipe)
    for step in recipe:
        places = list(paths(made))
        depth = DEEPEST // len(recipe)
        size = min(step.size, room, depth) if step.how == "nest" else min(step.size, room)
        made = _put(made, places[step.place // len(of) % len(places)], step, size)
    return made


def encoded(made: Any) -> bytes:
    """As JSON; lone surrogates as no encoder of others sends them are replaced."""
    try:
        return msgspec.json.encode(made)
    except UnicodeEncodeError:
        return msgspec.json.encode(_plain(made))


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Every place in it."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from paths(one, (*at, key))


def fitted(made: Any, schema: Mapping[str, Any]) -> Any:
    """Cut to the bounds of a structural schema. Types stay wrong where they are: a looser CRD may have let
    them in."""
    if isinstance(made, str):
        return made[: schema.get("maxLength", len(made))]
    if isinstance(made, list):
        inner = schema.get("items", {})
        return [fitted(one, inner) for one in made[: schema.get("maxItems", len(made))]]
    if isinstance(made, dict):
        named, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        most = list(made.items())[: schema.get("maxProperties", len(made))]
        others = others if isinstance(others, dict) else {}
        return {key: fitted(one, named.get(key, others)) for key, one in most}
    return made


def _put(made: Any, path: Path, step: Step, size: int) -> Any:
    if not path:
        return _changed(made, step, size) if step.how not in ("drop", "other") else made
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    if step.how == "drop":
        del parent[path[-1]]
    else:
        parent[path[-1]] = _changed(parent[path[-1]], step, size)
    return made


def _changed(old: Any, step: Step, size: int) -> Any:
    if step.how == "text":
        return step.unit * (size // len(step.unit.encode(errors="replace")))
    if step.how == "nest":
        depth, opens = size, b"[" if len(step.unit) % 2 else b'{"a":'
        return msgspec.Raw(opens * depth + encoded(old) + (b"]" if opens == b"[" else b"}") * depth)
    if step.how == "other":
        return copy.deepcopy(OTHERS[step.size % len(OTHERS)])
    one = _one(old, step)
    whole = encoded(one)
    # An item and its comma, and a number in its texts.
    count = size // (len(whole) + (8 if b'"' in whole or step.how == "keys" else 1))
    if step.how == "items":
        return [_numbered(one, f"{number:x}") for number in range(count)]
    # Copies: of one value, a later step would change them all.
    return {f"{step.unit}{number:x}": copy.deepcopy(one) for number in range(count)}


def _one(old: Any, step: Step) -> Any:
    """The part that a step repeats: an item, a value or the whole field."""
    if isinstance(old, list) and old:
        return old[step.place % len(old)]
    if isinstance(old, dict) and old and step.how == "keys":
        return next(iter(old.values()))
    return step.unit if old in ([], {}, None) else old


def _numbered(one: Any, number: str) -> Any:
    """A copy; no two have the same texts."""
    if isinstance(one, str):
        return one + number
    if isinstance(one, dict):
        return {key: _numbered(value, number) for key, value in one.items()}
    return [_numbered(value, number) for value in one] if isinstance(one, list) else one


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
