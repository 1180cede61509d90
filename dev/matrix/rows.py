"""The rows of the matrix, which tests each runs, and the table that is printed at the end. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Held = Literal["python", "lowest", "highest", "kubernetes"]

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
KUBERNETES: Final = ("1.34", "1.35", "1.36")

UNIT: Final = ("tests/unit", "tests/test_architecture.py")
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
EVERYTHING: Final = ("tests/e2e", "tests/integration")


@dataclass(frozen=True)
class Row:
    """One way to run the tests."""

    name: str
    held: Held
    version: str = ""  # of Python or Kubernetes

    def tests(self, suite: str) -> Sequence[str]:
        """The files. `suite`: `unit` for no more than the unit tests, `all` for all that a control plane is
        for, `` for what fits."""
        if self.held == "kubernetes":
            return EVERYTHING if suite == "all" else CLUSTER
        return UNIT if suite == "unit" else (*UNIT, *LOOPBACK)

    @property
    def spread(self) -> str:
        """How pytest deals tests out: an operator that a folder shares must not outlast its folder."""
        return "loadfile" if self.held == "kubernetes" else "worksteal"


ROWS: Final = (
    *(Row(f"py{version}", "python", version) for version in PYTHONS),
    Row("lowest", "lowest"),
    Row("highest", "highest"),
    *(Row(f"k8s{version}", "kubernetes", version) for version in KUBERNETES),
)


def chosen(names: Iterable[str]) -> list[Row]:
    """The rows of these names, all without any. Raises ValueError for a name that there is not."""
    known = {row.name: row for row in ROWS}
    wanted = list(names) or list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"there is no row {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in wanted]


@dataclass(frozen=True)
class Result:
    """What became of a row."""

    row: str
    outcome: Literal["green", "NOT GREEN", "MISSING"]
    said: str  # pytest's last line, or what is missing
    seconds: float = 0.0


def table(results: Iterable[Result]) -> str:
    """A line for each row."""
    lines = [f"{'row':<10}{'result':<11}{'seconds':>7}  "]
    lines += [f"{r.row:<10}{r.outcome:<11}{r.seconds:>7.0f}  {r.said}" for r in results]
    return "\n".join(line.rstrip() for line in lines)
