"""The rows of the matrix, which tests each runs, and the table that is printed at the end. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Held = Literal["python", "lowest", "highest", "kubernetes"]

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
KUBERNETES: Final = ("1.34", "1.35", "1.36")
EMULATED: Final = "3.13"  # the Python of the images

UNIT: Final = ("tests/unit", "tests/simulation", "tests/test_architecture.py")
# What speaks to sockets of its own and needs no control plane.
LOOPBACK: Final = (
    "tests/integration/aws",
    "tests/integration/kube",
    "tests/integration/obs",
    "tests/integration/s3refresh/test_http_target.py",
)
# What depends most on the API server: schemas and CEL, watches, Leases, Pods, field ownership.
CLUSTER: Final = (
    "tests/integration/test_crd.py",
    "tests/integration/test_crd_ecs.py",
    "tests/integration/test_crd_imds.py",
    "tests/integration/test_crd_objects.py",
    "tests/integration/test_crd_s3refresh.py",
    "tests/integration/test_crd_s3refresh_objects.py",
    "tests/integration/test_crd_s3refresh_targets.py",
    "tests/integration/test_events.py",
    "tests/integration/test_handlers.py",
    "tests/integration/test_kube.py",
    "tests/integration/test_lease.py",
    "tests/integration/gitops",
    "tests/integration/daemontask",
)
# Of these the calls of AWS's SDK, which has a lowest version, too.
CALLS: Final = (
    "tests/integration/aws/test_cloudfront_target.py",
    "tests/integration/aws/test_message_targets.py",
)
# `caretaker run` as a process, from its start to its end.
RUN: Final = ("tests/integration/daemontask/test_first_start.py",)
# The long files first. No path within another: pytest 8 takes the tests of the inner one alone.
EVERYTHING: Final = ("tests/e2e", "tests/integration")


@dataclass(frozen=True)
class Part:
    """One thing that a row holds at a version of its own; the rest is as `make test` has it."""

    name: str
    held: Held
    version: str = ""  # of Python or Kubernetes
    machine: str = ""  # of Python; "" = this one's


@dataclass(frozen=True)
class Row:
    """One way to run the tests: a part, or several at once, such as `py3.12+lowest+k8s1.34`."""

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """As ROWS= takes it."""
        return "+".join(part.name for part in self.parts)

    def version(self, held: Held) -> str | None:
        """The version of what is held; None where the row leaves it as it is."""
        return next((part.version for part in self.parts if part.held == held), None)

    @property
    def machine(self) -> str:
        """The architecture of Python; "" = this machine's."""
        return "".join(part.machine for part in self.parts)

    def has(self, held: Held) -> bool:
        """Whether it is one of the parts."""
        return self.version(held) is not None

    def tests(self, suite: str) -> Sequence[str]:
        """The files. `suite`: `unit` for unit tests, simulations and calls of AWS, `all` for every test but
        the real node's, `` for what fits."""
        if suite == "all":
            return (*EVERYTHING, *UNIT)
        units = (*UNIT, *CALLS) if suite == "unit" or self.machine else (*UNIT, *LOOPBACK)
        if suite != "unit" and self.machine:
            units = (*units, *RUN)
        if not self.has("kubernetes"):
            return units
        return CLUSTER if len(self.parts) == 1 else (*CLUSTER, *units)

    def spread(self, suite: str) -> Sequence[str]:
        """How pytest deals tests out: an operator that a folder shares must not outlast its folder."""
        if suite == "all" or self.has("kubernetes"):
            return (
                "--dist",
                "loadfile",
                "--no-loadscope-reorder",
                "-n",
                "4" if suite == "all" else "logical",
            )
        if suite == "unit":
            return ("-m", "not slow", "--fork")
        return ("--dist", "worksteal", "-n", "logical")


PARTS: Final = (
    *(Part(f"py{version}", "python", version) for version in PYTHONS),
    Part("arm64", "python", EMULATED, machine="aarch64"),
    Part("lowest", "lowest"),
    Part("highest", "highest"),
    *(Part(f"k8s{version}", "kubernetes", version) for version in KUBERNETES),
)
ROWS: Final = tuple(Row((part,)) for part in PARTS)


def chosen(names: Iterable[str]) -> list[Row]:
    """The rows of these names, all without any. Raises ValueError for a name that there is not, and for parts
    that exclude each other."""
    return [_row(name) for name in names] or list(ROWS)


def _row(name: str) -> Row:
    known = {part.name: part for part in PARTS}
    wanted = name.split("+")
    if unknown := [one for one in wanted if one not in known]:
        raise ValueError(f"there is no row {', '.join(unknown)}; known are {', '.join(known)}")
    row = Row(tuple(known[one] for one in wanted))
    # The oldest and the newest dependencies are two versions of one thing.
    things = ["lowest" if part.held == "highest" else part.held for part in row.parts]
    if len(set(things)) < len(things):
        raise ValueError(f"{name} names a thing twice: one of Python, dependencies, Kubernetes each")
    return row


@dataclass(frozen=True)
class Result:
    """What became of a row."""

    row: str
    outcome: Literal["green", "NOT GREEN", "MISSING"]
    said: str  # pytest's last line, or what is missing
    seconds: float = 0.0


def table(results: Iterable[Result]) -> str:
    """A line for each row."""
    found = list(results)
    wide = max([len(one.row) for one in found] + [8]) + 2
    lines = [f"{'row':<{wide}}{'result':<11}{'seconds':>7}  "]
    lines += [f"{r.row:<{wide}}{r.outcome:<11}{r.seconds:>7.0f}  {r.said}" for r in found]
    return "\n".join(line.rstrip() for line in lines)
