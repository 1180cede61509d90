"""The EC2 instance of a Node: its ID, region and node group, or the reason that no policy applies to it.

Pure: a Node record -> InstanceRef. Only labels and providerID are read, so it costs no call. Auto Mode is
judged first: its nodes carry Karpenter's labels too. Labels: Amazon EKS user guide, "Managed node groups",
"EKS Auto Mode" and "Hybrid nodes"; Karpenter, "NodePools" and "NodeClasses".
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from caretaker.api.objects import Node

COMPUTE_TYPE: Final = "eks.amazonaws.com/compute-type"
NODEGROUP: Final = "eks.amazonaws.com/nodegroup"
NODEPOOL: Final = "karpenter.sh/nodepool"
NODECLASS: Final = "karpenter.k8s.aws/ec2nodeclass"
# The user's own launch template of a managed node group; not there where EKS has made one.
SOURCE_TEMPLATE: Final = "eks.amazonaws.com/sourceLaunchTemplateId"
SOURCE_VERSION: Final = "eks.amazonaws.com/sourceLaunchTemplateVersion"
NODEGROUP_IMAGE: Final = "eks.amazonaws.com/nodegroup-image"
# Set by the kubelet; the older name where the newer one is absent.
OS_LABELS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")
LINUX: Final = "linux"
# aws:///eu-west-1a/i-0abc; a Local Zone's or Wavelength Zone's name holds its region's first.
_PROVIDER_ID: Final = re.compile(r"aws:///([a-z]{2,}(?:-[a-z]+)+-\d+)[a-z0-9-]*/(i-[0-9a-f]{8,17})")

# Why a node is nothing that a policy could hold.
PROVIDER_MANAGED: Final = "ProviderManaged"
FARGATE: Final = "Fargate"
HYBRID: Final = "Hybrid"
NO_PROVIDER_ID: Final = "NoProviderID"
NOT_EC2: Final = "NotEC2"

_COMPUTE_TYPES: Final = {"auto": PROVIDER_MANAGED, "hybrid": HYBRID, "fargate": FARGATE}


class InstanceRef(msgspec.Struct, frozen=True, gc=False):
    """One Node's instance.

    skipped  why there is none that could be changed; "" = instance and region are known
    groups   kind of group -> name, by the Node's labels
    node_class, template, version  Karpenter's EC2NodeClass, or the user's launch template of a managed node
                                   group and its version; "" = no label has it
    image    the AMI of a managed node group's node; "" = no label has it
    unprobed why the probe cannot run on the node; "" = it can
    """

    instance: str = ""
    region: str = ""
    skipped: str = ""
    groups: tuple[tuple[str, str], ...] = ()
    node_class: str = ""
    template: str = ""
    version: str = ""
    image: str = ""
    unprobed: str = ""


def instance_ref_of(node: Node) -> InstanceRef:
    """See InstanceRef."""
    labels = node.labels
    skipped = _COMPUTE_TYPES.get(labels.get(COMPUTE_TYPE, ""), "")
    if skipped:
        return InstanceRef(skipped=skipped)
    if not node.provider_id:
        return InstanceRef(skipped=NO_PROVIDER_ID)
    found = _PROVIDER_ID.fullmatch(node.provider_id)
    if found is None:
        return InstanceRef(skipped=NOT_EC2)
    named = (("EKSManagedNodegroup", NODEGROUP), ("KarpenterNodePool", NODEPOOL))
    groups = tuple((kind, labels[label]) for kind, label in named if labels.get(label))
    return InstanceRef(
        found[2],
        found[1],
        groups=groups,
        node_class=labels.get(NODECLASS, ""),
        template=labels.get(SOURCE_TEMPLATE, ""),
        version=labels.get(SOURCE_VERSION, ""),
        image=labels.get(NODEGROUP_IMAGE, ""),
        unprobed=_unprobed(labels),
    )


def _unprobed(labels: Mapping[str, str]) -> str:
    """The probe's image is for Linux, for any architecture. A node without the label counts as Linux."""
    system = next((labels[label] for label in OS_LABELS if labels.get(label)), LINUX)
    return "" if system == LINUX else f"its operating system is {system}"


def most(counts: Mapping[tuple[str, ...], int]) -> str:
    """The cluster of more than half of the instances whose tags name one; "" = there is none. `counts`: names
    -> number of instances with these names."""
    total = sum(count for names, count in counts.items() if names)
    each = Counter[str]()
    for names, count in counts.items():
        each.update(dict.fromkeys(names, count))
    return next((name for name, count in each.items() if count * 2 > total), "")


def readiness(node: Node | None) -> tuple[Any, ...] | None:
    """Whether the Node exists and is Ready, and since when."""
    return None if node is None else (node.uid, node.ready, node.ready_since)


def policy_inputs(node: Node | None) -> tuple[Any, ...] | None:
    """The fields of a Node that policies use, without heartbeats, taints and readiness."""
    return None if node is None else (node.uid, node.provider_id, node.labels)
