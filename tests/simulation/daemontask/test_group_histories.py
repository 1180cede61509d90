"""Tasks of an exclusive group exclude each other in any history: passes side by side, lost answers, refused
writes, stale caches, deleted tasks, kills and takeovers. See group.py for the judge."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from caretaker.api import names
from simulation.daemontask.cluster import PODS
from simulation.daemontask.group import GROUP, GroupWorld, group_world
from simulation.daemontask.world import virtual_time
from testing.examples import OTHERS, SEED, examples

STEPS = 120
REBOOTS: dict[str, Any] = {"rerunOn": ["TemplateChange", "NodeReboot"], "backoffLimit": 4}


def member(width: Any = None, **spec: Any) -> dict[str, Any]:
    exclusive = {"group": GROUP} if width is None else {"group": GROUP, "parallelism": width}
    return {"exclusive": exclusive, **spec}


def answer(world: GroupWorld, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 12)):
        world.leader.answer(dice.randint(0, 7))


def let_time_pass(world: GroupWorld, dice: random.Random) -> None:
    world.clock.now += dice.choice([1, 5, 12, 40])
    world.late.clear()  # no request is under way for so long


def lose(world: GroupWorld, dice: random.Random) -> None:
    """No answer comes; the API server has executed the request, or does so in a moment, or never does."""
    if dice.random() < 0.5:
        world.leader.answer(dice.randint(0, 7), lose_reply=True)
    elif (call := world.leader.fail(dice.randint(0, 7), 0)) is not None:
        world.late.append(call)


def edit(world: GroupWorld, dice: random.Random) -> None:
    changes = [{"template": True}, {"suspend": True}, {"suspend": False}]
    world.tasks[dice.choice(sorted(world.tasks))].edit(**dice.choice(changes))


def lose_a_pod(world: GroupWorld, dice: random.Random) -> None:
    """No answer comes to the create of a Pod, which is executed in a moment; meanwhile a task is suspended,
    or deleted."""
    client = world.leader.client
    for _ in range(60):
        if not client.calls:
            world.leader.begin(dice.choice(sorted(world.tasks)))
        if creates := [number for number, call in enumerate(client.calls) if call.what == f"create {PODS}"]:
            if (call := world.leader.fail(dice.choice(creates), 0)) is not None:
                world.late.append(call)
            break
        world.leader.answer(dice.randint(0, 7))
    task = world.tasks[dice.choice(sorted(world.tasks))]
    if dice.random() < 0.3:
        delete_a_task(world, dice)
    else:
        task.edit(suspend=True)


def delete_a_task(world: GroupWorld, dice: random.Random) -> None:
    """The last one stays, and one that others wait for. The garbage collector has not looked at its Pods
    yet."""
    awaited = {one.name for task in world.tasks.values() for one in task.spec.depends_on}
    there = sorted(name for name, task in world.tasks.items() if not task.gone and name not in awaited)
    if len(there) > 1:
        world.delete_task(dice.choice(there))


def delete_a_pod(world: GroupWorld, dice: random.Random) -> None:
    if pods := sorted(world.first.pods):
        world.first.delete_pod(dice.choice(pods))


def reboot(world: GroupWorld, dice: random.Random) -> None:
    """A node reboots; a run that is under way there fails by it, or goes on."""
    first, name = world.first, dice.choice(sorted(world.first.nodes))
    pods = {pod: first.record(first.pods[pod]) for pod in sorted(first.pods)}
    there = [pod for pod, record in pods.items() if record.annotations[names.POD_NODE_NAME] == name]
    first.reboot(name)
    for pod in there if dice.random() < 0.7 else ():
        first.run(pod, "Failed")


# What may happen, and how often.
STEP: dict[Callable[[GroupWorld, random.Random], Any], float] = {
    lambda world, dice: world.leader.begin(dice.choice(sorted(world.tasks))): 20,
    answer: 40,
    lambda world, dice: world.leader.deliver(dice.choice(["nodes", "pods"]), dice.randint(1, 8)): 12,
    lambda world, dice: world.run_pods(dice, chance=0.5, bad=0.3): 8,
    let_time_pass: 6,
    lose: 6,
    lambda world, dice: world.leader.fail(dice.randint(0, 7), dice.choice([403, 503])): 3,
    lambda world, dice: world.take_over(dice.getrandbits(8), behind=dice.randint(0, 10)): 1.5,
    edit: 2,
    delete_a_pod: 1,
    reboot: 2,
    lose_a_pod: 1.5,
    delete_a_task: 0.3,
    lambda world, dice: world.collect(dice, chance=0.5): 2,
    lambda world, _: world.execute_late(): 5,
}


def step(world: GroupWorld, dice: random.Random) -> None:
    """Something happens."""
    (what,) = dice.choices(list(STEP), list(STEP.values()))
    what(world, dice)


SPECS = {
    "two tasks": {"a": member(), "b": member()},
    "two tasks with a slot each": {"a": member(parallelism=1), "b": member(parallelism=1)},
    "a group of one node": {"a": member(1), "b": member()},
    "three tasks on half of the nodes": {"a": member("50%"), "b": member(parallelism=2), "c": member(3)},
    "runs that are made once": {
        "a": member(runGuarantee="AtMostOnce"),
        "b": member(1, runGuarantee="AtMostOnce"),
        "c": member(2),
    },
    "runs that are replaced, and slots that are kept": {
        "a": member("50%", minSuccessSeconds=10),
        "b": member(parallelism=2, concurrencyPolicy="Replace"),
        "c": member(3, concurrencyPolicy="Replace"),
    },
    "runs that wait for those of another task after a reboot": {
        "a": member(1, **REBOOTS, dependsOn=[{"name": "b"}]),
        "b": member(2, **REBOOTS, dependsOn=[{"name": "c"}]),
        "c": member(**REBOOTS, minSuccessSeconds=10),
    },
}


@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
def test_no_history_puts_two_tasks_of_a_group_on_a_node(specs: dict[str, Any]) -> None:
    for number in range(examples(150)):
        dice = random.Random(f"{SEED if OTHERS else 0}/{number}")
        with virtual_time() as clock, group_world(clock, 4, specs) as world:
            for _ in range(STEPS):
                step(world, dice)
            for task in world.tasks.values():
                task.edit(suspend=False)
            world.collect(dice)
            world.converge()
