"""Fixtures of the whole suite; what needs a server starts it only when a test asks for one."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from testing import forks
from testing.aws import aws, ec2, ecs, elasticmq, ministack, sqs_proxy, sqs_server, storage_gateway
from testing.cluster import admin, bare, cluster, namespace, nodes, recorders
from testing.examples import examples

__all__ = [
    "admin",
    "aws",
    "bare",
    "cluster",
    "ec2",
    "ecs",
    "elasticmq",
    "ministack",
    "namespace",
    "nodes",
    "recorders",
    "sqs_proxy",
    "sqs_server",
    "storage_gateway",
]

# A shell that starts the suite in the background has it ignore SIGINT, and all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Chance decides what is tried, not how busy the machine is. On CI, hypothesis has a profile of its own.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
_base = settings.get_profile("ci" if "CI" in os.environ else "patient")
settings.register_profile("tried", _base, max_examples=examples(_base.max_examples, quick_percent=25))
settings.load_profile("tried")


def pytest_collection_finish() -> None:
    """What has been imported and collected by now is never garbage: a tenth of the unit tests' time went into
    looking at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def forked_operators() -> Iterator[None]:
    """Operators are forked from a server that starts with the first one."""
    with forks.serving():
        yield
