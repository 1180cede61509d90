"""Settings of a process: from flags, then the environment, then defaults. The only reader of os.environ.

Inputs: parsed flags (None or absent = not given), the environment, the Pod's namespace file, the file of
grants. All faults are reported at once, each with the flag or variable and its fix. It must not open a
connection.
"""

import argparse
import difflib
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import yaml

from caretaker import __version__
from caretaker.api.grants import Grants
from caretaker.registry import KINDS, KindInfo, named

IN_CLUSTER_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_OPERATOR_NAMESPACE: Final = "caretaker-system"
PREFIX: Final = "CARETAKER_"

LogFormat = Literal["json", "text"]


class SettingsError(ValueError):
    """One line for each fault: the flag or variable, the error, the correction."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process. Port 0 takes a free one."""

    kubeconfig: str | None = None  # None: the default places of the kubernetes package, else in-cluster
    context: str | None = None  # None: the kubeconfig's current context
    namespace: str | None = None  # watch this one only; None = all
    kinds: tuple[KindInfo, ...] = KINDS  # the kinds served
    operator_namespace: str = DEFAULT_OPERATOR_NAMESPACE  # where the Lease lives
    lease_name: str = "caretaker"
    identity: str  # this process among the replicas
    leader_elect: bool = True
    metrics_port: int = 8080
    health_port: int = 8081
    bind_host: str = ""  # all addresses
    metrics_authentication: bool = False  # whether a request for metrics needs a token that RBAC allows
    log_format: LogFormat = "json"
    log_level: str = "INFO"
    aws_identities: Grants | None = None  # None: see aws_grants
    aws_instance_identity: bool = False  # whether the node's own identity may sign
    egress_allow: tuple[str, ...] = ()  # for http targets, though refused otherwise
    imds_changes_per_second: float = 2.0  # of EC2's 5 in each account and region
    probe_image: str = f"registry.example.com/caretaker/probe:{__version__}"  # a placeholder
    cluster_name: str = ""  # the cluster's instances are tagged with it; "" = learnt from them

    @property
    def aws_grants(self) -> Grants:
        """Which namespace may use which AWS identity, queue and endpoint."""
        if self.aws_identities is None:
            return Grants.default(self.operator_namespace)
        return self.aws_identities


def colour_wanted(*, tty: bool) -> bool:
    """Whether to write colours: to a terminal, unless NO_COLOR (no-color.org) or TERM=dumb forbids."""
    return tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise ValueError("must be a port from 0 to 65535; 0 takes a free one")
    return int(text)


def flag(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError("must be true or false")
    return known[text.lower()]


def label(text: str) -> str:
    if len(text) > 63 or not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text):
        raise ValueError("must be the name of a namespace: at most 63 of a-z, 0-9 and '-'")
    return text


def subdomain(text: str) -> str:
    part = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    if len(text) > 253 or not re.fullmatch(rf"{part}(\.{part})*", text):
        raise ValueError("must be the name of a Lease: at most 253 of a-z, 0-9, '-' and '.'")
    return text


def one_of(*choices: str, fold: Callable[[str], str] = str.lower) -> Callable[[str], str]:
    def read(text: str) -> str:
        if fold(text) not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return fold(text)

    return read


def places(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in found:
        if not _is_place(part):
            raise ValueError(
                f"{part} must be a network, an address, a host or http://HOST, such as 10.0.0.0/8"
            )
    return found


def _is_place(part: str) -> bool:
    """Digits and dots alone must be a valid address: as a host name, a mistyped address would silently allow
    nothing."""
    if part.startswith("http://") and "/" not in part.removeprefix("http://"):
        part = part.removeprefix("http://")
    if re.fullmatch(r"[A-Za-z0-9._-]*[A-Za-z_-][A-Za-z0-9._-]*", part):
        return True
    try:
        ipaddress.ip_network(part, strict=False)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """The number; 0.0 for any other text, which no flag allows."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def changes(text: str) -> float:
    rate = _number(text)
    if not 0.0 < rate <= 5.0:  # NaN compares false
        raise ValueError("must be a number above 0 and at most 5, which is all that EC2 allows an account")
    return rate


def grants(text: str) -> Grants:
    try:
        content = yaml.safe_load(Path(text).read_text())
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror}); give the path of a file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    return Grants.decode(content)


class _Source(NamedTuple):
    """Where one field comes from: a flag of its name, with the help `about` (none without), and a variable of
    its name, or an `other` one."""

    field: str
    read: Callable[[str], Any]
    about: str = ""
    other: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.field.replace('_', '-')}" if self.about else ""

    @property
    def variable(self) -> str:
        return self.other or f"{PREFIX}{self.field.upper()}"


_CONNECTION: Final = (
    _Source("kubeconfig", str, "kubeconfig file; in a Pod none is needed", other="KUBECONFIG"),
    _Source("context", str, "context of the kubeconfig"),
    _Source("namespace", label, "this one only; default: all to run, else the context's"),
    _Source("log_format", one_of("json", "text"), "json (default) or text, for people"),
    _Source(
        "log_level",
        one_of("DEBUG", "INFO", "WARNING", "ERROR", fold=str.upper),
        "DEBUG, INFO (default), WARNING or ERROR",
    ),
)
_RUN: Final = (
    _Source("kinds", named, "serve only these, plurals by comma; default: all"),
    _Source(
        "operator_namespace",
        label,
        f"namespace of the Lease; default: the Pod's own, else {DEFAULT_OPERATOR_NAMESPACE}",
        other="POD_NAMESPACE",
    ),
    _Source("lease_name", subdomain, "the Lease's name; default caretaker"),
    _Source("identity", str, other="POD_NAME"),
    _Source("metrics_port", port, "default 8080; 0: a free one"),
    _Source("health_port", port, "default 8081; 0: a free one"),
    _Source("bind_host", str, "address of both ports; default: all"),
    _Source("leader_elect", flag, "write only with the Lease held"),
    _Source(
        "metrics_authentication",
        flag,
        "require a bearer token for /metrics, and check by RBAC that it may get it; default: no token needed",
    ),
    _Source(
        "aws_identities",
        grants,
        "file that grants AWS identities, queues and endpoints to namespaces; default: all of them to the "
        "operator's own namespace alone",
    ),
    _Source(
        "aws_instance_identity", flag, "sign with the node's identity where there is no other; default: never"
    ),
    _Source(
        "egress_allow",
        places,
        "networks, addresses and hosts, by comma, that http targets may call although they are loopback, "
        "link-local or the API server; http://HOST: headers from Secrets may be sent there unencrypted; "
        "default: none",
    ),
    _Source(
        "imds_changes_per_second",
        changes,
        "how many instances IMDSPolicies may change in each account and region, 19 times as many at once; "
        "EC2 allows all who share the account 5; default 2",
    ),
    _Source(
        "cluster_name",
        str,
        "by whose tag kubernetes.io/cluster/NAME EC2 is asked for instances; default: learnt from them",
    ),
    _Source(
        "probe_image",
        str,
        f"image that IMDSPolicy's verification runs in pods: REGISTRY/caretaker/probe:{__version__}",
    ),
)
_SOURCES: Final = _CONNECTION + _RUN

# A Service named caretaker, or caretaker-metrics, in the Pod's namespace makes the kubelet set variables
# such as CARETAKER_PORT=tcp://10.0.0.1:8080 (Docker links): not ours, never an error.
_SERVICE_LINK = re.compile(
    r"CARETAKER(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|CARETAKER(_\w+)?_PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)


def _is_service_link(name: str, value: str) -> bool:
    return _SERVICE_LINK.fullmatch(f"{name}={value}") is not None


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every command takes."""
    _add(parser, _CONNECTION)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `caretaker run`, connection flags included."""
    _add(parser, _SOURCES)


def _add(parser: argparse.ArgumentParser, sources: tuple[_Source, ...]) -> None:
    # No argparse types, choices or defaults: absent must stay distinguishable, `load` reports faults, and a
    # sub-parser's default would undo a flag that stands before its command.
    for source in sources:
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": f"{source.about} ({source.variable})"}
        if source.read is flag:
            parser.add_argument(source.flag, action=argparse.BooleanOptionalAction, **how)
        elif source.flag:
            parser.add_argument(source.flag, metavar=source.flag.rpartition("-")[2].upper(), **how)


def load(
    args: argparse.Namespace | Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    namespace_file: Path = IN_CLUSTER_NAMESPACE,
) -> Settings:
    """Settings from `args` (by field name; None = not given), `env` (default: the process's) and defaults.

    An empty value counts as not given. Raises SettingsError with one line for each fault.
    """
    given = vars(args) if isinstance(args, argparse.Namespace) else dict(args or {})
    environment = os.environ if env is None else env
    values: dict[str, Any] = {}
    faults = list(_unknown(environment))
    for source in _SOURCES:
        name, value = _find(source, given, environment)
        if not name:
            continue
        try:
            values[source.field] = source.read(str(value))
        except ValueError as error:
            faults.append(f"{name}={value}: {error}")
    explicit = given.get("kubeconfig")
    if explicit and not Path(str(explicit)).is_file():
        faults.append(f"--kubeconfig={explicit}: there is no such file; give the path of a kubeconfig")
    if faults:
        raise SettingsError("\n".join(faults))
    values.setdefault("operator_namespace", _own_namespace(namespace_file))
    values.setdefault("identity", f"{socket.gethostname()}_{secrets.token_hex(4)}")
    return Settings(**values)


def _find(source: _Source, given: Mapping[str, object], env: Mapping[str, str]) -> tuple[str, object]:
    """(the flag or variable that sets the field, its value); ("", None) when none does."""
    value = given.get(source.field)
    if value is not None and value != "":
        return source.flag or source.field, value
    text = env.get(source.variable, "")
    if text and not _is_service_link(source.variable, text):
        return source.variable, text
    return "", None


def _unknown(env: Mapping[str, str]) -> list[str]:
    known = [s.variable for s in _SOURCES if s.variable.startswith(PREFIX)]
    faults = []
    for name, value in sorted(env.items()):
        if not name.startswith(PREFIX) or name in known or _is_service_link(name, value):
            continue
        # Names are compared without the prefix, which makes any two of them alike.
        endings = [k.removeprefix(PREFIX) for k in known]
        close = difflib.get_close_matches(name.removeprefix(PREFIX), endings, n=1, cutoff=0.6)
        fix = f"did you mean {PREFIX}{close[0]}?" if close else f"known are {', '.join(known)}; unset it"
        faults.append(f"{name}: there is no such setting; {fix}")
    return faults


def _own_namespace(path: Path) -> str:
    try:
        return path.read_text().strip() or DEFAULT_OPERATOR_NAMESPACE
    except OSError:
        return DEFAULT_OPERATOR_NAMESPACE
