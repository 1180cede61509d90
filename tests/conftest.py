"""Fixtures of the whole suite; what needs a server starts it only when a test asks for one."""

import os

from hypothesis import HealthCheck, settings

from testing.aws import aws, ec2, ecs, elasticmq, ministack, sqs_proxy, sqs_server, storage_gateway
from testing.cluster import admin, bare, cluster, namespace, nodes, recorders

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

# Chance decides what is tried, not how busy the machine is. On CI, hypothesis has a profile of its own.
if "CI" not in os.environ:
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
