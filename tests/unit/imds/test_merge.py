"""What several policies together want, and how an instance differs from it."""

import random

import pytest

from caretaker.api.imds import FieldChange, Options
from caretaker.imds.drift import OptionChange, changes, slow_and_open, value
from caretaker.imds.merge import DesiredOption, PolicyOptions, merge

HOP, TOKENS = "httpPutResponseHopLimit", "httpTokens"


def test_each_field_goes_to_the_highest_priority_that_sets_it() -> None:
    base = PolicyOptions("base", 100, Options(http_put_response_hop_limit=1, http_tokens="required"))
    gpu = PolicyOptions("gpu", 200, Options(http_put_response_hop_limit=3))
    assert merge([base, gpu]) == {
        HOP: DesiredOption(3, "gpu", 200, losers=("base",)),
        TOKENS: DesiredOption("required", "base", 100),
    }


def test_who_wants_the_same_with_less_priority_has_not_lost() -> None:
    assert merge(
        [
            PolicyOptions("a", 1, Options(http_tokens="required")),
            PolicyOptions("b", 2, Options(http_tokens="required")),
        ]
    ) == {TOKENS: DesiredOption("required", "b", 2)}


def test_equal_priorities_with_different_values_are_a_conflict_of_that_field_alone() -> None:
    one = PolicyOptions("one", 100, Options(http_put_response_hop_limit=1, http_tokens="required"))
    two = PolicyOptions("two", 100, Options(http_put_response_hop_limit=2, http_tokens="required"))
    low = PolicyOptions("low", 50, Options(http_put_response_hop_limit=3))
    found = merge([one, two, low])
    assert found[HOP].rivals == ("one", "two")
    assert found[HOP].losers == ("low",)
    assert found[TOKENS] == DesiredOption("required", "one", 100)
    assert changes(Options(1, "optional"), found) == (
        OptionChange(TOKENS, "optional", "required", "one", tightens="Tokens"),
    )


def test_a_higher_priority_ends_a_conflict_below_it() -> None:
    claims = [
        PolicyOptions(name, 100, Options(http_put_response_hop_limit=n)) for n, name in enumerate("abc", 1)
    ]
    high = PolicyOptions("high", 101, Options(http_put_response_hop_limit=2))
    assert merge([*claims, high])[HOP] == DesiredOption(2, "high", 101, losers=("a", "c"))


def test_the_order_of_policies_does_not_matter() -> None:
    claims = [
        PolicyOptions(
            f"p{n}",
            n % 3,
            Options(http_put_response_hop_limit=1 + n % 4, http_tokens=("optional", "required")[n % 2]),
        )  # type: ignore[arg-type]
        for n in range(12)
    ]
    expected = merge(claims)
    for seed in range(20):
        random.Random(seed).shuffle(claims)
        assert merge(claims) == expected, f"seed {seed}"


LOOSENINGS = {
    "a higher hop limit": (Options(1), Options(2), "HopLimit"),
    "a lower hop limit": (Options(2), Options(1), ""),
    "a hop limit that is not known": (Options(), Options(1), "HopLimit"),
    "tokens optional": (Options(http_tokens="required"), Options(http_tokens="optional"), "Tokens"),
    "tokens required": (Options(http_tokens="optional"), Options(http_tokens="required"), ""),
    "the endpoint on": (Options(http_endpoint="disabled"), Options(http_endpoint="enabled"), "Endpoint"),
    "the endpoint off": (Options(http_endpoint="enabled"), Options(http_endpoint="disabled"), ""),
    "IPv6 on": (Options(http_protocol_ipv6="disabled"), Options(http_protocol_ipv6="enabled"), "IPv6"),
    "tags on": (
        Options(instance_metadata_tags="disabled"),
        Options(instance_metadata_tags="enabled"),
        "Tags",
    ),
}


@pytest.mark.parametrize(("current", "wanted", "loosens"), LOOSENINGS.values(), ids=LOOSENINGS.keys())
def test_what_opens_an_instance_is_told(current: Options, wanted: Options, loosens: str) -> None:
    (change,) = changes(current, merge([PolicyOptions("p", 1, wanted)]))
    assert change.loosens == loosens


def test_what_is_as_wanted_changes_nothing() -> None:
    options = Options(2, "required", "enabled", "disabled", "disabled")
    assert changes(options, merge([PolicyOptions("p", 1, options)])) == ()
    assert changes(options, {}) == ()


PAIRS = {
    "hop 1, tokens optional": (Options(1, "optional", "enabled"), True),
    "hop 1, tokens required": (Options(1, "required", "enabled"), False),
    "hop 2, tokens optional": (Options(2, "optional", "enabled"), False),
    "the endpoint is off": (Options(1, "optional", "disabled"), False),
    "nothing is known": (Options(), False),
}


@pytest.mark.parametrize(("options", "expected"), PAIRS.values(), ids=PAIRS.keys())
def test_slow_and_open(options: Options, expected: bool) -> None:
    assert slow_and_open(options) is expected


@pytest.mark.parametrize(
    ("field", "told", "expected"),
    [
        (HOP, "2", 2),
        (HOP, "999999999", 999_999_999),
        (HOP, "1000000000", None),
        (HOP, "unknown", None),
        (HOP, "-1", None),
        (TOKENS, "required", "required"),
        (TOKENS, "unknown", None),
    ],
)
def test_a_value_is_read_back_from_status(field: str, told: str, expected: object) -> None:
    assert value(FieldChange(field, told, "x"), told) == expected
