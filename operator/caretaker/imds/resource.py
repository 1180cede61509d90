"""An IMDSPolicy as the API server holds it, and how it is read.

Pure, but it validates the shape of the object. It makes no calls.
"""

from typing import Final

import msgspec

from caretaker.api.durations import seconds_of
from caretaker.api.imds import Spec, Status
from caretaker.api.objects import WireMeta
from caretaker.aws.identity import User
from caretaker.imds.plan import Policy
from caretaker.registry import IMDS_POLICY

KIND: Final = IMDS_POLICY.kind


class RawPolicy(msgspec.Struct):
    """A policy whose spec is not checked yet."""

    metadata: WireMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def user_of(name: str) -> User:
    """The user for whom a role is assumed: one policy, or with "" all, which share their reads."""
    return User("", IMDS_POLICY.short, name)


class ParsedPolicy(msgspec.Struct, frozen=True):
    """The resource; without a spec when that cannot be read, and why."""

    meta: WireMeta
    status: Status
    spec: Spec | None
    resync: float = 900.0  # seconds, as the next two
    soak: float = 120.0
    pending: float = 120.0
    interval: float = 86400.0
    invalid: str = ""

    @property
    def enforces(self) -> bool:
        """Whether it may change anything."""
        return self.spec is not None and self.spec.mode == "Enforce"

    @property
    def probes(self) -> bool:
        """Whether it is to be proved."""
        return self.spec is not None and self.spec.verification.probe and not self.spec.suspend

    @property
    def gated(self) -> bool:
        """Whether CloudWatch is to show that IMDSv1 is not used."""
        return self.spec is not None and self.spec.token_gate is not None and not self.spec.suspend

    def policy(self) -> Policy | None:
        """The part that matters to all policies; the options of a suspended one keep their precedence."""
        if self.spec is None:
            return None
        spec, name = self.spec, self.meta.name
        return Policy(name, spec.priority, spec.options, spec.selector, self.enforces, spec.aws.region)


def read(raw: RawPolicy) -> ParsedPolicy:
    """Judge it. A spec older than a stricter CRD is shown, never a crash."""
    try:
        status = msgspec.json.decode(raw.status, type=Status)
    except msgspec.ValidationError:
        status = Status()  # written by another client
    try:
        spec = msgspec.json.decode(raw.spec, type=Spec)
        _check(spec)
        resync = seconds_of("resyncInterval", spec.resync_interval)
        soak = seconds_of("safety.canary.soak", spec.safety.canary.soak)
        pending = seconds_of("pendingTimeout", spec.pending_timeout)
        interval = seconds_of("verification.interval", spec.verification.interval)
    except ValueError as error:  # msgspec.ValidationError is one
        return ParsedPolicy(raw.metadata, status, None, invalid=str(error).replace("`$", "`spec"))
    return ParsedPolicy(raw.metadata, status, spec, resync, soak, pending, interval)


def _check(spec: Spec) -> None:
    if not any(spec.options.given()):
        raise ValueError("spec.options: must name at least one option")
    hops = spec.options.http_put_response_hop_limit or 0
    if spec.mode == "Enforce" and hops > spec.safety.max_hop_limit:
        raise ValueError(
            f"spec.options.httpPutResponseHopLimit: {hops} is more than spec.safety.maxHopLimit "
            f"{spec.safety.max_hop_limit} lets Enforce set: raise that one, or lower this one"
        )
