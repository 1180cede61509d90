"""Command line of the doubles: `python -m awsdoubles COMMAND`; --help lists them.

What `up` starts lives on after it; `down` ends it. Both are safe to call twice.
"""

import argparse
import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Final

from botocore.exceptions import ClientError

from awsdoubles import elasticmq, ministack
from awsdoubles.awsserver import AwsServer
from awsdoubles.cached import DoubleError
from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.ec2.control import Control, ControlError
from awsdoubles.ec2.server import Ec2
from awsdoubles.ecs.server import Ecs
from awsdoubles.envelopes import Wiring
from awsdoubles.gateway.control import Control as GatewayControl
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.nodes import GROUPS, give_instances
from awsdoubles.serverthread import ServerThread
from awsdoubles.stack import (
    CLOUDWATCH_VARIABLE,
    EC2_VARIABLE,
    ECS_VARIABLE,
    GATEWAY_VARIABLE,
    Stack,
)
from testbed import ending
from testbed.cluster import Cluster, ClusterError
from testbed.paths import STATE

_ALONE: Final[dict[str, type[AwsServer]]] = {"ec2": Ec2, "ecs": Ecs, "cloudwatch": CloudWatch}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when what it promises holds, 1 with a line on stderr when not."""
    parser = argparse.ArgumentParser(prog="awsdoubles", description=__doc__)
    parser.add_argument("--folder", type=Path, default=STATE, help="where aws.env, state and logs are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch MiniStack and ElasticMQ unless the cache has them")
    commands.add_parser("up", help="start MiniStack and our own doubles in the background")
    commands.add_parser("down", help="stop them")
    share = commands.add_parser("share", help="make a bucket, a queue of its events, and a file share of it")
    share.add_argument("bucket", metavar="BUCKET")
    commands.add_parser("nodes", help="give the fake nodes of `make cluster` EC2 instances with hop limit 1")
    for name, what in (("deny", "take the permission for a call of EC2 away"), ("allow", "give it back")):
        right = commands.add_parser(name, help=what)
        right.add_argument("operation", metavar="OPERATION", help="such as ModifyInstanceMetadataOptions")
    gateway = commands.add_parser("gateway", help="run the Storage Gateway double alone, until SIGTERM")
    gateway.add_argument("--s3", required=True, metavar="URL")
    gateway.add_argument("--port", type=int, default=0)
    for name, what in (("ec2", "EC2"), ("ecs", "ECS"), ("cloudwatch", "CloudWatch")):
        alone = commands.add_parser(name, help=f"run the {what} double alone, until SIGTERM")
        alone.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    quiet = options.command in {"gateway", *_ALONE}
    return ending.run(lambda: _run(options), DoubleError, quiet=quiet)


def _run(options: argparse.Namespace) -> None:
    stack = Stack(options.folder.resolve())
    match options.command:
        case "fetch":
            ministack.python()
            elasticmq.java()
            elasticmq.jars()
        case "gateway":
            _serve(StorageGateway(options.s3, port=options.port))
        case "ec2" | "ecs" | "cloudwatch":
            _serve(_ALONE[options.command](options.port))
        case "share":
            _share(stack, options.bucket)
        case "nodes":
            _nodes(stack, Cluster(options.folder.resolve() / "cluster", detached=True))
        case "deny" | "allow":
            _permit(stack, options.command, options.operation)
        case "up":
            _up(stack)
        case "down":
            _down(stack)


def _serve(double: ServerThread) -> None:
    with double:
        print(f"listening on {double.url}", flush=True)
        threading.Event().wait()


def _up(stack: Stack) -> None:
    if stack.running():
        print("the AWS doubles are running already; make aws-down stops them")
    else:
        started = time.monotonic()
        stack.start()
        print(f"ready in {time.monotonic() - started:.0f} s")
    variables = stack.variables()
    print(f"  S3, SQS, SNS, EventBridge  {variables['AWS_ENDPOINT_URL_S3']}")
    print(f"  Storage Gateway            {variables[GATEWAY_VARIABLE]}")
    print(f"  EC2, Auto Scaling          {variables[EC2_VARIABLE]}")
    print(f"  ECS                        {variables[ECS_VARIABLE]}")
    print(f"  CloudWatch                 {variables[CLOUDWATCH_VARIABLE]}")
    print(f"use them: source {_shown(stack.environment_file)}; stop them: make aws-down")


def _share(stack: Stack, bucket: str) -> None:
    """What an S3AggregatedRefresh needs, in the doubles that run."""
    variables = _variables(stack)
    wiring, control = Wiring(variables["AWS_ENDPOINT_URL_S3"]), GatewayControl(variables[GATEWAY_VARIABLE])
    try:
        wiring.bucket(bucket)
        queue = wiring.queue(f"{bucket}-events")
        wiring.connect(bucket, queue)
    except ClientError as error:
        raise DoubleError(f"{bucket}: {error}") from error
    finally:
        wiring.close()
    print(f"region    {wiring.region}")
    print(f"bucket    {bucket}")
    print(f"queueURL  {queue.url}")
    print(f"share     {control.add_share(control.add_gateway(wiring.region), bucket=bucket)}")


def _nodes(stack: Stack, cluster: Cluster) -> None:
    """What an IMDSPolicy needs: nodes with instances."""

    async def give() -> dict[str, list[str]]:
        async with cluster.visit() as admin:
            return await give_instances(admin, control)

    control = Control(_variables(stack)[EC2_VARIABLE])
    try:
        given = asyncio.run(give())
    except ClusterError as error:
        raise DoubleError(str(error)) from error
    print("instances for nodes that had none, with hop limit 1 and optional tokens:")
    for group, names in given.items():
        print(f"{group:<12}{len(names):>4}  {GROUPS[group]}")


def _permit(stack: Stack, verb: str, operation: str) -> None:
    control = Control(_variables(stack)[EC2_VARIABLE])
    try:
        (control.deny if verb == "deny" else control.allow)(operation)
    except ControlError as error:
        raise DoubleError(str(error)) from error
    print(f"{operation} is {'denied' if verb == 'deny' else 'allowed'}")


def _variables(stack: Stack) -> dict[str, str]:
    if not stack.running():
        raise DoubleError("the AWS doubles are not running: make aws")
    return stack.variables()


def _down(stack: Stack) -> None:
    found = stack.alive()
    stack.stop()
    print("the AWS doubles are stopped" if found else "no AWS doubles were running")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    sys.exit(main())
