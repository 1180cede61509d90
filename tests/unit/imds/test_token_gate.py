"""Whether IMDSv1 is still used, by data of CloudWatch that have holes."""

from typing import Any

import pytest

from caretaker.api.imds import Options, TokenGateGroup, TokenGateStatus
from caretaker.api.objects import Node
from caretaker.api.times import format_time
from caretaker.imds import token_gate
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.merge import DesiredOption
from caretaker.imds.plan import Member
from caretaker.imds.token_gate import DAY, HOUR, TokenCandidate, Use, Window

END = 1_799_996_400.0  # a whole hour
GROUP = ("EKSManagedNodegroup", "apps")


def one(number: int, age: float, **more: Any) -> TokenCandidate:
    """An instance that was started so many seconds before END."""
    given = {"group": GROUP, "state": "running", **more}
    return TokenCandidate(f"i-{number}", "eu-west-1", launched=END - age, **given)


OLD, YOUNG = one(1, 30 * DAY), one(2, 2 * DAY)


@pytest.mark.parametrize(
    ("ones", "days", "window"),
    [
        pytest.param([OLD, YOUNG], 7, Window(END - 7 * DAY), id="one ran all days, another booted"),
        pytest.param([OLD], 7, Window(END - 30 * DAY), id="the window grows back to the last boot"),
        pytest.param([one(1, 30 * DAY), one(2, 20 * DAY)], 7, Window(END - 20 * DAY), id="of the youngest"),
        pytest.param([one(1, 8 * DAY)], 8, Window(END - 8 * DAY), id="exactly as old"),
        pytest.param([OLD, one(2, 0.9 * HOUR)], 7, Window(END - 30 * DAY), id="a first hour shows no boot"),
        pytest.param([OLD, one(2, DAY, state="stopped")], 7, Window(END - 30 * DAY), id="nor a stopped one"),
        pytest.param([one(1, 63 * DAY)], 7, Window(END - 63 * DAY), id="the oldest boot that counts"),
    ],
)  # fmt: skip
def test_the_window_has_all_days_and_a_boot(ones: list[TokenCandidate], days: int, window: Window) -> None:
    assert token_gate.window_of(ones, END, days, quiet=False) == window


@pytest.mark.parametrize(
    ("ones", "state", "text"),
    [
        pytest.param(
            [YOUNG], "Waiting", "has run for 7 days yet; the oldest one does at", id="all are young"
        ),
        pytest.param([one(1, 60.0)], "Waiting", "a whole hour", id="in its first hour"),
        pytest.param([one(1, DAY, state="stopped")], "Waiting", "a whole hour", id="none runs"),
        pytest.param([one(1, 63 * DAY + HOUR)], "Unknown", "stop and start", id="no boot in the data"),
        pytest.param([one(1, END)], "Unknown", "stop and start", id="its start is not reported"),
    ],
)
def test_without_days_or_a_boot_nothing_is_read(ones: list[TokenCandidate], state: str, text: str) -> None:
    window = token_gate.window_of(ones, END, 7, quiet=False)
    assert (window.start, window.state) == (None, state)
    assert text in window.message


def test_a_group_that_was_quiet_needs_neither_again() -> None:
    assert token_gate.window_of([YOUNG], END, 7, quiet=True).start == END - 7 * DAY
    young = token_gate.window_of([one(1, 60.0)], END, 7, quiet=True)
    assert (young.start, young.state) == (None, "Quiet"), "nothing is read for a first hour"


def hourly(start: float, *, lost: int = 0, used: float | None = None) -> list[tuple[float, float]]:
    """Zeros from `start` to END without the first `lost` hours, and a use."""
    points = [(start + hour * HOUR, 0.0) for hour in range(lost, int((END - start) // HOUR))]
    return [(at, 3.0 if at == used else value) for at, value in points]


WEEK = END - 7 * DAY


@pytest.mark.parametrize(
    ("instance", "points", "use", "quiet"),
    [
        pytest.param(OLD, hourly(WEEK), Use(168, 168), True, id="zeros"),
        pytest.param(OLD, [], Use(0, 168), False, id="no data is not zero"),
        pytest.param(OLD, hourly(WEEK, lost=8), Use(160, 168), True, id="95 percent"),
        pytest.param(OLD, hourly(WEEK, lost=9), Use(159, 168), False, id="less than that"),
        pytest.param(OLD, hourly(WEEK, used=WEEK), Use(168, 168, 3.0, WEEK), False, id="in its first hour"),
        pytest.param(OLD, [*hourly(WEEK), (END, 3.0)], Use(168, 168), True, id="after the end"),
        pytest.param(OLD, hourly(WEEK - DAY, used=WEEK - HOUR), Use(168, 168), True, id="before the window"),
        pytest.param(one(3, 1.5 * HOUR), hourly(END - 2 * HOUR), Use(1, 1), True, id="from its start on"),
        pytest.param(
            *(one(3, 1.5 * HOUR), hourly(END - 2 * HOUR, used=END - 2 * HOUR)),
            *(Use(1, 1, 3.0, END - 2 * HOUR), False),
            id="a use at its boot",
        ),
        pytest.param(
            *(one(3, 1.5 * HOUR), hourly(WEEK, used=WEEK), Use(1, 1, 3.0, WEEK), False),
            id="a use before it was stopped and started",
        ),
        pytest.param(
            *(one(3, 1.5 * HOUR), hourly(WEEK - DAY, used=WEEK - HOUR), Use(1, 1), True),
            id="a use before it was stopped and started, and before the window",
        ),
        pytest.param(
            *(one(3, 3.5 * HOUR), hourly(WEEK)[:-3], Use(0, 3), False),
            id="data from before it was stopped and started are no data from after",
        ),
        pytest.param(one(3, 1.5 * HOUR), hourly(END - HOUR), Use(1, 1), True, id="a short first hour"),
        pytest.param(
            *(one(3, HOUR + 60.0), [(END - 2 * HOUR, 0.0)]),
            *(Use(0, 1), False),
            id="a short first hour is not the next one",
        ),
    ],
)  # fmt: skip
def test_an_instance_is_quiet_with_data_that_are_all_zero(
    instance: TokenCandidate, points: list[tuple[float, float]], use: Use, quiet: bool
) -> None:
    found = token_gate.use_of(instance, points, WEEK, END)
    assert found == use
    assert bool(token_gate.cleared({"i": found})) == quiet


def test_a_group_in_use_names_a_few_instances() -> None:
    ones = [one(number, 30 * DAY) for number in range(40)]
    uses = {each.instance: Use(168, 168) for each in ones}
    quiet = token_gate.group_status(ones, Window(WEEK), uses, END)
    assert (quiet.kind, quiet.name) == GROUP
    assert (quiet.state, quiet.message) == ("Quiet", "none of 40 instances used IMDSv1 in the last 7 days")
    uses |= {"i-3": Use(168, 168, 2.0, WEEK), "i-4": Use(168, 168, 2.0, END - HOUR)}
    found = token_gate.group_status(ones, Window(WEEK), uses, END)
    assert (found.state, found.instances, found.using) == ("InUse", 40, 2)
    last = format_time(END - HOUR)
    assert found.message == f"2 of 40 instances used IMDSv1 in the last 7 days: i-4, i-3; last at {last}"
    uses |= {each.instance: Use(168, 168, 1.0, WEEK) for each in ones}
    assert "and 35 more" in token_gate.group_status(ones, Window(WEEK), uses, END).message
    uses = {each.instance: Use(100, 168) for each in ones}
    unknown = token_gate.group_status(ones, Window(WEEK), uses, END)
    assert (unknown.state, unknown.using) == ("Unknown", 0)
    assert "less than 95% of the hours of 40 of 40 instances" in unknown.message


WANTS = DesiredOption("required", "me", 100)


@pytest.mark.parametrize(
    ("wanted", "seen", "skipped", "mine", "is_one"),
    [
        pytest.param(WANTS, {}, "", True, True, id="its tokens are optional"),
        pytest.param(WANTS, {"tokens": "required"}, "", True, False, id="they are required already"),
        pytest.param(WANTS, {"state": "pending"}, "", True, True, id="about to run"),
        pytest.param(WANTS, {"state": "terminated"}, "", True, False, id="it has ended"),
        pytest.param(WANTS, {"managed": True}, "", True, False, id="managed by AWS"),
        pytest.param(WANTS, None, "", True, False, id="not seen"),
        pytest.param(WANTS, {}, "Fargate", True, False, id="skipped"),
        pytest.param(WANTS, {}, "", False, False, id="not selected"),
        pytest.param(None, {}, "", True, False, id="no policy sets it"),
        pytest.param(DesiredOption("optional", "me", 100), {}, "", True, False, id="to stay optional"),
        pytest.param(DesiredOption("required", "other", 100), {}, "", True, False, id="another policy wins"),
        pytest.param(
            DesiredOption("required", "me", 100, (), ("me", "other")), {}, "", True, False, id="in conflict"
        ),
    ],
)
def test_the_instances_whose_tokens_the_policy_would_require(
    wanted: DesiredOption | None, seen: dict[str, Any] | None, skipped: str, mine: bool, is_one: bool
) -> None:
    node = Node("n", "u", {}, provider_id="aws:///eu-west-1a/i-1")
    given = {"state": "running", "launched": END, **(seen or {})}
    observed = ObservedInstance(Options(2, given.pop("tokens", "optional")), **given)
    member = Member(
        node, InstanceRef("i-1", "eu-west-1", skipped), observed if seen is not None else None, ()
    )
    fields = {} if wanted is None else {"httpTokens": wanted}
    made = list(token_gate.candidates("me", [member], [(mine, fields)]))
    expected = TokenCandidate("i-1", "eu-west-1", ("", ""), END, given["state"])
    assert made == ([expected] if is_one else [])


def held(state: str, *ones: TokenCandidate, cleared: tuple[str, ...] = ()) -> dict[str, str]:
    groups = {GROUP: TokenGateGroup(*GROUP, state, message="why")}  # type: ignore[arg-type]
    return {name: reason for name, (reason, _) in token_gate.held_of(ones, groups, cleared).items()}


def test_a_quiet_group_holds_back_those_that_were_not_judged() -> None:
    stopped = one(3, DAY, state="stopped")
    assert held("Quiet", OLD, YOUNG, stopped, cleared=("i-1",)) == {"i-2": "IMDSv1Waiting"}
    assert held("InUse", OLD, stopped, cleared=("i-1",)) == dict.fromkeys(("i-1", "i-3"), "IMDSv1InUse")
    for state in ("pending", "stopping", "running"):
        assert held("Quiet", one(3, 0.0, state=state)) == {"i-3": "IMDSv1Waiting"}, "it has no data"
    assert held("Unknown", OLD) == {"i-1": "IMDSv1UseUnknown"}


@pytest.mark.parametrize(
    ("age", "wait"),
    [
        pytest.param(None, 0.0, id="never read"),
        pytest.param(0.0, token_gate.READ_SECONDS, id="just read"),
        pytest.param(token_gate.READ_SECONDS - 1, 1.0, id="a second too early"),
        pytest.param(token_gate.READ_SECONDS, 0.0, id="due"),
        pytest.param(-60.0, 0.0, id="by a clock that was ahead"),
    ],
)
def test_cloudwatch_is_read_at_most_once_in_four_hours(age: float | None, wait: float) -> None:
    before = TokenGateStatus(format_time(END - age)) if age is not None else None
    assert token_gate.wait(before, END) == wait


def test_the_end_is_the_last_hour_whose_data_are_there() -> None:
    assert token_gate.end_of(END + 899) == END - HOUR
    assert token_gate.end_of(END + 900) == END


def test_quiet_groups_stay_so_for_instances_that_join_and_others_are_forgotten() -> None:
    other, gone = ("AutoScalingGroup", "b"), ("AutoScalingGroup", "gone")
    known = [TokenGateGroup(*group, "Quiet") for group in (GROUP, other, gone)]
    before = TokenGateStatus(None, 0, 7, (*known, TokenGateGroup("KarpenterNodePool", "p", "InUse")))
    found = {GROUP: TokenGateGroup(*GROUP, "InUse")}
    kept = token_gate.kept(before, found, {GROUP, other, ("KarpenterNodePool", "p")})
    assert [(one.name, one.state) for one in kept] == [("b", "Quiet"), ("apps", "InUse")]


def test_between_two_readings_the_last_one_counts() -> None:
    groups = {GROUP: [OLD]}
    windows = {GROUP: Window(WEEK)}
    said = TokenGateGroup(*GROUP, "InUse", 1, 1, "in use")
    assert token_gate.unread(groups, windows, TokenGateStatus(groups=(said,)), {}, END) == {GROUP: said}
    new = token_gate.unread(groups, windows, None, {}, END)[GROUP]
    assert (new.state, new.message) == ("Waiting", f"CloudWatch is read after {format_time(END)}")
    shut = {GROUP: Window(None, "Unknown", "no boot")}
    assert (
        token_gate.unread(groups, shut, TokenGateStatus(groups=(said,)), {}, END)[GROUP].message == "no boot"
    )
