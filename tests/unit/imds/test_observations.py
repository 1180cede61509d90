"""What is known of instances from one response to the next. How they are asked for: test_inventory.py."""

from typing import Any, Final

import pytest

from caretaker.imds.checks import OWN_SECONDS
from caretaker.imds.observations import GONE_SECONDS, LOST_SECONDS, OWN_KEPT_SECONDS, Observations, OwnChanges

TOLD: Final = {
    "State": "applied",
    "HttpPutResponseHopLimit": 1,
    "HttpTokens": "optional",
    "HttpEndpoint": "enabled",
    "HttpProtocolIpv6": "disabled",
}
RAISED: Final = {**TOLD, "HttpPutResponseHopLimit": 2}
TAGS: Final = [{"Key": "Name", "Value": "x"}]


def told(name: str = "i-1", options: dict[str, Any] = TOLD) -> Any:
    return {"InstanceId": name, "State": {"Name": "running"}, "MetadataOptions": options, "Tags": TAGS}


def read(of: Observations, at: float, *found: Any, ids: str = "i-1", whole: bool = False) -> str:
    """What is known of i-1 after this response."""
    of.read(found, set(ids.split()), at, whole=whole)
    one = of.known.get("i-1")
    if one is None:
        return "gone"
    return "lost" if one.lost else "unconfirmed" if one.under_way else "known"


def test_one_that_a_response_lacks_is_due_after_a_while_and_then_gone() -> None:
    of, wait = Observations(), LOST_SECONDS
    assert read(of, 0.0, told()) == "known"
    assert read(of, 100.0) == "lost"
    assert (of.due(100.0 + wait - 0.1), of.due(100.0 + wait)) == (set(), {"i-1"})
    assert read(of, 100.0 + wait - 0.1) == "lost"
    assert read(of, 100.0 + wait) == "gone"
    assert (of.due(1_000.0), of.lost) == (set(), {})


def test_one_that_a_response_lacks_some_option_of_is_due_until_one_has_it() -> None:
    of = Observations()
    read(of, 0.0, told())
    without = {name: value for name, value in TOLD.items() if name != "HttpProtocolIpv6"}
    assert read(of, 100.0, told(options=without)) == "lost"
    assert of.known["i-1"].options.http_protocol_ipv6 == "disabled"
    assert of.due(110.0) == {"i-1"}
    assert read(of, 110.0, told()) == "known"
    assert of.due(1_000.0) == set()


def test_a_whole_read_forgets_those_that_it_was_not_asked_for_and_does_not_have() -> None:
    of = Observations()
    read(of, 0.0, told(), told("i-2"), ids="i-1 i-2")
    assert read(of, 10.0, told("i-2"), ids="i-2") == "known"
    assert read(of, 20.0, told("i-2"), ids="i-2", whole=True) == "gone"


def test_one_that_ec2_does_not_know_is_gone_until_a_later_response_has_it() -> None:
    of = Observations()
    read(of, 0.0, told())
    of.gone("i-1", 50.0)
    assert [read(of, at, told()) for at in (49.0, 50.0, 50.1)] == ["gone", "gone", "known"]
    assert read(of, 60.0) == "lost", "it has to be missing twice again"


def test_a_request_from_before_it_was_found_to_be_gone_makes_that_no_earlier() -> None:
    of = Observations()
    of.gone("i-1", 100.0)
    assert (read(of, 50.0), read(of, 90.0, told())) == ("gone", "gone")


def test_one_that_is_gone_is_remembered_for_two_days() -> None:
    of, at = Observations(), 10 * GONE_SECONDS
    of.gone("i-1", at)
    for later in (1.0, 2.0, GONE_SECONDS + 1.9):
        assert read(of, at + later) == "gone", "each response without it counts"
    of.gone("i-1", at)
    read(of, at + GONE_SECONDS, ids="")
    assert read(of, at + GONE_SECONDS) == "lost"


def test_a_description_from_before_our_change_counts_after_half_a_minute() -> None:
    of, own = Observations(), OWN_SECONDS
    read(of, 0.0, told())
    assert of.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    assert of.applied("i-1", RAISED) is False
    assert (read(of, 100.0 + own - 0.1, told()), read(of, 100.0 + own, told())) == ("unconfirmed", "known")
    assert of.known["i-1"].options.http_put_response_hop_limit == 1


@pytest.mark.parametrize("knows", [True, False])
def test_a_change_by_another_identity_counts_like_our_own(knows: bool) -> None:
    own = OwnChanges()
    of, other = Observations(own), Observations(own)
    read(of, 0.0, told())
    if knows:
        read(other, 0.0, told())
        other.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    of.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    assert read(of, 140.0, told(options=RAISED)) == "known"
    assert read(other, 129.0, told()) == "unconfirmed", "it was asked for before"
    assert other.known["i-1"].options.http_put_response_hop_limit == 2
    assert read(other, 131.0, told()) == "known"
    assert other.known["i-1"].options.http_put_response_hop_limit == 1


@pytest.mark.parametrize("knows", [True, False])
def test_the_new_values_count_where_the_first_responses_after_the_change_lack_the_instance(
    knows: bool,
) -> None:
    own = OwnChanges()
    of, other = Observations(own), Observations(own)
    read(of, 0.0, told())
    if knows:
        read(other, 0.0, told())
        read(other, 90.0, told("i-2"), ids="i-2", whole=True)
    of.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    assert read(other, 101.0) == "lost"
    assert read(other, 109.0, told(options=RAISED)) == "known"
    assert other.known["i-1"].options.http_put_response_hop_limit == 2


def test_a_change_of_an_instance_that_the_last_read_lacks_counts_all_the_same() -> None:
    of = Observations()
    assert not of.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    assert read(of, 101.0, told()) == "unconfirmed"
    assert of.known["i-1"].options.http_put_response_hop_limit == 2


def test_a_description_from_before_a_change_without_an_answer_replaces_no_later_one() -> None:
    of = Observations()
    read(of, 0.0, told())
    of.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    of.doubt("i-1", {"HttpPutResponseHopLimit": 3}, 105.0)
    assert read(of, 106.0, told(options={**TOLD, "HttpPutResponseHopLimit": 3})) == "known"
    assert read(of, 107.0, told(options=RAISED)) == "unconfirmed"
    assert of.known["i-1"].options.http_put_response_hop_limit == 3


def test_a_slow_read_of_another_identity_lacks_no_change() -> None:
    """It began before the change, and ends after a later read of the first one. In time it is forgotten."""
    own = OwnChanges()
    of, other = Observations(own), Observations(own)
    read(other, 0.0, told())
    own.tried["i-2"] = 100.0, {}
    other.changed("i-1", RAISED, 100.0)  # type: ignore[arg-type]
    assert read(of, 700.0, told(options=RAISED)) == "known"
    assert read(other, 99.0, told()) == "unconfirmed"
    assert other.known["i-1"].options.http_put_response_hop_limit == 2
    read(of, 100.0 + OWN_KEPT_SECONDS, told())
    assert (own.made, own.tried) == ({}, {})


def test_an_answer_to_a_call_counts_in_place_of_what_was_sent() -> None:
    of = Observations()
    read(of, 0.0, told())
    of.doubt("i-1", {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}, 100.0)
    assert of.changed("i-1", RAISED, 101.0)  # type: ignore[arg-type]
    assert read(of, 102.0, told(options=RAISED)) == "known"


def test_without_an_answer_the_values_are_those_of_ec2() -> None:
    of = Observations()
    read(of, 0.0, told())
    of.doubt("i-1", {"HttpPutResponseHopLimit": 2}, 100.0)
    assert read(of, 101.0, told(options={**TOLD, "HttpPutResponseHopLimit": 5})) == "unconfirmed"
    assert of.known["i-1"].options.http_put_response_hop_limit == 5


def test_an_answer_of_one_that_is_not_known_changes_nothing() -> None:
    of = Observations()
    assert not of.changed("i-9", RAISED, 0.0)  # type: ignore[arg-type]
    assert of.known == {}


def test_a_refusal_may_come_late() -> None:
    of = Observations()
    read(of, 0.0, told())
    of.doubt("i-1", {"HttpPutResponseHopLimit": 2}, 100.0)
    assert read(of, 101.0, told()) == "unconfirmed"
    assert read(of, 100.0 + OWN_SECONDS, told()) == "known"
    of.refused("i-1")
    assert read(of, 200.0, told()) == "known"
