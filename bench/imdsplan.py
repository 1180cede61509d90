"""What a pass of an IMDSPolicy costs over 5,000 nodes with ten policies, in CPU of the pure planner; and how
long 1,000 changes take at the defaults, calculated with the operator's own token buckets.

Inputs: none. The world: ten policies of which each means all nodes, half of them enforcing, each with another
priority; the lower half wants another hop limit and is overridden. One instance in 20 is as none wants it.
"""

import statistics
import time
from typing import Final

from bench.figures import Figure
from bench.parts import say
from caretaker.api.durations import seconds
from caretaker.api.imds import Options, Safety, Selector
from caretaker.api.objects import Node
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.enforce import PASS_SECONDS, POLL_SECONDS
from caretaker.imds.enforce_input import BATCH, EnforceInput
from caretaker.imds.instance_ref import NODEGROUP, instance_ref_of
from caretaker.imds.plan import Member, PlanInput, Policy, plan
from caretaker.imds.rate_limiter import AdaptiveRateLimiter, cap, regional
from caretaker.settings import Settings

NODES: Final = 5000
POLICIES: Final = 10
GROUPS: Final = 25
ROUNDS: Final = 10
DRIFTED_EVERY: Final = 20
GOOD: Final = Options(2, "required", "enabled")
OTHER: Final = Options(3, "required", "enabled")
BAD: Final = Options(1, "optional", "enabled")


def run() -> list[Figure]:
    """CPU of one policy's pass, the median and the worst of all policies; and of all ten together."""
    members = [_member(number) for number in range(NODES)]
    policies = [
        Policy(
            f"p{number}",
            100 + number,
            GOOD if number >= POLICIES // 2 else OTHER,
            Selector(),
            enforces=number % 2 == 0,
        )
        for number in range(POLICIES)
    ]
    snapshots = [
        PlanInput(
            one.name, policies, members, enforce_input=_enforce_input(one.name) if one.enforces else None
        )
        for one in policies
    ]
    passes: list[float] = []
    sums: list[float] = []
    for _ in range(ROUNDS):
        took = [_cpu(snapshot) for snapshot in snapshots]
        passes += took
        sums.append(sum(took))
    say(f"{len(passes)} passes: {1000 * min(passes):.0f} to {1000 * max(passes):.0f} ms")
    what = f"planning pass, {NODES:,} nodes x {POLICIES} policies, CPU"
    return [
        Figure(f"{what}, median", 1000 * statistics.median(passes), "ms", "<= 100"),
        Figure(f"{what}, the longest of {len(passes)}", 1000 * max(passes), "ms"),
        Figure(
            f"{what} of all {POLICIES} policies' passes together, median",
            1000 * statistics.median(sums),
            "ms",
        ),
    ]


def _member(number: int) -> Member:
    labels = {NODEGROUP: f"group-{number % GROUPS}", "kubernetes.io/os": "linux"}
    node = Node(
        f"n{number}", f"u{number}", labels, provider_id=f"aws:///eu-west-1a/i-{number:017x}", ready=True
    )
    ref = instance_ref_of(node)
    return Member(
        node, ref, ObservedInstance(BAD if number % DRIFTED_EVERY == 0 else GOOD, at=1.0), ref.groups
    )


def _enforce_input(name: str) -> EnforceInput:
    return EnforceInput(
        name,
        1,
        0.0,
        0.0,
        loosening=("HopLimit",),
        tightening=("Tokens",),
        canary_instances=0,
        free={"eu-west-1": 100},
    )


def _cpu(snapshot: PlanInput) -> float:
    began = time.process_time()
    found = plan(snapshot)
    took = time.process_time() - began
    assert found.summary.nodes == NODES
    return took


def at_defaults(count: int) -> list[Figure]:
    """Minutes until so many instances are changed: a canary that stands, then a pass every few seconds which
    sends what is free. Passes that take no time, and changes that EC2 applies between two looks."""
    safety = Safety()
    per_second = Settings(identity="bench").imds_changes_per_second
    now = POLL_SECONDS + seconds(safety.canary.soak)
    left = count - safety.canary.instances
    limiters = (
        AdaptiveRateLimiter(cap(safety.max_changes_per_minute), now),
        AdaptiveRateLimiter(regional(per_second), now),
    )
    while left:
        batch = min(left, BATCH, *(limiter.free(now) for limiter in limiters))
        for limiter in limiters:
            for _ in range(batch):
                limiter.take(now)
        left -= batch
        now += PASS_SECONDS
    note = (
        f"calculated: canary of {safety.canary.instances} for {safety.canary.soak}, "
        f"{safety.max_changes_per_minute} changes a minute"
    )
    return [Figure(f"{count:,} drifted instances to applied, at the defaults", now / 60, "min", note=note)]
