"""Puts IMDSPolicy's controller together."""

from typing import Final

from caretaker.imds.controller import ControllerOptions, IMDSPolicyKind
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.rate_limiter import regional
from caretaker.imds.watch_handlers import WatchHandlers
from caretaker.registry import DAEMON_TASK
from caretaker.runtime.wiring import NODES, Context, Wiring


def make(context: Context) -> IMDSPolicyKind:
    """The kind, with its handlers subscribed to the Nodes."""
    settings = context.settings
    options = ControllerOptions(
        settings.aws_grants,
        settings.operator_namespace,
        regional(settings.imds_changes_per_second),
        settings.namespace,
        DAEMON_TASK in settings.kinds,
        instance_identity=settings.aws_instance_identity,
        cluster=settings.cluster_name,
        probe_image=settings.probe_image,
    )
    watched = WatchHandlers(context.store(NODES), context.queue)
    metrics = PolicyMetrics(context.metrics.registry)
    kind = IMDSPolicyKind(context.client, context.aws, watched, metrics, options)
    kind.unseen = context.unseen
    return kind


WIRING: Final = Wiring((NODES,), make)
