"""Pods of a large template are created slowly, and hold up no other namespace."""

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import Spec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.bulk import BYTES, ENTRY, FREE, PAUSE, Bulk, PassTurn, cost_of
from caretaker.daemontask.decision import WriteRefusal
from caretaker.daemontask.events import transitions
from caretaker.daemontask.plan import Launch, Plan, plan
from caretaker.daemontask.pod_control import CREATE_BYTES, PodControl
from caretaker.daemontask.pods import PodEncoder, pod_cost
from caretaker.daemontask.refused_pods import Pacing
from caretaker.daemontask.resource import RawTask
from caretaker.daemontask.slots import SlotAssignment, paced
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import requeue_after, status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import SpecCache, TaskState, TaskStates
from caretaker.daemontask.wiring import Targets
from caretaker.kube.store import Store
from caretaker.runtime.controller import Postponed
from caretaker.runtime.work_queue import Key
from fuzz.cost import seconds
from simulation.daemontask.operator import KEY
from simulation.daemontask.world import Make
from unit.daemontask.build import NOW, UID, node, pod, snapshot, started, task
from unit.daemontask.test_pod_control import Api

KIB = 1024
LARGE = {"spec": {"containers": [{"name": "a", "image": "b", "args": ["x" * 96 * KIB]}]}}
META = WireMeta(name="t", namespace="default", uid=UID)
NODES = [node(f"n{number:03}") for number in range(40)]


def seen(allowed: int | None, pods: Any = None, nodes: Any = None, **spec: Any) -> Snapshot:
    found = snapshot(task(**spec), NODES if nodes is None else nodes, pods)
    return msgspec.structs.replace(found, allowed=allowed, allowed_at=NOW + 3)


def progressing(of: Snapshot, found: Plan) -> tuple[str, str, str]:
    condition = c.find(status_of(of, found, Outcome()).conditions, c.PROGRESSING)
    assert condition is not None
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize(
    ("size", "allowed"),
    [
        pytest.param(FREE, None, id="small: any number"),
        pytest.param(FREE + 1, 256 * KIB, id="by what exceeds the free size"),
        pytest.param(FREE + 128 * KIB, 2, id="as many as the burst has bytes"),
        pytest.param(FREE + 150 * KIB, 2, id="the last one may be larger than what is left"),
        pytest.param(9_000 * KIB, 1, id="one, however large"),
    ],
)
def test_how_many_pods_may_be_created_at_first(size: int, allowed: int | None) -> None:
    assert Bulk(100.0).allowed(size, 100.0, 101.0) == allowed


def alone(size: int = 128 * KIB, bulk: Bulk | None = None, now: float = 0.0) -> TaskState:
    """The state of a task whose Pods have 128 KiB that count, after the dry run of its template."""
    state = TaskState(UID, bulk=bulk or Bulk(0.0))
    cost = FREE + size
    state.spec = SpecCache(revision="r", pod_cost=cost, turn=state.bulk.take(cost, now))
    return state


def allowed(state: TaskState, now: float) -> tuple[int | None, float]:
    """How many Pods it may create now, and the seconds until another one."""
    turn = state.next_pacing(now).turn
    return state.bulk.allowed(state.spec.pod_cost, now, turn), max(turn - now, PAUSE)


def create(state: TaskState, size: int, now: float) -> None:
    """It creates a Pod of this size."""
    state.pacing = Pacing("r", state.bulk.take(size, now))


def created(state: TaskState, now: float) -> int:
    """How many Pods it creates now: all that it may."""
    count, _ = allowed(state, now)
    for _ in range(count or 0):
        create(state, state.spec.pod_cost, now)
    return count or 0


def test_in_the_long_run_so_many_bytes_a_second() -> None:
    state, found, now = alone(), 0, 0.0
    while now < 100.0:
        found += created(state, now)
        wait = allowed(state, now)[1]
        assert wait >= PAUSE
        now += wait
    most = (BYTES.burst + 100 * BYTES.per_second) / (128 * KIB)
    assert most - 3 <= found <= most, "its dry run counts"


def test_a_debt_is_waited_for() -> None:
    state = alone()
    assert allowed(state, 0.0) == (1, PAUSE), "its dry run counts"
    create(state, FREE + 1792 * KIB, 0.0)
    assert allowed(state, 0.0) == (0, 13.0)
    assert allowed(state, 12.9)[0] == 0
    assert allowed(state, 13.0) == (1, PAUSE)
    assert allowed(alone(0, state.bulk), 0.0)[0] is None


def test_small_pods_take_nothing() -> None:
    state = alone()
    for _ in range(5_000):
        create(state, FREE, 0.0)
    assert allowed(state, 0.0)[0] == 1, "only its dry run counts"


@pytest.mark.parametrize("strict", [False, True])
def test_a_plan_starts_those_that_are_allowed_and_wakes_for_the_next(strict: bool) -> None:
    found = plan(seen(3, run_guarantee="AtMostOnce" if strict else "AtLeastOnce"))
    assert (len(found.launch.starts), found.launch.queued, bool(found.launch.paced_at)) == (3, 37, True)
    assert len(found.launch.intents) == (3 if strict else 0)
    assert (found.more, found.launch.paced_at) == (False, NOW + 3)


def test_none_is_allowed_now() -> None:
    found = plan(seen(0))
    assert (found.launch.starts, found.launch.queued, found.launch.paced_at) == ((), 40, NOW + 3)


@pytest.mark.parametrize("allowed", [None, 40, 41])
def test_enough_are_allowed(allowed: int | None) -> None:
    found = plan(seen(allowed))
    assert (len(found.launch.starts), found.launch.queued, bool(found.launch.paced_at)) == (40, 0, False)


def test_a_rollout_that_waits_for_its_slots_is_not_paced() -> None:
    """Or it would be planned each second, and would report what is not so."""
    first = plan(seen(None, parallelism=2))
    pods = [pod(one) for one in NODES if one.name in started(first)]
    found = plan(seen(1, pods, parallelism=2))
    assert (found.launch.starts, bool(found.launch.paced_at), found.launch.queued) == ((), False, 38)


def test_a_pod_that_could_not_be_replaced_now_runs_on() -> None:
    old = [pod(one, revision="old") for one in NODES]
    assert len(plan(seen(None, old, concurrency_policy="Replace")).deletes) == 40
    found = plan(seen(0, old, concurrency_policy="Replace"))
    assert (found.deletes, found.launch.outdated) == ((), 40)


def test_those_that_hold_a_slot_go_first() -> None:
    reports: Any = list("abcd")
    assert paced(SlotAssignment(reports, own=3), 2) == (SlotAssignment(["a", "b"], own=2), True)  # type: ignore[list-item]
    assert paced(SlotAssignment(reports, own=1), 2) == (SlotAssignment(["a", "b"], own=1), True)  # type: ignore[list-item]
    assert paced(SlotAssignment(reports, own=1), 4) == (SlotAssignment(reports, own=1), False)


def test_the_status_and_one_event_say_so() -> None:
    of = seen(3)
    found = plan(of)
    status, reason, message = progressing(of, found)
    assert (status, reason) == ("True", Reason.LARGE_PODS)
    assert message.startswith(
        "large Pods are created slowly, 128 KiB a second for all tasks of a namespace, so that other tasks "
        "are not delayed. Make spec.template smaller: move large fields into a ConfigMap; "
    )
    after = status_of(of, found, Outcome())
    reported = [event for event in transitions(of.task.status, after) if event.reason == Reason.LARGE_PODS]
    assert [(event.type, event.message) for event in reported] == [
        ("Warning", "large Pods are created slowly; the condition Progressing says what to do")
    ]
    again = msgspec.structs.replace(of, task=msgspec.structs.replace(of.task, status=after))
    assert not transitions(after, status_of(again, plan(again), Outcome()))


def test_a_rollout_of_small_pods_says_nothing_of_it() -> None:
    of = seen(None)
    assert progressing(of, plan(of))[1] == Reason.ROLLING_OUT


@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_the_metadata_of_a_pod_counts(part: str) -> None:
    small = PodEncoder(META, Spec(template={"spec": {}}), "r").size
    large = PodEncoder(META, Spec(template={"metadata": {part: {"a": "x" * 100_000}}, "spec": {}}), "r").size
    assert 100_000 <= large - small <= 100_100


def test_pods_make_way_as_fast_as_new_ones_may_start() -> None:
    old = [pod(one, revision="old") for one in NODES[:30]]
    going = [pod(one, revision="old", deletion=NOW) for one in NODES[30:33]]
    found = plan(seen(10, old + going, NODES[:33], concurrency_policy="Replace"))
    assert (len(found.deletes), found.launch.outdated, found.launch.paced_at) == (7, 23, NOW + 3)
    alone = plan(seen(0, old, NODES[:30], concurrency_policy="Replace"))
    assert (alone.deletes, alone.launch.starts, alone.launch.paced_at) == ((), (), NOW + 3), (
        "or nothing would wake it"
    )
    assert requeue_after(alone, Outcome(), planned=NOW, now=NOW) == 3.0


def refused(reason: str) -> Outcome:
    return Outcome(refusal=WriteRefusal(reason, "no"))


def test_a_refusal_backs_off_as_for_small_pods() -> None:
    found = plan(seen(0))
    reported = {"planned": NOW, "now": NOW}
    assert requeue_after(found, refused(Reason.PERMISSION_DENIED), **reported) is None
    assert requeue_after(found, refused(Reason.POD_DELETION_REFUSED), **reported) == 3.0


def test_slots_that_are_free_are_not_stuck() -> None:
    late = [
        pod(one, phase="Pending", node_name="", created=NOW - 9000, unschedulable=True) for one in NODES[:3]
    ]
    for allowed in (0, 1, None):
        assert not plan(seen(allowed, late, parallelism=5)).launch.jammed


@pytest.mark.parametrize("sizes", [(128, 128), (128, 2048), (128, 128, 2048), (*(128,) * 15, *(2048,) * 5)])
def test_tasks_of_a_namespace_take_turns(sizes: tuple[int, ...]) -> None:
    """However large the Pods of the others, each creates as many as any other."""
    bulk = Bulk(0.0)
    tasks = [alone(size * KIB, bulk) for size in sizes]
    due, found, spent = dict.fromkeys(range(len(sizes)), 0.0), [0] * len(sizes), 0
    while (now := min(due.values())) < 3600.0:
        number = min(due, key=due.__getitem__)
        found[number] += (new := created(tasks[number], now))
        spent += new * sizes[number]
        due[number] = now + max(bulk.take_pass(FREE + 128 * KIB, now), allowed(tasks[number], now)[1])
    assert max(found) - min(found) <= 5
    assert 3500 * 128 <= spent <= 3600 * 128 + 256 + sum(sizes)


def test_a_turn_ends_with_what_waits_for_it_and_no_earlier(make: Make) -> None:
    world = make(template=LARGE, parallelism=1, concurrencyPolicy="Forbid")
    one = world.act(0)
    one.begin()
    while one.busy:
        if one.client.calls[0].what.endswith("/pods"):
            one.refuse(0, 403)
        else:
            one.answer()
    state = one.task_states.find(KEY)
    assert state is not None
    assert not state.pacing.idle, "a Pod was refused"
    world.cluster.edit(suspend=True)
    world.whole_pass(0)
    assert state.pacing.idle, "suspended"
    world.cluster.edit(suspend=False)
    for _ in range(3):
        world.let_time_pass(30)
        world.whole_pass(0)
    for name in sorted(world.cluster.pods):
        world.cluster.bind(name)
    world.let_time_pass(30)
    world.whole_pass(0)
    assert state.pacing.idle, "the other node waits for a slot"
    world.cluster.edit_raw(
        template={"spec": {**LARGE["spec"], "hostNetwork": True}}, concurrencyPolicy="Replace"
    )
    world.whole_pass(0)
    assert not state.pacing.idle, "one makes way"


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("spec", [{}, {"runGuarantee": "AtMostOnce"}])
def test_a_turn_is_not_kept_for_later(make: Make, spec: dict[str, Any], running: bool) -> None:
    """Many tasks whose Pods have all been created, and a node joins: each waits for what the others use."""
    world = make(template=LARGE, **spec)
    world.whole_pass(0)
    for name in sorted(world.cluster.pods):
        world.cluster.bind(name)
    if not running:
        world.run_pods()
        world.whole_pass(0)
    world.let_time_pass(3600)
    state = world.act(0).task_states.find(KEY)
    assert state is not None
    state.bulk.take(FREE + 1792 * KIB, world.clock.now)
    assert len(before := set(world.cluster.pods)) == 2
    world.cluster.add_node("c")
    for later in (0, 11.9):
        world.let_time_pass(later)
        world.whole_pass(0)
        assert set(world.cluster.pods) <= before
    state.bulk.take(FREE + 1792 * KIB, world.clock.now)
    world.let_time_pass(0.2)
    world.whole_pass(0)
    assert len(set(world.cluster.pods) - before) == 1, "what is used after it asked counts no more"


def test_the_dry_run_of_a_large_template_waits_for_its_turn(make: Make) -> None:
    """Its author may change the spec as often at any rate."""
    world = make(template=LARGE)
    states = world.act(0).task_states
    states._bulk_of(KEY).take(FREE + 1792 * KIB, world.clock.now)
    world.whole_pass(0)
    state = states.find(KEY)
    assert state is not None
    wait = state.spec.check_in(world.clock.now)
    assert 12 <= wait <= 13
    for later, error in ((0.0, None), (wait - 0.1, None), (0.1, "")):
        world.let_time_pass(later)
        world.whole_pass(0)
        assert state.spec.template_error == error
        assert bool(world.cluster.pods) is (error == "")
    assert state.spec.check_in(world.clock.now) == 0


def test_a_plan_wakes_for_the_dry_run() -> None:
    found = plan(msgspec.structs.replace(seen(0, nodes=[]), checked=False, check_at=NOW + 7))
    assert requeue_after(found, Outcome(), planned=NOW, now=NOW) == 7


def test_a_new_task_waits_for_what_others_have_used() -> None:
    bulk = Bulk(0.0)
    bulk.take(FREE + 1792 * KIB, 0.0)
    new = alone(bulk=bulk, now=2.0)
    assert allowed(new, 2.0) == (0, 11.0)
    bulk.take(FREE + 1792 * KIB, 3.0)
    assert allowed(new, 13.0)[0] == 1, "what is used after it asked counts no more"


async def test_what_was_created_counts() -> None:
    template = {"spec": {"containers": [{"name": "main", "args": ["x" * (CREATE_BYTES // 4)]}]}}
    of = snapshot(task(template=template), NODES)
    api, state, launch = Api(), TaskState(UID), plan(of).launch
    state.ledger.confirmed, state.spec = time.monotonic(), SpecCache(pod_cost=CREATE_BYTES // 4)
    client: Any = api
    made, complete = await PodControl(client, Store()).start(
        of.task, of.revision, Launch(starts=launch.starts[:8]), state
    )
    assert (len(made), complete) == (2, False), "another task may have been quicker since the plan"
    count, wait = allowed(state, time.monotonic())
    assert count == 0
    assert PAUSE <= wait < 3.0


@pytest.mark.parametrize(
    ("template", "entries"),
    [
        pytest.param({}, 0, id="none"),
        pytest.param({"metadata": {"labels": {"a": 1}, "annotations": {"c": 1, "e": 1}}}, 3, id="metadata"),
        pytest.param({"spec": {"volumes": [{}], "tolerations": [{}, {}]}}, 1, id="tolerations are one"),
        pytest.param(
            {"spec": {"containers": [{"env": [{}] * 3, "args": ["a", "b"]}, {"ports": [{}], "env": None}]}},
            4 + 16,
            id="of each container; arguments are one",
        ),
        pytest.param({"spec": {"overhead": {"cpu": 1}, "containers": 7, "env": "text"}}, 1, id="of the Pod"),
    ],
)
def test_what_the_api_server_tracks_by_entry_counts_more(template: dict[str, Any], entries: int) -> None:
    assert cost_of(1000, template) == 1000 + ENTRY * entries


@pytest.mark.parametrize("part", [{}, [], "", 0, None, {"a": {}}])
def test_the_cost_of_a_large_template_is_summed_in_one_turn_of_the_loop(part: Any) -> None:
    count = 250_000 // (len(msgspec.json.encode(part)) + 1)
    template = {"spec": {"volumes": [part] * count, "containers": [{"env": [{}] * 3}]}}
    assert cost_of(1, template) == 1 + ENTRY * (count + 8 + 3)
    assert seconds(lambda: cost_of(1, template), 0.08) <= 0.08, "CPU; empty ones took 0.13 s"


def test_a_pod_of_many_variables_counts_more_than_one_of_long_ones() -> None:
    def cost(env: list[dict[str, str]]) -> int:
        return pod_cost(META, Spec(template={"spec": {"containers": [{"name": "a", "env": env}]}}), "r")

    many = cost([{"name": f"V{number:04}"} for number in range(10_000)])
    few = cost([{"name": "V", "value": "x" * 160_000}])
    assert many - few >= 9_000 * ENTRY


def test_large_tasks_of_a_namespace_are_looked_at_in_turn() -> None:
    """Each pass takes its bytes: the more of them, the less often each."""
    for tasks in (1, 4, 20):
        bulk, due, passes = Bulk(0.0), dict.fromkeys(range(tasks), 0.0), 0
        while (now := min(due.values())) < 1000.0:
            one = min(due, key=due.__getitem__)
            due[one] = now + max(bulk.take_pass(FREE + 256 * KIB, now), 0.01)
            passes += 1
        assert 500 <= passes <= 501 + tasks


def keys_of(count: int, namespace: str = "a") -> list[Key]:
    return [Key("DaemonTask", namespace, str(number)) for number in range(count)]


def test_of_many_large_tasks_that_were_idle_few_are_looked_at_at_once() -> None:
    """As a node joins, a tick comes or all of them fail. Each in turn, in order of the calls."""
    task_states, now = TaskStates(), time.monotonic()
    turns = [task_states.pass_turn(key) for key in keys_of(100)]
    for turn in turns:
        turn.read(FREE + 128 * KIB, now)
    for turn in turns:
        turn.wait(now + 1000)
    now += 3600
    waits = [turn.wait(now) for turn in turns]
    assert waits == pytest.approx([0.0, 0.0, *range(1, 99)])
    begun = [turn.wait(now + 50.5) for turn in turns[2:]].count(0.0)
    assert begun == 50, "asked again, it takes nothing"
    assert turns[-1].wait(now + 50.5) == pytest.approx(47.5)
    assert turns[2].wait(now + 50.5) == pytest.approx(48.5), "and the next pass is the last one's"
    small = task_states.pass_turn(Key("DaemonTask", "a", "small"))
    small.read(FREE, now)
    assert [small.wait(now), task_states.pass_turn(Key("DaemonTask", "b", "new")).wait(now)] == [0.0, 0.0]


def one_pass(turn: PassTurn, size: int, now: float) -> float:
    """Seconds until it may be asked for again; 0 = there was a pass."""
    return turn.wait(now) or turn.read(size, now)


@pytest.mark.parametrize("tasks", [2, 3, 20, 1000])
def test_after_a_change_of_leader_large_tasks_take_turns_and_small_ones_begin(tasks: int) -> None:
    """No size is known. Each large task has its pass, and the more there are the later."""
    task_states, start, size = TaskStates(), time.monotonic(), FREE + 128 * KIB
    due, passes = dict.fromkeys(keys_of(tasks), start), list[float]()
    while due and (now := min(due.values())) < start + 2 * tasks + 10:
        key = min(due, key=due.__getitem__)
        if wait := one_pass(task_states.pass_turn(key), size, now):
            due[key] = now + wait
        else:
            passes.append(now - start)
            del due[key]
    assert len(passes) == tasks, "none waits for ever"
    assert passes == pytest.approx([0.0, 0.0, *range(1, tasks - 1)], abs=0.1)
    small = Key("DaemonTask", "a", "small")
    assert one_pass(task_states.pass_turn(small), FREE, start) == 0.0
    assert one_pass(task_states.pass_turn(Key("DaemonTask", "b", "large")), size, start) == 0.0


def test_a_task_that_is_deleted_and_made_again_does_not_begin_free() -> None:
    task_states, now, (key,) = TaskStates(), time.monotonic(), keys_of(1)
    waits = []
    for _ in range(10):
        waits.append(one_pass(task_states.pass_turn(key), FREE + 128 * KIB, now))
        task_states.drop(key)
    assert waits == pytest.approx([0.0, 0.0, *range(1, 9)], abs=0.1)


def test_a_task_that_keeps_growing_has_its_passes() -> None:
    """While others of its namespace use all that there is."""
    bulk, now, size, passes = Bulk(0.0), 0.0, FREE + 1, 0
    turn = PassTurn(bulk)
    while now < 3600.0:
        bulk.take_pass(FREE + 512 * KIB, now)
        size = min(size + 10 * KIB, 1536 * KIB)
        if wait := one_pass(turn, size, now):
            now += min(wait, 30.0)
        else:
            passes, now = passes + 1, now + 1.0
    assert passes >= 20


def test_a_pass_that_is_read_twice_takes_its_bytes_once() -> None:
    bulk = Bulk(0.0)
    turn = PassTurn(bulk)
    assert [one_pass(turn, FREE + 128 * KIB, 0.0), turn.read(FREE + 128 * KIB, 0.0)] == [0.0, 0.0]
    assert bulk.take_pass(FREE + 128 * KIB, 0.0) == 0.0, "half is left"


def test_a_spec_that_was_small_is_counted_when_it_is_read() -> None:
    bulk = Bulk(0.0)
    turn = PassTurn(bulk)
    assert one_pass(turn, FREE, 0.0) == 0.0
    assert turn.wait(1.0) == 0.0
    assert turn.read(FREE + 512 * KIB, 1.0) == pytest.approx(2.0)
    assert turn.wait(2.0) == pytest.approx(1.0)
    assert one_pass(turn, FREE + 512 * KIB, 3.0) == 0.0, "it has taken them"
    assert turn.wait(3.0) == pytest.approx(4.0)
    assert one_pass(turn, 1, 7.0) == 0.0
    assert turn.wait(7.0) == 0.0, "small again"


@pytest.mark.parametrize(
    ("spec", "marks"),
    [
        pytest.param({"template": {"spec": {"x": "a" * 600 * KIB}}}, {}, id="template"),
        pytest.param({"ecs": {"service": "a" * 600 * KIB}}, {}, id="ECS"),
        pytest.param({}, {"annotations": {"a/b": "c" * 600 * KIB}}, id="annotations"),
        pytest.param({}, {"annotations": {f"{n}": "" for n in range(5000)}}, id="their entries"),
        pytest.param({}, {"labels": {f"{n}": "" for n in range(5000)}}, id="labels"),
    ],
)
async def test_all_that_authors_write_counts_before_anything_is_done_with_it(
    spec: dict[str, Any], marks: dict[str, dict[str, str]]
) -> None:
    class Reads(Targets):
        def __init__(self) -> None:
            self._watched: Any = SimpleNamespace(task_states=TaskStates())

        async def read(self, key: Key) -> RawTask | None:  # noqa: ARG002
            meta = msgspec.structs.replace(META, **marks)
            return RawTask(meta, msgspec.Raw(msgspec.json.encode(spec)))

    targets, (key,) = Reads(), keys_of(1)
    assert targets.admit(key) == 0.0
    with pytest.raises(Postponed) as postponed:
        await targets.gather(key)
    assert postponed.value.seconds > 2.0
    assert targets.admit(key) > 2.0


def test_a_small_task_may_be_looked_at_at_any_time() -> None:
    bulk = Bulk(0.0)
    assert bulk.take_pass(FREE + 1792 * KIB, 0.0) == pytest.approx(12.0)
    assert bulk.take_pass(FREE, 0.0) == 0.0
    assert bulk.allowed(FREE + 128 * KIB, 0.0, 1.0) == 2, "Pods have an allowance of their own"
    assert not bulk.full(13.9)
    assert bulk.full(14.1)


def test_data_has_an_allowance_of_its_own_that_is_not_forgotten() -> None:
    bulk = Bulk(0.0)
    assert bulk.take_data(1792 * KIB, 0.0) == pytest.approx(12.0)
    assert bulk.take_pass(2 * FREE, 0.0) == 0.0
    assert bulk.allowed(FREE + 128 * KIB, 0.0, 1.0) == 2
    assert not bulk.full(11.9)
    assert bulk.full(14.1)


def test_a_namespace_has_one_allowance() -> None:
    task_states, now = TaskStates(), time.monotonic()
    one, other, elsewhere = (
        task_states.of(Key("DaemonTask", namespace, name), name)
        for namespace, name in (("a", "one"), ("a", "other"), ("b", "elsewhere"))
    )
    one.bulk.take(FREE + 1792 * KIB, now)
    cost = FREE + 128 * KIB
    assert [state.bulk.allowed(cost, now, now + 9) for state in (other, elsewhere)] == [0, 2]
    task_states.drop(Key("DaemonTask", "a", "one"))
    task_states.drop(Key("DaemonTask", "a", "other"))
    again = task_states.of(Key("DaemonTask", "a", "one"), "again")
    assert again.bulk.allowed(cost, now, now + 9) == 0


def test_half_of_the_bytes_for_data_are_kept_for_data_that_is_not_known() -> None:
    bulk, half = Bulk(NOW), int(BYTES.burst / 2)
    bulk.take_data(half - 1, NOW)
    assert bulk.has_spare_data(NOW)
    bulk.take_data(1, NOW)
    assert not bulk.has_spare_data(NOW)
    assert bulk.take_data(half, NOW) == 0
