"""Fixtures of the whole suite; what needs a server starts it only when a test asks for one."""

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
