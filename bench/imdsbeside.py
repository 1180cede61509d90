"""The same 200 drifted instances, changed by us and by Cloud Custodian's set-metadata-access.

One EC2 double for all runs, put back to the same state before each. The instances are wrong in one option or
in two; while they are changed some vanish (EC2 describes them still and refuses to change what is not there
any more), and the account forbids the change of others. 100 more are as they should be.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2
from bench import custodian
from bench.figures import Figure
from bench.imdsparts import FULL_SHARE, TIMEOUT, UNCAPPED, create, operator, refill, refused, sent
from bench.parts import say
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.imdsherd import Herd

WANTED: Final = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required", "HttpProtocolIpv6": "disabled"}
OURS: Final = {
    "httpPutResponseHopLimit": 2,
    "httpTokens": "required",
    "httpProtocolIpv6": "disabled",
}
COMPLIANT: Final = 100
# How many are wrong, and how.
DRIFT: Final[Sequence[tuple[int, Mapping[str, Any]]]] = (
    (80, {"HttpPutResponseHopLimit": 1}),
    (60, {"HttpTokens": "optional"}),
    (40, {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional"}),
    (20, {"HttpProtocolIpv6": "enabled"}),
)
DRIFTED: Final = sum(count for count, _ in DRIFT)
# Of each of these sorts, counted from its first instance: those that vanish, and those that are refused.
VANISHED: Final = 15
REFUSED: Final = 5
# Options that Custodian's action has no word for, and what that means.
_WORDLESS: Final = [name for name in WANTED if name not in custodian.WORDS]
_UNKNOWN: Final = f"for {', '.join(_WORDLESS)} alone, which its action does not know"
QUIET_SECONDS: Final = 20.0  # after the last change, until nothing more is counted


class World(msgspec.Struct, frozen=True):
    """The instances: what each has at first, and what befalls whom."""

    control: Control
    before: Sequence[tuple[Sequence[str], Mapping[str, Any]]]
    vanished: frozenset[str]
    forbidden: frozenset[str]

    def put_back(self, *, trouble: bool = True) -> None:
        """As at first; without `trouble`, nothing befalls anybody."""
        self.control.clear_faults()
        for ids, wrong in self.before:
            self.control.put_options(list(ids), **{"HttpEndpoint": "enabled", **WANTED, **wrong})
        faults: dict[str, tuple[str, frozenset[str]]] = {
            "InvalidInstanceID.NotFound": ("The instance ID does not exist", self.vanished),
            "UnsupportedOperation": ("forbidden for this account", self.forbidden),
        }
        for code, (message, whom) in faults.items() if trouble else ():
            for one in sorted(whom):
                self.control.fault("refuse", instance=one, count=None, code=code, message=message)
        refill(self.control)

    def skipped(self, *, trouble: bool = True) -> list[str]:
        """Those that could have been changed, and are not as they should be."""
        excused = self.vanished | self.forbidden if trouble else frozenset()
        return [
            one["id"]
            for one in self.control.instances()
            if one["id"] not in excused and any(one["options"][name] != WANTED[name] for name in WANTED)
        ]


class Counted(msgspec.Struct, frozen=True):
    """One run's calls, those that EC2 had no tokens for left out; `changed`: instances named in a change."""

    changes: int
    changed: int
    others: int
    polls: int
    throttled: int
    skipped: int
    unknown: int  # of these, those wrong only in what Custodian has no word for
    seconds: float
    note: str = ""


async def run(made: Cluster, admin: Admin, ec2: Ec2, labels: Mapping[str, str]) -> list[Figure]:
    """Ours, then Custodian's."""
    herd = Herd(ec2.control, "beside", labels)
    world = await _world(admin, herd)
    ours = await _ours(made, admin, ec2, world, herd)
    others = {
        "one policy for all options": await _custodian(ec2, world, custodian.together),
        "a policy for each option": await _custodian(ec2, world, custodian.one_by_one),
        "a policy for each option, nothing vanishes or is refused": await _custodian(
            ec2, world, custodian.one_by_one, trouble=False
        ),
    }
    await herd.clear(admin)
    found = [
        Figure(f"changes sent for {DRIFTED} drifted instances, ours", ours.changes, "", f"= {DRIFTED}"),
        Figure("other calls beyond reads by ID, ours", ours.others, "", "<= 10", ours.note),
        Figure("wrongly skipped, ours", ours.skipped, "", "= 0"),
        Figure("seconds until status says that all is done, ours", ours.seconds, "s"),
    ]
    for name, one in others.items():
        found += _theirs(name, one)
    return found


async def _world(admin: Admin, herd: Herd) -> World:
    before: list[tuple[Sequence[str], Mapping[str, Any]]] = []
    for count, wrong in (*DRIFT, (COMPLIANT, {})):
        added = await herd.add(admin, count, {"HttpEndpoint": "enabled", **WANTED, **wrong})
        before.append((list(added.values()), wrong))
    drifted = [ids for ids, wrong in before if wrong]
    return World(
        herd.control,
        before,
        frozenset(ids[VANISHED] for ids in drifted),
        frozenset(ids[REFUSED] for ids in drifted),
    )


# ---------------------------------------------------------------- ours


async def _ours(made: Cluster, admin: Admin, ec2: Ec2, world: World, herd: Herd) -> Counted:
    world.put_back()
    async with operator(made, ec2.url, *FULL_SHARE):
        safety = {**UNCAPPED, "allowTightening": ["Tokens", "IPv6"]}
        began = time.monotonic()
        policy = await create(admin, "beside", herd.labels, mode="Enforce", options=OURS, safety=safety)
        lost, kept = len(world.vanished), len(world.forbidden)
        right = DRIFTED + COMPLIANT - lost - kept
        total = DRIFTED + COMPLIANT
        await policy.summary(timeout=TIMEOUT, nodes=total, compliant=right, gone=lost, failed=kept)
        seconds = time.monotonic() - began
        await asyncio.sleep(QUIET_SECONDS)
        found = _counted(world, seconds)
    await policy.delete()
    say(f"ours: {found.changes} changes, {found.others} other calls, {found.polls} reads by ID")
    return msgspec.structs.replace(found, note=f"{found.polls} reads by ID, 1 dry run")


# ---------------------------------------------------------------- Custodian


async def _custodian(
    ec2: Ec2,
    world: World,
    policies: Callable[[Mapping[str, Any]], Sequence[custodian.Policy]],
    *,
    trouble: bool = True,
) -> Counted:
    await asyncio.to_thread(custodian.python)
    world.put_back(trouble=trouble)
    began = time.monotonic()
    made = policies(WANTED)
    ended = await custodian.run(made, ec2.url)
    found = _counted(world, time.monotonic() - began, trouble=trouble)
    said = f"exit code {ended.code}" if ended.code else "it ended well"
    if ended.broken:
        said += f", {ended.broken} of {len(made)} policies broke off at an error"
    say(f"Custodian: {found.changes} changes, {found.skipped} skipped, {said}")
    return msgspec.structs.replace(found, note=said)


def _theirs(name: str, one: Counted) -> list[Figure]:
    who = f"Custodian, {name}"
    return [
        Figure(f"changes sent, {who}", one.changes, "", note=f"for {one.changed} instances; {one.note}"),
        Figure(f"other calls, {who}", one.others, ""),
        Figure(f"refused for want of tokens, {who}", one.throttled, ""),
        Figure(f"wrongly skipped, {who}", one.skipped, "", note=f"{one.unknown} of them {_UNKNOWN}"),
        Figure(f"seconds, {who}", one.seconds, "s"),
    ]


# ---------------------------------------------------------------- counting


def _counted(world: World, seconds: float, *, trouble: bool = True) -> Counted:
    throttled = refused(world.control)
    changes = [call for call in sent(world.control) if call["code"] != "RequestLimitExceeded"]
    every = len(world.control.calls())
    polls = sum("instance-id" in str(call["params"]) for call in world.control.calls("DescribeInstances"))
    skipped = set(world.skipped(trouble=trouble))
    wordless = {one for ids, wrong in world.before if wrong and set(wrong) <= set(_WORDLESS) for one in ids}
    return Counted(
        changes=len(changes),
        changed=len({call["params"]["InstanceId"] for call in changes}),
        others=every - len(changes) - polls - throttled,
        polls=polls,
        throttled=throttled,
        skipped=len(skipped),
        unknown=len(skipped & wordless),
        seconds=seconds,
    )
