"""What the bench of IMDSPolicy is made of: an operator led to an EC2 double, policies, a wait."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from awsdoubles.clients import KEY
from awsdoubles.ec2.control import Control
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.imds import MODIFY, PLURAL, Policy
from testing.operator import OperatorProcess

FULL_SHARE: Final = ("--imds-changes-per-second", "5")
# Every change at once that EC2 takes.
UNCAPPED: Final[Mapping[str, Any]] = {
    "allowLoosening": ["HopLimit"],
    "allowTightening": ["Tokens"],
    "canary": {"instances": 0},
    "maxChangesPerMinute": 6000,
}
TIMEOUT: Final = 900.0


@asynccontextmanager
async def operator(
    of: Cluster, ec2_url: str, *args: str, time_scale: float = 1.0
) -> AsyncIterator[OperatorProcess]:
    """With its Lease at its true pace; a scaled one is alone, as its Lease would be too short to trust."""
    made = OperatorProcess(
        of.kubeconfig,
        "bench",
        leader_elect=time_scale == 1.0,
        time_scale=time_scale,
        args=args,
        env={"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY, "AWS_ENDPOINT_URL_EC2": ec2_url},
    )
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.kill9)
    made.assert_clean_logs()


async def create(admin: Admin, name: str, labels: Mapping[str, str], **spec: Any) -> Policy:
    """A policy of the nodes with these labels."""
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "IMDSPolicy",
        "metadata": {"name": name},
        "spec": {
            "options": {"httpPutResponseHopLimit": 2, "httpTokens": "required"},
            "selector": {"nodeSelector": {"matchLabels": dict(labels)}},
            **spec,
        },
    }
    await admin.create(path(PLURAL), body)
    return Policy(admin, name)


async def until(holds: Callable[[], bool], every: float = 0.2) -> None:
    """Look again and again; `holds` blocks."""
    async with asyncio.timeout(TIMEOUT):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(every)


def sent(control: Control) -> list[dict[str, Any]]:
    """Calls that change instances, refused ones too; not those that only ask whether they may."""
    return [call for call in control.calls(MODIFY) if not call["params"].get("DryRun")]


def refused(control: Control) -> int:
    """Calls of any sort that EC2 had no tokens for."""
    return sum(codes.get("RequestLimitExceeded", 0) for codes in control.counts().values())


def refill(control: Control) -> None:
    """Nothing is in the ledger, and all buckets are full."""
    control.advance(3600)
    control.clear_calls()
