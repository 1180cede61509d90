"""Command line of the doubles: `python -m awsdoubles fetch | up | down | gateway --s3 URL --port N`.

What `up` starts lives on after it; `down` ends it. Both are safe to call twice.
"""

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from awsdoubles import elasticmq, ministack
from awsdoubles.cached import DoubleError
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.stack import GATEWAY_VARIABLE, Stack
from testbed.paths import STATE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when what it promises holds, 1 with a line on stderr when not."""
    parser = argparse.ArgumentParser(prog="awsdoubles", description=__doc__)
    parser.add_argument("--folder", type=Path, default=STATE, help="where aws.env, state and logs are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch MiniStack and ElasticMQ unless the cache has them")
    commands.add_parser("up", help="start MiniStack and the Storage Gateway double in the background")
    commands.add_parser("down", help="stop them")
    gateway = commands.add_parser("gateway", help="run the Storage Gateway double alone, until SIGTERM")
    gateway.add_argument("--s3", required=True, metavar="URL")
    gateway.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    # make sends SIGTERM to its children when it is ended itself; as an exception it unwinds the start.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if options.command == "fetch":
            ministack.python()
            elasticmq.java()
            elasticmq.jars()
        elif options.command == "gateway":
            _gateway(options.s3, options.port)
        elif options.command == "up":
            _up(Stack(options.folder.resolve()))
        else:
            _down(Stack(options.folder.resolve()))
    except DoubleError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if options.command != "gateway":
            print("interrupted: nothing is left running", file=sys.stderr)
        return 130
    return 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _gateway(s3_url: str, port: int) -> None:
    with StorageGateway(s3_url, port=port) as double:
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
    print(f"use them: source {_shown(stack.environment_file)}; stop them: make aws-down")


def _down(stack: Stack) -> None:
    found = stack.alive()
    stack.stop()
    print("the AWS doubles are stopped" if found else "no AWS doubles were running")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    sys.exit(main())
