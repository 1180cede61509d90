"""AtMostOnce, history by history: what becomes of a run whose outcome is unknown, and of one that never was.

The judge of world.py objects to every Pod without an intent and to every run that a node might repeat.
What people see of it is asserted here.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.times import format_time
from caretaker.daemontask.intents import TOKEN
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry
from simulation.daemontask.operator import KEY, Call, SimOperator
from simulation.daemontask.world import SimWorld, virtual_time

ONCE: dict[str, Any] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0, "parallelism": 1}


@pytest.fixture
def world() -> Iterator[SimWorld]:
    """Two nodes, one at a time; which comes first is a matter of hashes."""
    with virtual_time() as clock:
        made = SimWorld(clock, **ONCE)
        yield made
        made.close()


def creating(call: Call) -> bool:
    return call.what.startswith("create") and call.what.endswith("/pods")


def up_to(one: SimOperator, wanted: Callable[[Call], bool]) -> None:
    """A pass, until such a call is under way."""
    one.catch_up()
    one.begin()
    while not any(wanted(call) for call in one.client.calls):
        assert one.client.calls, "the pass has ended"
        one.answer()


def entries(world: SimWorld) -> list[Entry]:
    return list(world.cluster.entries().values())


def pods(world: SimWorld) -> list[str]:
    return sorted(world.cluster.pods)


def reasons(world: SimWorld) -> list[tuple[str, str]]:
    return [(node.node_name, node.reason) for node in world.cluster.status.failed_nodes]


def pass_by(world: SimWorld, seconds: float, who: int = 0) -> None:
    world.let_time_pass(seconds)
    world.whole_pass(who)


def read_anew(world: SimWorld) -> None:
    restarted = world.act(0)
    restarted.crash(0)
    restarted.start()
    pass_by(world, 2)


# ---------------------------------------------------------------- unknown outcomes


def test_a_crash_between_intent_and_create_fails_the_node_and_runs_nothing_there(world: SimWorld) -> None:
    one = world.act(0)
    up_to(one, creating)
    (intent,) = entries(world)
    assert (intent.result, intent.reason, intent.finished_at) == ("Failed", OUTCOME_UNKNOWN, 0)
    one.crash(0)
    one.start()
    world.whole_pass(0)
    assert not pods(world), "its slot is held while the Pod may still show up"
    assert world.cluster.status.active == 1
    pass_by(world, 32)
    (first,) = world.cluster.status.failed_nodes
    assert (first.reason, first.attempts) == (OUTCOME_UNKNOWN, 0)
    assert "rerun" in first.message
    world.run_pods()
    pass_by(world, 2)
    pass_by(world, 2)
    assert (world.cluster.status.failed, world.cluster.status.succeeded) == (1, 1)


def test_a_spec_that_cannot_be_read_for_a_while_repeats_no_run(world: SimWorld) -> None:
    one = world.act(0)
    up_to(one, creating)
    one.crash(0)
    one.start()
    mended = world.cluster.edit_raw(template={"spec": {"containers": "none"}})
    pass_by(world, 32)
    world.cluster.edit_raw(**mended)
    pass_by(world, 2)
    assert [reason for _, reason in reasons(world)] == [OUTCOME_UNKNOWN]


@pytest.mark.parametrize("executed", [True, False])
def test_a_create_whose_answer_is_lost_is_not_sent_again(world: SimWorld, executed: bool) -> None:
    one = world.act(0)
    up_to(one, creating)
    if executed:
        one.answer(lose_reply=True)
    else:
        one.refuse(0, 503)
    one.finish()
    assert len(pods(world)) == int(executed)
    pass_by(world, 32)
    world.run_pods()
    pass_by(world, 2)
    first, *_ = sorted(entries(world), key=lambda e: e.started_at)
    assert first.result == ("Succeeded" if executed else "Failed")
    assert first.seq == 1


def test_a_pod_that_somebody_deletes_before_its_end_was_the_only_one(world: SimWorld) -> None:
    world.whole_pass(0)
    (name,) = pods(world)
    world.cluster.bind(name)
    world.cluster.drop_pod(name)
    pass_by(world, 32)
    assert [reason for _, reason in reasons(world)] == [OUTCOME_UNKNOWN]
    world.let_time_pass(3600)
    for _ in range(3):
        world.whole_pass(0)
    assert name not in pods(world)


def test_a_name_that_is_said_to_be_taken_and_is_not_tells_nothing(world: SimWorld) -> None:
    """Something in between sent the create twice: the first one's Pod ran, and somebody deleted it."""
    one = world.act(0)
    up_to(one, creating)
    (call,) = one.client.calls
    call.execute()
    (name,) = pods(world)
    world.cluster.bind(name)
    world.cluster.drop_pod(name)
    one.refuse(0, 409, "AlreadyExists")
    one.finish()
    pass_by(world, 32)
    assert [reason for _, reason in reasons(world)] == [OUTCOME_UNKNOWN]
    assert name not in pods(world)


def test_a_pod_that_makes_way_for_a_changed_template_may_have_run(world: SimWorld) -> None:
    """Its init containers, that is: with the old template back, it is not run again."""
    template = world.cluster._spec["template"]
    world.whole_pass(0)
    (name,) = pods(world)
    world.cluster.stick(name)
    world.cluster.edit(template=True, suspend=True)
    pass_by(world, 2)
    assert not pods(world), "it makes way"
    world.cluster._spec["template"] = template
    world.cluster.edit(suspend=False)
    pass_by(world, 32)
    pass_by(world, 2)
    assert [reason for _, reason in reasons(world)] == [OUTCOME_UNKNOWN]
    assert name not in pods(world)


def test_a_run_that_failed_is_not_repeated(world: SimWorld) -> None:
    world.whole_pass(0)
    world.run_pods("Failed")
    pass_by(world, 2)
    world.let_time_pass(3600)
    world.whole_pass(0)
    assert [reason for _, reason in reasons(world)] == ["Error"]
    assert world.cluster.status.failed_nodes[0].exit_code == 1


def test_a_re_run_is_another_run(world: SimWorld) -> None:
    test_a_pod_that_somebody_deletes_before_its_end_was_the_only_one(world)
    world.cluster.annotate(names.RERUN_AT, format_time(world.clock.now))
    for _ in range(6):
        pass_by(world, 2)
        world.run_pods()
    pass_by(world, 2)
    assert (world.cluster.status.succeeded, world.cluster.status.failed) == (2, 0)


def test_a_pod_that_shows_up_after_it_was_given_up_is_recorded(world: SimWorld) -> None:
    one = world.act(0)
    up_to(one, creating)
    (late,) = one.client.calls
    late.deadline = world.clock.now + 1000
    other = world.act(1)
    other.catch_up()
    pass_by(world, 32, who=1)
    assert [reason for _, reason in reasons(world)] == [OUTCOME_UNKNOWN]
    world.cluster.on_create.clear()  # the judge would say that the intent has been concluded
    one.crash(1)
    world.whole_pass(1)
    assert world.cluster.status.failed == 0
    world.run_pods()
    pass_by(world, 2, who=1)
    assert {e.result for e in entries(world) if not e.intent} == {"Succeeded"}


def test_an_entry_that_cannot_be_read_counts_as_an_unknown_outcome(world: SimWorld) -> None:
    for _ in range(4):
        world.whole_pass(0)
        world.run_pods()
        world.let_time_pass(2)
    pass_by(world, 60)
    pass_by(world, 60)
    assert not pods(world), "else its Pod would tell"
    world.cluster.corrupt("a")
    world.cluster.edit(template=False)
    read_anew(world)
    pass_by(world, 2)
    assert reasons(world) == [("a", OUTCOME_UNKNOWN)]
    assert not pods(world)
    pass_by(world, 60)
    told = c.find(world.cluster.status.conditions, c.DEGRADED)
    assert told is not None
    assert told.reason == "LedgerCorrupt", "for as long as nobody has looked"
    assert "1 node(s) could not be read and may have run, first a: " in told.message
    assert world.cluster.status.failed_nodes[0].pod_name == "", "which one, nobody knows"


def two_runs(world: SimWorld, *, rest: float) -> None:
    """Of each node, one after another, and so many seconds after each."""
    for template in (False, True):
        world.cluster.edit(template=template)
        for _ in range(3):
            pass_by(world, 2)
            world.run_pods()
        pass_by(world, rest)


def later_run_forgotten(world: SimWorld) -> None:
    """Of the second run on node a, Pod and entry are gone."""
    two_runs(world, rest=2)
    for pod in [pod.record() for pod in world.cluster.pods.values()]:
        if (pod.annotations[names.POD_NODE_NAME], pod.seq) == ("a", 2):
            world.cluster.drop_pod(pod.name)
    world.cluster.corrupt("a")


def test_of_an_entry_that_cannot_be_read_the_pod_of_an_earlier_run_does_not_tell(world: SimWorld) -> None:
    later_run_forgotten(world)
    assert len(pods(world)) == 3, "the earlier run's Pod of node a is still there"
    read_anew(world)
    for _ in range(3):
        pass_by(world, 2)
    assert reasons(world) == [("a", OUTCOME_UNKNOWN)]
    assert "could not be read" in world.cluster.status.failed_nodes[0].message
    assert not world.live_pods()


@pytest.mark.parametrize("ended", [True, False])
def test_nor_does_a_pod_of_an_earlier_run_that_an_old_view_shows(world: SimWorld, ended: bool) -> None:
    """After the entry was written anew, too."""
    lagging = world.operators[1]
    world.whole_pass(0)
    pass_by(world, 2)
    first = world.cluster.pods[pods(world)[0]].record()
    node = first.annotations[names.POD_NODE_NAME]
    world.cluster.bind(first.name)
    lagging.catch_up()
    world.run_pods()
    if ended:
        lagging.catch_up()
    two_runs(world, rest=40)
    for name in pods(world):
        world.cluster.drop_pod(name)
    world.cluster.corrupt(node)
    read_anew(world)
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]
    for up_to_date in (False, False, True, True, True):
        world.let_time_pass(40)
        world.whole_pass(1, pods=up_to_date)
        assert not world.live_pods()
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]


def lagging_since_the_first_run(world: SimWorld, *, ended: bool) -> str:
    """Operator 1 knows nothing of what comes after the first run, of whose node this returns the name."""
    world.whole_pass(0)
    (first,) = pods(world)
    world.cluster.bind(first)
    if ended:
        world.run_pods()
    world.operators[1].catch_up()
    world.run_pods()
    return world.cluster.pods[first].record().annotations[names.POD_NODE_NAME]


def run_all_and_clear_up(world: SimWorld) -> None:
    for _ in range(3):
        pass_by(world, 2)
        world.run_pods()
    pass_by(world, 2)
    for name in pods(world):
        world.cluster.drop_pod(name)


@pytest.mark.parametrize("ended", [True, False])
def test_nor_once_another_run_followed_the_one_that_may_have_been(world: SimWorld, ended: bool) -> None:
    """The new intent's seq is not that of the old view's Pod, which would be taken for its own."""
    node = lagging_since_the_first_run(world, ended=ended)
    run_all_and_clear_up(world)
    world.cluster.corrupt(node)
    read_anew(world)
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]
    world.cluster.edit(template=True, parallelism=2)
    for _ in range(2):
        pass_by(world, 40)
    assert len(world.live_pods()) == 2
    for name in world.live_pods():
        world.cluster.bind(name)
    for _ in range(4):
        world.let_time_pass(40)
        world.whole_pass(1, pods=False)
    world.run_pods()
    for _ in range(3):
        pass_by(world, 2)
    assert {e.result for e in entries(world)} == {"Succeeded"}


def test_a_live_pod_of_an_earlier_run_that_an_old_view_shows_gets_no_intent(world: SimWorld) -> None:
    """Who takes over would find its run lost, and the one that is due not done."""
    node = lagging_since_the_first_run(world, ended=False)
    run_all_and_clear_up(world)
    world.cluster.edit(template=True)
    run_all_and_clear_up(world)
    world.cluster.corrupt(node)
    world.let_time_pass(40)
    world.whole_pass(1, pods=False)
    assert not world.cluster.entries()[node].intent
    read_anew(world)
    for _ in range(3):
        pass_by(world, 40)
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]
    assert not world.live_pods()


def test_no_name_is_given_twice_where_an_old_view_shows_an_earlier_pod_of_the_same_run() -> None:
    """As live: with an intent of its seq the next run would get the name of a Pod that it shows later."""
    with virtual_time() as clock:
        world = SimWorld(clock, **{**ONCE, "parallelism": 2})
        world.whole_pass(0)
        world.operators[1].catch_up()
        pass_by(world, 1801)  # past the progress deadline: another Pod of the same run follows
        run_all_and_clear_up(world)
        assert {e.seq for e in entries(world)} == {2}
        missed = len(world.cluster.pod_log)
        world.cluster.corrupt("a")
        for _ in range(2):
            world.let_time_pass(40)
            world.whole_pass(1, pods=False)
        read_anew(world)
        pass_by(world, 40)
        assert reasons(world) == [("a", OUTCOME_UNKNOWN)]
        world.cluster.edit(template=True)
        for seconds in (40, 2):
            pass_by(world, seconds)
        begun = world.live_pods()
        assert len(begun) == 2
        for name in begun:
            world.cluster.bind(name)
        for _ in range(missed):
            late = world.act(1)
            late.deliver("pods", 1)
            world.let_time_pass(2)
            late.begin()
            late.finish()
        assert world.live_pods() == begun
        world.close()


@pytest.mark.parametrize("earlier", [False, True])
def test_the_judge_takes_no_end_for_recorded_that_came_after_the_entry(
    world: SimWorld, earlier: bool
) -> None:
    """However high the seq of one in place of a broken one; but a Pod of an earlier run tells nothing."""
    one = world.act(0)
    up_to(one, creating)
    (node,) = world.cluster.entries()
    (create,) = one.client.calls
    if earlier:
        one.finish()
        world.cluster.edit(template=True)
    world.cluster.corrupt(node)
    world.whole_pass(1, pods=False)
    assert world.cluster.entries()[node].seq > 1
    if not earlier:
        create.execute_now()
    world.run_pods()
    ended = next(
        pod.record() for pod in world.cluster.pods.values() if pod.record().node_uid.startswith(node)
    )
    assert (ended.phase, ended.uid in world.cluster.recorded) == ("Succeeded", earlier)
    world.cluster.corrupt(node)
    with nullcontext() if earlier else pytest.raises(AssertionError, match="deleted before it is recorded"):
        world.judge_delete(ended)


def test_after_a_broken_entry_no_pod_is_created_beside_one_that_an_old_view_does_not_show(
    world: SimWorld,
) -> None:
    one = world.act(0)
    up_to(one, creating)
    (node,) = world.cluster.entries()
    (create,) = one.client.calls
    world.cluster.corrupt(node)
    world.whole_pass(1)
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]
    before = set(world.live_pods())
    create.execute_now()
    (late,) = set(world.live_pods()) - before
    world.cluster.edit(template=True, parallelism=2)
    world.let_time_pass(40)
    for _ in range(2):
        world.whole_pass(1, pods=False)
        assert late in world.live_pods()
    live = [world.cluster.pods[name].record().node_uid for name in world.live_pods()]
    assert sum(uid.startswith(node) for uid in live) == 1


@pytest.mark.parametrize("change", ["reboot", "replace"])
def test_nor_is_a_run_repeated_for_an_old_view_of_its_node(world: SimWorld, change: str) -> None:
    node = lagging_since_the_first_run(world, ended=True)
    run_all_and_clear_up(world)
    world.let_time_pass(700)  # a reboot sooner would be the run's own
    if change == "reboot":
        world.cluster.reboot(node)
    else:
        world.cluster.add_node(node)
    run_all_and_clear_up(world)
    world.cluster.corrupt(node)
    late = world.operators[1]
    late.deliver("pods", 100)
    world.whole_pass(1, nodes=False)
    for _ in range(4):
        pass_by(world, 40, who=1)
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]
    assert not world.live_pods()


def test_the_pod_of_the_last_tick_tells_while_the_next_one_is_being_stored() -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, **{**ONCE, "parallelism": 2, "schedule": "* * * * *"})
        for seconds in (60, 60, 2):
            pass_by(world, seconds)
        assert len(world.live_pods()) == 2
        world.run_pods()
        world.cluster.corrupt("a")
        world.let_time_pass(60)
        restarted = world.act(0)
        restarted.crash(0)
        restarted.start()
        world.whole_pass(0)
        assert {e.result for e in entries(world)} == {"Succeeded"}
        world.close()


def test_where_an_entry_cannot_be_read_a_create_may_be_under_way(world: SimWorld) -> None:
    """Of any seq: until that is over no other run of the node begins."""
    one = world.act(0)
    up_to(one, creating)
    (node,) = world.cluster.entries()
    (late,) = one.client.calls
    late.deadline = world.clock.now + 1000
    world.cluster.corrupt(node)
    world.whole_pass(1)
    assert reasons(world) == [(node, OUTCOME_UNKNOWN)]
    world.cluster.edit(template=True, parallelism=2)
    pass_by(world, 2, who=1)
    late.execute_now()
    assert len(world.live_pods()) == 2, "that create and the other node's"
    pass_by(world, 40, who=1)
    assert len(world.live_pods()) == 2


def test_a_run_that_was_begun_under_at_least_once_is_covered_when_the_task_changes() -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, backoffLimit=0)
        world.whole_pass(0)
        assert not entries(world)
        world.cluster.edit(**ONCE)
        pass_by(world, 2)
        assert {e.intent for e in entries(world)} == {
            p.metadata.uid[:TOKEN] for p in world.cluster.pods.values()
        }
        for name in pods(world):
            world.cluster.bind(name)
            world.cluster.drop_pod(name)
        pass_by(world, 60)
        assert [reason for _, reason in reasons(world)] == [OUTCOME_UNKNOWN] * 2
        world.close()


def test_a_retry_that_was_due_is_not_made_when_the_task_changes() -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, backoffLimit=3)
        world.whole_pass(0)
        world.run_pods("Failed")
        pass_by(world, 2)
        assert {e.result for e in entries(world)} == {"Retry"}
        world.cluster.edit(**ONCE)
        pass_by(world, 60)
        pass_by(world, 60)
        assert [reason for _, reason in reasons(world)] == ["Error"] * 2
        world.close()


# ---------------------------------------------------------------- what never ran


@pytest.mark.parametrize("status", [403, 422, 429])
def test_a_pod_that_was_refused_never_ran_and_its_intent_is_taken_back_at_once(
    world: SimWorld, status: int
) -> None:
    one = world.act(0)
    up_to(one, creating)
    one.refuse(0, status)
    one.finish()
    assert [(e.result, e.intent) for e in entries(world)] == [("Retry", "")]
    one.crash(0)  # so nobody has to remember
    one.start()
    rolls_out(world)


def test_when_pods_are_accepted_again_the_others_follow_at_once() -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, **{**ONCE, "parallelism": 2})
        one = world.act(0)
        up_to(one, creating)
        one.refuse(0, 429)
        one.finish()
        world.let_time_pass(10)
        world.loop.run_until_complete(one.queue.get(asyncio.Event()))
        one.queue.done(KEY)
        world.whole_pass(0)
        assert len(pods(world)) == 1
        assert len(one.queue) == 1, "another pass is due"
        pass_by(world, 1)
        assert len(pods(world)) == 2
        world.close()


@pytest.mark.parametrize("status", [0, 409, 500])
def test_after_a_refusal_a_failed_write_of_the_ledger_is_followed_by_one_intent(status: int) -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, **{**ONCE, "parallelism": 2})
        one = world.act(0)
        up_to(one, creating)
        one.refuse(0, 429)
        one.finish()
        world.let_time_pass(10)
        up_to(one, lambda call: call.what.startswith("patch"))
        one.refuse(0, status)
        one.finish()
        world.let_time_pass(10)
        up_to(one, creating)
        assert sum(bool(entry.intent) for entry in entries(world)) == 1
        world.close()


def test_after_a_refusal_a_write_that_is_put_off_is_followed_by_one_intent() -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, **{**ONCE, "parallelism": 2})
        one = world.act(0)
        up_to(one, creating)
        one.refuse(0, 429)
        one.finish()
        pass_by(world, 0.2)
        assert not pods(world)
        world.let_time_pass(10)
        up_to(one, creating)
        assert sum(bool(entry.intent) for entry in entries(world)) == 1
        world.close()


def test_a_pod_that_may_not_be_deleted_holds_back_no_starts() -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, **{**ONCE, "parallelism": None})

        def refusing() -> None:
            one = world.act(0)
            one.catch_up()
            one.begin()
            while one.client.calls:
                deletes = one.client.calls[0].what.startswith("delete")
                one.refuse(0, 403) if deletes else one.answer()

        world.whole_pass(0)
        world.run_pods()
        pass_by(world, 2)
        world.let_time_pass(40)  # TTL would take them
        refusing()
        assert "PodDeletionRefused" in {c.reason for c in world.cluster.status.conditions}
        for name in "cde":
            world.cluster.add_node(name)
        world.let_time_pass(2)
        refusing()
        assert len(world.live_pods()) == 3
        world.close()


def test_intents_that_a_lost_lease_kept_from_being_sent_are_taken_back(world: SimWorld) -> None:
    one = world.act(0)
    up_to(one, creating)
    one.depose()
    assert [bool(e.intent) for e in entries(world)] == [True], "without the Lease nothing is written"
    rolls_out(world)


def test_a_pod_that_no_node_got_and_that_we_deleted_never_ran(world: SimWorld) -> None:
    world.whole_pass(0)
    pass_by(world, 1801)  # past the progress deadline
    pass_by(world, 2)
    rolls_out(world)
    assert max(e.seq for e in entries(world)) == 2


def test_what_stood_there_before_comes_back_with_its_template(world: SimWorld) -> None:
    """A run of another template that never was makes no run of this one due."""
    rolls_out(world)
    recorded = world.cluster.entries()
    template = world.cluster._spec["template"]
    world.cluster.edit(template=True)
    one = world.act(0)
    up_to(one, creating)
    one.refuse(0, 403)
    one.finish()
    world.cluster._spec["template"] = template
    world.cluster.edit()
    for _ in range(4):
        pass_by(world, 32)
    assert not world.live_pods()
    strip = {"seq": 0, "started_at": 0}
    found = {name: msgspec.structs.replace(e, **strip) for name, e in world.cluster.entries().items()}
    assert found == {name: msgspec.structs.replace(e, **strip) for name, e in recorded.items()}


def rolls_out(world: SimWorld) -> None:
    for _ in range(8):
        pass_by(world, 2)
        world.run_pods()
    pass_by(world, 2)
    assert {e.result for e in entries(world)} == {"Succeeded"}
    assert world.cluster.status.succeeded == 2
    pass_by(world, 60)


@pytest.mark.parametrize("spec", [ONCE, {"parallelism": 1}], ids=["AtMostOnce", "AtLeastOnce"])
def test_while_a_pod_that_was_to_be_deleted_lives_no_other_takes_its_slot(spec: dict[str, Any]) -> None:
    def deleting(call: Call) -> bool:
        return call.what.startswith("delete")

    with virtual_time() as clock:
        world = SimWorld(clock, **spec)
        world.whole_pass(0)
        (name,) = pods(world)
        world.let_time_pass(1801)  # past the progress deadline
        one = world.act(0)
        up_to(one, deleting)
        world.cluster.bind(name)
        one.finish()
        assert world.live_pods() == [name]
        assert len([e for e in entries(world) if e.intent]) == ("runGuarantee" in spec), "its own alone"
        assert len(one.queue) == 1, "another pass is due"
        rolls_out(world)
        world.close()


# ---------------------------------------------------------------- two operators, and the cost


def test_the_other_operator_waits_for_a_pod_that_is_being_created(world: SimWorld) -> None:
    one = world.act(0)
    up_to(one, creating)
    world.whole_pass(1)
    assert (world.cluster.status.active, world.cluster.status.failed) == (1, 0)
    world.act(0).finish()
    assert len(pods(world)) == 1


def test_a_pod_that_an_old_cache_does_not_show_is_not_given_up(world: SimWorld) -> None:
    world.whole_pass(0)
    world.let_time_pass(32)
    world.whole_pass(1, pods=False)
    assert (world.cluster.status.active, world.cluster.status.failed) == (1, 0)
    assert all(not e.finished_at for e in entries(world))


def test_starts_wait_for_their_intents_when_the_ledger_has_just_been_written(world: SimWorld) -> None:
    """One write a second: what is due before then is put off, and no pass spins meanwhile."""
    world.whole_pass(0)
    world.cluster.edit(parallelism=2)
    before, queue = shard_writes(world), world.operators[0].queue
    world.clock.now += 0.2  # what has happened is due by then
    world.loop.run_until_complete(queue.get(asyncio.Event()))
    queue.done(KEY)
    world.whole_pass(0)
    assert shard_writes(world) == before
    assert len(world.live_pods()) == 1
    assert (queue.pending(KEY), len(queue)) == (True, 0)
    pass_by(world, 1)
    assert len(world.live_pods()) == 2


def test_of_two_operators_one_writes_the_intent(world: SimWorld) -> None:
    def writing(call: Call) -> bool:
        return call.what.startswith("create") and call.what.endswith("/configmaps")

    up_to(world.act(0), writing)
    up_to(world.act(1), writing)
    world.act(0).finish()
    world.act(1).finish()
    assert len(pods(world)) == 1


@pytest.mark.parametrize(("spec", "writes"), [({}, 1), ({**ONCE, "parallelism": 2}, 2)])
def test_a_rollout_costs_one_more_write_for_all_nodes(spec: dict[str, Any], writes: int) -> None:
    """The ledger's shard: intents, then results."""
    with virtual_time() as clock:
        world = SimWorld(clock, **spec)
        before = shard_writes(world)
        for _ in range(4):
            world.whole_pass(0)
            world.run_pods()
            world.let_time_pass(2)
        assert {e.result for e in entries(world)} == {"Succeeded"}
        assert shard_writes(world) - before == writes
        world.close()


def shard_writes(world: SimWorld) -> int:
    return world.cluster.shard_writes


def test_results_and_the_next_intents_are_one_write(world: SimWorld) -> None:
    """One node at a time: each pass records one and starts the next."""
    world.whole_pass(0)
    world.run_pods()
    world.let_time_pass(2)
    before = shard_writes(world)
    world.whole_pass(0)
    assert len(world.live_pods()) == 1
    assert {e.result for e in entries(world) if not e.intent} == {"Succeeded"}
    assert shard_writes(world) - before == 1
