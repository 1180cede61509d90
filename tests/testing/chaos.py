"""Random things that happen to a cluster while DaemonTasks run on it, and the end of them all.

Inputs: a place with nodes, tasks and two replicas behind proxies; a seeded random generator. The choice of
what happens follows from the seed alone; how it interleaves with the operator is the machine's. It must
leave the world in a state in which every node can run every task, but for those that `failing` names. The
budgets of tasks in `keeping` stay as they are, so that they can be judged on all that happened.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from testbed import steer
from testbed.admin import ApiError, Json, path
from testing.apiproxy import ApiProxy
from testing.operator import OperatorProcess
from testing.rollouts import Rollouts, fresh_image
from testing.world import Task

POOL: Final = "soak.caretaker.dev/pool"
TAINT: Final = "soak.caretaker.dev/taint"
RESTART_EVERY: Final = 20.0  # seconds between two restarts of the API server, which take some themselves
STALLS = (0.5, 2.0, 8.0)  # seconds; the last outlives a Lease of 6 s, the soak tests' longest
NODES_AT_LEAST, NODES_AT_MOST = 6, 16
FAR: Final = "0 0 1 1 *"  # a schedule without a tick during the test

Replica = tuple[OperatorProcess, ApiProxy]
Action = Callable[[], Awaitable[str | None]]


class Chaos:
    """One thing after the other, until the time is over."""

    def __init__(
        self,
        place: Rollouts,
        tasks: list[Task],
        replicas: list[Replica],
        seed: int,
        keeping: frozenset[str] = frozenset(),
    ) -> None:
        self.failing: set[str] = set()
        self.happened: list[str] = []
        self._place = place
        self._admin = place.admin
        self._tasks = tasks
        self._budgeted = [task for task in tasks if task.name not in keeping]
        self._replicas = replicas
        self._random = random.Random(seed)
        self._nodes: set[str] = set(place.nodes.names)
        self.most_nodes = len(self._nodes)  # that there ever were at a time
        self._lost: set[str] = set()  # nodes that are NotReady
        self._serial = 0
        self._began = self._restarted = time.monotonic()
        self._actions: list[tuple[int, Action]] = [
            (4, self.join),
            (3, self.remove),
            (3, self.replace),
            (4, self.reboot),
            (4, self.lose_or_find),
            (4, self.cordon),
            (4, self.taint),
            (4, self.flip_label),
            (3, self.fail_or_mend),
            (6, self.delete_pod),
            (5, self.edit_template),
            (3, self.suspend_or_resume),
            (3, self.edit_schedule),
            (3, self.edit_budgets),
            (4, self.rerun),
            (4, self.kill_operator),
            (2, self.hang_operator),
            (3, self.break_watches),
            (2, self.cut_off),
            (2, self.restart_api_server),
        ]

    async def run(self, seconds: float) -> None:
        """Let things happen for so long."""
        until = self._began + seconds
        weights = [weight for weight, _ in self._actions]
        while time.monotonic() < until:
            ((_, action),) = self._random.choices(self._actions, weights)
            what = await action()
            if what is not None:
                self._note(what)
            await asyncio.sleep(self._random.choice((0.0, 0.1, 0.5)))

    async def end(self) -> None:
        """Everything is mended; one node fails every run, all others can succeed."""
        for name in sorted(self._lost):
            await steer.make_ready(self._admin, name)
        for name in sorted(self.failing):
            await steer.release_node(self._admin, name)
        self.failing = {min(self._nodes)}
        await self._place.fail_on(*self.failing)
        for name in sorted(self._nodes):
            await self._patch(name, {"metadata": {"labels": {POOL: "in"}}, "spec": {"unschedulable": None}})
            await self._set_taint(name, None)
        for process, _ in self._replicas:
            if not process.running:
                await asyncio.to_thread(process.start)
        await self._place.nodes.wait_ready(sorted(self._nodes))
        for task in self._tasks:
            scheduled = (await task.get())["spec"].get("schedule") is not None
            await task.edit(suspend=False, schedule=FAR if scheduled else None)
        for task in self._budgeted:
            await task.edit(budgets=None)
        self._note("the chaos ends")

    @property
    def nodes(self) -> set[str]:
        """The names of the nodes that exist."""
        return set(self._nodes)

    # ------------------------------------------------------------ nodes

    async def join(self) -> str | None:
        if len(self._nodes) >= NODES_AT_MOST:
            return None
        self._serial += 1
        return await self._register(f"{self._place.namespace}-{self._serial}")

    async def remove(self) -> str | None:
        if len(self._nodes) <= NODES_AT_LEAST:
            return None
        name = self._a_node()
        await self._unregister(name)
        return f"node {name} is removed"

    async def replace(self) -> str:
        name = self._a_node()
        await self._unregister(name)
        return await self._register(name) + " in place of its namesake"

    async def reboot(self) -> str | None:
        name = self._a_node()
        if name in self._lost:
            return None
        how = self._random.choice(("keep", "kill", "disrupt"))
        await steer.reboot(self._admin, name, pods=how)  # type: ignore[arg-type]
        return f"node {name} reboots ({how} Pods)"

    async def lose_or_find(self) -> str:
        if self._lost and self._random.random() < 0.6:
            name = self._random.choice(sorted(self._lost))
            await steer.make_ready(self._admin, name)
            self._lost.discard(name)
            return f"node {name} is Ready again"
        name = self._random.choice(sorted(self._nodes - self._lost))
        self.failing.discard(name)  # its steering is replaced
        await steer.make_not_ready(self._admin, name)
        self._lost.add(name)
        return f"node {name} is NotReady"

    async def cordon(self) -> str:
        name, on = self._a_node(), self._random.random() < 0.5
        await steer.cordon(self._admin, name, unschedulable=on)
        return f"node {name} is {'cordoned' if on else 'uncordoned'}"

    async def taint(self) -> str:
        name, effect = self._a_node(), self._random.choice((None, None, "NoSchedule", "NoExecute"))
        await self._set_taint(name, effect)
        return f"node {name} has taint {effect}"

    async def flip_label(self) -> str:
        name, pool = self._a_node(), self._random.choice(("in", "in", "out"))
        await self._patch(name, {"metadata": {"labels": {POOL: pool}}})
        return f"node {name} is {pool} the pool"

    async def fail_or_mend(self) -> str | None:
        if self.failing and self._random.random() < 0.5:
            name = self._random.choice(sorted(self.failing))
            await steer.release_node(self._admin, name)
            self.failing.discard(name)
            return f"runs on {name} succeed again"
        name = self._a_node()
        if name in self._lost or len(self.failing) > 2:
            return None
        await self._place.fail_on(name)
        self.failing.add(name)
        return f"runs on {name} fail"

    # ------------------------------------------------------------ people

    async def delete_pod(self) -> str | None:
        pods = await self._admin.list(path("pods", self._place.namespace))
        if not pods:
            return None
        meta = self._random.choice(sorted(pods, key=_name))["metadata"]
        self._place.history.excuse(meta["uid"])
        await self._admin.delete(path("pods", self._place.namespace, meta["name"]))
        return f"Pod {meta['name']} is deleted"

    async def edit_template(self) -> str:
        task, image = self._random.choice(self._tasks), fresh_image()
        containers = [{"name": "main", "image": image}]
        await task.edit(template={"spec": {"containers": containers}})
        return f"{task.name} gets {image}"

    async def suspend_or_resume(self) -> str:
        task, suspend = self._random.choice(self._tasks), self._random.random() < 0.4
        await task.edit(suspend=suspend)
        return f"{task.name} is {'suspended' if suspend else 'resumed'}"

    async def edit_schedule(self) -> str:
        task = self._random.choice(self._tasks)
        schedule = self._random.choice((None, FAR, "* * * * *", "*/2 * * * *"))
        policy = self._random.choice(("Forbid", "Replace"))
        drawn = self._random.choice((None, 10))
        deadline = drawn if schedule else None  # refused where no tick comes
        await task.edit(schedule=schedule, concurrencyPolicy=policy, startingDeadlineSeconds=deadline)
        return f"{task.name} has schedule {schedule}, {policy}"

    async def edit_budgets(self) -> str:
        """Windows that close within half a minute, so that nothing stands still for long."""
        task, nodes = self._random.choice(self._budgeted), self._random.choice((0, 1, "30%"))
        window = {"nodes": nodes, "schedule": "* * * * *", "duration": "25s"}
        budgets = self._random.choice((None, [{"nodes": "60%"}], [window], [window, {"nodes": "60%"}]))
        await task.edit(budgets=budgets)
        return f"{task.name} has budgets {budgets}"

    async def rerun(self) -> str:
        task = self._random.choice(self._tasks)
        await rerun(task)
        return f"{task.name} is to run again"

    # ------------------------------------------------------------ machinery

    async def kill_operator(self) -> str:
        process, _ = self._random.choice(self._replicas)
        await asyncio.to_thread(process.kill9)
        await asyncio.to_thread(process.start, wait=False)
        return f"operator {process.name} is killed and started"

    async def hang_operator(self) -> str:
        process, _ = self._random.choice(self._replicas)
        seconds = self._random.choice(STALLS)
        process.pause()
        await asyncio.sleep(seconds)
        process.resume()
        return f"operator {process.name} stood still for {seconds:g} s"

    async def break_watches(self) -> str:
        process, proxy = self._random.choice(self._replicas)
        how = self._random.choice((proxy.cut_watches, proxy.send_watch_error))
        count = await asyncio.to_thread(how)
        return f"{how.__name__}: {count} watches of {process.name}"

    async def cut_off(self) -> str:
        process, proxy = self._random.choice(self._replicas)
        silent, seconds = self._random.random() < 0.5, self._random.choice(STALLS)
        with proxy.partition(silent=silent):
            await asyncio.sleep(seconds)
        return f"operator {process.name} was cut off for {seconds:g} s{', in silence' if silent else ''}"

    async def restart_api_server(self) -> str | None:
        if time.monotonic() < self._restarted + RESTART_EVERY:
            return None
        hard = self._random.random() < 0.5
        await asyncio.to_thread(self._place.cluster.restart_apiserver, hard=hard)
        self._restarted = time.monotonic()
        return f"the API server was {'killed' if hard else 'stopped'} and started"

    # ------------------------------------------------------------ inside

    def _note(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {what}"
        self.happened.append(line)
        print(line, flush=True)

    def _a_node(self) -> str:
        return self._random.choice(sorted(self._nodes))

    async def _register(self, name: str) -> str:
        await self._place.nodes.add(names=[name], labels={POOL: "in"}, wait=False)
        self._nodes.add(name)
        self.most_nodes = max(self.most_nodes, len(self._nodes))
        return f"node {name} joins"

    async def _unregister(self, name: str) -> None:
        if name in self._lost or name in self.failing:
            await steer.release_node(self._admin, name)
            await steer.thaw(self._admin, name)  # a namesake would never end them
        self._lost.discard(name)
        self.failing.discard(name)
        self._nodes.discard(name)
        await self._place.nodes.delete(name)
        await self._admin.wait_gone(path("nodes", name=name))

    async def _patch(self, name: str, body: Json) -> None:
        await self._admin.patch(path("nodes", name=name), body)

    async def _set_taint(self, name: str, effect: str | None) -> None:
        """As read and written at once: the node lifecycle controller writes taints too."""
        while True:
            node = await self._admin.get(path("nodes", name=name))
            taints = [t for t in node["spec"].get("taints", ()) if t["key"] != TAINT]
            if effect is not None:
                taints.append({"key": TAINT, "effect": effect})
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                await self._patch(name, {"metadata": version, "spec": {"taints": taints}})
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return


async def rerun(task: Task) -> str:
    """Ask for a run on every node, later than any before; the time asked for."""
    await asyncio.sleep(1.1)  # the annotation counts whole seconds
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    await task.annotate(rerun_at=at)
    return at


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])
