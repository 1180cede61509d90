"""The calls that change instances, and what is remembered of them; against a double of EC2's answers."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.imds import Options, Safety, Spec, Status
from caretaker.api.objects import WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey, Identity, User
from caretaker.aws.services import Rate, ReadOnlyError
from caretaker.imds import instance_modifier as module
from caretaker.imds import inventory as inventory_module
from caretaker.imds.change_attempts import ChangeAttempt, failed, refused
from caretaker.imds.checks import OWN_SECONDS
from caretaker.imds.choice import Write
from caretaker.imds.enforce import Enforced
from caretaker.imds.instance_modifier import AT_ONCE, InstanceModifier
from caretaker.imds.inventory import Inventory
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.policy_state import PolicyState
from caretaker.imds.resource import ParsedPolicy
from caretaker.kube.errors import NotLeader
from caretaker.runtime.work_queue import Key
from unit.imds.enforcing import changed, watched

HERE = ClientKey("ec2", "eu-west-1")
CALL = {"HttpPutResponseHopLimit": 2}
KEY, OTHER = Key("IMDSPolicy", "", "p"), Key("IMDSPolicy", "", "q")
REFUSED = AwsError(ErrorClass.INVALID_REQUEST, "InvalidParameterValue", "no luck")
DENIED = AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation", "no", service="ec2", operation="Modify")
THROTTLED = AwsError(ErrorClass.THROTTLED, "RequestLimitExceeded")
ENDING = AwsError(ErrorClass.IN_PROGRESS, "IncorrectInstanceState")
UNKNOWN = AwsError(ErrorClass.UNKNOWN_OUTCOME, "Timeout")
GONE = AwsError(ErrorClass.NOT_FOUND, "InvalidInstanceID.NotFound")
OTHER_ACCOUNT = Identity(None, "arn:aws:iam::444455556666:role/a")
ENFORCED = "You can't launch instances with IMDSv1 because httpTokensEnforced is enabled for this account."
ORGANIZATION = AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation", "by a service control policy")


class Ec2:
    """`answer` is asked of each call's instance: an error to raise, or None."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.dry: list[str] = []
        self.answer: Callable[[str], BaseException | None] = lambda _: None
        self.asked: Callable[[str], BaseException | None] | None = None  # of dry runs; None: as of changes
        self.at_work = self.most_at_work = 0
        self.account = "111122223333"
        self.options: dict[str, Any] = {"HttpPutResponseHopLimit": 1}

    async def modify_instance_metadata_options(self, **given: Any) -> Any:
        instance = given["InstanceId"]
        if given.get("DryRun"):
            self.dry.append(instance)
            assert {**CALL, "InstanceId": instance, "DryRun": True} == given
            raise (self.asked or self.answer)(instance) or AwsError(
                ErrorClass.INVALID_REQUEST, "DryRunOperation"
            )
        self.sent.append(instance)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0)
        self.at_work -= 1
        if (error := self.answer(instance)) is not None:
            raise error
        return {"InstanceMetadataOptions": {"State": "pending", **CALL}}

    async def describe_instances(self, **given: Any) -> Any:
        ids = given["Filters"][0]["Values"]
        made = {"State": {"Name": "running"}, "MetadataOptions": self.options}
        instances = [{"InstanceId": one, **made} for one in ids]
        return {"Reservations": [{"OwnerId": self.account, "Instances": instances}]}


class Clock:
    """time.monotonic() and time.time() of the module."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for one in (module, inventory_module):
        monkeypatch.setattr(one, "time", made)
    return made


class World:
    """One InstanceModifier before one Ec2."""

    def __init__(self, per_second: float = 100.0, *, instance_identity: bool = False) -> None:
        self.ec2 = Ec2()
        self.targets: list[ClientKey] = []
        self.inventory = Inventory(lambda _: self.ec2)  # type: ignore[arg-type,return-value]
        metrics = PolicyMetrics(CollectorRegistry())
        rate = Rate(per_second, per_second * 20)
        self.modifier = InstanceModifier(
            self.writer, self.inventory, rate, metrics, instance_identity=instance_identity
        )

    def writer(self, target: ClientKey) -> Any:
        self.targets.append(target)
        return self.ec2

    def of(self, key: Key = KEY) -> PolicyState:
        return self.modifier.of(key, "uid")

    async def send(
        self, count: int = 1, key: Key = KEY, target: ClientKey = HERE, **more: Any
    ) -> PolicyState:
        state = self.of(key)
        await self.read(count, target)
        await self.modifier.carry_out(policy(**more), state, writes(count), {"here": target})
        return state

    async def read(self, count: int = 1, target: ClientKey = HERE) -> None:
        await self.inventory.again(target, [one.instance for one in writes(count)], math.inf)

    async def ask(self, count: int = 1, key: Key = KEY, **more: Any) -> PolicyState:
        state = self.of(key)
        await self.modifier.ask(policy(**more), state, writes(count), {"here": HERE})
        return state


def writes(count: int) -> list[Write]:
    return [Write(f"i-{number}", "here", CALL) for number in range(count)]


def policy(mode: str = "Enforce", generation: int = 1, stop_after: int = 5) -> ParsedPolicy:
    safety = Safety(stop_after_consecutive_failures=stop_after)
    spec = Spec(Options(2), mode=mode, safety=safety)  # type: ignore[arg-type]
    return ParsedPolicy(WireMeta(name="p", generation=generation), Status(), spec)


async def test_every_call_is_made_once_and_by_a_client_that_repeats_nothing(clock: Clock) -> None:
    world = World()
    state = await world.send(20)
    assert sorted(world.ec2.sent) == sorted(f"i-{number}" for number in range(20))
    assert all(target.once for target in world.targets)
    assert all(attempt.sent_at == 1_000.0 and attempt.options == CALL for attempt in state.attempts.values())
    assert world.ec2.most_at_work == AT_ONCE


async def test_what_a_policy_changes_is_changed_in_its_name(clock: Clock) -> None:
    """Policies share what they read, and the session of a role in which that is."""
    role = "arn:aws:iam::123456789012:role/imds"
    shared = ClientKey("ec2", "eu-west-1", Identity(None, role, user=User("", "imdsp", "")))
    world = World()
    await world.send(target=shared)
    assert [target.identity.user for target in world.targets] == [User("", "imdsp", "p")]


async def test_an_audit_cannot_send_whatever_it_is_told(clock: Clock) -> None:
    world = World()
    with pytest.raises(ReadOnlyError):
        await world.send(mode="Audit")
    assert world.ec2.sent == []


async def test_failures_in_a_row_end_a_batch(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: REFUSED
    state = await world.send(60, stop_after=3)
    assert 3 <= len(world.ec2.sent) <= AT_ONCE + 2
    assert len(state.failures) >= 3
    assert state.failures[-1].endswith("no luck")


async def test_one_that_fails_among_others_ends_nothing(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda instance: REFUSED if instance.endswith("0") else None
    state = await world.send(60, stop_after=2)
    assert len(world.ec2.sent) == 60
    assert sum(attempt.failures for attempt in state.attempts.values()) == 6


async def test_what_is_throttled_ends_a_batch_and_is_no_failure(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: THROTTLED
    state = await world.send(60)
    assert len(world.ec2.sent) <= AT_ONCE
    assert (len(state.failures), state.attempts) == (0, {})


ROLES = [Identity(None, f"arn:aws:iam::111122223333:role/{name}") for name in ("a", "b", "c")]
OURS = [
    HERE,
    *(ClientKey("ec2", "eu-west-1", one) for one in ROLES),
    ClientKey("ec2", "eu-west-1", endpoint_url="https://vpce.example"),
]


async def test_two_policies_do_not_spend_the_same_token_twice(clock: Clock) -> None:
    world = World(per_second=1.0)
    await asyncio.gather(world.send(20), world.send(20, OTHER))
    assert len(world.ec2.sent) == 20


@pytest.mark.parametrize("reported", ["111122223333", ""], ids=["the account is reported", "it is not"])
async def test_whoever_calls_an_account_has_one_limiter_of_a_region(clock: Clock, reported: str) -> None:
    world = World(per_second=1.0)
    world.ec2.account = reported
    for target in OURS:
        await world.send(20, target=target)
    known = 1 if reported else 2  # of roles the account is known, of the operator's own identity not
    assert len(world.ec2.sent) == 20 * known
    for other in (ClientKey("ec2", "us-east-1"), ClientKey("ec2", "eu-west-1", OTHER_ACCOUNT)):
        await world.send(20, target=other)
    assert len(world.ec2.sent) == 20 * (known + 2)


async def test_a_permission_that_is_gone_ends_a_batch_and_opens_no_breaker(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: DENIED
    state = await world.send(60)
    assert len(world.ec2.sent) <= AT_ONCE
    assert (len(state.failures), state.permission.denied) == (0, ("", ""))
    assert state.permission.dry_runs.stopped is not None
    assert state.permission.dry_runs.stopped[0] == "AccessDenied"


@pytest.mark.parametrize("asked", [True, False], ids=["asked before", "resumed"])
async def test_what_is_denied_though_it_would_be_allowed_ends_a_batch_and_is_told(
    clock: Clock, asked: bool
) -> None:
    world = World()
    world.ec2.answer, world.ec2.asked = (lambda _: DENIED), (lambda _: None)
    if asked:
        await world.ask()
    state = await world.send(60)
    assert len(set(world.ec2.sent)) <= AT_ONCE
    assert len(world.ec2.sent) <= 2 * AT_ONCE, "each is sent once more after its dry run"
    assert state.permission.denied[0] in world.ec2.sent
    assert state.permission.refused is not None
    assert (state.permission.refused[0], state.permission.dry_runs.stopped) == ("AccessDenied", None)
    reported = world.modifier.enforce_input(policy(), state, {}).denied
    assert reported == state.permission.denied
    assert "although it had allowed the dry run" in reported[1]
    before = len(world.ec2.sent)
    await world.send(60)
    assert len(world.ec2.sent) == before, "nothing more"
    world.modifier.note(state, Enforced(closed=True), set(world.ec2.sent))
    assert state.permission.denied == ("", "")
    assert state.permission.refused is None


async def test_a_permission_that_arrives_before_the_dry_run_opens_no_breaker(clock: Clock) -> None:
    world = World()

    def arrives(_: str) -> None:
        world.ec2.answer = lambda _: None

    world.ec2.answer, world.ec2.asked = (lambda _: DENIED), arrives
    state = await world.send(60)
    assert (state.permission.denied, state.permission.missing) == (("", ""), False)
    assert set(world.ec2.sent) == {one.instance for one in writes(60)}
    assert len(world.ec2.sent) <= 60 + AT_ONCE, "those that were under way are sent again, at once"
    assert not [one for one, attempt in state.attempts.items() if attempt.failures]


@pytest.mark.parametrize(
    ("second", "opens", "failures"),
    [
        (DENIED, True, 1),
        (THROTTLED, False, 1),
        (UNKNOWN, False, 1),
        (REFUSED, False, 2),
        (ORGANIZATION, False, 2),
    ],
    ids=["denied", "throttled", "no answer", "refused", "denied by the organization"],
)
async def test_a_denied_change_is_sent_once_more_and_ends_as_that_ends(
    clock: Clock, second: AwsError, opens: bool, failures: int
) -> None:
    world = World()
    answers = iter([DENIED, second])
    world.ec2.answer, world.ec2.asked = (lambda _: next(answers)), (lambda _: None)
    state = await world.send(1)
    assert (world.ec2.sent, world.ec2.dry) == (["i-0", "i-0"], ["i-0"])
    assert bool(state.permission.denied[0]) is opens
    assert state.attempts["i-0"].failures == failures


async def test_nothing_is_sent_once_more_after_too_many_failures_in_a_row(clock: Clock) -> None:
    world = World()
    state = world.of()
    world.ec2.answer, world.ec2.asked = (lambda _: DENIED), (lambda _: state.failures.extend("12345"))
    await world.send(1, stop_after=5)
    assert (world.ec2.sent, world.ec2.dry) == (["i-0"], ["i-0"])
    assert state.permission.denied == ("", "")


async def test_only_ec2s_own_permission_tells_that_a_denied_change_would_be_allowed(clock: Clock) -> None:
    world = World()
    world.ec2.answer, world.ec2.asked = (lambda _: DENIED), (lambda _: REFUSED)
    assert (await world.send(1)).permission.denied == ("", "")


async def test_some_that_are_denied_for_their_tags_keep_none_of_the_others(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda instance: DENIED if instance in ("i-0", "i-7") else None
    state = await world.send(60)
    assert len(world.ec2.sent) == 60
    assert (state.permission.missing, len(state.failures)) == (False, 0)
    assert {one for one, attempt in state.attempts.items() if attempt.failures} == {"i-0", "i-7"}


@pytest.mark.parametrize(
    ("answer", "under_way"),
    [(REFUSED, False), (THROTTLED, False), (NotLeader("gone"), False), (UNKNOWN, True)],
    ids=["refused", "throttled", "not sent", "no answer"],
)
async def test_what_ec2_did_not_take_is_believed_as_it_is_read(
    clock: Clock, answer: BaseException, under_way: bool
) -> None:
    world = World()
    world.ec2.answer = lambda _: answer
    with contextlib.suppress(NotLeader):
        await world.send()
    await world.read()
    seen = (await world.inventory.get(HERE, {"i-0"}, 900.0)).instances["i-0"]
    assert seen.under_way is under_way


async def test_three_that_are_denied_in_a_row_are_no_matter_of_tags(clock: Clock) -> None:
    world = World()
    await world.read(6)
    world.ec2.answer = lambda instance: DENIED if instance != "i-2" else None
    state, stopped = world.of(), []
    for one in writes(6):
        await world.modifier.carry_out(policy(), state, [one], {"here": HERE})
        stopped.append(state.permission.dry_runs.stopped is not None)
    assert stopped == [False, False, False, False, False, True]


async def test_one_that_may_be_changed_where_others_may_not_comes_before_all(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: DENIED
    await world.send(2)
    world.ec2.answer = lambda instance: DENIED if instance == "i-0" else None
    state = await world.ask(3)
    assert state.permission.first == world.modifier.enforce_input(policy(), state, {}).first == {"i-1"}
    assert state.attempts["i-1"].not_before == clock.now
    await world.send(3)
    assert state.permission.first == set()


async def test_what_is_known_of_it_is_read_in_the_seconds_before(clock: Clock) -> None:
    world = World()
    state = world.of()
    await world.read(4)
    clock.now += 5.1
    await world.read(2)
    await world.modifier.carry_out(policy(), state, writes(4), {"here": HERE})
    assert world.ec2.sent == ["i-0", "i-1"]
    clock.now += 4.9
    await world.read(4)
    clock.now += 5.0
    await world.modifier.carry_out(policy(), state, writes(4)[2:], {"here": HERE})
    assert world.ec2.sent[2:] == ["i-2", "i-3"]


async def test_an_instance_that_alone_is_denied_waits_like_one_that_fails(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda instance: DENIED if instance == "i-0" else None
    state = await world.send(1)
    assert state.attempts["i-0"].not_before == 1_030.0
    assert state.attempts["i-0"].trouble[0] == "UnauthorizedOperation"


async def test_an_instance_that_is_ending_opens_no_breaker(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: ENDING
    state = await world.send(20)
    assert (len(world.ec2.sent), len(state.failures)) == (20, 0)
    assert {attempt.failures for attempt in state.attempts.values()} == {1}
    world.ec2.answer = lambda _: GONE
    state = await world.send(20)
    assert all(refused(attempt) for attempt in state.attempts.values()), "nothing was taken"
    assert {attempt.trouble[0] for attempt in state.attempts.values()} == {"InvalidInstanceID.NotFound"}
    assert world.inventory.instances(HERE).read_at("i-0") == -math.inf


async def test_what_the_organization_forbids_waits_for_the_resync(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: ORGANIZATION
    state = await world.send()
    assert state.attempts["i-0"].trouble[0] == "BlockedByAccountPolicy"
    assert state.attempts["i-0"].not_before == 1_000.0 + 900.0
    assert state.permission.dry_runs.stopped is None


@pytest.mark.parametrize(("told", "named"), [(ENFORCED, True), ("Not so.", False)])
async def test_an_account_that_enforces_imdsv2_is_named_in_our_words(
    clock: Clock, told: str, named: bool
) -> None:
    world = World()
    world.ec2.answer = lambda _: AwsError(ErrorClass.INVALID_REQUEST, "UnsupportedOperation", told)
    state = await world.send()
    reason, message = state.attempts["i-0"].trouble
    assert (reason, "the account enforces IMDSv2 (HttpTokensEnforced)" in message) == (
        "BlockedByAccountPolicy",
        named,
    )


async def test_without_an_answer_it_is_not_known(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: UNKNOWN
    assert (await world.send()).unsure() == {"i-0"}


async def test_whoever_is_cancelled_does_not_know_and_the_waiting_ones_send_nothing(clock: Clock) -> None:
    world, begun = World(), asyncio.Event()

    async def hangs(**given: Any) -> None:
        world.ec2.sent.append(given["InstanceId"])
        begun.set()
        await asyncio.Event().wait()

    world.ec2.modify_instance_metadata_options = hangs  # type: ignore[method-assign]
    sending = asyncio.create_task(world.send(60))
    await begun.wait()
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert world.of().unsure() == set(world.ec2.sent)
    assert len(world.ec2.sent) <= AT_ONCE


async def test_without_the_lease_nothing_is_remembered(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: NotLeader("gone")
    with pytest.raises(NotLeader):
        await world.send(3)
    assert world.of().attempts == {}


# ---------------------------------------------------------------- what is remembered


async def test_a_policy_that_was_deleted_or_only_audits_begins_anew(clock: Clock) -> None:
    world = World()
    await world.send()
    world.modifier.forget(KEY)
    assert world.of().attempts == {}
    await world.send()
    assert world.modifier.of(KEY, "another uid").attempts == {}


async def test_what_has_no_node_is_forgotten(clock: Clock) -> None:
    world = World()
    state = await world.send(3)
    world.modifier.note(state, Enforced(), {"i-1"})
    assert (set(state.attempts), state.waiting()) == ({"i-1"}, {"i-1"})


async def test_a_failure_that_a_look_found_counts_once(clock: Clock) -> None:
    world = World()
    state = await world.send()
    reported = failed(state.attempts["i-0"], 1_000.0, "NotApplied", "x")
    for _ in range(3):
        world.modifier.note(state, Enforced(attempts={"i-0": reported}), {"i-0"})
    assert len(state.failures) == 1
    world.modifier.note(state, Enforced(closed=True), {"i-0"})
    assert len(state.failures) == 0


async def test_what_waits_is_known_to_the_other_policies_until_it_is_applied(clock: Clock) -> None:
    world = World()
    state, others = await world.send(), world.of(OTHER)
    assert world.modifier.enforce_input(policy(), others, {}).others == {"i-0"}
    assert world.modifier.enforce_input(policy(), state, {}).others == frozenset()
    landed = msgspec.structs.replace(state.attempts["i-0"], landed=True)
    world.modifier.note(state, Enforced(attempts={"i-0": landed}), {"i-0"})
    assert world.modifier.enforce_input(policy(), others, {}).others == frozenset()


@pytest.mark.parametrize(
    ("reported", "waits"),
    [
        pytest.param({"HttpPutResponseHopLimit": 2}, False, id="it is applied"),
        pytest.param({"HttpPutResponseHopLimit": 2, "State": "pending"}, True, id="it is pending"),
        pytest.param({"HttpPutResponseHopLimit": 1}, True, id="it is another value"),
    ],
)
async def test_what_was_read_as_applied_waits_no_more_when_another_policy_changes_the_instance(
    clock: Clock, reported: dict[str, Any], waits: bool
) -> None:
    world = World()
    state = await world.send()
    clock.now += OWN_SECONDS + 1.0
    world.ec2.options = reported
    others = await world.send(key=OTHER)
    assert (state.waiting(), others.waiting()) == ({"i-0"} if waits else set(), {"i-0"})
    assert state.attempts["i-0"].landed is not waits


async def test_limiters_that_are_full_are_not_kept(clock: Clock) -> None:
    world = World()
    for number in range(50):
        clock.now += 60.0
        target = ClientKey("ec2", f"region-{number}")
        await world.send(target=target)
    assert len(world.modifier._limiters) <= 2


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-45T00:00:00Z", "2026-01-01T00:00:00"])
def test_a_resume_at_that_cannot_be_read_resumes_nothing(clock: Clock, text: str) -> None:
    world, mine = World(), policy()
    meta = msgspec.structs.replace(mine.meta, annotations={"caretaker.dev/resume-at": text})
    mine = msgspec.structs.replace(mine, meta=meta)
    assert world.modifier.enforce_input(mine, world.of(), {}).resumed_at == 0.0


def test_what_stands_in_status_at_first_is_believed_by_what_is_read_later(clock: Clock) -> None:
    world, mine, state = World(), policy(), PolicyState("u")
    status = Status(changed=watched(changed(1)))
    mine = msgspec.structs.replace(mine, status=status)
    for _ in range(2):
        inputs = world.modifier.enforce_input(mine, state, {})
        assert (inputs.inherited, inputs.believed_since) == ({"i-1"}, 1_000.0 + OWN_SECONDS)
        clock.now += 5.0


# ---------------------------------------------------------------- the dry run


async def test_a_permission_is_asked_for_once_in_each_generation_and_again_after_a_refusal(
    clock: Clock,
) -> None:
    world = World()
    for _ in range(3):
        state = await world.ask(3)
    assert (world.ec2.dry, state.permission.refused) == (["i-0"], None)
    world.ec2.answer = lambda _: DENIED
    await world.ask(generation=2)
    assert state.permission.refused is not None
    waits = []
    for _ in range(5):
        before, asked = clock.now, len(world.ec2.dry)
        while len(world.ec2.dry) == asked:
            clock.now += 1.0
            await world.ask(generation=2)
        waits.append(clock.now - before)
    assert waits == [15, 30, 60, 300, 300]
    world.ec2.answer = lambda _: None
    clock.now += 300.0
    await world.ask(generation=2)
    assert (state.permission.dry_runs.stopped, world.ec2.sent) == (None, [])
    assert state.permission.refused is not None, "that it would be allowed is not yet a change"
    await world.send(generation=2)
    assert state.permission.refused is None
    assert state.permission.dry_runs.refusals == 0


async def test_nothing_is_asked_where_nothing_is_to_be_changed(clock: Clock) -> None:
    world = World()
    await world.ask(0)
    world.ec2.answer = lambda _: DENIED
    state = await world.ask(1)
    assert (world.ec2.dry, state.permission.dry_runs.stopped is None) == (["i-0"], False)
    await world.ask(0)
    assert (world.ec2.dry, state.permission.refused) == (["i-0"], None), "another client has made the changes"


async def test_nothing_is_asked_where_the_operator_would_cut_itself_off(clock: Clock) -> None:
    world = World(instance_identity=True)
    mine = policy()
    assert mine.spec is not None
    cut = msgspec.structs.replace(mine.spec, options=Options(1))
    await world.modifier.ask(msgspec.structs.replace(mine, spec=cut), world.of(), writes(1), {"here": HERE})
    assert world.ec2.dry == []


@pytest.mark.parametrize(
    ("denied", "asked", "stopped"),
    [(("i-0",), 2, False), (("i-0", "i-1"), 3, False), (("i-0", "i-1", "i-2"), 3, True)],
)
async def test_only_when_all_that_are_asked_for_are_denied_the_permission_is_missing(
    clock: Clock, denied: tuple[str, ...], asked: int, stopped: bool
) -> None:
    world = World()
    world.ec2.answer = lambda instance: DENIED if instance in denied else None
    state = await world.ask(3)
    assert len(world.ec2.dry) == asked
    assert (state.permission.dry_runs.stopped is not None) is stopped
    assert {name: attempt.trouble[0] for name, attempt in state.attempts.items()} == dict.fromkeys(
        denied, "UnauthorizedOperation"
    )


async def test_without_an_answer_to_the_question_nothing_is_sent_and_nobody_is_failing(clock: Clock) -> None:
    world = World()
    world.ec2.answer = lambda _: THROTTLED
    state = await world.ask(3)
    assert (world.ec2.dry, state.attempts) == (["i-0"], {})
    assert state.permission.dry_runs.stopped is not None
    assert state.permission.dry_runs.stopped[0] == "NotAsked"
    assert world.modifier.enforce_input(policy(), state, {"here": HERE}).slowed


def test_a_hand_about_which_there_is_nothing_to_remember_is_not_kept() -> None:
    state = PolicyState("uid")
    state.keep("i-0", ChangeAttempt(failures=1))
    state.keep("i-0", ChangeAttempt())
    assert state.attempts == {}
