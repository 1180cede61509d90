"""What the subjects of fuzzing are made of: calls of recipes, and their bounds."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from fuzz.cost import SECONDS
from fuzz.inputs import Recipe, built, count, encoded, fitted, text

OBJECT: Final = 3 << 19  # bytes of an object in etcd
MIB: Final = 1 << 20
CRDS: Final = Path(__file__).parents[2] / "crds"
READ_ERRORS: Final = (msgspec.ValidationError, msgspec.DecodeError, UnicodeError)

Call = Callable[[], Any]


class Inputs(msgspec.Struct, frozen=True):
    """Calls of recipes."""

    make: Callable[[Recipe], tuple[Call, int]]  # (the call, bytes of its input)
    places: int = 0  # of the samples; 0: a text


class Subject(msgspec.Struct, frozen=True):
    """One call. `typed`: errors that its callers expect; `seconds`: CPU time that it may take, beyond that of
    `base`, which does the same for the least input."""

    inputs: Inputs
    typed: tuple[type[Exception], ...] = ()
    seconds: float = SECONDS
    base: Call | None = None


def of_text(limit: int, call: Callable[[str], Any]) -> Inputs:
    """Texts of at most so many bytes."""

    def make(recipe: Recipe) -> tuple[Call, int]:
        made = text(recipe, limit)
        return partial(call, made), len(made)

    return Inputs(make)


def of_json(
    limit: int, call: Callable[[bytes], Any], *of: Any, schema: str = "", whole: bool = False
) -> Inputs:
    """Inputs of one of these samples, within the bounds of `schema`: a CRD, or its spec or status. What is
    too long is cut; `whole`: made smaller."""

    def content_of(recipe: Recipe, most: int) -> bytes:
        made = built(of, recipe, most)
        return encoded(fitted(made, bounds_of(schema)) if schema else made)

    def make(recipe: Recipe) -> tuple[Call, int]:
        content = content_of(recipe, limit)
        if whole and len(content) > limit:
            content = content_of(recipe, limit * limit // len(content) * 9 // 10)
        return partial(call, content[:limit]), len(content[:limit])

    return Inputs(make, count(of))


@cache
def bounds_of(name: str) -> Any:
    """The schema of a CRD, or of its spec or status."""
    plural, _, part = name.partition(".")
    crd = yaml.load((CRDS / f"{plural}.yaml").read_text(), yaml.CSafeLoader)
    whole = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return whole["properties"][part] if part else whole


def sound(content: bytes) -> bytes:
    """JSON as the API server hands it out: what was cut is none."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return b"{}"
    return content


def prepared(
    limit: int, prepare: Callable[[bytes], Any], call: Callable[[Any], Any], *of: Any, schema: str = ""
) -> Inputs:
    """What `prepare` makes of the input is not judged: another subject does, or it is in a thread."""
    return _prepared(of_json(limit, prepare, *of, schema=schema, whole=True), call)


def prepared_text(limit: int, prepare: Callable[[str], Any], call: Callable[[Any], Any]) -> Inputs:
    """prepared() of a text from JSON, which has no lone surrogates: decoders refuse them."""
    return _prepared(of_text(limit, lambda text: prepare(text.encode(errors="replace").decode())), call)


def _prepared(raw: Inputs, call: Callable[[Any], Any]) -> Inputs:
    def make(recipe: Recipe) -> tuple[Call, int]:
        ready, size = raw.make(recipe)
        found = ready()
        return (lambda: None) if found is None else partial(call, found), size

    return Inputs(make, raw.places)


def planner(
    prepare: Callable[[bytes], Any], call: Callable[[Any], Any], sample: Any, least: Any, schema: str
) -> Subject:
    """A pass over many nodes or clusters. That of `least` shows what they cost, the others what an input
    adds."""

    @cache
    def of_least() -> Any:
        return prepare(encoded(least))

    return Subject(prepared(OBJECT, prepare, call, sample, schema=schema), base=lambda: call(of_least()))
