"""The commands: run | plan | status | refresh | rerun | resume | logs. They parse, connect and print.

One file a command: `add` declares its arguments, `main` carries it out and returns the exit code: 0 done,
1 failed, 2 wrong usage, 130 interrupted. Errors are one line on stderr, with a fix.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from caretaker import __version__
from caretaker.cli import logs, plan, refresh, rerun, resume, run, status
from caretaker.cli.common import CommandError, Parser, UsageError, add_connection, named
from caretaker.cli.text import one_line
from caretaker.kube.rest_config import ConfigError
from caretaker.obs.server import ListenError
from caretaker.settings import SettingsError

_COMMANDS = (run, plan, status, refresh, rerun, resume, logs)


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `caretaker`."""
    args = _parse(argv)
    try:
        if "resource" in args:
            args.kind, args.name = named(args.resource, args.resource_kinds)
        code = int(args.main(args))
        sys.stdout.flush()  # here, where a closed pipe is handled
    except (SettingsError, UsageError) as error:
        _print_error(args.command, error)
        return 2
    except ConfigError as error:
        _print_error(args.command, f"{one_line(str(error)).rstrip('.')}; {error.fix}")
        return 2
    except (CommandError, ListenError) as error:
        _print_error(args.command, error)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `caretaker status ... | head`: the pipe is closed. Python would fail again at its final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Flags may stand between the kind and the name, as with kubectl; argparse does not support that."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    with_name = "resource" in args and not any(word.startswith("-") for word in rest)
    if rest and not with_name:
        parser.prog = f"caretaker {args.command}"  # its help lists the flags
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.resource += rest
    return args


def _print_error(command: str, error: object) -> None:
    prefix = "caretaker" if command == "run" else f"caretaker {command}"
    for line in str(error).splitlines():
        print(f"{prefix}: {line}", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(
        prog="caretaker",
        description="A Kubernetes operator for chores that are never done once and for all: one-off work on "
        "every node, refreshes after S3 events, EC2 metadata (IMDS) options. And the commands "
        "to look at it and to steer it.",
        epilog="Each command has more: caretaker COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"caretaker {__version__}")
    add_connection(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        sub = command.add(commands)
        sub.set_defaults(main=command.main)
        if command is not run:
            add_connection(sub)
    return parser
