"""What a Node is to EC2, from its labels and providerID alone."""

import pytest

from caretaker.api.objects import Node
from caretaker.imds.instance_ref import InstanceRef, instance_ref_of, most

EC2 = "aws:///eu-west-1a/i-0123456789abcdef0"
ID = "i-0123456789abcdef0"

CASES = {
    "an instance of no known group": (EC2, {}, InstanceRef(ID, "eu-west-1")),
    "an old instance's short id": (
        "aws:///us-east-1d/i-0abc1234",
        {},
        InstanceRef("i-0abc1234", "us-east-1"),
    ),
    "a Local Zone's region": (
        "aws:///us-west-2-lax-1a/i-0abc1234",
        {},
        InstanceRef("i-0abc1234", "us-west-2"),
    ),
    "a GovCloud zone": ("aws:///us-gov-west-1b/i-0abc1234", {}, InstanceRef("i-0abc1234", "us-gov-west-1")),
    "a managed node group's": (
        EC2,
        {"eks.amazonaws.com/nodegroup": "apps-a"},
        InstanceRef(ID, "eu-west-1", groups=(("EKSManagedNodegroup", "apps-a"),)),
    ),
    "Karpenter's": (
        EC2,
        {"karpenter.sh/nodepool": "default"},
        InstanceRef(ID, "eu-west-1", groups=(("KarpenterNodePool", "default"),)),
    ),
    "Karpenter's, of a class": (
        EC2,
        {"karpenter.sh/nodepool": "default", "karpenter.k8s.aws/ec2nodeclass": "al2023"},
        InstanceRef(ID, "eu-west-1", groups=(("KarpenterNodePool", "default"),), node_class="al2023"),
    ),
    "a managed node group's with a launch template of the user's": (
        EC2,
        {
            "eks.amazonaws.com/nodegroup": "apps",
            "eks.amazonaws.com/sourceLaunchTemplateId": "lt-1",
            "eks.amazonaws.com/sourceLaunchTemplateVersion": "7",
        },
        InstanceRef(
            ID,
            "eu-west-1",
            groups=(("EKSManagedNodegroup", "apps"),),
            template="lt-1",
            version="7",
        ),
    ),
    "a managed node group's with the AMI that EKS tells": (
        EC2,
        {"eks.amazonaws.com/nodegroup-image": "ami-1"},
        InstanceRef(ID, "eu-west-1", image="ami-1"),
    ),
    "Windows": (
        EC2,
        {"kubernetes.io/os": "windows"},
        InstanceRef(ID, "eu-west-1", unprobed="its operating system is windows"),
    ),
    "Windows, by the older label alone": (
        EC2,
        {"beta.kubernetes.io/os": "windows"},
        InstanceRef(ID, "eu-west-1", unprobed="its operating system is windows"),
    ),
    "Linux, of any architecture": (
        EC2,
        {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", "beta.kubernetes.io/os": "old"},
        InstanceRef(ID, "eu-west-1"),
    ),
    "an empty group's label names no group": (
        EC2,
        {"karpenter.sh/nodepool": ""},
        InstanceRef(ID, "eu-west-1"),
    ),
    "Auto Mode's, though it has Karpenter's label": (
        EC2,
        {"eks.amazonaws.com/compute-type": "auto", "karpenter.sh/nodepool": "general-purpose"},
        InstanceRef(skipped="ProviderManaged"),
    ),
    "hybrid": (
        "eks-hybrid:///eu-west-1/c/mi-1",
        {"eks.amazonaws.com/compute-type": "hybrid"},
        InstanceRef(skipped="Hybrid"),
    ),
    "Fargate": (
        "aws:///eu-west-1a/a1b2c3d4e5-f6/fargate-ip-10-0-0-1.eu-west-1.compute.internal",
        {"eks.amazonaws.com/compute-type": "fargate"},
        InstanceRef(skipped="Fargate"),
    ),
    "EC2's own compute type": (
        EC2,
        {"eks.amazonaws.com/compute-type": "ec2"},
        InstanceRef(ID, "eu-west-1"),
    ),
    "a node that has just registered": ("", {}, InstanceRef(skipped="NoProviderID")),
    "another cloud's": ("gce://project/europe-west1-b/node", {}, InstanceRef(skipped="NotEC2")),
    "a simulated one": ("kwok://node-1", {}, InstanceRef(skipped="NotEC2")),
    "garbage that begins well": ("aws:///eu-west-1a/i-0abc1234/more", {}, InstanceRef(skipped="NotEC2")),
}


@pytest.mark.parametrize(("provider_id", "labels", "expected"), CASES.values(), ids=CASES.keys())
def test_instance_ref(provider_id: str, labels: dict[str, str], expected: InstanceRef) -> None:
    assert instance_ref_of(Node("n", "u", labels, provider_id=provider_id)) == expected


@pytest.mark.parametrize(
    ("told", "ours"),
    [
        ({}, ""),
        ({(): 5}, ""),
        ({("a",): 1}, "a"),
        ({("a",): 2, ("b",): 1}, "a"),
        ({("a",): 2, ("b",): 1, (): 9}, "a"),
        ({("a",): 1, ("b",): 1}, ""),
        ({("a",): 2, ("b",): 1, ("c",): 1}, ""),
        ({("a", "b"): 1, ("b",): 1}, "b"),
    ],
)
def test_the_cluster_is_that_of_more_than_half_of_the_tagged_instances(
    told: dict[tuple[str, ...], int], ours: str
) -> None:
    assert most(told) == ours
