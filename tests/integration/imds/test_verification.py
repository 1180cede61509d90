"""An IMDSPolicy is proved from inside pods: which nodes are probed, when, and what follows."""

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from testbed.admin import Admin, Json, path
from testbed.steer import behaviour, steer_node
from testing.imds import SLOW, Fleet

TIME_SCALE = 0.02  # 10 min, the least time between two proofs, are 12 s
SYSTEM = "caretaker-system"
TASK = path("daemontasks", SYSTEM, "caretaker-imds-probe")
LEDGER = "caretaker.dev/daemontask=caretaker-imds-probe"
GROUP = {"eks.amazonaws.com/nodegroup": "apps"}
ON = {"verification": {"probe": True, "nodesPerGroup": 2}}


@pytest.fixture(autouse=True)
async def system(admin: Admin) -> None:
    """The operator's own namespace."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await admin.apply(path("namespaces", name=SYSTEM), body)
    await admin.wait_for(path("serviceaccounts", SYSTEM, "default"), lambda _: True)
    await admin.wait_gone(TASK)  # of the test before


async def answers(admin: Admin, names: Iterable[str], verdict: str = "Reachable", **more: object) -> None:
    """What the probe will tell on these nodes."""
    told = {"verdict": verdict, "latencyMs": 3.0, "neededHops": 2, "imdsv1": "Closed", **more}
    message = msgspec.json.encode(told).decode()
    for name in names:
        await steer_node(admin, name, behaviour(run_seconds=0.05, message=message))


def group(found: Json) -> Json:
    return dict(found["status"]["groups"][0])


async def runs(admin: Admin) -> int:
    """How often nodes were probed, all told."""
    found = await admin.find(TASK)
    assert found is not None
    shards = await admin.list(path("configmaps", SYSTEM), labels=LEDGER)
    # The garbage collector may not have come yet to that of the test before.
    own = [one for one in shards if one["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]]
    entries = [msgspec.json.decode(text) for shard in own for text in shard.get("data", {}).values()]
    return sum(entry["seq"] for entry in entries)


async def test_some_nodes_of_each_group_prove_it(fleet: Fleet, admin: Admin) -> None:
    names = [name for name, _ in await fleet.add(4, labels=GROUP)]
    await answers(admin, names)
    policy = await fleet.create(**ON)
    await policy.condition("Verified", "True", "Proved")
    found = await policy.when(lambda f: "probe" in group(f))
    assert group(found)["requiredHopLimit"] == 2
    assert group(found)["probe"] == {"probed": 2, "reachable": 2, "p95Milliseconds": 3.0}
    task = await admin.get(TASK)
    spec = task["spec"]["template"]["spec"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert len(terms["nodeSelectorTerms"]) == 2
    # What is proved is not proved again at each look.
    before, version = await runs(admin), task["metadata"]["generation"]
    await policy.edit(resyncInterval="1m")
    await policy.condition("Verified", "True", "Proved")
    assert (await runs(admin), (await admin.get(TASK))["metadata"]["generation"]) == (before, version)
    await policy.edit(verification={"probe": False})
    await admin.wait_gone(TASK)
    await policy.when(lambda f: all(c["type"] != "Verified" for c in f["status"]["conditions"]))


async def test_with_a_token_gate_the_probe_asks_for_nothing_without_a_token(
    fleet: Fleet, admin: Admin
) -> None:
    await answers(admin, [name for name, _ in await fleet.add(2, labels=GROUP)], imdsv1=None)
    policy = await fleet.create(**ON)
    await policy.condition("Verified", "True", "Proved")
    before = await runs(admin)

    def switched_off(task: Json) -> bool:
        env = task["spec"]["template"]["spec"]["containers"][0]["env"]
        return {"name": "CARETAKER_PROBE_IMDSV1", "value": "off"} in env

    assert not switched_off(await admin.get(TASK))
    other = await fleet.create("other", options={"httpTokens": "required"}, tokenGate={})
    await policy.edit(resyncInterval="1m")
    await admin.wait_for(TASK, switched_off)
    await policy.condition("Verified", "True", "Proved")
    assert await runs(admin) == before, "no node is probed again for that"
    await other.delete()
    await policy.edit(resyncInterval="2m")
    await admin.wait_for(TASK, lambda task: not switched_off(task))


async def test_set_but_unreachable_is_told_with_the_hop_limit_that_is_needed(
    fleet: Fleet, admin: Admin
) -> None:
    names = [name for name, _ in await fleet.add(2, labels=GROUP)]
    await answers(admin, names, "HopLimited", latencyMs=None, neededHops=3)
    policy = await fleet.create(**ON)
    told = await policy.condition("Verified", "False", "SetButUnreachable")
    assert "HopLimited, and needs hop limit 3" in told["message"]
    assert told["message"].endswith("the hop limit is set to 2")
    found = await policy.condition("Compliant", "True", "Compliant")
    assert group(await policy.get())["requiredHopLimit"] == 3
    assert found["status"] == "True"


@pytest.mark.parametrize(
    ("verdict", "wanted", "status", "reason"),
    [
        ("HopLimited", {"expect": "PodBlocked"}, "True", "Proved"),
        pytest.param(
            "HopLimited",
            {"expect": "PodBlocked", "imdsv1": "Open"},
            "False",
            "StillReachable",
            marks=pytest.mark.slow,
        ),
        pytest.param("Blocked", {"expect": "PodBlocked"}, "True", "Proved", marks=pytest.mark.slow),
        ("Reachable", {"expect": "PodBlocked"}, "False", "StillReachable"),
        pytest.param("Blocked", {"expect": "Any"}, "True", "Proved", marks=pytest.mark.slow),
        ("Blocked", {}, "False", "SetButUnreachable"),
        pytest.param("Refused", {}, "False", "SetButUnreachable", marks=pytest.mark.slow),
        pytest.param("Reachable", {"maxLatencyMilliseconds": 2}, "False", "Slow", marks=pytest.mark.slow),
        pytest.param("Emulated", {}, "Unknown", "NotProved", marks=pytest.mark.slow),
    ],
)
async def test_what_is_expected_decides(
    fleet: Fleet, admin: Admin, verdict: str, wanted: Json, status: str, reason: str
) -> None:
    wanted = dict(wanted)
    told = {"neededHops": 3 if verdict == "HopLimited" else 2, "imdsv1": wanted.pop("imdsv1", "Closed")}
    await answers(admin, [name for name, _ in await fleet.add(1)], verdict, **told)
    policy = await fleet.create(verification={"probe": True, **wanted})
    await policy.condition("Verified", status, reason)


async def test_a_change_is_proved_again_and_a_canary_stands_only_then(fleet: Fleet, admin: Admin) -> None:
    made = await fleet.add(3, labels=GROUP, options=SLOW)
    await answers(admin, [name for name, _ in made], "HopLimited", latencyMs=None)
    safety = {"allowLoosening": ["HopLimit"], "canary": {"instances": 1, "soak": "1s"}}
    policy = await fleet.create(mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety, **ON)
    found = await policy.when(
        lambda f: (c := f["status"].get("canary")) is not None and c["phase"] == "Soaking"
    )
    await policy.condition("Verified", "False", "SetButUnreachable")
    await policy.condition("Ready", "False", "SetButUnreachable")
    assert len(fleet.modified()) == 1, "the canary's pods do not reach IMDS, and the others wait"
    assert (await policy.get())["status"]["canary"] == found["status"]["canary"]
    await answers(admin, [name for name, _ in made])
    await policy.edit(verification={"interval": "10m"})  # probed again
    await policy.condition("Ready", "True", "Enforced")
    await policy.condition("Verified", "True", "Proved")
    assert len(fleet.modified()) == 4 - 1


async def test_two_policies_share_the_probe(fleet: Fleet, admin: Admin) -> None:
    first = [name for name, _ in await fleet.add(1, labels={"pool": "a"})]
    other = [name for name, _ in await fleet.add(1, labels={"pool": "b"})]
    await answers(admin, first + other)
    policies = []
    for pool in ("a", "b"):
        body = fleet.body(pool)["spec"]["selector"]["nodeSelector"]["matchLabels"]
        selector = {"nodeSelector": {"matchLabels": {**body, "pool": pool}}}
        policies.append(await fleet.create(pool, selector=selector, **ON))
    for policy in policies:
        await policy.condition("Verified", "True", "Proved")
    before = await runs(admin)
    assert before == 2
    await asyncio.gather(*(policy.edit(resyncInterval="1m") for policy in policies))
    for policy in policies:
        await policy.condition("Verified", "True", "Proved")
    assert await runs(admin) == before
    await policies[0].delete()
    await admin.wait_for(TASK, lambda task: first[0] not in str(task["spec"]))


async def test_it_is_off_unless_asked_for(fleet: Fleet, admin: Admin) -> None:
    await fleet.add(1)
    policy = await fleet.create()
    await policy.condition("Ready", "True", "Audited")
    assert await admin.find(TASK) is None
