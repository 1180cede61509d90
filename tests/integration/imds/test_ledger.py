"""The call ledger of 1,000 instances: what EC2 is asked, what it is told, and that nothing is told twice.

The double's clock runs as much faster as the operator's is scaled, so that its buckets are EC2's own.
"""

import asyncio
import contextlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from awsdoubles.clients import KEY
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.faults import Match, Run
from testing.gate import Gate
from testing.imds import GOOD, MODIFY, PLURAL, SLOW, Policy
from testing.imdsherd import Herd
from testing.operator import OperatorProcess
from testing.rollouts import until

PARTS: Final = 5
OF_A_PART: Final = 200
SCALE: Final = 0.05
LABEL: Final = "test.caretaker.dev/ledger"
DESCRIBE: Final = "DescribeInstances"
STATUS: Final = Match(verb="patch", resource=PLURAL, subresource="status")
OPEN: Final[Mapping[str, Any]] = {
    "mode": "Enforce",
    "safety": {
        "allowLoosening": ["HopLimit"],
        "allowTightening": ["Tokens"],
        "canary": {"instances": 0},
        "maxChangesPerMinute": 6000,
    },
}


class Ledger:
    """Five herds of 200, one double, and what tests make of them."""

    def __init__(self, cluster: Cluster, ec2: Ec2, folder: Path) -> None:
        self.cluster = cluster
        self.ec2 = ec2
        self.control: Control = ec2.control
        self.folder = folder
        self.name = secrets.token_hex(4)
        self.herds = [
            Herd(ec2.control, f"l-{self.name}-{part}", {LABEL: self.name, f"{LABEL}-part": str(part)})
            for part in range(PARTS)
        ]

    async def make(self, *parts: int) -> None:
        """The nodes of these parts, or of all, unless they are there."""
        async with self.cluster.admin(connections=64) as admin:
            for part in parts or range(PARTS):
                if not self.herds[part].instances:
                    await self.herds[part].add(admin, OF_A_PART, GOOD)

    async def clear(self) -> None:
        """None of them."""
        async with self.cluster.admin() as admin:
            for herd in self.herds:
                await herd.clear(admin)

    def start(self, scale: float = SCALE, **options: Any) -> None:
        """As new: the clock at the operator's pace, buckets full, these options on all instances."""
        self.control.clear_faults()
        self.control.settings(apply_seconds=1.0)
        self.control.put_options(**{**GOOD, **options})
        self.control.speed_clock(1 / scale)
        self.control.advance(3600)
        self.control.clear_calls()

    def operator(self, name: str = "operator", **how: Any) -> OperatorProcess:
        """`ec2` and `kubeconfig`: in place of the double's address and the cluster's own."""
        env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
        env["AWS_ENDPOINT_URL_EC2"] = how.pop("ec2", self.ec2.url)
        kubeconfig = how.pop("kubeconfig", self.cluster.kubeconfig)
        defaults = {"leader_elect": False, "time_scale": SCALE, "env": env}
        return OperatorProcess(kubeconfig, name, **{**defaults, **how})

    def sent(self) -> list[Json]:
        """Changes that reached EC2, whatever became of them."""
        calls = self.control.calls(MODIFY)
        return [call for call in calls if not call["params"].get("DryRun")]

    def drift(self, part: int) -> list[str]:
        """All of a part are as nobody wants them; their ids."""
        ids = list(self.herds[part].instances.values())
        self.control.put_options(ids, **SLOW)
        return ids


@pytest.fixture(scope="module")
def ledger(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """No nodes yet."""
    with Ec2() as ec2, ThreadPoolExecutor(1) as pool:
        made = Ledger(cluster, ec2, tmp_path_factory.mktemp("ledger"))
        try:
            yield made
        finally:
            pool.submit(asyncio.run, made.clear()).result()


class Policies:
    """Of one test; gone afterwards."""

    def __init__(self, admin: Admin, ledger: Ledger) -> None:
        self._admin = admin
        self._ledger = ledger
        self.all: list[Policy] = []

    async def create(self, part: int | None = None, **spec: Any) -> Policy:
        """Of one part's nodes, or of all."""
        labels = {LABEL: self._ledger.name} if part is None else self._ledger.herds[part].labels
        name = f"ledger-{self._ledger.name}-{len(self.all)}"
        body = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "IMDSPolicy",
            "metadata": {"name": name},
            "spec": {
                "options": {"httpPutResponseHopLimit": 2, "httpTokens": "required"},
                "selector": {"nodeSelector": {"matchLabels": labels}},
                **spec,
            },
        }
        await self._admin.create(path(PLURAL), body)
        self.all.append(Policy(self._admin, name))
        return self.all[-1]

    async def versions(self) -> list[str]:
        """As the API server counts writes."""
        return [(await policy.get())["metadata"]["resourceVersion"] for policy in self.all]


@pytest.fixture
async def policies(admin: Admin, ledger: Ledger) -> Any:
    made = Policies(admin, ledger)
    yield made
    for policy in made.all:
        await policy.delete()


# ---------------------------------------------------------------- nothing to do


@pytest.mark.slow
async def test_a_thousand_that_are_as_they_should_be_cost_one_call_a_resync_and_no_write(
    ledger: Ledger, policies: Policies
) -> None:
    scale, minute = 0.03, 60
    await ledger.make()
    ledger.start(scale)
    for number in range(5):
        await policies.create(resyncInterval="1m", **(OPEN if number % 2 else {}))
    with ledger.operator(time_scale=scale, args=("--log-level", "DEBUG")) as process:
        for policy in policies.all:
            await policy.summary(nodes=1000, compliant=1000)
        before = await policies.versions()
        since = len(process.logs)
        ledger.control.clear_calls()
        await until(lambda: len(ledger.control.calls()) >= 10)
        assert await policies.versions() == before
    calls = ledger.control.calls()
    assert {call["operation"] for call in calls} == {DESCRIBE}, "nor whether anything may be changed"
    # When a call arrives is the machine's doing as well: the operator's own times tell its pace.
    looks = [entry for entry in process.logs[since:] if "began" in entry]
    assert all(look["whole"] for look in looks)
    gaps = [later["began"] - earlier["began"] for earlier, later in itertools.pairwise(looks)]
    assert min(gaps) >= minute * scale
    assert abs(len(looks) - len(calls)) <= 1, "one may have been under way at either end"


# ---------------------------------------------------------------- everything to do


@pytest.mark.slow
async def test_a_thousand_that_differ_are_changed_once_each_within_the_bucket(
    ledger: Ledger, policies: Policies
) -> None:
    await ledger.make()
    ledger.start(**SLOW)
    policy = await policies.create(**OPEN)
    with ledger.operator(args=("--imds-changes-per-second", "4")):
        await policy.summary(nodes=1000, compliant=1000)
    sent = ledger.sent()
    wanted = [one for herd in ledger.herds for one in herd.instances.values()]
    assert sorted(call["params"]["InstanceId"] for call in sent) == sorted(wanted)
    assert ledger.control.counts()[MODIFY] == {"ok": 1000, "DryRunOperation": 1}, "none was refused"
    at = sorted(call["at"] for call in sent)
    assert at[-1] - at[0] >= (1000 - 76) / 4 * 0.95, "no faster than our share"


# ---------------------------------------------------------------- under faults


class Struck:
    """kill -9 of an operator at a point; the next one is armed when it has struck."""

    def __init__(self, process: OperatorProcess) -> None:
        self._process = process
        self._done = threading.Event()

    def __call__(self, *_: object) -> None:
        if not self._done.is_set():
            self._process.kill9()
            self._done.set()

    async def wait(self) -> None:
        """Return when the operator is dead."""
        assert await asyncio.to_thread(self._done.wait, 90), "it never came to this point"


def real(body: bytes) -> bool:
    """A change, not the question whether it may."""
    return b"DryRun" not in body


def at_modify(gate: Gate, api: ApiProxy, strike: Struck, when: str) -> Callable[[], None]:
    """before: EC2 never hears of it; after: EC2 does it, and nobody hears the answer; late: it arrives when
    the operator is dead."""
    how: dict[str, Any] = {"after": strike} if when == "after" else {"before": strike}
    stop = gate.stop_at(MODIFY, where=real, forward=when != "before", **how)
    return lambda: gate.remove(stop)


def at_status(gate: Gate, api: ApiProxy, strike: Struck, when: str) -> Callable[[], None]:
    """Of a policy."""
    if when == "before":
        return api.add(STATUS, Run(run_before=strike, forward=False)).remove
    return api.add(STATUS, Run(run_after=strike)).remove


POINTS: Final = (
    (at_modify, "before"),
    (at_modify, "after"),
    (at_modify, "late"),
    (at_status, "before"),
    (at_status, "after"),
)


async def test_nothing_is_sent_twice_by_an_operator_that_is_killed_at_any_point(
    ledger: Ledger, policies: Policies
) -> None:
    await ledger.make(0)
    ledger.start()
    ledger.control.settings(apply_seconds=60)  # its successor sees much of what was sent as pending
    wanted = ledger.drift(0)
    with Gate(ledger.ec2.url) as gate, ApiProxy(ledger.cluster.kubeconfig) as api:
        kubeconfig = api.write_kubeconfig(ledger.folder / "killed.kubeconfig")
        process = ledger.operator(ec2=gate.url, kubeconfig=kubeconfig)
        policy = await policies.create(0, **OPEN)
        with process:
            for point, when in POINTS:
                before = len(ledger.sent())
                strike = Struck(process)
                disarm = point(gate, api, strike, when)
                await strike.wait()
                disarm()
                assert before < OF_A_PART, f"nothing was left to be killed over: {point.__name__} {when}"
                await asyncio.to_thread(process.start)
            # What is left is one call for each instance to a double that a busy machine slows down.
            await policy.summary(nodes=OF_A_PART, compliant=OF_A_PART)
    assert sorted(call["params"]["InstanceId"] for call in ledger.sent()) == sorted(wanted)
    assert {call["status"] for call in ledger.sent()} == {200}


async def leading(operators: Sequence[OperatorProcess]) -> OperatorProcess:
    """The first that leads: a busy machine may have cost one its Lease, and then nobody does for a while."""
    found: list[OperatorProcess] = []

    def look() -> bool:
        found[:] = [one for one in operators if one.metric("caretaker_leader")]
        return bool(found)

    await until(look)
    return found[0]


@pytest.mark.slow
async def test_of_two_operators_one_works_and_the_other_goes_on_where_it_was_killed(
    ledger: Ledger, policies: Policies, namespace: str
) -> None:
    scale = 0.1
    await ledger.make(1)
    ledger.start(scale)
    ledger.control.settings(apply_seconds=60)
    wanted = ledger.drift(1)
    args = ("--operator-namespace", namespace, "--lease-name", "ledger", "--imds-changes-per-second", "4")
    with contextlib.ExitStack() as stack:
        gates = [stack.enter_context(Gate(ledger.ec2.url)) for _ in range(2)]
        both = [
            stack.enter_context(
                ledger.operator(f"operator-{n}", ec2=gate.url, args=args, leader_elect=True, time_scale=scale)
            )
            for n, gate in enumerate(gates)
        ]
        policy = await policies.create(1, **OPEN)
        await until(lambda: len(ledger.sent()) >= OF_A_PART // 4)
        leader = await leading(both)
        await asyncio.to_thread(leader.kill9)
        assert len(ledger.sent()) < OF_A_PART
        await policy.summary(nodes=OF_A_PART, compliant=OF_A_PART)
    assert sorted(call["params"]["InstanceId"] for call in ledger.sent()) == sorted(wanted)
    assert {call["status"] for call in ledger.sent()} == {200}


@pytest.mark.slow
async def test_nodes_that_come_and_go_and_an_api_server_that_restarts_change_nothing_of_that(
    ledger: Ledger, policies: Policies, admin: Admin
) -> None:
    await ledger.make(2)
    ledger.start()
    wanted, herd = set(ledger.drift(2)), ledger.herds[2]
    policy = await policies.create(2, **OPEN)
    with ledger.operator() as process:
        await until(lambda: len(ledger.sent()) >= OF_A_PART // 4)
        gone = list(herd.instances)[-20:]
        lost = {herd.instances[name] for name in gone}
        await herd.remove(admin, gone)
        wanted |= set((await herd.add(admin, 20, SLOW)).values())
        await asyncio.to_thread(ledger.cluster.restart_apiserver, hard=True)
        wanted |= set((await herd.add(admin, 10, SLOW)).values())
        await policy.summary(nodes=OF_A_PART + 10, compliant=OF_A_PART + 10)
        assert process.running
    done = [call["params"]["InstanceId"] for call in ledger.sent() if call["status"] == 200]
    assert len(done) == len(set(done))
    assert wanted - lost <= set(done) <= wanted
    refused = {call["code"] for call in ledger.sent() if call["status"] != 200}
    assert refused <= {"InvalidInstanceID.NotFound"}
