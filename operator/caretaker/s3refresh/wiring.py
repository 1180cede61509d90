"""Puts S3AggregatedRefresh's controller together."""

from typing import Final

from caretaker.runtime.wiring import Context, Wiring
from caretaker.s3refresh.controller import S3AggregatedRefreshKind


def make(context: Context) -> S3AggregatedRefreshKind:
    """The kind. It watches nothing but its own resources."""
    settings = context.settings
    kind = S3AggregatedRefreshKind(
        context.client,
        context.aws,
        settings.aws_grants,
        context.metrics,
        context.queue.add,
        settings.identity,
        settings.egress_allow,
        context.scale,
    )
    kind.namespace = settings.namespace or ""
    return kind


WIRING: Final = Wiring((), make)
