"""What a task asks of its nodes at a time, and how their Pods end: for the judge of limits.py."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import Spec
from caretaker.api.objects import Pod

Run = tuple[str, str]  # (revision, re-run): what a node is asked to run


class Terms(msgspec.Struct, frozen=True):
    """What the task asks for and promises from a version on."""

    version: int
    spec: Spec
    revision: str
    rerun: str
    rerun_nodes: dict[str, str]
    resumed: float
    desired: int

    def run(self, node: str) -> Run:
        """What the node is asked to run."""
        return self.revision, max(self.rerun, self.rerun_nodes.get(node, ""))

    @property
    def rollout(self) -> Run:
        """What all nodes are asked to run."""
        return self.revision, self.rerun

    def width(self, now: float) -> float:
        """How many nodes may run at once."""
        even = int(now // 60) % 2 == 0  # when the one schedule of a budget that the model uses is active
        found = [budget.nodes for budget in self.spec.budgets if budget.schedule is None or even]
        if self.spec.parallelism is not None:
            found.append(self.spec.parallelism)
        return min((resolve(one, self.desired, up=True) for one in found), default=math.inf)

    @property
    def allowed(self) -> float:
        """How many nodes may fail before no other starts."""
        policy = self.spec.failure_policy
        if policy.action == "Continue":
            return math.inf
        return resolve(policy.max_failed_nodes, self.desired, up=False)


class End(msgspec.Struct, frozen=True):
    """How one Pod of a node ended."""

    pod: Pod
    run: Run
    at: float  # in truth
    version: int

    @property
    def rejected(self) -> bool:
        """No container was created."""
        return not self.pod.ends

    @property
    def counts(self) -> bool:
        """It failed by itself: neither rejected nor deleted."""
        return self.pod.phase == "Failed" and not self.rejected and not self.pod.deletion


def run_of(pod: Pod) -> Run:
    """What the Pod was made to run."""
    return pod.labels[names.LABEL_REVISION], pod.annotations.get(names.POD_NONCE, "")


def exhausted(ends: list[End], terms: Iterable[Terms]) -> bool:
    """Whether no retry is left, by any of the terms."""
    least = min(one.spec.backoff_limit for one in terms)
    once = any(one.spec.at_most_once for one in terms)
    return sum(end.counts for end in ends) > least or (once and bool(ends))


def resolve(value: Any, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    share = int(text.rstrip("%")) * total / 100
    return max(math.ceil(share), 0) if up else math.floor(share)
