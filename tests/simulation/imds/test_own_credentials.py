"""The operator's credentials come from the metadata service of its node."""

from simulation.imds.test_incidents import SPEC, A
from simulation.imds.world import World


def test_nodes_behind_hop_limit_1_keep_the_imdsv1_that_the_operator_needs() -> None:
    world = World({A: {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional"}})
    world.operator.kind._modifier._instance_identity = True
    for _ in range(4):
        world.join(A)
    world.apply("p", **{**SPEC, "options": {"httpTokens": "required"}})
    world.run(3600.0)
    assert world.ready("p") == "WouldCutOwnCredentials"
    assert {one.last.options["HttpTokens"] for one in world.ec2.instances.values()} == {"optional"}
    world.close()
