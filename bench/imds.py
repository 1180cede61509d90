"""IMDSPolicy: what it asks of EC2 at rest, how fast 1,000 instances are changed, how soon a new node is.

Real API server and operator process, EC2 by its double with the vendor's token buckets, nodes by plain POSTs.
All at the true pace where nothing else is said; where time is scaled, the double's clock runs as much faster
as the operator's seconds are shorter. Beside Cloud Custodian: imdsbeside.py; without any of it: imdsplan.py.
"""

import asyncio
import random
import time
from typing import Final

from awsdoubles.ec2.server import Ec2
from bench import imdsbeside, imdsplan
from bench.figures import Figure
from bench.imdsparts import FULL_SHARE, TIMEOUT, UNCAPPED, create, operator, refill, refused, sent, until
from bench.parts import cluster, percentile, say
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.imds import GOOD, SLOW
from testing.imdsherd import Herd

LABEL: Final = "bench.caretaker.dev/herd"
NODES: Final = 1000
POLICIES: Final = 5
RESYNC: Final = "15m"
CALLS: Final = 8  # so many are awaited
REST_SCALE: Final = 0.01
LIMIT: Final = (NODES - 100) / 5  # seconds: EC2 takes 100 at once, then 5 a second
JOINS: Final = 24
JOIN_GAP: Final = (4.5, 6.5)  # seconds between two of them


async def run() -> list[Figure]:
    """All figures."""
    found = imdsplan.run()
    async with cluster(0) as (made, admin):
        with Ec2() as ec2:
            herd = Herd(ec2.control, "thousand", {LABEL: "thousand"})
            await herd.add(admin, NODES, GOOD)
            say(f"{NODES} nodes, their instances compliant")
            found += await _at_rest(made, admin, ec2, herd)
            found += await _drifted(made, admin, ec2, herd)
            found += imdsplan.at_defaults(NODES)
            await herd.clear(admin)
        with Ec2() as ec2:
            found += await _joins(made, admin, ec2)
        with Ec2() as ec2:
            found += await imdsbeside.run(made, admin, ec2, {LABEL: "beside"})
    return found


# ---------------------------------------------------------------- at rest


async def _at_rest(made: Cluster, admin: Admin, ec2: Ec2, herd: Herd) -> list[Figure]:
    """Five policies of all nodes, three of them enforcing, of which none finds anything to do."""
    control = ec2.control
    control.speed_clock(1 / REST_SCALE)
    policies = []
    async with operator(made, ec2.url, time_scale=REST_SCALE):
        for number in range(POLICIES):
            more = {} if number % 2 else {"mode": "Enforce", "safety": UNCAPPED}
            policies.append(await create(admin, f"rest-{number}", herd.labels, resyncInterval=RESYNC, **more))
        for policy in policies:
            await policy.summary(timeout=TIMEOUT, nodes=NODES, compliant=NODES)

        # The first look, by ids, told the cluster's tag; the looks that follow are what goes on for ever.
        refill(control)
        await until(lambda: len(control.calls()) > CALLS)
        calls = control.calls()[: CALLS + 1]
    for policy in policies:
        await policy.delete()
    hours = (calls[-1]["at"] - calls[0]["at"]) / 3600
    names = sorted({call["operation"] for call in calls})
    say(f"{CALLS} AWS calls in {hours:.2f} h: {', '.join(names)}")
    return [
        Figure(
            f"AWS calls an hour, {NODES:,} compliant nodes, {POLICIES} policies, resync {RESYNC}",
            CALLS / hours,
            "",
            "<= 4",
            f"{CALLS} calls of all sorts in {hours:.2f} h, time scaled by {REST_SCALE:g}",
        )
    ]


# ---------------------------------------------------------------- 1,000 to change


async def _drifted(made: Cluster, admin: Admin, ec2: Ec2, herd: Herd) -> list[Figure]:
    """As fast as EC2 takes it, at the true pace: from the policy's creation on."""
    control = ec2.control
    control.speed_clock(1)
    control.put_options(None, **SLOW)
    async with operator(made, ec2.url, *FULL_SHARE) as process:
        await until(lambda: bool(process.metric("caretaker_leader")))
        refill(control)
        began, started = control.now(), time.monotonic()
        policy = await create(admin, "drifted", herd.labels, mode="Enforce", safety=UNCAPPED)
        await until(lambda: len(sent(control)) >= NODES, 1.0)
        await until(lambda: not any(one["pending"] for one in control.instances()), 0.1)
        applied = control.now() - began
        await policy.summary(timeout=TIMEOUT, nodes=NODES, compliant=NODES)
        told = time.monotonic() - started
        calls, throttled = sent(control), refused(control)
    await policy.delete()
    wrong = sum(one["inForce"]["HttpPutResponseHopLimit"] != 2 for one in control.instances())
    assert not wrong, f"{wrong} were not changed"
    say(f"{NODES} instances applied in {applied:.0f} s, {len(calls)} changes, {throttled} refused")
    return [
        Figure(
            f"{NODES:,} drifted instances to applied / EC2's own limit ({applied:.0f} s / {LIMIT:.0f} s)",
            applied / LIMIT,
            "x",
            "<= 1.1",
            "no canary, no cap, full share of the bucket",
        ),
        Figure("changes sent for them", len(calls), "", f"= {NODES}"),
        Figure("of all calls, those that EC2 had no tokens for", throttled, "", "= 0"),
        Figure("until status says that all are compliant", told, "s"),
    ]


# ---------------------------------------------------------------- single joins


async def _joins(made: Cluster, admin: Admin, ec2: Ec2) -> list[Figure]:
    """Nodes that join one by one with wrong options, while nothing else is to be done."""
    control, chance = ec2.control, random.Random(0)
    herd = Herd(control, "join", {LABEL: "join"})
    await herd.add(admin, 1, GOOD)
    seconds: list[float] = []
    async with operator(made, ec2.url):
        safety = {"allowLoosening": ["HopLimit"], "allowTightening": ["Tokens"], "canary": {"instances": 0}}
        policy = await create(admin, "joins", herd.labels, mode="Enforce", safety=safety)
        await policy.condition("Ready", "True", "Enforced")
        for _ in range(JOINS):
            (instance,) = (await herd.add(admin, 1, SLOW)).values()
            seconds.append(await _changed(ec2, instance, control.now()))
            await asyncio.sleep(max(0.0, chance.uniform(*JOIN_GAP) - seconds[-1]))
    await policy.delete()
    await herd.clear(admin)
    say(f"{JOINS} joins: {min(seconds):.2f} to {max(seconds):.2f} s until the change was sent")
    what = "node Ready -> change sent, single joins, cap idle"
    return [
        Figure(f"{what}, p50", percentile(seconds, 0.5), "s"),
        Figure(f"{what}, p99", percentile(seconds, 0.99), "s", "<= 4", f"{JOINS} joins, 3 s of it debounce"),
    ]


async def _changed(ec2: Ec2, instance: str, began: float) -> float:
    """Seconds from `began`, by the double's clock, until EC2 was told to change the instance."""

    def when() -> list[float]:
        return [call["at"] for call in sent(ec2.control) if call["params"]["InstanceId"] == instance]

    await until(lambda: bool(when()), 0.1)
    return when()[0] - began
