"""Which nodes a pod template selects, and whether a run may start there now.

Pure. Input: a pod template and Node records. The rules are the DaemonSet controller's
(nodeSelector, required node affinity, taints with the DaemonSet default tolerations), with four
differences that the spec page documents: a cordoned node is blocked unless the template tolerates the
cordon, a node that is not Ready is blocked unless the template tolerates that, a node with an unhealthy
condition of spec.healthGate is blocked, and nodes that run no ordinary pods (Fargate, virtual kubelets,
Windows) are left out unless the template selects them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from caretaker.api.health_gate import HealthCondition
from caretaker.api.objects import Node, Taint
from caretaker.daemontask.cordon import is_cordoned_by
from caretaker.daemontask.node_health import NODE_NOT_READY, NODE_UNHEALTHY, unhealthy, words_of

NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
NETWORK_UNAVAILABLE: Final = "node.kubernetes.io/network-unavailable"

COSTLY: Final = 200  # terms and requirements of node affinity; with so many a node takes about 30 µs

TAINT: Final = "Taint"  # the reason of a node that is left out for a taint
_EXPRESSIONS: Final = "matchExpressions"
_FIELDS: Final = "matchFields"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}")

Toleration = dict[str, Any]
_Operator = Callable[[str | None, Collection[Any]], bool]  # (the label's value, the values) -> matches
_Requirement = tuple[str, _Operator, Collection[Any]]
_Term = tuple[tuple[_Requirement, ...], tuple[_Requirement, ...]]  # (expressions, fields)

# The tolerations of DaemonSet pods, less `unschedulable`: a cordon says that the node is being serviced.
DEFAULT_TOLERATIONS: Final[tuple[Toleration, ...]] = (
    {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute"},
    {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/disk-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/pid-pressure", "operator": "Exists", "effect": "NoSchedule"},
)
HOST_NETWORK_TOLERATION: Final[Toleration] = {
    "key": NETWORK_UNAVAILABLE,
    "operator": "Exists",
    "effect": "NoSchedule",
}

CORDON_TOLERATION: Final[Toleration] = {"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}

# (label, value, reason): node flavours that cannot run an ordinary pod for a node.
SPECIAL_NODES: Final = (
    ("eks.amazonaws.com/compute-type", "fargate", "Fargate"),
    ("type", "virtual-kubelet", "VirtualNode"),
    ("kubernetes.azure.com/virtual-node", "true", "VirtualNode"),
    ("kubernetes.io/os", "windows", "Windows"),
)
_SPECIAL_LABELS: Final = frozenset(label for label, _, _ in SPECIAL_NODES)


class Eligibility(msgspec.Struct, frozen=True, gc=False):
    """Whether a node is eligible for a template.

    fits: a run may start. blocked: selected, but not now (cordoned, NotReady, unhealthy, being deleted).
    held: an untolerated NoSchedule taint; no new run, but a run or a record that exists still counts.
    excluded: not selected, or an untolerated NoExecute taint.
    """

    kind: Literal["fits", "blocked", "held", "excluded"]
    reason: str = ""
    message: str = ""
    since: float = 0.0


FITS: Final = Eligibility("fits")


def default_tolerations(
    pod_spec: dict[str, Any], gate: str = "", *, drains: bool = False
) -> tuple[Toleration, ...]:
    """The tolerations that every run gets beside the template's own. `gate`: gate_of() the task. `drains`:
    whether it has spec.drain."""
    of_network = (HOST_NETWORK_TOLERATION,) if pod_spec.get("hostNetwork") else ()
    of_gate: tuple[Toleration, ...] = ({"key": gate, "operator": "Exists"},) if gate else ()
    of_cordon = (CORDON_TOLERATION,) if drains else ()
    return (*DEFAULT_TOLERATIONS, *of_network, *of_gate, *of_cordon)


class Tolerated:
    """An index of tolerations; a template may have thousands. As corev1 Toleration.ToleratesTaint."""

    def __init__(self, tolerations: Iterable[Toleration]) -> None:
        # (key, effect) -> the values that are tolerated; None = all. An empty key or effect is any.
        self._values: dict[tuple[str, str], set[str] | None] = {}
        for toleration in tolerations:
            key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
            place = (key, toleration.get("effect") or "")
            if operator == "Exists":
                self._values[place] = None
            elif operator == "Equal" and key:
                values = self._values.setdefault(place, set())
                if values is not None:
                    values.add(toleration.get("value") or "")

    def has(self, taint: Taint) -> bool:
        """Whether one of them tolerates it."""
        for place in ((taint.key, taint.effect), (taint.key, ""), ("", taint.effect), ("", "")):
            values = self._values.get(place, ())
            if values is None or taint.value in values:
                return True
        return False


class EligibilityRules:
    """A template's node rules, compiled once per revision.

    `check` remembers its answer for as long as the Node record is the same object, so that a pass
    over unchanged nodes costs one dictionary look-up each.
    """

    def __init__(
        self,
        template: dict[str, Any],
        gate: str = "",
        drainer: str = "",
        health: Sequence[HealthCondition] = (),
    ) -> None:
        self.gate = gate  # see gate_of()
        self.health = health  # the conditions of spec.healthGate
        self.drainer = drainer  # UID of a task with spec.drain, whose own cordons keep it from nothing
        spec = template.get("spec") or {}
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        self._selector: dict[str, str] = spec.get("nodeSelector") or {}
        terms: list[dict[str, Any]] | None = required.get("nodeSelectorTerms")
        if terms is not None:  # corev1: a null or empty term matches no objects; nor does a list of such
            terms = [term for term in terms if term and (term.get(_EXPRESSIONS) or term.get(_FIELDS))]
        self._terms = None if terms is None else [_compiled(term) for term in terms]
        # Whether checks of thousands of nodes take so long that the pass has to yield in between.
        requirements = sum(1 + len(expressions) + len(fields) for expressions, fields in self._terms or ())
        self.costly = requirements > COSTLY
        own = list(spec.get("tolerations") or ())
        self._tolerated, owned = Tolerated((*own, *default_tolerations(spec, gate))), Tolerated(own)
        self._any_readiness = owned.has(Taint(NOT_READY, "NoSchedule"))
        # A node that another client cordoned is not drained, even where the template tolerates that.
        self._any_cordon = not drainer and owned.has(Taint(UNSCHEDULABLE, "NoSchedule"))
        self._wanted_special = self._special_of(spec)
        self._checks: tuple[Callable[[Node], Eligibility | None], ...] = (
            self._special,
            self._unselected,
            self._no_execute,
            self._no_schedule,
            self._deleting,
            self._cordoned,
            self._unready,
            *([self._unhealthy] if health else []),
        )
        self._memo: dict[str, tuple[Node, Eligibility]] = {}

    def check(self, node: Node) -> Eligibility:
        """The first check that objects, else FITS."""
        cached = self._memo.get(node.name)
        if cached is not None and cached[0] is node:
            return cached[1]
        found = FITS
        for check in self._checks:  # half as long as through a generator
            if (objection := check(node)) is not None:
                found = objection
                break
        self._memo[node.name] = (node, found)
        return found

    def gated(self, node: Node) -> bool:
        """Whether the node carries the taint of the task's gate, with any value and effect."""
        return bool(self.gate) and any(taint.key == self.gate for taint in node.taints)

    def forget(self, name: str) -> None:
        """Drop the cached result of a node that is gone."""
        self._memo.pop(name, None)

    def _special_of(self, spec: dict[str, Any]) -> set[tuple[str, str]]:
        """The special nodes that the template selects, as (label, value)."""
        named = (spec.get("os") or {}).get("name")
        wanted = {
            (label, value)
            for label, value, _ in SPECIAL_NODES
            if self._selector.get(label) == value or (label == "kubernetes.io/os" and named == value)
        }
        of_special = [
            (key, values)
            for expressions, _ in self._terms or ()
            for key, operator, values in expressions
            if key in _SPECIAL_LABELS and operator is _OPERATORS["In"]
        ]
        for label, value, _ in SPECIAL_NODES:
            if any(key == label and value in values for key, values in of_special):
                wanted.add((label, value))
        return wanted

    def _special(self, node: Node) -> Eligibility | None:
        for label, value, reason in SPECIAL_NODES:
            if node.labels.get(label) == value and (label, value) not in self._wanted_special:
                return Eligibility(
                    "excluded", reason, f"{label}={value} is left out unless the template selects it"
                )
        return None

    def _unselected(self, node: Node) -> Eligibility | None:
        for key, value in self._selector.items():
            if node.labels.get(key) != value:
                return Eligibility("excluded", "NodeSelector", f"nodeSelector wants {key}={value}")
        if self._terms is not None and not any(_matches_term(term, node) for term in self._terms):
            return Eligibility("excluded", "NodeAffinity", "no required node affinity term matches")
        return None

    def _no_execute(self, node: Node) -> Eligibility | None:
        taint = self._untolerated(node, "NoExecute")
        return Eligibility("excluded", TAINT, f"untolerated taint {_show(taint)}") if taint else None

    def _no_schedule(self, node: Node) -> Eligibility | None:
        taint = self._untolerated(node, "NoSchedule")
        return Eligibility("held", TAINT, f"untolerated taint {_show(taint)}") if taint else None

    def _untolerated(self, node: Node, effect: str) -> Taint | None:
        for taint in node.taints:
            # These three restate spec.unschedulable and the Ready condition, which have checks of their own.
            if taint.key in (NOT_READY, UNREACHABLE, UNSCHEDULABLE):
                continue
            if taint.effect == effect and not self._tolerated.has(taint):
                return taint
        return None

    def _deleting(self, node: Node) -> Eligibility | None:
        return Eligibility("blocked", "NodeDeleting", "the Node is being deleted") if node.deleting else None

    def _cordoned(self, node: Node) -> Eligibility | None:
        if not node.unschedulable or self._any_cordon:
            return None
        if self.drainer:
            if is_cordoned_by(node, self.drainer):
                return None
            return Eligibility("blocked", "Cordoned", "another client has cordoned the node")
        return Eligibility(
            "blocked", "Cordoned", "the node is cordoned and the template does not tolerate that"
        )

    def _unready(self, node: Node) -> Eligibility | None:
        if node.ready or self._any_readiness:
            return None
        return Eligibility("blocked", NODE_NOT_READY, "the node is not Ready", node.ready_since)

    def _unhealthy(self, node: Node) -> Eligibility | None:
        bad = unhealthy(node, self.health)
        if not bad:
            return None
        words = "; ".join(map(words_of, bad))
        return Eligibility("blocked", NODE_UNHEALTHY, words, min(since for _, _, since in bad))


def _show(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _compiled(term: dict[str, Any]) -> _Term:
    """A term as it is looked at for each node: with thousands of values, that takes time only once."""
    expressions, fields = term.get(_EXPRESSIONS) or (), term.get(_FIELDS) or ()
    return tuple(map(_requirement, expressions)), tuple(map(_requirement, fields))


def _requirement(wanted: dict[str, Any]) -> _Requirement:
    """corev1.NodeSelectorRequirement; an operator we do not know matches nothing."""
    if not wanted:
        return "", _never, ()
    values: Sequence[str] = wanted.get("values") or ()
    operator = _OPERATORS.get(wanted.get("operator", ""), _never)
    of: Collection[str | int] = frozenset(values)
    if operator in _NUMERIC:
        bound = _integer(values[0]) if len(values) == 1 else None
        of = () if bound is None else (bound,)
    return wanted.get("key", ""), operator, of


def _matches_term(term: _Term, node: Node) -> bool:
    expressions, fields = term
    for key, operator, values in expressions:  # a third as long as all() takes, of thousands of terms
        if not operator(node.labels.get(key), values):
            return False
    for key, operator, values in fields:
        if not operator(node.name if key == "metadata.name" else None, values):
            return False
    return True


@lru_cache(maxsize=256)  # thousands of terms may parse the same label of a node
def _integer(text: str) -> int | None:
    """As the scheduler reads it: Go's ParseInt, 64 bits. Python's int() would read more, such as 1_000."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _greater(actual: str | None, bounds: Collection[int]) -> bool:
    number = _integer(actual or "")
    return number is not None and any(number > bound for bound in bounds)


def _less(actual: str | None, bounds: Collection[int]) -> bool:
    number = _integer(actual or "")
    return number is not None and any(number < bound for bound in bounds)


def _never(_actual: str | None, _values: Collection[Any]) -> bool:
    return False


_NUMERIC: Final = (_greater, _less)
_OPERATORS: Final[dict[str, _Operator]] = {
    "In": lambda actual, values: actual in values,
    "NotIn": lambda actual, values: actual not in values,
    "Exists": lambda actual, _: actual is not None,
    "DoesNotExist": lambda actual, _: actual is None,
    "Gt": _greater,
    "Lt": _less,
}
