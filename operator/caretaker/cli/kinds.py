"""The functions of `plan` and `status` for each kind, loaded when they are needed: boto3 takes half a second.

The package caretaker.cli.<package> of a kind has KEY, that of its resources in the JSON of `plan`, and the
modules plan and status, each with a function of its name.
"""

from collections.abc import Awaitable, Callable
from importlib import import_module

from caretaker.cli.common import Session
from caretaker.cli.manifest import Document
from caretaker.cli.propose import Planned, PlanOptions
from caretaker.registry import KindInfo

Plan = Callable[[Session, Document, PlanOptions], Awaitable[Planned]]
# Prints the state of the resource of this name (name, -o, --watch); returns the exit code.
Status = Callable[[Session, str, str | None, bool], Awaitable[int]]


def key_of(kind: KindInfo) -> str:
    """The key of its resources in the JSON of `plan`."""
    return str(import_module(f"caretaker.cli.{kind.package}").KEY)


def plan_of(kind: KindInfo) -> Plan:
    """Its `plan`."""
    plan: Plan = import_module(f"caretaker.cli.{kind.package}.plan").plan
    return plan


def status_of(kind: KindInfo) -> Status:
    """Its `status`."""
    status: Status = import_module(f"caretaker.cli.{kind.package}.status").status
    return status
