"""What status says after a pass. Pure: (View, Plan) -> Status, equal to the one that stands when nothing has
changed."""

from caretaker.api import conditions as c
from caretaker.api.s3refresh import Status
from caretaker.api.times import format_time
from caretaker.s3refresh import status_codec
from caretaker.s3refresh.conditions import conditions_of, queue_of
from caretaker.s3refresh.plan import Plan
from caretaker.s3refresh.snapshots import View


def status_of(view: View, plan: Plan) -> Status:
    """The status to write."""
    before, now = view.read.status, view.snapshot.now
    return Status(
        observed_generation=view.read.meta.generation,
        conditions=c.merge(before.conditions, conditions_of(view, plan), format_time(now)),
        queue=queue_of(view),
        # Without a spec there are no options, and nothing changes.
        targets=before.targets
        if view.read.spec is None
        else tuple(status_codec.encode(target, plan.phases[target.id]) for target in plan.targets),
    )
