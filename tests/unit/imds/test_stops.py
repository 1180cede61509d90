"""Why a policy changes no instance: its changes would cut off the operator's own credentials."""

from typing import Any

import pytest

from caretaker.api.imds import Options
from caretaker.imds.enforce import enforce
from caretaker.imds.merge import PolicyOptions
from unit.imds.enforcing import CLOSE, HOP, ME, RAISE, canaries, found, inputs, passed

TOKENS = PolicyOptions(ME, 100, Options(http_tokens="required"))
BOTH = PolicyOptions(ME, 100, Options(2, "required"))
OTHERS = PolicyOptions("q", 200, Options(1))
STOOD = canaries(stood=(passed(RAISE), passed(CLOSE)))


@pytest.mark.parametrize(
    ("options", "mine", "more", "cut"),
    [
        pytest.param(Options(1, "optional"), TOKENS, {}, True, id="it has hop limit 1"),
        pytest.param(
            Options(1, "optional"), BOTH, {"loosening": ()}, True, id="its hop limit may not be raised"
        ),
        pytest.param(Options(1, "optional"), BOTH, {}, False, id="its hop limit is raised as well"),
        pytest.param(Options(2, "optional"), TOKENS, {}, False, id="it has hop limit 2"),
        pytest.param(Options(1, "optional"), TOKENS, {"tightening": ()}, False, id="tokens stay optional"),
        pytest.param(
            *(Options(1, "optional"), TOKENS, {"tokens_held": {"i-1": ("IMDSv1InUse", "in use")}}, False),
            id="the gate holds them",
        ),
        pytest.param(Options(1, "required"), BOTH, {}, False, id="tokens are required already"),
        pytest.param(
            Options(1, "optional", "disabled"), TOKENS, {}, False, id="its endpoint is disabled anyway"
        ),
        pytest.param(
            Options(1, "optional"), TOKENS, {"own_identity": False}, False, id="the identity is another one"
        ),
    ],
)
def test_tokens_are_not_required_where_the_operators_credentials_come_from_imdsv1(
    options: Options, mine: PolicyOptions, more: dict[str, Any], cut: bool
) -> None:
    fields = {HOP: mine.options.http_put_response_hop_limit, "httpTokens": "required"}
    given = inputs(**{"own_identity": True, "options": fields, "canary": STOOD, **more})
    made = enforce([found(1, options, mine=mine), found(2, Options(2, "optional"), mine=mine)], given)
    assert (made.phase == "WouldCutOwnCredentials", made.hold) == (cut, cut)
    if cut:
        assert not made.writes
        assert "spec.options.httpTokens would cut the operator off from IMDS" in made.message
        assert "on 1 node(s) with hop limit 1, such as n1 (i-1)" in made.message


def test_another_policy_may_hold_the_hop_limit() -> None:
    one = found(1, Options(1, "optional"), OTHERS, mine=BOTH)
    made = enforce([one], inputs(own_identity=True, canary=STOOD))
    assert (made.phase, made.writes) == ("WouldCutOwnCredentials", ())
