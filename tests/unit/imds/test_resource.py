"""How an IMDSPolicy is read, and what becomes of one that cannot be."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import Aws, LabelSelector, Options, Selector, Spec, Status, Summary
from caretaker.api.objects import WireMeta
from caretaker.aws.identity import User
from caretaker.imds.plan import Policy
from caretaker.imds.resource import ParsedPolicy, RawPolicy, read, user_of
from caretaker.registry import IMDS_POLICY

META = WireMeta(name="p", generation=3)
HOP = {"options": {"httpPutResponseHopLimit": 2}}


def raw(spec: Any, status: Any = None) -> RawPolicy:
    encoded = msgspec.Raw(msgspec.json.encode(spec))
    if status is None:
        return RawPolicy(META, encoded)
    return RawPolicy(META, encoded, msgspec.Raw(msgspec.json.encode(status)))


def test_defaults_are_those_of_the_crd() -> None:
    assert read(raw(HOP)) == ParsedPolicy(META, Status(), Spec(Options(2)), 900.0, 120.0, 120.0, 86400.0)


def test_every_duration_is_read_from_its_own_field() -> None:
    made = read(
        raw(
            {
                **HOP,
                "resyncInterval": "1h",
                "pendingTimeout": "3m",
                "safety": {"canary": {"soak": "5m"}},
                "verification": {"interval": "2h"},
            }
        )
    )
    assert (made.resync, made.soak, made.pending, made.interval) == (3600.0, 300.0, 180.0, 7200.0)
    assert made.invalid == ""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing is named": ({"options": {}}, "spec.options: must name at least one option"),
    "more than Enforce may set": (
        {"options": {"httpPutResponseHopLimit": 4}, "mode": "Enforce"},
        "spec.options.httpPutResponseHopLimit: 4 is more than spec.safety.maxHopLimit 3 lets Enforce set: "
        "raise that one, or lower this one",
    ),
    "no options": ({}, "Object missing required field `options`"),
    "another type": (
        {"options": {"httpTokens": 1}},
        "Expected `str`, got `int` - at `spec.options.httpTokens`",
    ),
}


@pytest.mark.parametrize(("spec", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_a_spec_that_cannot_be_read_is_told(spec: dict[str, Any], why: str) -> None:
    summary = Status(summary=Summary(nodes=3))
    made = read(raw(spec, summary))
    assert made == ParsedPolicy(META, summary, None, invalid=made.invalid)
    assert made.invalid.replace(" | null", "") == why


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("resyncInterval", {"resyncInterval": "soon"}),
        ("pendingTimeout", {"pendingTimeout": "soon"}),
        ("safety.canary.soak", {"safety": {"canary": {"soak": "soon"}}}),
        ("verification.interval", {"verification": {"interval": "soon"}}),
    ],
)
def test_a_duration_that_is_none_is_told_by_its_field(field: str, spec: dict[str, Any]) -> None:
    made = read(raw({**HOP, **spec}))
    assert made.spec is None
    assert made.invalid.startswith(f"spec.{field}: ")
    assert "soon" in made.invalid


@pytest.mark.parametrize(
    ("hops", "mode", "most", "valid"),
    [(3, "Enforce", 3, True), (4, "Audit", 3, True), (4, "Enforce", 4, True), (2, "Enforce", 1, False)],
)
def test_an_audit_may_ask_for_more_than_enforce_may_set(hops: int, mode: str, most: int, valid: bool) -> None:
    options = {"httpPutResponseHopLimit": hops}
    made = read(raw({"options": options, "mode": mode, "safety": {"maxHopLimit": most}}))
    assert (made.spec is not None) is valid


def test_without_a_hop_limit_none_is_too_high() -> None:
    spec = {"options": {"httpTokens": "required"}, "mode": "Enforce", "safety": {"maxHopLimit": 1}}
    assert read(raw(spec)).spec is not None
    assert read(raw({**spec, "safety": {"maxHopLimit": 0}})).spec is not None


def test_a_status_that_somebody_else_wrote_counts_as_none() -> None:
    assert read(raw(HOP, {"summary": "many"})).status == Status()
    known = Status(summary=Summary(nodes=3))
    assert read(raw(HOP, known)).status == known


def test_a_policy_without_a_spec_takes_no_part() -> None:
    assert ParsedPolicy(META, Status(), None).policy() is None
    broken = ParsedPolicy(META, Status(), None)
    assert (broken.enforces, broken.probes) == (False, False)


def test_what_counts_of_a_policy_for_all_of_them() -> None:
    selector = Selector(node_selector=LabelSelector({"a": "b"}))
    spec = Spec(Options(2), "Enforce", 7, aws=Aws(region="eu-west-1"), selector=selector)
    made = ParsedPolicy(META, Status(), spec)
    expected = Policy("p", 7, Options(2), selector, enforces=True, region="eu-west-1")
    assert made.policy() == expected
    suspended = msgspec.structs.replace(made, spec=msgspec.structs.replace(spec, suspend=True))
    assert suspended.policy() == expected, "it goes on winning"
    audit = msgspec.structs.replace(made, spec=msgspec.structs.replace(spec, mode="Audit"))
    assert audit.policy() == msgspec.structs.replace(expected, enforces=False)


@pytest.mark.parametrize(
    ("more", "probes"),
    [
        ({}, False),
        ({"verification": {"probe": True}}, True),
        ({"verification": {"probe": True}, "suspend": True}, False),
    ],
)
def test_a_policy_that_is_suspended_probes_nothing(more: dict[str, Any], probes: bool) -> None:
    assert read(raw({**HOP, **more})).probes is probes


def test_paths_and_users() -> None:
    assert IMDS_POLICY.path() == "/apis/caretaker.dev/v1alpha1/imdspolicies"
    assert IMDS_POLICY.path(name="p") == "/apis/caretaker.dev/v1alpha1/imdspolicies/p"
    assert user_of("p") == User("", "imdsp", "p")
