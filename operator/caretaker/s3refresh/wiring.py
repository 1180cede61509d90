"""Puts S3AggregatedRefresh's controller together."""

from typing import Final

from caretaker.runtime.wiring import Context, Wiring
from caretaker.s3refresh.controller import S3AggregatedRefreshKind
from caretaker.s3refresh.metrics import S3RefreshMetrics
from caretaker.s3refresh.shared import Dependencies


def make(context: Context) -> S3AggregatedRefreshKind:
    """The kind. It watches nothing but its own resources."""
    settings = context.settings
    return S3AggregatedRefreshKind(
        Dependencies(
            client=context.client,
            aws=context.aws,
            grants=settings.aws_grants,
            metrics=S3RefreshMetrics(context.metrics.registry),
            add=context.queue.add,
            owner=settings.identity,
            namespace=settings.namespace or "",
            egress_allow=settings.egress_allow,
        )
    )


WIRING: Final = Wiring((), make)
