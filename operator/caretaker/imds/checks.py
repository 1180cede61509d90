"""The check of one node against one policy. Pure: a chain of small checks over one CheckInput; the first
that applies wins.

    skipped    no policy can apply, and why          unknown    EC2 was asked and did not say
    gone       the instance has ended                pending    EC2 has taken a change and not applied it yet
    drifted    a field is not as it should be        compliant  every field that this policy wins is
    failed     drifted, and the last try to change it failed (enforce.py says so)
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import Options
from caretaker.imds import drift
from caretaker.imds.drift import OptionChange, changes
from caretaker.imds.instance_ref import PROVIDER_MANAGED, InstanceRef
from caretaker.imds.merge import DesiredOption

State = Literal["skipped", "unknown", "gone", "pending", "drifted", "failed", "compliant"]
# Instance states in which options cannot be changed any more (EC2 API reference, InstanceState).
ENDED: Final = frozenset(("shutting-down", "terminated"))
STOPPED: Final = frozenset(("stopping", "stopped"))
# How long descriptions may lag, also behind our changes (Amazon EC2 API reference, "Eventual consistency").
OWN_SECONDS: Final = 30.0
NOT_FOUND: Final = "InstanceNotFound"
NOT_ASKED: Final = "NotAsked"
TAGS_MISSING: Final = "TagsNotTold"
INSTANCE_MISSING: Final = "InstanceNotTold"


_SKIPS: Final = {
    Reason.OTHER_CLUSTER: (
        "the instance in spec.providerID has the tags of another cluster: check who set spec.providerID; if "
        "the instance belongs to this cluster, set --cluster-name"
    ),
    Reason.SAME_PROVIDER_ID: (
        "another Node has the same spec.providerID, so the instance is not changed: delete the Node that is "
        "not its own"
    ),
}


class ObservedInstance(msgspec.Struct, frozen=True, gc=False):
    """An instance as EC2 describes it. `state` as in InstanceState.Name; `managed`: by AWS, which alone may
    change it (Operator.Managed); `tagged`: it has tags, as every instance of a cluster does.

    confirmed  a description has these options, and we have not changed them since
    lost       the response lacked the instance or its options
    ungrouped_at  `at` of the first response without its group's tag, while none confirms that; else 0
    """

    options: Options
    state: str = "running"
    pending: bool = False  # MetadataOptions.State
    managed: bool = False
    tagged: bool = True
    confirmed: bool = True
    lost: bool = False
    group: str = ""  # the Auto Scaling group, by its tag
    unfit_tags: bool | None = (
        None  # a tag's key is none that the metadata service can show; None: not reported
    )
    at: float = 0.0  # time.monotonic() when EC2 was asked
    ungrouped_at: float = 0.0
    launched: float = 0.0  # its last start, Unix seconds; 0 = not reported
    # By their tags: the launch template and its version that it came from, the cluster as EKS names it, and
    # all clusters that are named.
    template: str = ""
    version: str = ""
    cluster: str = ""
    clusters: tuple[str, ...] = ()

    @property
    def under_way(self) -> bool:
        """Whether EC2 still has to apply a change. For a stopped instance EC2 does so at its start, which is
        not waited for."""
        if self.state in ENDED:
            return False
        return not self.confirmed or (self.pending and self.state not in STOPPED)


class CheckInput(msgspec.Struct, frozen=True, gc=False):
    """One node. `observed` None: EC2 does not know the instance. `unasked`: why its region was not described.
    `fields`: the options that the policy itself names."""

    ref: InstanceRef
    observed: ObservedInstance | None
    desired: Mapping[str, DesiredOption]  # by all policies that mean this node
    policy: str
    fields: frozenset[str]
    unasked: str = ""


class CheckResult(msgspec.Struct, frozen=True, gc=False):
    """`reason` in CamelCase if there is something to report; `changes`: the differences."""

    state: State
    reason: str = ""
    message: str = ""
    changes: tuple[OptionChange, ...] = ()


COMPLIANT: Final = CheckResult("compliant")


def check(case: CheckInput) -> CheckResult:
    """The result of the first check that applies."""
    return next((found for one in _CHECKS if (found := one(case)) is not None), COMPLIANT)


def slow_and_open(observed: ObservedInstance | None) -> bool:
    """Whether its pods wait for IMDSv2 in vain and then get IMDSv1."""
    return observed is not None and drift.slow_and_open(observed.options)


def fits(case: CheckInput, result: CheckResult) -> bool:
    """Whether the instance is compliant, or unknown without a reported difference."""
    if result.state != "unknown":
        return result.state == "compliant"
    return case.observed is None or all(change.current is None for change in _changes(case.observed, case))


def _changes(observed: ObservedInstance, case: CheckInput) -> tuple[OptionChange, ...]:
    # A policy that wants the same and wins by its name does not hide the difference here.
    mine = {f: one for f, one in case.desired.items() if f in case.fields and case.policy not in one.losers}
    return changes(observed.options, mine)


def _skipped(case: CheckInput) -> CheckResult | None:
    skipped = case.ref.skipped
    return CheckResult("skipped", skipped, _SKIPS.get(skipped, "")) if skipped else None


def _unknown(case: CheckInput) -> CheckResult | None:
    return CheckResult("unknown", NOT_ASKED, case.unasked) if case.unasked else None


def _gone(case: CheckInput) -> CheckResult | None:
    if case.observed is None:
        return CheckResult("gone", NOT_FOUND)
    return CheckResult("gone", case.observed.state) if case.observed.state in ENDED else None


def _lost(case: CheckInput) -> CheckResult | None:
    """An instance that a response lacks may still exist."""
    if case.observed is None or not case.observed.lost:
        return None
    return CheckResult(
        "unknown", INSTANCE_MISSING, "EC2's response lacks the instance or its options; EC2 is asked again"
    )


def _managed(case: CheckInput) -> CheckResult | None:
    managed = case.observed is not None and case.observed.managed
    return CheckResult("skipped", PROVIDER_MANAGED) if managed else None


def _untagged(case: CheckInput) -> CheckResult | None:
    """An instance without tags: its group, and so its desired options, may depend on them."""
    if case.observed is None or case.observed.tagged:
        return None
    return CheckResult(
        "unknown", TAGS_MISSING, "EC2 reports no tags of the instance, but instances of a cluster have tags"
    )


def _differs(case: CheckInput) -> CheckResult | None:
    """Pending before drifted: EC2 answers with the new values at once, and applies them later."""
    if case.observed is None:
        return None
    if found := _changes(case.observed, case):
        return CheckResult("drifted", "Drifted", changes=found)
    return CheckResult("pending", "Pending") if case.observed.under_way else None


_CHECKS: Final[tuple[Callable[[CheckInput], CheckResult | None], ...]] = (
    _skipped,
    _unknown,
    _gone,
    _lost,
    _managed,
    _untagged,
    _differs,
)
