"""Which nodes a template selects, and what keeps a run from starting on one: the rules of the scheduler."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.objects import Node, Taint
from caretaker.daemontask.node_eligibility import (
    COSTLY,
    DEFAULT_TOLERATIONS,
    FITS,
    Eligibility,
    EligibilityRules,
    Tolerated,
    default_tolerations,
)
from fuzz.cost import seconds
from unit.daemontask.build import NOW, node, taint

MATCHED = {
    "gpu": "a100",
    "cores": "16",
    "low": "-3",
    "zero": "",
    "odd": "1_000",
    "huge": "9223372036854775808",
}
UNMATCHED = Eligibility("excluded", "NodeAffinity", "no required node affinity term matches")
CORDONED = Eligibility("blocked", "Cordoned", "the node is cordoned and the template does not tolerate that")
NOT_READY = Eligibility("blocked", "NodeNotReady", "the node is not Ready", NOW - 60)
DELETING = Eligibility("blocked", "NodeDeleting", "the Node is being deleted")
WINDOWS = Eligibility(
    "excluded", "Windows", "kubernetes.io/os=windows is left out unless the template selects it"
)


def eligibility(**spec: Any) -> EligibilityRules:
    return EligibilityRules({"spec": spec})


def check(of: Node, **spec: Any) -> Eligibility:
    return eligibility(**spec).check(of)


def required(*terms: Any) -> dict[str, Any]:
    """The affinity of a template that requires one of the terms."""
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    }


def want(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": [*values]} if values else {})}


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        pytest.param(want("gpu", "In", "h100", "a100"), True, id="In: the label has one of the values"),
        pytest.param(want("gpu", "In", "h100"), False, id="In: the label has another value"),
        pytest.param(want("gone", "In", "a100"), False, id="In: the label is absent"),
        pytest.param(want("gpu", "In"), False, id="In: no values"),
        pytest.param(want("gpu", "NotIn", "h100"), True, id="NotIn: the label has another value"),
        pytest.param(
            want("gpu", "NotIn", "h100", "a100"), False, id="NotIn: the label has one of the values"
        ),
        pytest.param(want("gone", "NotIn", "a100"), True, id="NotIn: the label is absent"),
        pytest.param(want("gpu", "Exists"), True, id="Exists: the label is there"),
        pytest.param(want("zero", "Exists"), True, id="Exists: the label is there and empty"),
        pytest.param(want("gone", "Exists"), False, id="Exists: the label is absent"),
        pytest.param(want("gone", "DoesNotExist"), True, id="DoesNotExist: the label is absent"),
        pytest.param(want("gpu", "DoesNotExist"), False, id="DoesNotExist: the label is there"),
        pytest.param(want("zero", "DoesNotExist"), False, id="DoesNotExist: the label is there and empty"),
        pytest.param(want("cores", "Gt", "15"), True, id="Gt: the label is greater"),
        pytest.param(want("cores", "Gt", "16"), False, id="Gt: the label is equal"),
        pytest.param(want("cores", "Gt", "17"), False, id="Gt: the label is less"),
        pytest.param(want("cores", "Gt", "9"), True, id="Gt: as numbers, not as text"),
        pytest.param(want("cores", "Gt", "-1"), True, id="Gt: of a negative number"),
        pytest.param(want("cores", "Gt", "+0015"), True, id="Gt: of a number with sign and zeros"),
        pytest.param(want("gone", "Gt", "-1"), False, id="Gt: the label is absent"),
        pytest.param(want("zero", "Gt", "-1"), False, id="Gt: the label is empty"),
        pytest.param(want("gpu", "Gt", "1"), False, id="Gt: the label is no number"),
        pytest.param(want("cores", "Gt", "1.5"), False, id="Gt: the value is no integer"),
        pytest.param(want("cores", "Gt", " 1"), False, id="Gt: the value has a space"),
        pytest.param(want("cores", "Gt"), False, id="Gt: no value"),
        pytest.param(want("cores", "Gt", "1", "2"), False, id="Gt: two values"),
        pytest.param(want("odd", "Gt", "1"), False, id="Gt: an underscore makes no number"),
        pytest.param(want("huge", "Gt", "1"), False, id="Gt: the label has more than 64 bits"),
        pytest.param(want("cores", "Gt", "-9223372036854775808"), True, id="Gt: the least number of 64 bits"),
        pytest.param(want("cores", "Gt", "-9223372036854775809"), False, id="Gt: one less is none"),
        pytest.param(want("cores", "Lt", "17"), True, id="Lt: the label is less"),
        pytest.param(want("cores", "Lt", "16"), False, id="Lt: the label is equal"),
        pytest.param(want("cores", "Lt", "15"), False, id="Lt: the label is greater"),
        pytest.param(
            want("cores", "Lt", "9223372036854775807"), True, id="Lt: the greatest number of 64 bits"
        ),
        pytest.param(want("cores", "Lt", "9223372036854775808"), False, id="Lt: one more is none"),
        pytest.param(want("low", "Lt", "0"), True, id="Lt: of a negative number"),
        pytest.param(want("gpu", "Lt", "99"), False, id="Lt: the label is no number"),
        pytest.param(want("gpu", "Like", "a100"), False, id="an operator that nobody knows matches nothing"),
        pytest.param({"key": "gpu", "values": ["a100"]}, False, id="no operator matches nothing"),
        pytest.param({"key": "gpu", "operator": "In", "values": None}, False, id="null values are none"),
    ],
)
def test_operators(requirement: dict[str, Any], matches: bool) -> None:
    of = node("a", labels=MATCHED)
    assert check(of, affinity=required({"matchExpressions": [requirement]})) == (
        FITS if matches else UNMATCHED
    )


GPU, OTHER = want("gpu", "Exists"), want("gone", "Exists")
HERE, THERE = want("metadata.name", "In", "a"), want("metadata.name", "In", "b")


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        pytest.param([{"matchExpressions": [GPU]}], True, id="one term that matches"),
        pytest.param([{"matchExpressions": [OTHER]}], False, id="one that does not"),
        pytest.param(
            [{"matchExpressions": [OTHER]}, {"matchExpressions": [GPU]}], True, id="any term is enough"
        ),
        pytest.param(
            [{"matchExpressions": [GPU, OTHER]}], False, id="all expressions of a term have to match"
        ),
        pytest.param([{"matchFields": [HERE]}], True, id="the node's name is a field"),
        pytest.param([{"matchFields": [THERE]}], False, id="another node's name"),
        pytest.param([{"matchFields": [want("metadata.name", "NotIn", "b")]}], True, id="any name but one"),
        pytest.param([{"matchFields": [HERE, THERE]}], False, id="all fields of a term have to match"),
        pytest.param(
            [{"matchExpressions": [GPU], "matchFields": [THERE]}], False, id="expressions and fields: both"
        ),
        pytest.param(
            [{"matchExpressions": [OTHER], "matchFields": [HERE]}], False, id="fields and expressions: both"
        ),
        pytest.param([{"matchExpressions": [GPU], "matchFields": [HERE]}], True, id="both match"),
        pytest.param([{"matchFields": [want("gpu", "Exists")]}], False, id="a label is no field"),
        pytest.param([{"matchExpressions": [HERE]}], False, id="a field is no label"),
        pytest.param([{}], False, id="an empty term matches no node"),
        pytest.param(
            [{"matchExpressions": [], "matchFields": []}], False, id="a term with empty lists neither"
        ),
        pytest.param([{"matchExpressions": None, "matchFields": None}], False, id="nor one with nulls"),
        pytest.param([{}, {"matchExpressions": [GPU]}], True, id="an empty term does not spoil the others"),
        pytest.param([], False, id="no terms match no node"),
    ],
)
def test_terms(terms: list[Any], matches: bool) -> None:
    of = node("a", labels=MATCHED)
    assert check(of, affinity=required(*terms)) == (FITS if matches else UNMATCHED)


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"spec": None},
        {"spec": {}},
        {"spec": {"affinity": None}},
        {"spec": {"affinity": {"podAffinity": {}, "nodeAffinity": None}}},
        {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}}},
        {
            "spec": {
                "affinity": {
                    "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
                }
            }
        },
        {"spec": {"nodeSelector": None, "tolerations": None}},
    ],
    ids=str,
)
def test_a_template_that_requires_nothing_fits_every_node(template: dict[str, Any]) -> None:
    assert EligibilityRules(template).check(node()) == FITS


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param({"gpu": "a100", "cores": "16"}, FITS, id="all labels are as wanted"),
        pytest.param(
            {"gpu": "a100", "cores": "8"},
            Eligibility("excluded", "NodeSelector", "nodeSelector wants cores=8"),
            id="one label has another value",
        ),
        pytest.param(
            {"gone": ""},
            Eligibility("excluded", "NodeSelector", "nodeSelector wants gone="),
            id="absent is not empty",
        ),
        pytest.param({"zero": ""}, FITS, id="empty is empty"),
    ],
)
def test_node_selector(selector: dict[str, str], expected: Eligibility) -> None:
    assert check(node("a", labels=MATCHED), nodeSelector=selector) == expected


def test_selector_and_affinity_have_both_to_match() -> None:
    of, affinity = node("a", labels=MATCHED), required({"matchExpressions": [OTHER]})
    assert check(of, nodeSelector={"gpu": "a100"}, affinity=affinity) == UNMATCHED


# ---------------------------------------------------------------- taints


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param(
            {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True, id="all the same"
        ),
        pytest.param({"key": "k", "value": "v", "effect": "NoSchedule"}, True, id="Equal is the default"),
        pytest.param(
            {"key": "k", "operator": "", "value": "v"}, True, id="and so it is for an empty operator"
        ),
        pytest.param({"key": "k", "operator": "Equal", "value": "v"}, True, id="no effect is every effect"),
        pytest.param({"key": "k", "value": "v", "effect": ""}, True, id="an empty one, too"),
        pytest.param({"key": "k", "value": "v", "effect": "NoExecute"}, False, id="another effect"),
        pytest.param({"key": "j", "value": "v"}, False, id="another key"),
        pytest.param({"key": "k", "value": "w"}, False, id="another value"),
        pytest.param({"key": "k"}, False, id="no value is not any value"),
        pytest.param({"key": "k", "operator": "Exists"}, True, id="Exists: any value"),
        pytest.param({"key": "j", "operator": "Exists"}, False, id="Exists: of another key"),
        pytest.param(
            {"key": "k", "operator": "Exists", "effect": "NoExecute"}, False, id="Exists: of another effect"
        ),
        pytest.param({"operator": "Exists"}, True, id="Exists without a key: every taint"),
        pytest.param({"operator": "Exists", "effect": "NoSchedule"}, True, id="every taint of the effect"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="and of no other"),
        pytest.param(
            {"key": "k", "operator": "Like", "value": "v"}, False, id="an operator that nobody knows"
        ),
        pytest.param({"value": "v"}, False, id="Equal without a key, which the API server refuses"),
    ],
)
def test_tolerations(toleration: dict[str, str], tolerated: bool) -> None:
    assert Tolerated([toleration]).has(taint("k", value="v")) is tolerated
    held = Eligibility("held", "Taint", "untolerated taint k=v:NoSchedule")
    assert check(node(taints=(taint("k", value="v"),)), tolerations=[toleration]) == (
        FITS if tolerated else held
    )


def test_a_taint_without_a_value_is_tolerated_by_a_toleration_without_one() -> None:
    assert Tolerated([{"key": "k"}]).has(taint("k"))
    assert Tolerated([{"key": "k", "value": None}]).has(taint("k"))
    assert not Tolerated([{"key": "k", "value": "v"}]).has(taint("k"))


def tolerates(toleration: dict[str, str], of: Taint) -> bool:
    """As ToleratesTaint is written in k8s.io/api/core/v1/toleration.go."""
    effect, key = toleration.get("effect"), toleration.get("key")
    if (effect and effect != of.effect) or (key and key != of.key):
        return False
    operator = toleration.get("operator", "Equal")
    return operator == "Exists" or (
        operator == "Equal" and bool(key) and toleration.get("value", "") == of.value
    )


FEW = st.sampled_from(["", "a", "b"])


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "key": FEW,
                "effect": FEW,
                "value": FEW,
                "operator": st.sampled_from(["Exists", "Equal", "Like"]),
            },
        ),
        max_size=4,
    ),
    st.builds(Taint, FEW, FEW, FEW),
)
def test_tolerations_are_looked_up_as_if_they_were_tried_one_after_the_other(
    tolerations: list[dict[str, str]], of: Taint
) -> None:
    assert Tolerated(tolerations).has(of) is any(tolerates(one, of) for one in tolerations)


def test_thousands_of_tolerations_cost_a_node_no_more_than_one() -> None:
    """Measured in CPU time, which depends little on the load of the machine."""

    def cost(count: int) -> float:
        has = Tolerated([{"key": "k", "value": f"{n}"} for n in range(count)]).has
        began = time.thread_time()
        for _ in range(2000):
            has(taint("k", value="v"))
        return time.thread_time() - began

    assert min(cost(5000) for _ in range(3)) < 10 * min(cost(1) for _ in range(3))


def test_any_toleration_is_enough() -> None:
    assert Tolerated([{"key": "j"}, {"key": "k"}]).has(taint("k"))
    assert not Tolerated([]).has(taint("k"))


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        ("NoSchedule", Eligibility("held", "Taint", "untolerated taint k:NoSchedule")),
        ("NoExecute", Eligibility("excluded", "Taint", "untolerated taint k:NoExecute")),
        ("PreferNoSchedule", FITS),
    ],
)
def test_what_an_untolerated_taint_means(effect: str, expected: Eligibility) -> None:
    assert check(node(taints=(taint("k", effect),))) == expected


def test_the_taint_that_is_not_tolerated_is_named_whatever_comes_before() -> None:
    before = (taint("node.kubernetes.io/not-ready"), taint("j"), taint("node.kubernetes.io/unschedulable"))
    of = node(taints=(*before, taint("k", value="v")))
    assert check(of, tolerations=[{"key": "j"}]).message == "untolerated taint k=v:NoSchedule"
    of = node(taints=(*before, taint("k", "NoExecute", "v")))
    assert check(of, tolerations=[{"key": "j"}]).message == "untolerated taint k=v:NoExecute"


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize("key", ["not-ready", "unreachable", "unschedulable"])
def test_the_taints_of_a_state_count_as_the_state_alone(key: str, effect: str) -> None:
    """The node lifecycle controller adds and removes them a moment after the state itself."""
    assert check(node(taints=(taint(f"node.kubernetes.io/{key}", effect),))) == FITS


@pytest.mark.parametrize("pressure", ["disk-pressure", "memory-pressure", "pid-pressure"])
def test_pressure_is_tolerated_as_daemonset_pods_do_but_no_eviction(pressure: str) -> None:
    key = f"node.kubernetes.io/{pressure}"
    assert check(node(taints=(taint(key),))) == FITS
    assert check(node(taints=(taint(key, "NoExecute"),))).kind == "excluded"


def test_a_missing_network_is_tolerated_by_pods_of_the_host_network_alone() -> None:
    of = node(taints=(taint("node.kubernetes.io/network-unavailable"),))
    assert check(of).message == "untolerated taint node.kubernetes.io/network-unavailable:NoSchedule"
    assert check(of, hostNetwork=True) == FITS
    of = node(taints=(taint("node.kubernetes.io/network-unavailable", "NoExecute"),))
    assert check(of, hostNetwork=True).kind == "excluded"


def test_the_tolerations_that_every_run_gets() -> None:
    network = {"key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule"}
    assert default_tolerations({}) == DEFAULT_TOLERATIONS
    assert default_tolerations({"hostNetwork": False}) == DEFAULT_TOLERATIONS
    assert default_tolerations({"hostNetwork": True}) == (*DEFAULT_TOLERATIONS, network)
    assert {(t["key"].partition("/")[2], t["operator"], t["effect"]) for t in DEFAULT_TOLERATIONS} == {
        ("not-ready", "Exists", "NoExecute"),
        ("unreachable", "Exists", "NoExecute"),
        ("disk-pressure", "Exists", "NoSchedule"),
        ("memory-pressure", "Exists", "NoSchedule"),
        ("pid-pressure", "Exists", "NoSchedule"),
    }


# ---------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("state", "toleration", "expected"),
    [
        pytest.param({}, None, FITS, id="nothing is wrong"),
        pytest.param({"unschedulable": True}, None, CORDONED, id="a cordon blocks"),
        pytest.param({"unschedulable": True}, {"operator": "Exists"}, FITS, id="unless all is tolerated"),
        pytest.param(
            {"unschedulable": True},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            FITS,
            id="or the cordon",
        ),
        pytest.param(
            {"unschedulable": True},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"},
            CORDONED,
            id="with its effect",
        ),
        pytest.param(
            {"unschedulable": True},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
            CORDONED,
            id="to tolerate a node that is not Ready is not to tolerate a cordon",
        ),
        pytest.param(
            {"ready": False, "ready_since": NOW - 60}, None, NOT_READY, id="a node that is not Ready blocks"
        ),
        pytest.param({"ready": False}, {"operator": "Exists"}, FITS, id="unless all is tolerated at all"),
        pytest.param(
            {"ready": False},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"},
            FITS,
            id="or that it is not Ready",
        ),
        pytest.param(
            {"ready": False, "ready_since": NOW - 60},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            NOT_READY,
            id="to stay is not to start",
        ),
        pytest.param(
            {"ready": False, "ready_since": NOW - 60},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
            NOT_READY,
            id="to tolerate a cordon is not to tolerate a node that is not Ready",
        ),
        pytest.param(
            {"deleting": True}, {"operator": "Exists"}, DELETING, id="nothing starts on a node that goes"
        ),
    ],
)
def test_states(state: dict[str, Any], toleration: dict[str, str] | None, expected: Eligibility) -> None:
    assert check(node(**state), tolerations=[toleration] if toleration else []) == expected


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param({"labels": {"kubernetes.io/os": "windows"}}, "Windows", id="what it is"),
        pytest.param({}, "NodeSelector", id="then whether it is selected"),
        pytest.param({"labels": {"gpu": "a100"}}, "NoExecute", id="then what evicts"),
        pytest.param(
            {"labels": {"gpu": "a100"}, "taints": (taint("k"),)}, "NoSchedule", id="then what keeps away"
        ),
        pytest.param({"labels": {"gpu": "a100"}, "taints": ()}, "NodeDeleting", id="then whether it goes"),
        pytest.param(
            {"labels": {"gpu": "a100"}, "taints": (), "deleting": False}, "Cordoned", id="then the cordon"
        ),
        pytest.param(
            {"labels": {"gpu": "a100"}, "taints": (), "deleting": False, "unschedulable": False},
            "NodeNotReady",
            id="and last whether it is Ready",
        ),
    ],
)
def test_what_is_told_when_several_things_keep_a_node(state: dict[str, Any], reason: str) -> None:
    taints = (taint("k"), taint("k", "NoExecute"))
    wrong = node(taints=taints, deleting=True, unschedulable=True, ready=False)
    found = check(msgspec.structs.replace(wrong, **state), nodeSelector={"gpu": "a100"})
    assert reason in (found.reason, found.message.rpartition(":")[2])


# ---------------------------------------------------------------- nodes that run no ordinary pods

SPECIAL = [
    ("eks.amazonaws.com/compute-type", "fargate", "Fargate"),
    ("type", "virtual-kubelet", "VirtualNode"),
    ("kubernetes.azure.com/virtual-node", "true", "VirtualNode"),
    ("kubernetes.io/os", "windows", "Windows"),
]


@pytest.mark.parametrize(("label", "value", "reason"), SPECIAL)
def test_a_node_that_runs_no_ordinary_pods_is_left_out_unless_selected(
    label: str, value: str, reason: str
) -> None:
    of = node(labels={label: value})
    left_out = Eligibility("excluded", reason, f"{label}={value} is left out unless the template selects it")
    assert check(of) == left_out
    assert check(of, affinity=required({"matchExpressions": [want(label, "Exists")]})) == left_out
    assert check(of, affinity=required({"matchExpressions": [want(label, "NotIn", "other")]})) == left_out
    assert check(of, affinity=required({"matchExpressions": [want("other", "NotIn", value)]})) == left_out
    assert check(of, nodeSelector={label: value}) == FITS
    assert check(of, affinity=required({"matchExpressions": [want(label, "In", value)]})) == FITS
    terms = [
        {"matchFields": [HERE]},
        {},
        {"matchExpressions": [want("x", "Exists"), want(label, "In", "y", value)]},
    ]
    assert check(node(labels={label: value, "x": ""}), affinity=required(*terms)) == FITS
    assert check(node(labels={label: "other"})) == FITS


def test_another_value_of_the_label_selects_none_of_them() -> None:
    terms = required(
        {"matchExpressions": [want("type", "In", "bare-metal"), want("zone", "In", "virtual-kubelet")]}
    )
    assert check(node(labels={"type": "virtual-kubelet"}), affinity=terms).reason == "VirtualNode"
    broken = required({"matchExpressions": [{"key": "type", "operator": "In", "values": None}, {}]})
    assert check(node(labels={"type": "virtual-kubelet"}), affinity=broken).reason == "VirtualNode"


def test_windows_is_selected_by_spec_os_too() -> None:
    of = node(labels={"kubernetes.io/os": "windows"})
    assert check(of, os={"name": "windows"}) == FITS
    assert check(of, os={"name": "linux"}) == WINDOWS
    assert check(of, os=None) == WINDOWS
    assert check(node(labels={"type": "virtual-kubelet"}), os={"name": "virtual-kubelet"}).kind == "excluded"


def test_to_select_one_flavour_is_to_select_no_other() -> None:
    of = node(labels={"type": "virtual-kubelet", "kubernetes.io/os": "windows"})
    assert check(of, nodeSelector={"type": "virtual-kubelet"}) == WINDOWS


# ---------------------------------------------------------------- what is remembered


def test_a_verdict_follows_the_node() -> None:
    one = eligibility()
    assert one.check(node("a")) == FITS
    assert one.check(node("a", unschedulable=True)) == CORDONED
    assert one.check(node("b")) == FITS
    one.forget("a")
    one.forget("a")
    assert one.check(node("a")) == FITS


def test_a_verdict_on_an_unchanged_node_is_not_made_again() -> None:
    one, of = eligibility(), node("a", unschedulable=True)
    assert one.check(of) is one.check(of)
    before = one.check(of)
    one.forget("a")
    assert one.check(of) is not before


EMPTY = 80_000  # of what has two characters in a template of 256 KiB


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param([{}] * EMPTY, id="terms"),
        pytest.param([{"matchExpressions": [], "matchFields": None}] * (COSTLY + 1), id="of empty lists"),
    ],
)
def test_empty_terms_match_nothing_and_cost_nothing(terms: list[Any]) -> None:
    rules = eligibility(affinity=required(*terms))
    assert (rules.check(node()), rules.costly) == (UNMATCHED, False)
    assert rules._terms == []
    beside = eligibility(
        affinity=required(*terms, {"matchExpressions": [{"key": "a", "operator": "Exists"}]})
    )
    assert beside.check(node(labels={"a": ""})) == FITS


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param([{}] * EMPTY, id="empty terms"),
        pytest.param([{"matchExpressions": [{}] * EMPTY}], id="empty requirements"),
        pytest.param([{"matchFields": [{}]}] * (EMPTY // 6), id="terms of an empty requirement"),
    ],
)
def test_rules_of_what_is_empty_are_made_in_one_turn_of_the_loop(terms: list[Any]) -> None:
    affinity = required(*terms)
    assert seconds(lambda: eligibility(affinity=affinity), 0.1) <= 0.1, "CPU; 0.2 s with every part"


def test_terms_count_beside_their_requirements() -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    assert not eligibility(affinity=required(*[term] * (COSTLY // 2))).costly
    assert eligibility(affinity=required(*[term] * (COSTLY // 2 + 1))).costly
