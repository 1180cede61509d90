"""The judge reports each broken rule by its name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest

from caretaker.aws.errors import AwsError
from simulation.imds.ec2 import Instance
from simulation.imds.judge import Breach
from simulation.imds.truth import LABELS, TEAM, WORDS, Group
from simulation.imds.world import World

GROUP: Final[Group] = ("EKSManagedNodegroup", "a")
HOPS: Final = {"HttpPutResponseHopLimit": 2}
SPEC: Final[dict[str, Any]] = {
    "mode": "Enforce",
    "options": {"httpPutResponseHopLimit": 2},
    "safety": {"allowLoosening": WORDS, "canary": {"instances": 1, "soak": "2m"}, "maxChangesPerMinute": 3},
}
PASSED: Final = {"kind": GROUP[0], "name": GROUP[1], "field": "httpPutResponseHopLimit", "from": 1, "to": 2}


class ManualOperator:
    """An operator by hand: passes, statuses and changes as a test wants them."""

    def __init__(self, group: Group = GROUP, **spec: Any) -> None:
        self.world, self.group = World({group: {}}), group
        for _ in range(6):
            self.world.join(group)
        self.world.ec2.applies_in = 0.0
        self.world.apply("p", **{**SPEC, **spec})
        self.judge = self.world.judge
        self.status: dict[str, Any] = {}
        self.changes = [PASSED | {"kind": group[0], "name": group[1]}]
        self.begin()

    def begin(self, after: float = 0.0) -> None:
        self.world.clock.now += after
        self.judge.begins("p")

    def one(self, number: int) -> Instance:
        return self.world.instance_of(f"n{number}")

    def send(self, number: int, options: dict[str, Any] = HOPS, after: float = 0.0) -> None:
        self.begin(after)
        self.judge.sent("p", self.one(number), options, True)
        self.world.ec2.put(self.one(number), by="p", **options)

    def tell(self, *canaries: int, breaker: dict[str, Any] | None = None, **more: Any) -> None:
        group = {
            "kind": self.group[0],
            "name": self.group[1],
            "phase": "Changing",
            "changes": [{key: one[key] for key in ("field", "from", "to")} for one in self.changes],
            "instances": [{"instance": self.one(number).name} for number in canaries],
        }
        before, self.status = self.status, {"canary": {"groups": [group] if canaries else [], **more}}
        self.status |= {"breaker": breaker} if breaker else {}
        raw = self.world.cluster.policies["p"]
        raw.status = msgspec.Raw(msgspec.json.encode(self.status))
        self.judge.stored("p", before, self.status)

    def passes(self, number: int = 1, after: float = 130.0) -> None:
        """A canary as it should be."""
        self.tell(number)
        self.send(number)
        self.world.clock.now += after
        self.tell(passed=[PASSED | {"at": f"{self.world.clock.now}"}])


@pytest.fixture
def make() -> Iterator[Callable[..., ManualOperator]]:
    made: list[ManualOperator] = []

    def manual(**spec: Any) -> ManualOperator:
        made.append(ManualOperator(**spec))
        return made[-1]

    yield manual
    for one in made:
        one.world.close()


Make = Callable[..., ManualOperator]


def test_what_is_done_by_the_rules_is_let_through(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.send(2)
    manual.send(3, after=30.0)


def broken(
    manual: ManualOperator, number: int = 2, after: float = 0.0, options: dict[str, Any] = HOPS
) -> str:
    """The rule."""
    with pytest.raises(Breach) as found:
        manual.send(number, options, after)
    return found.value.rule


def test_nobody_but_the_canary_comes_first(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    assert broken(manual) == "canary"


@pytest.mark.parametrize("after", [30.0, 100.0])
def test_a_canary_stands_for_its_soak(make: Make, after: float) -> None:
    manual = make()
    manual.passes(after=after)
    assert broken(manual) == "canary"


def test_a_canary_that_was_set_back_has_not_stood(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 100.0
    manual.world.ec2.put(manual.one(1), HttpPutResponseHopLimit=1)
    manual.world.clock.now += 30.0
    manual.tell(passed=[PASSED])
    assert broken(manual) == "canary"


@pytest.mark.parametrize(("seconds", "by", "seen"), [(50.0, "", False), (70.0, "", True), (50.0, "q", True)])
def test_what_another_hand_undoes_before_the_next_reading_is_not_seen(
    make: Make, seconds: float, by: str, seen: bool
) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 30.0
    manual.world.ec2.put(manual.one(1), HttpPutResponseHopLimit=1)
    manual.world.clock.now += seconds
    manual.world.ec2.put(manual.one(1), by=by, HttpPutResponseHopLimit=2)
    manual.world.clock.now += 110.0
    manual.tell(passed=[PASSED])
    if seen:
        assert broken(manual) == "canary"
    else:
        manual.send(2)


def test_a_canary_whose_node_was_not_ready_has_not_stood(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 60.0
    manual.world.cluster.flap("n1")
    manual.world.clock.now += 70.0
    manual.tell(passed=[PASSED])
    assert broken(manual) == "canary"


def test_a_canary_that_ended_has_not_stood(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    manual.world.end("n1", leaves_in=None)
    manual.world.clock.now += 130.0
    manual.tell(passed=[PASSED])
    assert broken(manual) == "canary"


def test_a_canary_without_a_proof_has_not_stood_where_one_is_asked_for(make: Make) -> None:
    manual = make(verification={"probe": True})
    manual.passes()
    assert broken(manual) == "canary"


def test_what_has_passed_is_one_change_of_one_group(make: Make) -> None:
    manual = make()
    manual.passes()
    assert broken(manual, options={"HttpTokens": "required"}) in ("allowed", "canary")
    manual.world.label("n2", {"eks.amazonaws.com/nodegroup": "b"})
    assert broken(manual) == "canary"


def test_a_pass_that_stands_no_more_is_none(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.tell()
    assert broken(manual) == "canary"


@pytest.mark.parametrize("written", [True, False])
def test_an_audit_whose_status_is_written_needs_new_canaries(make: Make, written: bool) -> None:
    manual = make()
    manual.passes()
    manual.world.apply("p", mode="Audit")
    manual.begin(10.0)
    if written:
        manual.tell(**manual.status["canary"])
    manual.world.apply("p", mode="Enforce")
    if written:
        assert broken(manual) == "canary"
    else:
        manual.send(2)


def test_a_canary_is_no_larger_than_asked_for(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    manual.tell(2)
    assert broken(manual) == "width"


@pytest.mark.parametrize(
    ("label", "rule"), [({"kept": "yes"}, "width"), ({"team": "x"}, ""), ({LABELS[GROUP[0]]: "b"}, "")]
)
def test_a_canary_ends_if_one_of_its_changes_is_not_its_policys_any_more(
    make: Make, label: dict[str, str], rule: str
) -> None:
    options = {"httpPutResponseHopLimit": 2, "httpTokens": "required"}
    manual = make(options=options, safety={**SPEC["safety"], "allowTightening": WORDS})
    selector = {"nodeSelector": {"matchLabels": {"team": "x"}}}
    manual.world.apply("q", **{**SPEC, "priority": 200, "selector": selector})
    manual.changes = [PASSED, PASSED | {"field": "httpTokens", "from": "optional", "to": "required"}]
    manual.tell(1)
    manual.send(1, HOPS | {"HttpTokens": "required"})
    manual.world.label("n1", {LABELS[GROUP[0]]: GROUP[1]} | label)
    manual.tell(2)
    if rule:
        assert broken(manual, options={"HttpTokens": "required"}) == rule
    else:
        manual.send(2, {"HttpTokens": "required"})


@pytest.mark.parametrize(("seconds", "rule"), [(2.0, ""), (4.0, "width")])
def test_a_canary_that_another_client_changes_before_it_is_in_force_is_replaced(
    make: Make, seconds: float, rule: str
) -> None:
    manual = make()
    manual.world.ec2.applies_in = 3.0
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += seconds
    manual.world.ec2.put(manual.one(1), takes=0.0, HttpPutResponseHopLimit=1)
    manual.tell(2)
    if rule:
        assert broken(manual, after=8.0) == rule
    else:
        manual.send(2, after=8.0)


@pytest.mark.parametrize(
    ("differs", "lacks", "breach"),
    [(True, "", True), (False, "", False), (True, "tags", False), (True, "all", False)],
)
def test_a_canary_has_as_many_instances_as_are_asked_for(
    make: Make, differs: bool, lacks: str, breach: bool
) -> None:
    """If all could be read in the last resyncInterval."""
    manual = make(safety={**SPEC["safety"], "canary": {"instances": 2, "soak": "2m"}})
    manual.begin(1_000.0)
    for number in range(2, 7):
        manual.world.end(f"n{number}")
    if differs:
        manual.world.join(GROUP)
    manual.begin(500.0)
    manual.world.ec2.untold = int(lacks == "tags")
    manual.world.ec2.blind = ["away"] * (lacks == "all")
    with suppress(AwsError):
        manual.world.ec2.describe({})
    manual.world.ec2.calm()
    manual.begin(500.0)
    if breach:
        with pytest.raises(Breach, match=r"count: .* passes without i-00000007"):
            manual.passes()
    else:
        manual.passes()


@pytest.mark.parametrize(("launched", "rule"), [(1, "blast"), (2, "")])
def test_what_kills_reaches_nobody_but_canaries_that_it_could_kill(
    make: Make, launched: int, rule: str
) -> None:
    manual = make()
    manual.world.harmful.add((GROUP, "HttpPutResponseHopLimit", 2))
    manual.one(1).past[0].options["HttpPutResponseHopLimit"] = launched
    manual.world.ec2.put(manual.one(1), takes=0.0, HttpPutResponseHopLimit=1)
    manual.passes()
    if rule:
        assert broken(manual) == rule
    else:
        manual.send(2)


WORSE: Final[list[tuple[str, Callable[[World], object], float]]] = [
    ("lost", lambda world: world.end("n3"), 1.0),
    ("lost", lambda world: world.end("n3", leaves_in=None), 70.0),
    ("not ready", lambda world: world.cluster.set_ready("n3", False), 1.0),
]


@pytest.mark.parametrize(("rule", "happens", "after"), WORSE)
def test_nothing_follows_once_one_is_worse(
    make: Make, rule: str, happens: Callable[[World], object], after: float
) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"soak": "20m"}})
    manual.passes(after=1_201.0)
    manual.send(3)
    happens(manual.world)
    assert broken(manual, after=after) == rule


LATE: Final[list[Callable[[World], object]]] = [
    lambda world: world.end("n3", leaves_in=None),
    lambda world: (world.cluster.set_ready("n3", False), world.end("n3", leaves_in=None)),
    lambda world: world.ec2.put(world.instance_of("n3"), HttpPutResponseHopLimit=1),
]


@pytest.mark.parametrize("happens", LATE)
@pytest.mark.parametrize("resumed", [True, False])
def test_a_person_settles_what_happened_before_a_resume(
    make: Make, resumed: bool, happens: Callable[[World], object]
) -> None:
    """Though it might have been read later."""
    manual = make(safety={**SPEC["safety"], "canary": {"soak": "20m"}})
    manual.passes(after=1_201.0)
    manual.send(3)
    manual.begin(40.0)
    if not resumed:
        manual.world.resume("p")
        manual.begin(1.0)
    happens(manual.world)
    manual.begin(20.0)
    if resumed:
        manual.world.resume("p")
        manual.send(2, after=70.0)
    else:
        assert broken(manual, after=70.0) in ("lost", "set back")


READ_AS_APPLIED: Final = pytest.mark.parametrize(
    ("takes", "stands", "seen"),
    [
        (0.0, 40.0, True),
        (0.0, 25.0, False),
        (60.0, 40.0, True),
        (65.0, 40.0, False),
        (1_000.0, -900.0, False),
    ],
)


@READ_AS_APPLIED
def test_nothing_follows_what_another_hand_sets_back_after_it_was_read_as_applied(
    make: Make, takes: float, stands: float, seen: bool
) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"soak": "20m"}})
    manual.passes(after=1_201.0)
    manual.world.ec2.applies_in = takes
    manual.send(3)
    manual.world.clock.now += takes + stands
    manual.world.ec2.put(manual.one(3), takes=0.0, HttpPutResponseHopLimit=1)
    if seen:
        assert broken(manual, after=70.0) == "set back"
    else:
        manual.world.clock.now += 40.0
        manual.world.ec2.put(manual.one(3), takes=0.0, HttpTokens="required")
        manual.send(2, after=70.0)


@READ_AS_APPLIED
def test_what_another_hand_sets_back_is_left_to_it_where_it_was_read_as_applied(
    make: Make, takes: float, stands: float, seen: bool
) -> None:
    manual = make()
    manual.tell(1)
    manual.world.ec2.applies_in = takes
    manual.send(1)
    manual.world.clock.now += takes + stands
    manual.world.ec2.put(manual.one(1), takes=0.0, HttpPutResponseHopLimit=1)
    if seen:
        assert broken(manual, 1, after=1.0) == "set back"
    else:
        manual.send(1, after=1.0)


def test_only_what_differs_and_is_allowed_is_sent(make: Make) -> None:
    manual = make()
    manual.passes()
    assert broken(manual, options=HOPS | {"HttpEndpoint": "enabled"}) == "differs"
    manual.world.ec2.put(manual.one(2), HttpPutResponseHopLimit=3)
    assert broken(manual, after=10.0) == "allowed"


@pytest.mark.parametrize(
    ("lacking", "since", "rule"),
    [("HttpEndpoint", 1.0, ""), ("HttpTokens", 1.0, "differs"), ("HttpEndpoint", -1.0, "differs")],
)
def test_an_option_that_this_process_has_never_read_may_be_sent(
    make: Make, lacking: str, since: float, rule: str
) -> None:
    """`since`: seconds from the last whole description to its start."""
    manual = make(options=SPEC["options"] | {"httpEndpoint": "enabled"})
    manual.passes()
    manual.world.ec2.describe({})
    manual.judge.led_since = manual.world.clock.now + since
    manual.world.ec2.untold, manual.world.ec2.lacking = 1, lacking
    manual.world.clock.now += 2.0
    manual.world.ec2.describe({})
    options = HOPS | {"HttpEndpoint": "enabled"}
    if rule:
        assert broken(manual, options=options) == rule
    else:
        manual.send(2, options)


@pytest.mark.parametrize(
    ("priority", "left", "rule"), [(200, False, ""), (200, True, "not ready"), (1, False, "not ready")]
)
def test_the_watch_of_an_instance_ends_where_another_policy_has_replaced_its_change(
    make: Make, priority: int, left: bool, rule: str
) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"soak": "20m"}})
    manual.passes(after=1_201.0)
    manual.send(3)
    manual.world.label("n3", {LABELS[GROUP[0]]: GROUP[1], "team": "x"})
    selector = {"nodeSelector": {"matchLabels": {"team": "x"}}}
    other = {"priority": priority, "selector": selector, "options": {"httpPutResponseHopLimit": 3}}
    manual.world.apply("q", **SPEC | other)
    if not left:
        manual.world.ec2.put(manual.one(3), by="q", takes=0.0, HttpPutResponseHopLimit=3)
    manual.world.cluster.set_ready("n3", False)
    if rule:
        assert broken(manual, after=1.0) == rule
    else:
        manual.send(2, after=1.0)


def test_an_audit_sends_nothing_and_nobody_sends_too_fast(make: Make) -> None:
    manual = make()
    manual.passes()
    for number in (2, 3, 4):
        manual.send(number)
    assert broken(manual, 5) == "pace"
    manual.world.apply("p", mode="Audit")
    assert broken(manual, 6, after=100.0) == "mode"


def test_a_pass_may_read_a_newer_spec_that_has_no_canary(make: Make) -> None:
    manual = make()
    manual.world.harmful.add((GROUP, "HttpPutResponseHopLimit", 2))
    manual.begin(1.0)
    manual.world.apply("p", safety={**SPEC["safety"], "canary": {"instances": 0}})
    manual.judge.sent("p", manual.one(2), HOPS, True)
    assert manual.judge.harmed == [(manual.one(2).name, False)]


def test_an_instance_that_two_nodes_name_is_missed_in_no_canary(make: Make) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"instances": 2, "soak": "2m"}})
    manual.begin(1_000.0)
    for number in range(3, 7):
        manual.world.end(f"n{number}")
    manual.world.twin("n2")
    manual.begin(1_000.0)
    manual.passes()


def test_a_canary_of_a_value_that_was_not_told_is_none_of_the_value_that_it_was(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.world.ec2.describe({})
    manual.judge.led_since = manual.world.clock.now + 1.0
    manual.world.ec2.untold, manual.world.ec2.lacking = 1, "HttpPutResponseHopLimit"
    manual.begin(2.0)
    manual.world.ec2.describe({})
    manual.world.ec2.calm()
    manual.send(1)
    manual.world.ec2.describe({})
    manual.tell(2)
    manual.send(2, after=1.0)
    manual.tell(3)
    assert broken(manual, 3, after=1.0) == "width"


@pytest.mark.parametrize(
    ("others", "mode", "rule"),
    [((3, 1), "Enforce", ""), ((3, 1), "Audit", "set back"), ((), "", "set back")],
)
def test_a_value_that_others_contend_for_may_be_set_back(
    make: Make, others: Sequence[int], mode: str, rule: str
) -> None:
    """Once its policy does not select it any more."""
    manual = make(
        selector={"exclude": {"matchLabels": {"team": "z"}}},
        safety={**SPEC["safety"], "canary": {"soak": "20m"}},
    )
    manual.passes(after=1_201.0)
    manual.send(3)
    manual.world.clock.now += 40.0
    for value in others:
        manual.world.apply(
            f"q{value}",
            **SPEC | {"mode": mode, "priority": 10, "options": {"httpPutResponseHopLimit": value}},
        )
    manual.world.label("n3", {LABELS[GROUP[0]]: GROUP[1], "team": "z"})
    manual.world.ec2.put(manual.one(3), takes=0.0, HttpPutResponseHopLimit=1)
    if rule:
        assert broken(manual, after=70.0) == rule
    else:
        manual.send(2, after=70.0)


def test_what_was_changed_without_canaries_is_not_watched(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.world.apply("p", safety={**SPEC["safety"], "canary": {"instances": 0}})
    manual.send(2)
    manual.world.apply("p", safety=SPEC["safety"])
    manual.world.cluster.set_ready("n2", False)
    manual.send(3, after=1.0)


def test_what_is_pending_is_left_alone(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.world.ec2.applies_in = 30.0
    manual.send(2)
    assert broken(manual, 2, after=1.0) == "twice"


def test_what_was_pending_when_it_was_read_may_have_ended(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.world.ec2.applies_in = 1e9
    manual.send(2)
    manual.world.clock.now += 61.0
    manual.world.ec2.end(manual.one(2))
    manual.send(2, after=1.0)
    manual.world.ec2.applies_in = 0.0
    manual.send(3)
    assert broken(manual, 3, after=61.0) == "differs"


def test_what_is_sent_once_more_is_restored_to_what_it_was(make: Make) -> None:
    safety = SPEC["safety"] | {"canary": {"soak": "2m", "onFailure": "Restore"}, "allowTightening": WORDS}
    manual = make(safety=safety, options=SPEC["options"] | {"httpTokens": "optional"})
    manual.world.ec2.applies_in = 1e9
    manual.tell(1)
    manual.send(1)
    manual.send(1, after=61.0)
    manual.world.cluster.set_ready("n1", False)
    manual.tell(1, breaker={"reason": "CanaryNotReady"})
    manual.send(1, {"HttpPutResponseHopLimit": 1}, after=1.0)
    manual.world.cluster.set_ready("n1", True)
    assert manual.judge.taken[manual.world.cluster.policy("p").uid][manual.one(1).name].restored


def test_an_option_that_was_not_sent_is_not_sent_with_a_repeated_call(make: Make) -> None:
    manual = make(options=SPEC["options"] | {"httpTokens": "optional"})
    manual.world.ec2.applies_in = 1e9
    manual.tell(1)
    manual.send(1)
    assert broken(manual, 1, 61.0, HOPS | {"HttpTokens": "optional"}) == "differs"


def test_what_is_pending_too_long_is_sent_once_more_whatever_another_has_sent(make: Make) -> None:
    safety = {**SPEC["safety"], "canary": {"instances": 0}, "allowTightening": WORDS}
    manual = make(safety=safety)
    manual.world.apply("q", **SPEC | {"options": {"httpTokens": "required"}, "safety": safety})

    def other(after: float) -> None:
        manual.world.clock.now += after
        manual.judge.begins("q")
        manual.judge.sent("q", manual.one(1), {"HttpTokens": "required"}, True)
        manual.world.ec2.put(manual.one(1), by="q", HttpTokens="required")

    manual.world.ec2.applies_in = 1e9
    manual.send(1, after=1.0)
    other(0.0)
    other(61.0)
    manual.send(1, after=1.0)
    assert broken(manual, 1, after=1.0) == "twice"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_finding_that_is_not_as_expected_on_a_node_of_the_policy_stops_all(
    make: Make, leaves: bool
) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"instances": 1, "soak": "2m"}})
    manual.passes()
    manual.send(2)
    manual.world.cluster.needs = 9
    manual.world.clock.now += 5.0
    found = manual.world.cluster._measure("n2")
    found.asked = found.at + 60.0
    manual.world.cluster.measured["n2"].append(found)
    spec = {"verification": {"probe": True}}
    if leaves:
        manual.world.label("n2", manual.world.cluster.labels["n2"] | {"team": "x"})
        manual.world.label("n1", manual.world.cluster.labels["n1"] | {"team": "y"})
        manual.world.label("n3", manual.world.cluster.labels["n3"] | {"team": "y"})
        spec |= {"selector": {"nodeSelector": {"matchLabels": {"team": "y"}}}}
    manual.world.cluster.apply("p", spec)
    for expected in manual.judge.expected.values():  # as if the canary had been probed
        expected.update(dict.fromkeys(expected, "PodReachable"))
    if leaves:
        manual.send(3, after=1.0)
    else:
        assert broken(manual, 3, after=1.0) == "probe"


# ---------------------------------------------------------------- who decides


@pytest.mark.parametrize(
    ("priority", "during", "rule"), [(200, False, "wins"), (1, False, ""), (200, True, "")]
)
def test_what_another_policy_decides_is_left_to_it(
    make: Make, priority: int, during: bool, rule: str
) -> None:
    """`during`: it comes while the pass is under way."""
    manual = make()
    manual.passes()
    if during:
        manual.begin()
    manual.world.clock.now += 1.0
    manual.world.apply("q", **SPEC | {"priority": priority, "options": {"httpPutResponseHopLimit": 3}})
    if during:
        manual.judge.sent("p", manual.one(2), HOPS, True)
    elif rule:
        assert broken(manual, after=1.0) == rule
    else:
        manual.send(2, after=1.0)


@pytest.mark.parametrize(("seconds", "rule"), [(4.0, ""), (6.0, "mode")])
def test_a_policy_that_is_deleted_sends_nothing(make: Make, seconds: float, rule: str) -> None:
    """But what was on its way."""
    manual = make()
    manual.passes()
    manual.begin()
    manual.world.delete("p")
    manual.world.clock.now += seconds
    if rule:
        with pytest.raises(Breach, match="mode: p is gone"):
            manual.judge.sent("p", manual.one(2), HOPS, True)
    else:
        manual.judge.sent("p", manual.one(2), HOPS, True)


@pytest.mark.parametrize("suspended", [True, False])
def test_a_suspended_policy_sends_nothing(make: Make, suspended: bool) -> None:
    manual = make()
    manual.passes()
    manual.world.apply("p", suspend=True)
    manual.begin(1.0)
    manual.world.apply("p", suspend=suspended)
    if suspended:
        assert broken(manual, after=1.0) == "mode"
    else:
        manual.send(2, after=1.0)


def test_instances_are_not_read_while_a_policy_is_suspended(make: Make) -> None:
    """What is set back and undone meanwhile is not seen."""
    manual = make(safety=SPEC["safety"] | {"canary": {"soak": "5m"}})
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 10.0
    manual.world.apply("p", suspend=True)
    manual.world.ec2.put(manual.one(1), HttpPutResponseHopLimit=1)
    manual.begin(100.0)
    manual.world.ec2.put(manual.one(1), HttpPutResponseHopLimit=2)
    manual.world.apply("p", suspend=False)
    manual.begin(300.0)
    manual.tell(passed=[PASSED])
    manual.send(2)


# ---------------------------------------------------------------- whose canary it is


B: Final[Group] = ("AutoScalingGroup", "b")


def to_another_label(manual: ManualOperator) -> None:
    manual.world.label("n1", {LABELS[GROUP[0]]: "b"})


def out_of_its_group(manual: ManualOperator) -> None:
    manual.world.attach("n1", "")


@pytest.mark.parametrize(
    ("group", "moves", "passes", "rule"),
    [
        (GROUP, to_another_label, (1.0,), "canary"),
        (GROUP, to_another_label, (), ""),
        (B, out_of_its_group, (10.0, 90.0), "canary"),
        (B, out_of_its_group, (60.0,), ""),
        (B, out_of_its_group, (600.0,), ""),
    ],
    ids=["by a label", "in its last pass", "by a tag", "by a tag that is not read yet", "by a tag, idle"],
)
def test_a_canary_that_is_of_another_group_does_not_pass(
    make: Make, group: Group, moves: Callable[[ManualOperator], None], passes: Sequence[float], rule: str
) -> None:
    manual = make(group=group)
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 130.0
    if passes:
        moves(manual)
        for after in passes:
            manual.begin(after)
            manual.world.ec2.describe({})
    else:
        manual.begin()
        manual.world.clock.now += 1.0
        moves(manual)
    manual.tell(passed=manual.changes)
    if rule:
        assert broken(manual) == rule
    else:
        manual.send(2)


def test_a_canary_that_moves_as_it_is_changed_is_one_of_the_group_that_it_left(make: Make) -> None:
    """Its call is on its way. It takes no place in the other group, and no harm is reported."""
    manual = make()
    manual.world.harmful.add(((GROUP[0], "b"), "HttpPutResponseHopLimit", 2))
    manual.tell(1)
    manual.begin()
    manual.world.clock.now += 0.1
    to_another_label(manual)
    manual.judge.sent("p", manual.one(1), HOPS, True)
    assert list(manual.judge.tries[manual.world.cluster.policy("p").uid]) == [
        (GROUP, "HttpPutResponseHopLimit", "1", "2")
    ]
    assert manual.judge.harmed == [(manual.one(1).name, True)]


@pytest.mark.parametrize("named", [True, False])
def test_what_passes_has_a_canary_that_was_changed_so(make: Make, named: bool) -> None:
    manual = make()
    if named:
        manual.tell(1)
    manual.world.clock.now += 130.0
    manual.tell(passed=[PASSED])
    with pytest.raises(Breach, match="never changed so" if named else "no instance is named"):
        manual.send(2)


def test_a_canary_after_one_that_has_passed_is_no_second_one(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.tell(2)
    manual.send(2)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("Any", "PodReachable", "canary"),
        ("PodBlocked", "PodReachable", "canary"),
        ("PodReachable", "PodReachable", ""),
        ("PodReachable", "Any", ""),
        ("PodReachable", "", ""),
        ("", "Any", "canary"),
    ],
)
def test_what_was_proved_to_be_something_else_does_not_count(
    make: Make, before: str, after: str, rule: str
) -> None:
    manual = make(verification={"probe": bool(before), "expect": before or "Any"})
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 100.0
    manual.world.cluster.measured["n1"].append(manual.world.cluster._measure("n1"))
    if before == "PodBlocked":
        manual.world.cluster.measured["n1"][-1].verdict = "Blocked"
        manual.world.cluster.measured["n1"][-1].open = False
    manual.world.clock.now += 30.0
    manual.tell(passed=[PASSED])
    manual.world.cluster.measured.clear()
    manual.world.apply("p", verification={"probe": bool(after), "expect": after or "Any"})
    if rule:
        assert broken(manual, after=1.0) == rule
    else:
        manual.send(2, after=1.0)


# ---------------------------------------------------------------- several Nodes of one instance


@pytest.mark.parametrize(
    ("joins", "leaves", "rule"), [(1.0, False, "twins"), (0.0, False, ""), (1.0, True, "")]
)
def test_an_instance_that_several_nodes_name_is_left_alone(
    make: Make, joins: float, leaves: bool, rule: str
) -> None:
    manual = make()
    manual.passes()
    manual.begin()
    twin = manual.world.twin("n2", **{LABELS[GROUP[0]]: GROUP[1]})
    if leaves:
        manual.world.remove("n2")
        assert manual.one(2).node == twin
    if rule:
        assert broken(manual, after=joins) == rule
    else:
        manual.send(2, after=joins)


def test_a_canary_that_several_nodes_name_does_not_pass(make: Make) -> None:
    manual = make()
    manual.tell(1)
    manual.send(1)
    manual.world.twin("n1")
    manual.begin(130.0)
    manual.tell(passed=[PASSED])
    assert broken(manual) == "canary"


# ---------------------------------------------------------------- what another policy has held


def excepted(make: Make) -> tuple[ManualOperator, Any]:
    """Another policy holds the former value on two nodes, and what has passed."""
    manual = make(priority=10)
    for node in ("n2", "n3"):
        manual.world.label(node, {LABELS[GROUP[0]]: GROUP[1], "team": "x"})
    manual.passes()
    kept = manual.status["canary"]["passed"]
    selector = {"nodeSelector": {"matchLabels": {"team": "x"}}}
    manual.world.apply("q", **SPEC | {"options": {"httpPutResponseHopLimit": 1}, "selector": selector})
    manual.begin(1.0)
    manual.tell(passed=kept)
    manual.begin(1.0)
    return manual, kept


@pytest.mark.parametrize(
    ("ends", "rule"),
    [
        (lambda world: world.delete("q"), "canary"),
        (lambda world: world.apply("q", mode="Audit"), "canary"),
        (lambda world: world.apply("q", priority=1), "canary"),
        (lambda world: world.label("n2", {LABELS[GROUP[0]]: GROUP[1]}), "canary"),
        (lambda _: None, ""),
        (lambda world: world.apply("q", suspend=True), ""),
        (lambda world: world.end("n2"), ""),
    ],
    ids=["deleted", "audits", "yields", "one label", "stands", "suspended", "a node goes"],
)
def test_what_passed_before_an_exception_does_not_count_after_it(
    make: Make, ends: Callable[[World], object], rule: str
) -> None:
    manual, kept = excepted(make)
    ends(manual.world)
    manual.begin(1.0)
    manual.tell(passed=kept)
    if rule:
        with pytest.raises(Breach, match=r"canary: .* another policy has released n2 since it passed"):
            manual.send(4)
    else:
        manual.send(4)


def test_a_canary_after_an_exception_counts(make: Make) -> None:
    manual, _ = excepted(make)
    manual.world.delete("q")
    manual.begin(1.0)
    manual.passes(4)
    manual.send(5)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_exception_that_takes_as_many_nodes_as_it_releases_is_known_by_name(
    make: Make, restarts: bool
) -> None:
    manual, kept = excepted(make)
    if restarts:
        manual.judge.led_since = manual.world.clock.now + 1
    labels = {LABELS[GROUP[0]]: GROUP[1]}
    manual.world.label("n2", labels)
    manual.world.label("n4", labels | {"team": "x"})
    manual.begin(1.0)
    manual.tell(passed=kept)
    if restarts:  # numbers alone are in the status
        manual.send(5)
    else:
        assert broken(manual, 5) == "canary"


# ---------------------------------------------------------------- the breaker, and what the probe finds


OPEN: Final = {"reason": "CanaryLost"}


def test_an_open_breaker_stops_all(make: Make) -> None:
    manual = make()
    manual.passes()
    manual.tell(breaker=OPEN, **manual.status["canary"])
    assert broken(manual) == "breaker"


@pytest.mark.parametrize("resumed", ["resumed", "edited", ""])
def test_a_person_alone_closes_the_breaker(make: Make, resumed: str) -> None:
    manual = make()
    manual.begin(10.0)
    manual.tell(1, breaker=OPEN)
    manual.begin(10.0)
    if resumed == "resumed":
        manual.world.resume("p")
    elif resumed:
        manual.world.apply("p", priority=11)
    if resumed:
        manual.tell(1)
    else:
        with pytest.raises(Breach, match="breaker: that of p is closed"):
            manual.tell(1)


@pytest.mark.parametrize("failed", [True, False])
def test_a_canary_is_restored_once_it_has_failed(make: Make, failed: bool) -> None:
    safety = SPEC["safety"] | {"canary": {"soak": "2m", "onFailure": "Restore"}, "allowTightening": WORDS}
    manual = make(safety=safety)
    manual.tell(1)
    manual.send(1)
    manual.tell(1, breaker=OPEN if failed else None)
    if failed:
        manual.send(1, {"HttpPutResponseHopLimit": 1}, after=1.0)
    else:
        assert broken(manual, 1, 1.0, {"HttpPutResponseHopLimit": 1}) == "wins"


@pytest.mark.parametrize(
    ("ready", "restored", "dropped"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_failed_canary_is_kept_while_it_has_its_change_and_is_not_ready(
    make: Make, ready: bool, restored: bool, dropped: bool
) -> None:
    safety = SPEC["safety"] | {"canary": {"soak": "2m", "onFailure": "Restore"}, "allowTightening": WORDS}
    manual = make(safety=safety)
    manual.tell(1)
    manual.send(1)
    manual.world.cluster.set_ready("n1", ready)
    manual.begin(100.0)
    manual.tell(1, breaker=OPEN)
    manual.status["canary"]["groups"][0]["phase"] = "Failed"
    if restored:
        manual.send(1, {"HttpPutResponseHopLimit": 1})
    manual.begin(100.0)
    manual.world.resume("p")
    if dropped:
        with pytest.raises(Breach, match="dropped: i-00000001 has its change"):
            manual.tell(2)
    else:
        manual.tell(2)


@pytest.mark.parametrize(("most", "rule"), [(84, ""), (83, "drift")])
def test_nothing_is_changed_where_too_many_differ(make: Make, most: int, rule: str) -> None:
    """Five of six."""
    manual = make(safety={**SPEC["safety"], "maxDriftPercent": most})
    manual.passes()
    manual.begin(700.0)
    if rule:
        assert broken(manual) == rule
    else:
        manual.send(2)


@pytest.mark.parametrize(("selected", "rule"), [("x", ""), ("y", "wins")])
def test_an_excluded_instance_is_not_the_policys(make: Make, selected: str, rule: str) -> None:
    manual = make(selector={"exclude": {"matchLabels": {TEAM: "y"}}})
    for number in range(1, 7):
        manual.world.label(f"n{number}", manual.world.cluster.labels[f"n{number}"] | {TEAM: "x"})
    manual.passes()
    manual.world.label("n2", manual.world.cluster.labels["n2"] | {TEAM: selected})
    manual.begin(200.0)
    if rule:
        assert broken(manual, after=700.0) == rule
    else:
        manual.send(2)


def none_is_left(manual: ManualOperator) -> None:
    for number in range(2, 7):
        manual.world.ec2.put(manual.one(number), takes=0.0, HttpPutResponseHopLimit=2)
    manual.judge.ends("p")
    manual.world.join(GROUP)


def comes_and_goes(manual: ManualOperator) -> None:
    """Before the loss was noticed, a person has resumed its policy once more."""
    node = manual.world.cluster.nodes["n1"]
    manual.world.remove("n1")
    manual.world.resume("p")
    manual.world.cluster.put_node(msgspec.structs.replace(node, uid="another"))


OVER: Final[dict[str, tuple[Callable[[ManualOperator], object], str]]] = {
    "it is lost": (lambda _: None, "lost"),
    "its change has passed": (
        lambda manual: manual.judge.proved_at[manual.judge._cluster.policy("p").uid].update(
            {(GROUP, "HttpPutResponseHopLimit", "1", "2"): 0.0}
        ),
        "",
    ),
    "none is left": (none_is_left, ""),
    "another policy wants it": (
        lambda manual: manual.world.apply(
            "q",
            mode="Enforce",
            priority=200,
            options={"httpPutResponseHopLimit": 2},
            selector={"groups": [{"kind": GROUP[0], "names": ["b"]}]},
        ),
        "",
    ),
    "its policy was edited": (lambda manual: manual.world.apply("p", priority=11), ""),
    "it was reverted": (
        lambda manual: manual.world.ec2.put(manual.one(1), takes=0.0, HttpPutResponseHopLimit=1),
        "",
    ),
    "it is gone at a resume": (comes_and_goes, ""),
}


@pytest.mark.parametrize("how", OVER)
def test_one_of_a_failed_canary_counts_until_its_change_has_passed(make: Make, how: str) -> None:
    """It has left its group, and is lost minutes after a resume."""
    happens, rule = OVER[how]
    manual = make()
    manual.begin(700.0)
    manual.tell(1)
    manual.send(1)
    manual.begin(30.0)
    manual.world.label("n1", {LABELS[GROUP[0]]: "b"})
    manual.tell(1, breaker=OPEN)
    manual.begin(10.0)
    manual.world.resume("p")
    manual.begin(1.0)
    manual.tell(2)
    manual.judge.ends("p")
    manual.begin(400.0)
    happens(manual)
    manual.judge.ends("p")
    manual.begin(10.0)
    manual.world.end("n1", leaves_in=None)
    number = 7 if how == "none is left" else 2
    manual.tell(number)
    manual.begin(100.0)
    if rule:
        assert broken(manual, number, after=1.0) == rule
    else:
        manual.send(number, after=1.0)


@pytest.mark.parametrize("left", [{}, {"HttpTokens": "required"}], ids=["nothing", "a part"])
def test_one_that_has_nothing_of_its_change_at_a_resume_is_not_lost_after_it(
    make: Make, left: dict[str, Any]
) -> None:
    """Another client has reverted it. `left`: of its change."""
    change = HOPS | {"HttpTokens": "required"}
    options = {"httpPutResponseHopLimit": 2, "httpTokens": "required"}
    manual = make(options=options, safety={**SPEC["safety"], "allowTightening": WORDS})
    manual.tell(1)
    manual.send(1, change)
    manual.begin(40.0)
    manual.world.ec2.put(manual.one(1), takes=0.0, **manual.one(1).launched | left)
    manual.begin(70.0)
    manual.world.resume("p")
    manual.begin(1.0)
    manual.world.end("n1", leaves_in=None)
    manual.tell(2)
    manual.begin(70.0)
    if left:
        assert broken(manual, 2, 1.0, change) == "lost"
    else:
        manual.send(2, change, after=1.0)


@pytest.mark.parametrize(("closes", "rule"), [(True, ""), (False, "set back")])
def test_what_is_set_back_before_the_breaker_is_closed_is_settled(
    make: Make, closes: bool, rule: str
) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"soak": "20m"}})
    manual.tell(1)
    manual.send(1)
    manual.tell(1, breaker=OPEN)
    manual.begin(60.0)
    manual.world.resume("p")
    if not closes:
        manual.tell(2)
    manual.begin(1.0)
    manual.world.ec2.put(manual.one(1), takes=0.0, HttpPutResponseHopLimit=1)
    manual.begin(1.0)
    manual.tell(2)
    manual.begin(90.0)
    if rule:
        assert broken(manual, after=1.0) == rule
    else:
        manual.send(2, after=1.0)


@pytest.mark.parametrize("how", ["refused", "refused before", "unserved", "refused, and not asked for", ""])
def test_nothing_is_changed_while_the_probe_cannot_be_used(make: Make, how: str) -> None:
    manual = make()
    manual.passes()
    manual.judge.expected[manual.world.cluster.policy("p").uid].update(
        {(GROUP, "HttpPutResponseHopLimit", "1", "2"): "PodReachable"}
    )
    manual.world.apply("p", verification={"probe": "not asked" not in how})
    manual.begin(1.0)
    manual.judge.used("p", "get", "refused" in how)
    manual.judge.used("p", "get", "refused" in how and "before" not in how)
    manual.judge.serves = how != "unserved"
    if how in ("refused", "unserved"):
        with pytest.raises(Breach, match="unprobed: p changes something without a probe"):
            manual.judge.sent("p", manual.one(2), HOPS, True)
    else:
        manual.judge.sent("p", manual.one(2), HOPS, True)


@pytest.mark.parametrize(
    ("lost", "read", "edits", "rule"),
    [
        (False, False, [], "probe"),
        (False, True, [{}, {"probe": True}], "probe"),
        (True, True, [], "probe"),
        (True, True, [{"probe": True}], "probe"),
        (True, False, [], ""),
        (True, True, [{}, {"probe": True}], ""),
        (True, True, [{"probe": True, "expect": "Any"}, {"probe": True}], ""),
    ],
)
def test_a_finding_counts_though_its_ledger_is_lost_once_it_was_read(
    make: Make, lost: bool, read: bool, edits: list[dict[str, Any]], rule: str
) -> None:
    """As one that the policy does not expect: only those are kept."""
    manual = make(verification={"probe": True})
    manual.tell(1)
    manual.send(1)
    manual.world.clock.now += 100.0
    manual.world.cluster.measured["n1"].append(manual.world.cluster._measure("n1"))
    manual.world.clock.now += 30.0
    manual.tell(passed=[PASSED])
    manual.send(2)
    manual.world.cluster.needs = 9
    manual.world.clock.now += 60.0
    found = manual.world.cluster._measure("n2")
    found.asked = found.at
    manual.world.cluster.measured["n2"].append(found)
    if read:
        manual.begin(1.0)
        manual.judge.ends("p")
    manual.world.clock.now += 1.0
    found.lost = manual.world.clock.now if lost else found.lost
    for verification in edits:
        manual.world.apply("p", verification=verification)
    if rule:
        assert broken(manual, 3, after=1.0) == rule
    else:
        manual.send(3, after=1.0)


@pytest.mark.parametrize(("another", "rule"), [("disabled", ""), ("enabled", "probe")])
def test_an_endpoint_that_a_policy_disables_need_not_be_reached(make: Make, another: str, rule: str) -> None:
    manual = make()
    manual.passes()
    manual.send(2)
    manual.world.apply("q", **SPEC | {"options": {"httpEndpoint": another}, "safety": {}})
    manual.world.ec2.put(manual.one(2), takes=0.0, HttpEndpoint="disabled")
    manual.world.clock.now += 60.0
    found = manual.world.cluster._measure("n2")
    found.asked = found.at
    manual.world.cluster.measured["n2"].append(found)
    manual.world.apply("p", verification={"probe": True})
    for expected in manual.judge.expected.values():
        expected.update(dict.fromkeys(expected, "PodReachable"))
    if rule:
        assert broken(manual, 3, after=1.0) == rule
    else:
        manual.send(3, after=1.0)


@pytest.mark.parametrize(("after", "rule"), [(0.0, ""), (1.0, "lost")])
def test_a_node_that_registers_again_at_once_was_not_lost(make: Make, after: float, rule: str) -> None:
    manual = make(safety={**SPEC["safety"], "canary": {"soak": "20m"}})
    manual.passes(after=1_201.0)
    manual.send(3)
    node = manual.world.cluster.nodes["n3"]
    manual.world.remove("n3")
    if after:
        manual.begin(after)
        manual.judge.ends("p")
    manual.world.clock.now += after
    manual.world.cluster.put_node(msgspec.structs.replace(node, uid="another"))
    if rule:
        assert broken(manual, after=1.0) == rule
    else:
        manual.send(2, after=1.0)


@pytest.mark.parametrize(("canary", "rule"), [(True, "not ready"), (False, "")])
def test_a_canary_that_is_not_ready_stops_all_however_long_ago_it_was_changed(
    make: Make, canary: bool, rule: str
) -> None:
    """What follows a canary is watched for a while only."""
    manual = make()
    manual.passes()
    manual.send(3)
    manual.begin(400.0)
    manual.tell(*[3] * canary, passed=manual.status["canary"]["passed"])
    manual.world.cluster.set_ready("n3", False)
    if rule:
        assert broken(manual, after=1.0) == rule
    else:
        manual.send(2, after=1.0)
