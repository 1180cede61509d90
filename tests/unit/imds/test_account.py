"""What an account that enforces IMDSv2 means for the sources of future nodes, and for Enforce."""

from typing import Any

import pytest

from caretaker.api.imds import Options
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.launching import Account, LaunchSnapshot, ScalingGroup, TemplateRef, account_of
from caretaker.imds.merge import PolicyOptions, merge
from caretaker.imds.node_sources import NodeSources
from caretaker.imds.source_checks import Findings, audit
from unit.imds.test_source_checks import APPS, CLASS, EKS, HERE, MINE, POOL, SPOT, known, of_group, template

OPEN = {"HttpPutResponseHopLimit": 2, "HttpTokens": "optional"}
CLOSED = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}
SILENT = {"HttpPutResponseHopLimit": 2}
HOPS = Options(2)
LOOSE, TIGHT = Options(2, "optional"), Options(2, "required")
ENFORCES = "the account enforces IMDSv2 (HttpTokensEnforced)"
FAIL = f"launches with httpTokens optional fail: {ENFORCES}"
UNREAD = f"launches with httpTokens optional fail, if {ENFORCES}, which could not be read"
UNCLEAR = UNREAD.replace("which could not be read", "whose value is not known")
AMI = f"launches fail unless the AMI requires tokens: {ENFORCES}"
TO_LOOSE = "httpTokens is required, should be optional"
ENFORCED = {HERE: Account(enforces=True)}


def of(
    want: Options,
    known: LaunchSnapshot,
    group: tuple[str, str] = SPOT,
    other: Options = HOPS,
    **node: Any,
) -> Findings:
    """What a policy finds that wants these options of one node, of which a lower one wants the `other`."""
    observed = node.pop("observed", None) or ObservedInstance(Options(), group="spot")
    node_sources = NodeSources()
    fields = merge([PolicyOptions("me", 100, want), PolicyOptions("other", 90, other)])
    node_sources.add((group,), InstanceRef("i-1", HERE, **node), observed, fields)
    return audit(node_sources, tuple, known, "me", frozenset(field for field, _ in want.given()))


@pytest.mark.parametrize(
    ("block", "want", "account", "state", "message", "command"),
    [
        pytest.param(OPEN, LOOSE, Account(enforces=True), "LaunchesFail", FAIL, False, id="as it wants"),
        pytest.param(OPEN, HOPS, Account(enforces=True), "LaunchesFail", FAIL, False, id="not its option"),
        pytest.param(
            OPEN,
            TIGHT,
            Account(enforces=True),
            "LaunchesFail",
            f"httpTokens is optional, should be required; {FAIL}",
            True,
            id="the command mends it",
        ),
        pytest.param(
            {**OPEN, "HttpPutResponseHopLimit": 1},
            HOPS,
            Account(enforces=True),
            "LaunchesFail",
            f"httpPutResponseHopLimit is 1, should be 2; {FAIL}",
            False,
            id="a new version would fail as well",
        ),
        pytest.param(
            CLOSED,
            LOOSE,
            Account(enforces=True),
            "Drifted",
            f"{TO_LOOSE}; {FAIL}",
            False,
            id="a command would break launches",
        ),
        pytest.param(CLOSED, TIGHT, Account(enforces=True), "Compliant", "", False, id="tokens are required"),
        pytest.param(
            SILENT,
            HOPS,
            Account(Options(http_tokens="optional"), enforces=True),
            "LaunchesFail",
            FAIL,
            False,
            id="the account's own default",
        ),
        pytest.param(
            SILENT,
            TIGHT,
            Account(Options(http_tokens="required"), enforces=True),
            "Compliant",
            "not set, the account's default: httpTokens required",
            False,
            id="the account's default is right",
        ),
        pytest.param(
            {"HttpPutResponseHopLimit": 1},
            HOPS,
            Account(Options(http_tokens="optional"), enforces=True),
            "LaunchesFail",
            f"httpPutResponseHopLimit is 1, should be 2; {FAIL}",
            False,
            id="a new version would get the account's own default",
        ),
        pytest.param(SILENT, HOPS, Account(enforces=True), "Compliant", AMI, False, id="the AMI decides"),
        pytest.param(
            SILENT,
            LOOSE,
            Account(enforces=True),
            "Unset",
            f"httpTokens is not set, should be optional; {AMI}; {FAIL}",
            False,
            id="not set, and would fail",
        ),
        pytest.param(OPEN, LOOSE, Account(enforces=False), "Compliant", "", False, id="not enforced"),
        pytest.param(
            CLOSED, LOOSE, Account(enforces=False), "Drifted", TO_LOOSE, True, id="not enforced, a command"
        ),
        pytest.param(OPEN, LOOSE, None, "Unknown", UNREAD, False, id="not read"),
        pytest.param(OPEN, HOPS, Account(enforces=None), "Unknown", UNCLEAR, False, id="an unknown value"),
        pytest.param(
            SILENT,
            HOPS,
            Account(enforces=None),
            "Compliant",
            UNCLEAR.replace("with httpTokens optional fail", "fail unless the AMI requires tokens"),
            False,
            id="an unknown value, and the AMI decides",
        ),
        pytest.param(SILENT, HOPS, None, "Compliant", "", False, id="not read, and not its option"),
        pytest.param(CLOSED, LOOSE, None, "Drifted", f"{TO_LOOSE}; {UNREAD}", False, id="unread, no command"),
        pytest.param(CLOSED, TIGHT, None, "Compliant", "", False, id="not read, and does not matter"),
        pytest.param(
            OPEN,
            TIGHT,
            None,
            "Drifted",
            f"httpTokens is optional, should be required; {UNREAD}",
            True,
            id="not read, the command is right anyway",
        ),
    ],
)
@pytest.mark.parametrize("latest", [True, False])
def test_a_template_of_an_auto_scaling_group(
    block: Any, want: Options, account: Account | None, state: str, message: str, command: bool, latest: bool
) -> None:
    accounts = {} if account is None else {HERE: account}
    group = of_group("$Latest" if latest else "1")
    made = of(want, known(template(block), group=group, accounts=accounts))
    source = made.groups[SPOT]
    assert (source.state, source.message, bool(source.mend)) == (state, message, command)
    assert made.wrong == (() if state in ("Compliant", "Unknown") else (f"AutoScalingGroup/spot: {state}",))
    assert made.launch_templates == (state in ("Drifted", "Unset", "LaunchesFail"))


@pytest.mark.parametrize(("want", "command"), [(LOOSE, False), (HOPS, False), (TIGHT, True)])
def test_a_node_group_of_eks_and_a_node_class(want: Options, command: bool) -> None:
    snapshot = known(template(OPEN), classes={"default": Options(2, "optional")}, accounts=ENFORCED)
    for group, node, owned in ((APPS, MINE, False), (APPS, EKS, True), (POOL, CLASS, False)):
        source = of(want, snapshot, group, **node).groups[group]  # type: ignore[arg-type]
        assert (source.state, bool(source.mend)) == ("LaunchesFail", command and not owned)
        assert FAIL in source.message


@pytest.mark.parametrize(("group", "node"), [(APPS, MINE), (APPS, EKS), (POOL, CLASS)])
def test_where_it_was_not_read_optional_tokens_are_unknown(group: Any, node: Any) -> None:
    snapshot = known(template(OPEN), classes={"default": Options(2, "optional")}, defaults={})
    source = of(LOOSE, snapshot, group, **node).groups[group]
    assert (source.state, source.message) == ("Unknown", UNREAD)
    silent = known(template(SILENT), classes={"default": Options(2)}, defaults={})
    assert of(HOPS, silent, group, **node).groups[group].state == "Compliant"


def test_no_command_for_a_node_class_breaks_launches() -> None:
    snapshot = known(classes={"default": Options(2, "required")}, accounts=ENFORCED)
    source = of(LOOSE, snapshot, POOL, **CLASS).groups[POOL]
    assert (source.state, source.mend, source.message) == ("Drifted", "", f"{TO_LOOSE}; {FAIL}")
    snapshot = known(classes={"default": Options(1, "optional")}, accounts=ENFORCED)
    source = of(HOPS, snapshot, POOL, **CLASS).groups[POOL]
    assert (source.state, source.mend) == ("LaunchesFail", ""), "it would launch with optional tokens still"


@pytest.mark.parametrize("node", [MINE, EKS])
def test_what_a_node_group_of_eks_leaves_unset_is_not_the_accounts(node: Any) -> None:
    for accounts in (ENFORCED, {}, {HERE: Account(Options(2, "optional"), enforces=True)}):
        source = of(HOPS, known(template(SILENT), accounts=accounts), APPS, **node).groups[APPS]
        assert (source.state, source.message) == ("Compliant", "")
        source = of(HOPS, known(template({}), accounts=accounts), APPS, **node).groups[APPS]
        assert source.state == ("Unset" if node is MINE else "EKSOwned")
        assert "account" not in source.message


REST = "; the rest can be set without it"


@pytest.mark.parametrize(("accounts", "why"), [(ENFORCED, FAIL), ({}, UNREAD)])
@pytest.mark.parametrize(("group", "node"), [(SPOT, {}), (APPS, MINE), (POOL, CLASS)])
def test_an_option_that_would_break_launches_withholds_no_command_for_another_one(
    accounts: Any, why: str, group: tuple[str, str], node: Any
) -> None:
    """Whether this policy wants it or another one."""
    low = {**CLOSED, "HttpPutResponseHopLimit": 1}
    launching = known(
        template(low), group=of_group("1"), classes={"default": Options(1, "required")}, accounts=accounts
    )
    hop, tokens = "httpPutResponseHopLimit is 1, should be 2", f", {TO_LOOSE}; {why}{REST}"
    for mine, message in ((LOOSE, hop + tokens), (HOPS, hop)):
        source = of(mine, launching, group, LOOSE, **node).groups[group]
        follows = source.message.removeprefix(message)
        assert (source.state, follows) in (
            ("Drifted", ""),
            ("Drifted", "; EKS then replaces all nodes of the node group"),
            ("Drifted", "; Karpenter then replaces all nodes of the class"),
        )
        assert 'opLimit":2' in source.mend
        assert "optional" not in source.mend


def test_the_versions_of_a_mixed_group_that_can_be_set_are() -> None:
    refs = tuple(TemplateRef("lt-1", number) for number in ("1", "2"))
    one = template({**CLOSED, "HttpPutResponseHopLimit": 1}, CLOSED)
    group = ScalingGroup("spot", refs, mixed=True)
    source = of(LOOSE, known(one, group=group, accounts=ENFORCED)).groups[SPOT]
    assert (source.state, "update-auto-scaling-group" in source.mend) == ("Drifted", True)


def test_another_region_enforces_nothing_here() -> None:
    accounts = {"us-east-1": Account(enforces=True), HERE: Account(enforces=False)}
    made = of(LOOSE, known(template(OPEN), group=of_group("1"), accounts=accounts))
    assert made.groups[SPOT].state == "Compliant"


def test_a_stack_that_owns_it_has_to_require_tokens() -> None:
    for one, group in (
        (template(OPEN, stack="net"), of_group("1")),
        (template(OPEN), of_group("1", stack="net")),
    ):
        source = of(TIGHT, known(one, group=group, accounts=ENFORCED)).groups[SPOT]
        assert (source.state, source.mend) == ("LaunchesFail", "")
        assert FAIL in source.message
        assert "CloudFormation stack net" in source.message


def test_the_worst_of_a_mixed_group_is_that_launches_fail() -> None:
    refs = tuple(TemplateRef("lt-1", number) for number in ("1", "2", "3"))
    one = template({**CLOSED, "HttpPutResponseHopLimit": 1}, OPEN, CLOSED)
    source = of(HOPS, known(one, group=ScalingGroup("spot", refs, mixed=True), accounts=ENFORCED)).groups[
        SPOT
    ]
    assert (source.state, source.version, source.message, source.mend) == ("LaunchesFail", "2", FAIL, "")


HELD = "a declarative policy of the organization holds the account's settings"


@pytest.mark.parametrize(
    ("block", "want", "level", "message"),
    [
        pytest.param(
            SILENT,
            TIGHT,
            {"HttpTokens": "required"},
            "not set, the account's default: httpTokens required",
            id="a default that is right",
        ),
        pytest.param(
            SILENT,
            TIGHT,
            {"HttpTokens": "optional"},
            "httpTokens is not set (the account's default is optional), should be required",
            id="a default that is not",
        ),
        pytest.param(OPEN, LOOSE, {"HttpTokensEnforced": "enabled"}, FAIL, id="enforcement"),
    ],
)
def test_who_holds_the_accounts_settings_is_told_where_they_are_named(
    block: Any, want: Options, level: Any, message: str
) -> None:
    for by, tail in (
        ({}, ""),
        ({"ManagedBy": "account", "ManagedExceptionMessage": "not mine"}, ""),
        ({"ManagedBy": "declarative-policy"}, f"; {HELD}"),
        (
            {"ManagedBy": "declarative-policy", "ManagedExceptionMessage": "ask\n the  platform team"},
            f'; {HELD}: "ask the platform team"',
        ),
    ):
        accounts = {HERE: account_of({**level, **by})}
        told = of(want, known(template(block), group=of_group("1"), accounts=accounts)).groups[SPOT].message
        assert told == message + tail


def test_who_holds_them_is_not_told_where_they_do_not_matter() -> None:
    held = account_of({"ManagedBy": "declarative-policy", "ManagedExceptionMessage": "x" * 4096})
    assert len(held.held) <= len(HELD) + 4 + 200
    drifted = known(template({**CLOSED, "HttpPutResponseHopLimit": 1}), group=of_group("1"))
    accounts = {HERE: held}
    source = of(HOPS, LaunchSnapshot(drifted.groups, drifted.templates, accounts=accounts)).groups[SPOT]
    assert source.message == "httpPutResponseHopLimit is 1, should be 2"


@pytest.mark.parametrize(
    ("value", "enforces"),
    [("enabled", True), ("disabled", False), ("no-preference", False), (None, False), ("audit", None)],
)
def test_only_a_known_value_is_believed(value: str | None, enforces: bool | None) -> None:
    account = account_of({} if value is None else {"HttpTokensEnforced": value})
    assert account.enforces is enforces
    assert bool(account.refusal) == (enforces is True)
