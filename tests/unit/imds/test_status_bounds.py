"""A status stays within what the API server takes, however much there is to tell, and replaces what
stood there."""

from caretaker.api.conditions import find
from caretaker.api.imds import Options, Spec, Status
from caretaker.api.objects import WireMeta
from caretaker.imds.conditions import StatusInput
from caretaker.imds.plan import Plan
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.status import status_of

VIEW = StatusInput(ParsedPolicy(WireMeta(name="p"), Status(), Spec(Options(2))))
MANY = tuple(f"{number:0200d}" for number in range(400))


def test_a_conflict_of_very_many_policies_fits_into_a_condition() -> None:
    """32768 characters (KEP 1623); a status that is refused would never be written again."""
    fields = ("httpPutResponseHopLimit", "httpTokens", "httpProtocolIpv6", "instanceMetadataTags")
    made = status_of(VIEW, Plan(conflicts=tuple((field, MANY) for field in fields)), "2026-01-01T00:00:00Z")
    assert {one.type for one in made.conditions} >= {"Ready", "Stalled", "Conflicted"}
    assert all(len(one.message) < 32768 for one in made.conditions)
    ready = find(made.conditions, "Ready")
    assert ready is not None
    assert "and 397 more" in ready.message
