"""Session names of roles: CloudTrail shows the resource that a role was assumed for."""

import itertools
from pathlib import Path

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from fakes.aws import Call, FakeAws, assumed
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.cluster import Nodes
from testing.imds import SLOW, Fleet
from testing.refreshing import LOOPBACK, Refreshing, grants, operator
from testing.rollouts import until

ROLE = "arn:aws:iam::111122223333:role/shared"


async def test_a_session_tells_cluster_namespace_kind_and_resource(
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    nodes: Nodes,
    aws: Aws,
    storage_gateway: StorageGateway,
    ec2: Ec2,
    tmp_path: Path,
) -> None:
    """Resources of all kinds use one role."""
    keys: dict[str, str] = {}  # key ID of a session -> name of the session
    numbers = itertools.count()

    def assume(call: Call) -> object:
        key = f"ASIA{next(numbers)}"  # not by their count: calls come from several threads
        keys[key] = call.form["RoleSessionName"]
        return assumed(key, "2099-01-01T00:00:00Z")

    with FakeAws() as fake:
        fake.on("AssumeRole", assume)  # type: ignore[arg-type]
        where = {"region": aws.region, "roleARN": ROLE}
        args = (*grants(tmp_path), *LOOPBACK, "--cluster-name", "test")
        env = aws.environment(storage_gateway.url)
        place = Refreshing(admin, namespace, aws, storage_gateway.control)
        fleet = Fleet(admin, nodes, ec2.control, ec2.url)
        await fleet.add(2, options=SLOW)
        with operator(cluster.kubeconfig, tmp_path, env, args=args, namespace=None):
            urls = dict.fromkeys(("sqs", "storagegateway", "sts"), fake.url)
            for name in ("photos", "films"):
                await place.create(aws.queue(), name, aws={**where, "endpointURLs": urls})
            task = {
                "apiVersion": "caretaker.dev/v1alpha1",
                "kind": "DaemonTask",
                "metadata": {"name": "agent"},
                "spec": {
                    "ecs": {
                        "aws": {**where, "endpointURLs": dict.fromkeys(("ecs", "sqs", "sts"), fake.url)},
                        "service": "agent",
                        "clusters": ["prod"],
                        "events": {"sqsQueueURL": f"{fake.url}/111122223333/ecs"},
                    }
                },
            }
            await admin.create(path("daemontasks", namespace), task)
            urls = {"ec2": ec2.url, "autoscaling": ec2.url, "sts": fake.url}
            safety = {
                "allowLoosening": ["HopLimit"],
                "allowTightening": ["Tokens"],
                "canary": {"instances": 0},
            }
            policy = await fleet.create(
                aws={"roleARN": ROLE, "endpointURLs": urls}, mode="Enforce", safety=safety
            )
            await policy.condition("Ready", "True", "Enforced")

            def signed() -> set[str]:
                by = {(call.action, keys.get(call.signer, "")) for call in fake.calls}
                return {f"{action} {name}" for action, name in by if name}

            wanted = {
                f"{action} test,{namespace},s3ar,{name}"
                for action in ("ListFileShares", "GetQueueAttributes")
                for name in ("photos", "films")
            } | {
                f"DescribeServices test,{namespace},dtask,agent",
                f"ReceiveMessage test,{namespace},dtask,agent",
            }
            await until(lambda: wanted <= signed())
            # Policies share the session for reads; each has its own session for writes.
            assert {"test,,imdsp,", f"test,,imdsp,{policy.name}"} <= set(keys.values())
            await fleet.clear()
            await place.clear()
            await admin.delete(path("daemontasks", namespace, "agent"))
