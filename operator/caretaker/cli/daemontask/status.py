"""caretaker status of a DaemonTask: each node, as its ledger, its Pods and the planner have it."""

from caretaker.cli.common import Session, get_task
from caretaker.cli.daemontask.status_text import show
from caretaker.cli.daemontask.watch import TaskPrinter
from caretaker.cli.ecs import status as ecs
from caretaker.cli.watch import follow_to_the_end
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.resource import has_ecs
from caretaker.daemontask.snapshot_reader import follow, observe


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read; of a watch, 1 when the task ended with failures."""
    raw = await get_task(session, name)
    if has_ecs(raw):
        return ecs.status(raw, output, watch=watch)
    if not watch:
        show(forecast(await observe(session.client, raw)), output)
        return 0
    async with follow(session.client, session.namespace, name) as follower:

        def read_state() -> Forecast | None:
            snapshot = follower.snapshot()
            return None if snapshot is None else forecast(snapshot)

        return await follow_to_the_end(
            follower.watches, read_state, TaskPrinter(), f"DaemonTask {name}", output
        )
