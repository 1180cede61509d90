"""The sources of the successors of a node, by its labels and its instance's tags. Pure.

Labels: Amazon EKS user guide, "Managed node groups"; Karpenter, "NodeClasses". Tags: Amazon EC2 Auto Scaling
user guide, "Tag Auto Scaling groups and instances". Labels of EKS and Karpenter come first: their instances
may be in Auto Scaling groups, or from launch templates, which are theirs to change.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.launching import DEFAULT, LaunchSnapshot
from caretaker.imds.merge import DesiredOption

GroupName = tuple[str, str]  # kind, name
Fields = Mapping[str, DesiredOption]
Kind = Literal["EC2NodeClass", "Karpenter", "EKSTemplate", "EKS", "AutoScalingGroup"]


class LaunchSource(msgspec.Struct, frozen=True, order=True):
    """The source of one node's successors. `name`: of the EC2NodeClass, node group or Auto Scaling group."""

    kind: Kind
    name: str
    region: str
    template: str = ""
    version: str = ""
    cluster: str = ""
    image: str = ""  # of a managed node group's nodes


class NodeSource(msgspec.Struct, frozen=True):
    """Nodes of the same source. `fields`: the values that all policies of these nodes want."""

    groups: tuple[GroupName, ...]
    launch: LaunchSource
    fields: Fields


class NodeSources:
    """Nodes, taken together where they are alike: thousands of them make a handful."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], NodeSource] = {}

    def add(
        self,
        groups: tuple[GroupName, ...],
        ref: InstanceRef,
        observed: ObservedInstance | None,
        fields: Fields,
    ) -> None:
        """One node; `fields` is the same object for the same policies."""
        tags = (
            (observed.group, observed.template, observed.version, observed.cluster)
            if observed is not None
            else ()
        )
        source = (ref.node_class, ref.template, ref.version, ref.image)
        key = (groups, ref.region, source, tags, id(fields))
        if key not in self._found and not (observed is not None and observed.managed):
            launch = launch_source_of(groups, ref, observed)
            if launch is not None:
                self._found[key] = NodeSource(groups, launch, fields)

    def __iter__(self) -> Iterator[NodeSource]:
        return iter(self._found.values())


def launch_source_of(
    groups: Iterable[GroupName], ref: InstanceRef, observed: ObservedInstance | None
) -> LaunchSource | None:
    """None: it belongs to no group that launches another one in its place."""
    named = dict(groups)
    if ref.node_class:
        return LaunchSource("EC2NodeClass", ref.node_class, ref.region)
    if pool := named.get("KarpenterNodePool"):
        return LaunchSource("Karpenter", pool, "")
    if nodegroup := named.get("EKSManagedNodegroup"):
        cluster = observed.cluster if observed is not None else ""
        if ref.template:
            version = ref.version or DEFAULT
            return LaunchSource(
                "EKSTemplate", nodegroup, ref.region, ref.template, version, cluster, ref.image
            )
        own = (observed.template, observed.version) if observed is not None else ("", "")
        return LaunchSource("EKS", nodegroup, ref.region, *own, cluster)
    if group := named.get("AutoScalingGroup"):
        return LaunchSource("AutoScalingGroup", group, ref.region)
    return None


def targets(
    node_sources: Iterable[NodeSource], launching: LaunchSnapshot
) -> dict[tuple[str, ...], dict[str, set[Any]]]:
    """By source: option -> values that nodes from there should have. Options in conflict have no value."""
    found: dict[tuple[str, ...], dict[str, set[Any]]] = {}
    for node_source in node_sources:
        for key in _keys(node_source.launch, launching):
            fields = found.setdefault(key, {})
            for field, one in node_source.fields.items():
                if not one.rivals:
                    fields.setdefault(field, set()).add(one.value)
    return found


def shut(
    key: tuple[str, ...],
    tokens: str | None,
    target: Mapping[str, Any],
    node_sources: Iterable[NodeSource],
    launching: LaunchSnapshot,
) -> str:
    """Why the options `target` must not be set at this source, which has `tokens`: spec.tokenGate holds back
    required tokens in a group whose next nodes come from there, by any of its versions."""
    if tokens == "required" or target.get("httpTokens") != "required" or not launching.tokens_shut:
        return ""
    for one in node_sources:
        groups = launching.tokens_shut.intersection(one.groups or (("", ""),))
        if groups and any(its[:3] == key[:3] for its in _keys(one.launch, launching)):
            kind, name = min(groups)
            group = f"{kind}/{name}" if name else "nodes without a group"
            held = f"spec.tokenGate holds required tokens back in {group}"
            return f"{held}: there is no command until it is Quiet"
    return ""


def _keys(launch: LaunchSource, launching: LaunchSnapshot) -> Iterable[tuple[str, ...]]:
    if launch.kind == "EC2NodeClass":
        yield ("class", launch.name)
    elif launch.kind == "EKSTemplate":
        yield ("template", launch.region, launch.template, launch.version)
    elif launch.kind == "AutoScalingGroup":
        group = launching.groups.get((launch.region, launch.name))
        for ref in group.templates if group is not None else ():
            yield ("template", launch.region, ref.template, ref.version)
