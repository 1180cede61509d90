"""Which nodes a policy is about. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from caretaker.api.grants import glob
from caretaker.api.imds import GroupTerm, LabelSelector, Requirement, Selector


def selects(selector: Selector, labels: Mapping[str, str], groups: Sequence[tuple[str, str]]) -> bool:
    """Whether a node with these labels, in these groups (kind, name), is meant."""
    if selector.node_selector is not None and not matches(selector.node_selector, labels):
        return False
    if (
        selector.exclude is not None
        and _says_something(selector.exclude)
        and matches(selector.exclude, labels)
    ):
        return False
    return not selector.groups or any(_in_group(term, groups) for term in selector.groups)


def names(selector: Selector) -> Iterator[str]:
    """The labels that it asks for."""
    for one in (selector.node_selector, selector.exclude):
        if one is not None:
            yield from one.match_labels
            yield from (requirement.key for requirement in one.match_expressions)


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """metav1.LabelSelectorAsSelector: every term has to hold; an empty selector matches everything."""
    equal = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return equal and all(_meets(requirement, labels) for requirement in selector.match_expressions)


def _says_something(selector: LabelSelector) -> bool:
    """Whether it has a term: an empty `exclude` excludes nothing, though an empty selector matches all."""
    return bool(selector.match_labels or selector.match_expressions)


def _meets(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    if requirement.operator == "In":
        return value is not None and value in requirement.values
    if requirement.operator == "NotIn":  # a label that is not there is not in
        return value is None or value not in requirement.values
    return (value is not None) == (requirement.operator == "Exists")


def _in_group(term: GroupTerm, groups: Sequence[tuple[str, str]]) -> bool:
    return any(
        kind == term.kind and any(glob(pattern, name) for pattern in term.names) for kind, name in groups
    )
