"""What Enforce leaves alone, and what it sends."""

from typing import Any, get_args

import msgspec
import pytest

from caretaker.api.imds import Options, Permit
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.drift import changes
from caretaker.imds.merge import PolicyOptions, merge
from caretaker.imds.safety_checks import Blocked, blocked, parameters

NAMES = get_args(Permit)
CLOSED = Options(2, "required", "disabled", "disabled", "disabled")
OPEN = Options(3, "optional", "enabled", "enabled", "enabled")
FIELDS = {
    "httpPutResponseHopLimit": "HopLimit",
    "httpTokens": "Tokens",
    "httpEndpoint": "Endpoint",
    "httpProtocolIpv6": "IPv6",
    "instanceMetadataTags": "Tags",
}


def told(
    now: Options,
    wanted: Options,
    *loosening: str,
    tightening: tuple[str, ...] = NAMES,
    unfit: bool | None = False,
) -> dict[str, str]:
    seen = ObservedInstance(now, unfit_tags=unfit)
    found = changes(now, merge([PolicyOptions("p", 1, wanted)]))
    kept = {change.field: blocked(change, seen, loosening, tightening) for change in found}
    return {field: why.reason for field, why in kept.items() if why is not None}


@pytest.mark.parametrize("allowed", NAMES)
@pytest.mark.parametrize(("field", "name"), FIELDS.items())
def test_an_opening_change_is_made_only_where_its_name_is_given(field: str, name: str, allowed: str) -> None:
    kept = told(CLOSED, OPEN, allowed)
    assert (kept.get(field) == "LooseningNotAllowed") is (name != allowed)


@pytest.mark.parametrize("allowed", NAMES)
@pytest.mark.parametrize(("field", "name"), FIELDS.items())
def test_a_closing_change_is_made_only_where_its_name_is_given(field: str, name: str, allowed: str) -> None:
    kept = told(OPEN, CLOSED, tightening=(allowed,))
    assert (kept.get(field) == "TighteningNotAllowed") is (name != allowed)
    assert told(CLOSED, OPEN, *NAMES, tightening=()) == {}


def test_what_is_not_known_may_be_open_or_closed() -> None:
    assert set(told(Options(), OPEN)) == set(FIELDS)
    assert set(told(Options(), CLOSED)) == {"httpPutResponseHopLimit"}, "2 may be more than it has"
    assert set(told(Options(), CLOSED, *NAMES, tightening=())) == set(FIELDS)
    assert set(told(Options(), OPEN, *NAMES, tightening=())) == {"httpPutResponseHopLimit"}, "or less"


@pytest.mark.parametrize(
    ("unfit", "reasons"), [(False, {}), (True, {"TagKeysUnfit"}), (None, {"TagKeysUnfit"})]
)
def test_tags_are_switched_on_only_where_all_keys_can_be_shown(unfit: bool | None, reasons: Any) -> None:
    kept = told(
        Options(instance_metadata_tags="disabled"),
        Options(instance_metadata_tags="enabled"),
        *NAMES,
        unfit=unfit,
    )
    assert set(kept.values()) == set(reasons)
    off = told(
        Options(instance_metadata_tags="enabled"), Options(instance_metadata_tags="disabled"), unfit=unfit
    )
    assert off == {}


UNFIT = "a tag key has characters that IMDS does not support"
OPENS = "it opens the instance; to allow it, add Tokens to spec.safety.allowLoosening"
CUTS = (
    "it cuts off clients that still use what it closes; to allow it, add Tokens to "
    "spec.safety.allowTightening"
)


@pytest.mark.parametrize(
    ("field", "ends", "unfit", "reason", "message"),
    [
        (
            *("instanceMetadataTags", ("disabled", "enabled"), True),
            "TagKeysUnfit",
            f"EC2 would refuse it, because {UNFIT}; remove the option",
        ),
        (
            *("instanceMetadataTags", ("disabled", "enabled"), None),
            "TagKeysUnfit",
            "EC2 would refuse it, because its tags are unknown; remove the option",
        ),
        ("httpTokens", ("required", "optional"), False, "LooseningNotAllowed", OPENS),
        ("httpTokens", ("optional", "required"), False, "TighteningNotAllowed", CUTS),
    ],
)
def test_why_a_change_is_not_made_is_told_whole(
    field: str, ends: tuple[str, str], unfit: bool | None, reason: str, message: str
) -> None:
    now, wanted = (msgspec.convert({field: end}, Options) for end in ends)
    (change,) = changes(now, merge([PolicyOptions("p", 1, wanted)]))
    assert blocked(change, ObservedInstance(now, unfit_tags=unfit), (), ()) == Blocked(
        change, reason, message
    )


def sends(now: Options, *claims: PolicyOptions, leave: tuple[str, ...] = ()) -> dict[str, Any]:
    return parameters(merge(claims), "p", leave, ObservedInstance(now))


HERE = Options(1, "optional", "enabled", "disabled", "disabled")


def test_what_it_wins_and_differs_is_sent_and_nothing_along() -> None:
    tokens = PolicyOptions("q", 2, Options(http_tokens="required"))
    assert sends(HERE, PolicyOptions("p", 1, Options(2, "optional")), tokens) == {
        "HttpPutResponseHopLimit": 2
    }
    assert sends(HERE, PolicyOptions("p", 1, Options(2, "optional", "enabled"))) == {
        "HttpPutResponseHopLimit": 2
    }
    hop = ("httpPutResponseHopLimit",)
    assert sends(HERE, PolicyOptions("p", 1, Options(2, "required")), leave=hop) == {"HttpTokens": "required"}


def test_what_ec2_does_not_tell_differs() -> None:
    both = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}
    assert sends(Options(), PolicyOptions("p", 1, Options(2, "required"))) == both


def test_where_nothing_differs_all_that_it_wins_is_sent_again() -> None:
    """EC2 reports the accepted values before it applies them."""
    mine, tokens = (
        PolicyOptions("p", 1, Options(1, "optional")),
        PolicyOptions("q", 2, Options(http_tokens="required")),
    )
    assert sends(HERE, mine) == {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional"}
    assert sends(HERE, mine, tokens) == {"HttpPutResponseHopLimit": 1}


def test_an_option_in_conflict_is_not_sent() -> None:
    sent = sends(HERE, PolicyOptions("p", 1, Options(2, "required")), PolicyOptions("q", 1, Options(3)))
    assert sent == {"HttpTokens": "required"}


@pytest.mark.parametrize("closing", [(), (PolicyOptions("q", 2, Options(http_endpoint="disabled")),)])
def test_an_endpoint_is_opened_or_closed_only_where_that_is_wanted(
    closing: tuple[PolicyOptions, ...],
) -> None:
    off = Options(1, "optional", "disabled")
    for now in (HERE, off):
        assert sends(now, PolicyOptions("p", 1, Options(http_tokens="required")), *closing) == {
            "HttpTokens": "required"
        }
    assert sends(off, PolicyOptions("p", 1, Options(http_endpoint="enabled"))) == {"HttpEndpoint": "enabled"}
    assert sends(HERE, PolicyOptions("p", 1, Options(http_endpoint="disabled"))) == {
        "HttpEndpoint": "disabled"
    }
