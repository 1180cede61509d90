"""The cluster query language, as far as it is about attributes of container instances: what a placement
constraint memberOf and the filter of ListContainerInstances take ("Create expressions to define container
instances for Amazon ECS tasks", ECS developer guide).

Pure. What runs on an instance (task:group, runningTasksCount) is not known here and refused.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

Attributes = Mapping[str, str]  # by name; "" = without a value
Matches = Callable[[Attributes], bool]

_TOKEN: Final = re.compile(
    r"\s*(\(|\)|\[[^\]]*\]|&&|\|\||[!=]~|[!=]=|[<>]=?|![a-z]+|!(?=[\s(])|'[^']*'|[^\s()]+)"
)
_WORDS: Final = {"&&": "and", "||": "or", "!": "not"}
_NAMES: Final = {
    "==": "equals", "!=": "not_equals", "!exists": "not_exists", "!in": "not_in", "=~": "matches",
    "!~": "not_matches",
}  # fmt: skip
_COMPARE: Final[dict[str, Callable[[str, str], bool]]] = {
    "equals": lambda value, argument: value == argument,
    "in": lambda value, argument: value in [one.strip(" '") for one in argument[1:-1].split(",")],
    "matches": lambda value, argument: re.fullmatch(argument, value) is not None,
}


class QueryError(ValueError):
    """An expression that cannot be read, or is about what the double does not know."""


def parse(expression: str) -> Matches:
    """Whether an instance of these attributes is meant. Raises QueryError."""
    parser = _Parser(_tokens(expression))
    found = parser.any()
    if parser.left:
        raise QueryError(f"unexpected {parser.left[0]!r} in {expression!r}")
    return found


def _tokens(expression: str) -> list[str]:
    found, at, text = [], 0, expression.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise QueryError(f"cannot read {text[at:]!r}")
        found.append(_WORDS.get(token[1], token[1]))
        at = token.end()
    return found


class _Parser:
    def __init__(self, left: list[str]) -> None:
        self.left = left

    def any(self) -> Matches:
        """Expressions with `or` between them."""
        found = self._all()
        while self._next("or"):
            found = _union(found, self._all())
        return found

    def _all(self) -> Matches:
        found = self._one()
        while self._next("and"):
            found = _both(found, self._one())
        return found

    def _one(self) -> Matches:
        if self._next("not"):
            found = self._one()
            return lambda attributes: not found(attributes)
        if self._next("("):
            found = self.any()
            if not self._next(")"):
                raise QueryError("a parenthesis is not closed")
            return found
        return self._single()

    def _single(self) -> Matches:
        subject, operator = self._word(), self._word()
        operator = _NAMES.get(operator, operator)
        kind, _, name = subject.partition(":")
        if kind != "attribute" or not name:
            raise QueryError(f"the double knows attributes alone, and not {subject!r}")
        if operator in ("exists", "not_exists"):
            return lambda attributes: (name in attributes) == (operator == "exists")
        compare = _COMPARE.get(operator.removeprefix("not_"))
        if compare is None:
            raise QueryError(f"no operator {operator!r}")
        argument = self._word().strip("'")
        if operator.startswith("not_"):
            return lambda attributes: not (name in attributes and compare(attributes[name], argument))
        return lambda attributes: name in attributes and compare(attributes[name], argument)

    def _next(self, token: str) -> bool:
        there = bool(self.left) and self.left[0].lower() == token
        if there:
            self.left.pop(0)
        return there

    def _word(self) -> str:
        if not self.left:
            raise QueryError("the expression ends too early")
        return self.left.pop(0)


def _union(one: Matches, other: Matches) -> Matches:
    return lambda attributes: one(attributes) or other(attributes)


def _both(one: Matches, other: Matches) -> Matches:
    return lambda attributes: one(attributes) and other(attributes)
