"""What counts is what ECS would place a task on, what scales by itself is left alone, and a drain ends."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awsdoubles.ecs.query import QueryError, parse
from caretaker.daemontask.ecs.check import DENIED, Answer, Call
from caretaker.daemontask.ecs.placement import EXTERNAL, NOT_EXTERNAL, query
from caretaker.daemontask.ecs.placement import expressions as expressions_of
from testing.examples import examples
from unit.daemontask.ecs.played import ASG, DISTINCT, Played, member_of

LOOK = ["DescribeServices", "ListContainerInstances", "UpdateService"]
EXTERNAL_NAME = "ecs.capability.external"


# ---------------------------------------------------------------- what scales by itself


@pytest.mark.parametrize("target", [100, 80])
def test_a_service_under_managed_scaling_does_not_grow_its_own_group(target: int) -> None:
    """Each task is an instance more, each instance would be a task more: 10, 13, 17 ... 100."""
    ecs = Played(providers=ASG, desired=10)
    ecs.provider("asg", target=target)
    ecs.join(10, "asg")
    sizes = []
    for _ in range(12):
        found = ecs.look()
        sizes.append(ecs.minute())
    assert (found.reason, found.in_step, found.was) == ("ManagedScaling", False, None)
    assert "uses asg with managed scaling" in found.message
    assert set(sizes) == {-(-10 * 100 // target)}, "the spare capacity of ten tasks, and no more"
    assert ecs.service.desired == 10


def test_without_managed_scaling_the_instances_of_the_provider_count() -> None:
    ecs = Played(providers=ASG)
    ecs.provider("asg", status="DISABLED")
    ecs.join(10, "asg")
    ecs.join(20, "other")
    ecs.join(3)
    found = ecs.look()
    assert (found.counted, ecs.service.desired, ecs.service.running) == (10, 10, 10)
    assert ecs.minute() == 33
    ecs.join(1, "asg")
    ecs.look()
    looks = " ".join(ecs.calls).split("DescribeServices")[1:]
    assert [look.split() for look in looks] == [
        ["ListContainerInstances", "DescribeContainerInstances"],
        ["ListContainerInstances", "UpdateService"],
    ], "each of them at most three"
    ecs.look()
    assert ecs.calls == LOOK[:2], "what is known of providers is not asked for again"


def test_a_hundred_members_are_described_at_a_time() -> None:
    ecs = Played(providers=ASG)
    ecs.provider("asg", status="DISABLED")
    ecs.join(230, "asg")
    assert ecs.look().counted == 230
    assert ecs.calls.count("DescribeContainerInstances") == 3


def test_a_provider_is_asked_about_in_a_look_before() -> None:
    ecs = Played(providers=ASG)
    ecs.provider("asg")
    assert ecs.look().reason == "ManagedScaling"
    assert ecs.calls == ["DescribeServices", "DescribeCapacityProviders", "DescribeServices"]
    assert ecs.look().reason == "ManagedScaling"
    assert ecs.calls == ["DescribeServices"]


def test_the_clusters_default_strategy_is_in_force_where_the_service_names_nothing() -> None:
    ecs = Played(launch_type="", desired=10)
    ecs.provider("asg")
    ecs.join(10, "asg")
    assert ecs.look().counted == 10, "no strategy at all: launchType EC2"
    ecs.facts = ecs.facts.lasting
    ecs.cluster.default_strategy = ASG
    assert ecs.look().reason == "ManagedScaling"
    ecs.facts = ecs.facts.lasting
    ecs.cluster.default_strategy = [{"capacityProvider": "FARGATE", "weight": 1}]
    assert ecs.look().reason == "FargateService"


@pytest.mark.parametrize("part", ["deployments", "taskSets"])
def test_what_is_being_deployed_counts_as_well(part: str) -> None:
    """A service that changes from launchType EC2 to a capacity provider has tasks of both."""
    ecs = Played(desired=2)
    ecs.provider("asg")
    ecs.join(2, "asg")

    def deploying(call: Call, answer: Answer) -> Answer:
        if call.method != "describe_services":
            return answer
        return {"services": [{**answer["services"][0], part: [{"capacityProviderStrategy": ASG}]}]}

    ecs.change = deploying
    assert ecs.look().reason == "ManagedScaling"


def test_several_providers_are_told_of_and_one_without_weight_is_none() -> None:
    both = [{"capacityProvider": "a", "weight": 1}, {"capacityProvider": "b", "weight": 1}]
    ecs = Played(providers=both, desired=7)
    ecs.join(10, "a")
    ecs.join(20, "b")
    found = ecs.look()
    assert (found.reason, ecs.calls) == ("SeveralCapacityProviders", ["DescribeServices"])
    assert "a, b" in found.message
    ecs.provider("a", status="DISABLED")
    ecs.service.providers = [both[0], {"capacityProvider": "b"}]
    assert ecs.look().counted == 10


@pytest.mark.parametrize(
    "provider",
    [
        {},
        {"autoScalingGroupProvider": {}},
        {"autoScalingGroupProvider": {"managedScaling": {}}},
        {"managedInstancesProvider": {}, "type": "MANAGED_INSTANCES"},
    ],
)
def test_a_provider_that_does_not_say_that_it_is_not_scaled_is_taken_to_be(provider: Any) -> None:
    ecs = Played(providers=ASG, desired=2)
    ecs.provider("asg", status="DISABLED")

    def told(call: Call, answer: Answer) -> Answer:
        asked = call.method == "describe_capacity_providers"
        return {"capacityProviders": [{"name": "asg", **provider}]} if asked else answer

    ecs.change = told
    assert ecs.look().reason == "ManagedScaling"


def test_managed_instances_are_scaled_by_ecs() -> None:
    found = Played(launch_type="MANAGED_INSTANCES").look()
    assert found.reason == "ManagedScaling"
    assert "launchType MANAGED_INSTANCES" in found.message


# ---------------------------------------------------------------- a drain


@pytest.mark.parametrize("counts", ["Active", "Registered"])
@pytest.mark.parametrize("healthy", [0, 50, 90, 91, 100, 150])
def test_a_drain_ends_or_is_said_to_hang(counts: str, healthy: int) -> None:
    ecs = Played(minimum_healthy=healthy)
    first, *_ = ecs.join(11)
    assert ecs.look(counts=counts).in_step
    first.status = "DRAINING"
    for _ in range(5):
        found = ecs.look(counts=counts)
    hangs = first.arn in ecs.service.tasks
    assert hangs == (counts == "Registered" and healthy > 90)
    assert found.reason == ("DrainMayHang" if hangs else "")
    if hangs:
        assert found.doubt
        assert "set countInstances to Active" in found.message
    else:
        assert ecs.service.running == 10


def test_a_service_with_constraints_is_counted_without_those_that_drain() -> None:
    """ECS's count of the whole cluster, which Registered is, does not know of them."""
    ecs = Played(constraints=[DISTINCT, member_of("attribute:stack == a")])
    first, *_ = ecs.join(5, stack="a")
    ecs.join(7, stack="b")
    assert ecs.look(counts="Registered").counted == 5
    first.status = "DRAINING"
    found = ecs.look(counts="Registered")
    assert (found.counted, found.counts, found.reason) == (4, "Active", "")


# ---------------------------------------------------------------- which instances


@pytest.mark.parametrize(
    ("expressions", "wanted"),
    [
        ([], 7),
        (["attribute:stack == a"], 3),
        (["attribute:stack == a or attribute:stack == b"], 7),
        (["attribute:stack == a || attribute:stack == b", "attribute:gpu exists"], 1),
        (["attribute:gpu !exists", "not(attribute:stack == b)"], 2),
        (["attribute:stack in [b, c] and attribute:gpu not_exists"], 4),
        (["attribute:stack =~ [ab]"], 7),
        (["attribute:stack == nothing"], 0),
    ],
)
def test_ecs_itself_counts_where_a_constraint_lets_a_task_run(expressions: list[str], wanted: int) -> None:
    ecs = Played(constraints=[DISTINCT, *map(member_of, expressions)], desired=1)
    ecs.join(2, stack="a")
    ecs.join(1, stack="a", gpu="")
    ecs.join(4, stack="b")
    ecs.join(5, **{EXTERNAL_NAME: "", "stack": "a"})
    assert ecs.look().counted == wanted
    assert ecs.service.running == wanted, "each of them has one, and none is without a place"


def test_constraints_of_the_task_definition_count_as_well_and_are_read_once_a_revision() -> None:
    ecs = Played(defined=[member_of("attribute:stack == a")], facts=False)
    ecs.join(10, stack="a")
    ecs.join(20, stack="b")
    assert (ecs.look().counted, ecs.service.running) == (10, 10)
    assert ecs.calls == ["DescribeServices", "DescribeTaskDefinition", *LOOK]
    ecs.facts = ecs.facts.lasting
    assert ecs.look(counts="Registered").counted == 10
    assert ecs.calls == LOOK[:2]
    ecs.service.definition, ecs.service.defined = "agent:2", []
    assert ecs.look(counts="Registered").counted == 30
    ecs.service.definition, ecs.service.defined = "agent:3", [member_of("task:group == db")]
    assert ecs.look().reason == "PlacementByTasks"


def test_a_task_definition_that_may_not_be_read_is_told_of_and_the_count_is_kept() -> None:
    ecs = Played(facts=False)
    ecs.join(3)
    ecs.change = lambda call, answer: {DENIED: True} if call.method == "describe_task_definition" else answer
    found = ecs.look()
    assert (found.reason, found.doubt, found.desired) == ("TaskDefinitionUnread", True, 3)
    assert "allow ecs:DescribeTaskDefinition" in found.message
    ecs.facts = ecs.facts.lasting
    ecs.change = lambda _, answer: answer
    assert ecs.look().reason == ""


def test_external_instances_are_counted_for_external_services_alone() -> None:
    ecs = Played(launch_type="EXTERNAL")
    ecs.join(4)
    ecs.join(3, **{EXTERNAL_NAME: ""})
    assert (ecs.look().counted, ecs.service.running) == (3, 3)
    assert ecs.look(counts="Registered").counted == 3
    ecs.service.launch_type = "EC2"
    assert (ecs.look().counted, ecs.service.running) == (4, 4)


@pytest.mark.parametrize(
    "expression",
    [
        "task:group == databases",
        "not(task:group == service:agent)",
        "runningTasksCount < 3",
        "TASK : group != x",
    ],
)
def test_a_constraint_about_tasks_cannot_be_counted(expression: str) -> None:
    """Of its own tasks it would make the number swing: none is left where all run."""
    ecs = Played(constraints=[DISTINCT, member_of(expression)], desired=2)
    found = ecs.look()
    assert (found.reason, ecs.calls) == ("PlacementByTasks", ["DescribeServices"])
    assert expression in found.message


NAMES = st.sampled_from(("stack", "gpu", "ecs.availability-zone", EXTERNAL_NAME, "for", "color"))
VALUES = st.sampled_from(("a", "b", "or", "", "x or y"))
SINGLE = st.builds(
    "attribute:{} {}".format,
    NAMES,
    st.sampled_from(
        ("exists", "!exists", "== a", "!= a", "in [a, or]", "!in [b]", "=~ .*or.*", "not_exists")
    ),
)
EXPRESSIONS = st.recursive(
    SINGLE,
    lambda inner: st.one_of(
        st.builds("{} and {}".format, inner, inner),
        st.builds("{} || {}".format, inner, inner),
        st.builds("({}) or {}".format, inner, inner),
        st.builds("not({})".format, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(2000), deadline=None)
@given(
    expressions=st.lists(EXPRESSIONS, max_size=3),
    external=st.booleans(),
    attributes=st.dictionaries(NAMES, VALUES),
)
def test_a_filter_means_all_constraints_together(
    expressions: list[str], external: bool, attributes: dict[str, str]
) -> None:
    constraints = [member_of(one) for one in expressions]
    service = {"placementConstraints": constraints, "launchType": "EXTERNAL" if external else "EC2"}
    each = [*expressions, EXTERNAL if external else NOT_EXTERNAL]
    assert parse(query(service, expressions_of(service)))(attributes) == all(
        parse(one)(attributes) for one in each
    )


@pytest.mark.parametrize(
    "expression",
    ["attribute:x", "attribute:x == ", "(attribute:x exists", "x == y", "attribute:x ? y", "a b )"],
)
def test_the_doubles_language_refuses_what_it_cannot_read(expression: str) -> None:
    with pytest.raises(QueryError):
        parse(expression)


# ---------------------------------------------------------------- how many


def test_max_count_is_never_passed_and_is_told_of() -> None:
    ecs = Played()
    ecs.join(10)
    found = ecs.look(max_count=6)
    assert (found.desired, found.counted, found.in_step) == (6, 10, True)
    assert (found.reason, found.doubt) == ("MaxCountReached", True)
    assert "10 container instances count, and spec.ecs.maxCount holds the desired count at 6" in found.message
    ecs.service.desired = 500
    assert ecs.look(max_count=6).desired == 6
    assert ecs.look(max_count=10).reason == ""


@pytest.mark.parametrize(
    ("percent", "before", "after", "set_at_once"),
    [
        (50, 500, 0, False),
        (50, 500, 249, False),
        (50, 500, 250, True),
        (50, 500, 900, True),
        (50, 3, 2, True),
        (50, 3, 1, False),
        (50, 1, 0, True),
        (10, 500, 449, False),
        (10, 500, 450, True),
        (1, 5, 4, True),
        (100, 500, 0, True),
    ],
)
def test_one_answer_takes_away_a_share_and_no_more(
    percent: int, before: int, after: int, *, set_at_once: bool
) -> None:
    ecs = Played(desired=before)
    ecs.join(after)
    found = ecs.look(max_decrease_percent=percent, confirm=False)
    assert ecs.service.desired == (after if set_at_once else before)
    assert found.reason == ("" if set_at_once else "ConfirmingDecrease")
    assert (found.in_step, found.counted) == (set_at_once, after)
    assert ("UpdateService" in ecs.calls) == set_at_once
    assert ecs.look(max_decrease_percent=percent).desired == after


def test_two_looks_take_away_what_both_have_found_to_be_gone() -> None:
    ecs = Played(desired=500)
    here = ecs.join(200)
    ecs.look(confirm=False)
    for one in here[:150]:
        del ecs.cluster.instances[one.arn]
    ecs.decrease = type(ecs.decrease)(ecs.decrease.counted, old=True) if ecs.decrease else None
    found = ecs.look(confirm=False)
    assert (found.was, found.desired, found.counted) == (500, 200, 50)
    assert (found.reason, found.in_step) == ("ConfirmingDecrease", False)
    assert ecs.look().desired == 50


def test_one_that_comes_back_meanwhile_loses_no_task() -> None:
    ecs = Played(desired=500)
    ecs.look(confirm=False)
    ecs.join(499)
    assert (ecs.look(confirm=False).desired, ecs.decrease) == (499, None)


def test_a_lower_max_count_is_no_answer_of_ecs() -> None:
    ecs = Played(desired=500)
    ecs.join(500)
    assert ecs.look(max_count=2, confirm=False).desired == 2
