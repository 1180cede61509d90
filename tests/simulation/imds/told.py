"""What a status says, and a probe: the little that the judge takes from others."""

from collections.abc import Mapping
from typing import Any

from simulation.imds.cluster import Measured
from simulation.imds.truth import Asked, Group, ec2_name

# The status of before had one canary for all, and no word of what has passed.
Change = tuple[Group, str, str, str]  # group, EC2's name of the field, from, to


def as_expected(asked: Asked, found: Measured, shut: bool) -> str:
    """What is not; "" = nothing. `shut`: by a policy, so that nobody is to reach it."""
    if shut and found.verdict == "EndpointDisabled":
        return ""
    expect = asked.verification.get("expect", "PodReachable")
    if expect == "PodReachable" and found.verdict != "Reachable":
        return f"a pod does not reach IMDS ({found.verdict})"
    if expect == "PodBlocked" and (found.verdict == "Reachable" or found.open):
        return f"a pod reaches IMDS ({found.verdict}, v1 {found.open})"
    return ""


def typed(text: str, like: Any) -> Any:
    return int(text) if isinstance(like, int) else text


def passed(status: Mapping[str, Any]) -> dict[Change, str]:
    """Change -> when."""
    passed = (status.get("canary") or {}).get("passed", ())
    return {((one.get("kind", ""), one.get("name", "")), *_change(one)): one.get("at", "") for one in passed}


def _change(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return ec2_name(one["field"]), str(one.get("from", "")), str(one.get("to", ""))


def changes_of(status: Mapping[str, Any], group: Group) -> set[tuple[str, str, str]]:
    """Of the canary of a group."""
    canary = status.get("canary") or {}
    found = [one for one in canary.get("groups", ()) if (one.get("kind", ""), one.get("name", "")) == group]
    return {_change(change) for one in found for change in one.get("changes", ())}


def failed(status: Mapping[str, Any]) -> set[Group]:
    """The groups whose canary has failed."""
    groups = (status.get("canary") or {}).get("groups", ())
    return {(one.get("kind", ""), one.get("name", "")) for one in groups if one.get("phase") == "Failed"}


def watched(status: Mapping[str, Any]) -> set[str]:
    """The instances that follow, or have been canaries."""
    return {one["instance"] for group in status.get("changed", ()) for one in group["instances"]}


def named(status: Mapping[str, Any], group: Group) -> set[str]:
    """The canaries of a group."""
    canary = status.get("canary") or {}
    return {
        instance["instance"]
        for one in canary.get("groups", ())
        if (one.get("kind", ""), one.get("name", "")) == group
        for instance in one.get("instances", ())
    }
