"""The status after a pass. Pure: (Snapshot, Plan) -> Status, equal to the stored one if nothing changed."""

from caretaker.api import conditions as c
from caretaker.api.s3refresh import Status
from caretaker.api.times import format_time
from caretaker.s3refresh import status_codec
from caretaker.s3refresh.conditions import conditions_of, queue_of
from caretaker.s3refresh.snapshot import Plan, Snapshot


def status_of(snapshot: Snapshot, plan: Plan) -> Status:
    """The status to write."""
    before, now = snapshot.read.status, snapshot.plan_input.now
    return Status(
        observed_generation=snapshot.read.meta.generation,
        conditions=c.merge(before.conditions, conditions_of(snapshot, plan), format_time(now)),
        queue=queue_of(snapshot),
        # Without a spec there are no options, and nothing changes.
        targets=before.targets
        if snapshot.read.spec is None
        else tuple(status_codec.encode(target, plan.phases[target.id]) for target in plan.targets),
    )
