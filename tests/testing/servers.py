"""Fixtures of servers: a plugin, loaded with the first file that may ask for one.

What they are made of takes half a second of CPU to import, which the unit tests do without.
"""

from testing.aws import (
    aws,
    cloudwatch,
    ec2,
    ecs,
    elasticmq,
    ministack,
    sqs_proxy,
    sqs_server,
    storage_gateway,
)
from testing.cluster import admin, bare, cluster, namespace, nodes, recorders

__all__ = [
    "admin",
    "aws",
    "bare",
    "cloudwatch",
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
