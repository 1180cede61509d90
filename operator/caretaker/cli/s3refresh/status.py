"""caretaker status of an S3AggregatedRefresh: each target, as the record in its status has it."""

import time

from caretaker.cli.common import Session, get, path_of
from caretaker.cli.s3refresh.status_text import RefreshState, show
from caretaker.cli.s3refresh.watch import RefreshPrinter
from caretaker.cli.watch import follow_to_the_end
from caretaker.kube.watches import Watches, running
from caretaker.registry import S3_AGGREGATED_REFRESH as KIND
from caretaker.s3refresh.resource import RawRefresh


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read; of a watch, 1 when no further progress is possible without a user."""
    raw = await get(session, KIND, name, RawRefresh)
    if not watch:
        show(RefreshState.at(raw, time.time()), output)
        return 0
    watches = Watches(session.client)
    store = watches.add(path_of(KIND, session.namespace), RawRefresh)

    def read_state() -> RefreshState | None:
        found = store.get(session.namespace, name)
        return None if found is None else RefreshState.at(found.wire, time.time())

    async with running(watches):
        what = f"{KIND.kind} {name}"
        return await follow_to_the_end(watches, read_state, RefreshPrinter(), what, output)
