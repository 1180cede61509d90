"""What plan says of a DaemonTask with an ECS target, from what a look has found."""

from caretaker.api.ecs import EcsAws, EcsEvents, EcsSpec
from caretaker.cli.daemontask.ecs_plan import ClusterForecast, clusters_of, notes_of, problems_of

SPEC = EcsSpec(EcsAws("eu-west-1"), "agent", EcsEvents("queue"))


def test_clusters_that_could_not_be_listed_are_not_taken_for_none() -> None:
    assert list(problems_of(SPEC, [])) == ["no cluster in eu-west-1 runs the service agent"]
    (fault,) = problems_of(SPEC, [], "ecs:ListClusters: NoCredentials: none")
    assert "could not be listed: ecs:ListClusters: NoCredentials: none" in fault
    assert clusters_of(SPEC, [], "no") == "its clusters could not be listed"


def test_one_cluster_runs_it_and_several_run_it() -> None:
    assert clusters_of(SPEC, [ClusterForecast("a")]).startswith("1 cluster that runs it, ")
    assert clusters_of(SPEC, [ClusterForecast("a"), ClusterForecast("b")]).startswith(
        "2 clusters that run it, "
    )


def test_a_plan_says_as_whom_ecs_was_asked_and_that_grants_were_not_looked_at() -> None:
    (note,) = notes_of([], "")
    assert note.startswith("ECS was asked as you, ")
    assert "--aws-identities" in note
    assert notes_of(["not checked"], "no") == ["not checked", "no", note]
