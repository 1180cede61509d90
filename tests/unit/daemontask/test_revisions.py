"""What a revision is of: other words for a template change nothing, another meaning always does."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api.daemontask import FormerRevision, Spec, Status
from caretaker.api.hashing import h10
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pods import hashes_of, normalised, revision_of, revisions_of
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from fuzz.cost import seconds
from testing.examples import examples
from testing.templates import FULL, changes, noisy
from unit.daemontask.build import TEMPLATE, entry, node, planned, snapshot, started, states, task

Json = dict[str, Any]


def revision(template: Json) -> str:
    return revision_of(Spec(template=template))


def written(template: Json) -> str:
    """The revision that earlier versions gave."""
    return h10(msgspec.json.encode(template, order="sorted").decode())


def spec(**fields: Any) -> Json:
    return {"spec": {**TEMPLATE["spec"], **fields}}


def main(**fields: Any) -> Json:
    return spec(containers=[{**TEMPLATE["spec"]["containers"][0], **fields}])


def test_a_template_without_nothings_has_the_revision_it_ever_had() -> None:
    """Hashes of 0.1.0."""
    assert revision(TEMPLATE) == "jvjsxro2el"
    assert revision(FULL) == written(FULL) == "yn3vhv7rrx"


NOTHINGS = [
    pytest.param({"metadata": {}, **TEMPLATE}, id="metadata: {}"),
    pytest.param({"metadata": {"creationTimestamp": None}, **TEMPLATE}, id="creationTimestamp: null"),
    pytest.param(main(resources={}), id="resources: {}"),
    pytest.param(main(resources={"limits": {}, "requests": None}), id="resources that are empty inside"),
    pytest.param(main(env=[], args=None, command=[]), id="empty lists"),
    pytest.param(main(securityContext={"capabilities": {"drop": []}}), id="securityContext, empty inside"),
    pytest.param(
        spec(affinity={"nodeAffinity": {}}, securityContext={}, hostNetwork=False), id="as Helm has it"
    ),
    pytest.param(main(terminationMessagePath="/dev/termination-log"), id="a default, spelt out"),
]


@pytest.mark.parametrize("template", NOTHINGS)
def test_what_says_nothing_runs_nothing_again(template: Json) -> None:
    found = planned(task(template=template), [node("a")], entries={"a": entry(node("a"))})
    assert (states(found), started(found)) == ({"succeeded": 1}, [])


@settings(max_examples=examples(60), deadline=None)
@given(noisy(FULL))
def test_other_words_for_a_template_are_the_same_revision(template: Json) -> None:
    assert revision(template) == revision(FULL)


def test_another_meaning_is_another_revision_wherever_it_is() -> None:
    found = {revision(other) for other in changes(FULL)}
    assert revision(FULL) not in found
    assert len(found) > 100


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_another_meaning_is_another_revision_in_whatever_words(data: st.DataObject) -> None:
    other = data.draw(st.sampled_from(changes(FULL)))
    assert revision(data.draw(noisy(other))) != revision(data.draw(noisy(FULL)))


TERM: Json = {"topologyKey": "zone"}


def anti(term: Json) -> Json:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return spec(affinity={"podAntiAffinity": terms})


def volume(**source: Any) -> Json:
    return spec(volumes=[{"name": "v", **source}])


PAIRS = [
    pytest.param(anti(TERM), anti({**TERM, "labelSelector": {}}), id="no Pods, all Pods"),
    pytest.param(anti(TERM), anti({**TERM, "namespaceSelector": {}}), id="this namespace, all namespaces"),
    pytest.param(spec(tolerations=[]), spec(tolerations=[{}]), id="a toleration without anything"),
    pytest.param(spec(nodeSelector={"a": ""}), spec(nodeSelector={}), id="a label's empty value"),
    pytest.param(spec(nodeSelector={"a": None}), spec(nodeSelector={}), id="a label's null"),
    pytest.param(TEMPLATE, spec(terminationGracePeriodSeconds=0), id="no grace"),
    pytest.param(TEMPLATE, spec(securityContext={"runAsUser": 0}), id="root"),
    pytest.param(TEMPLATE, spec(hostUsers=False), id="a false that is no default"),
    pytest.param(TEMPLATE, spec(automountServiceAccountToken=False), id="no token"),
    pytest.param(TEMPLATE, main(securityContext={"seLinuxOptions": {}}), id="not the Pod's SELinux options"),
    pytest.param(volume(), volume(emptyDir={}), id="emptyDir, though it is the default"),
    pytest.param(volume(emptyDir={"sizeLimit": "0"}), volume(emptyDir={}), id="a size of none"),
    pytest.param(main(args=[""]), main(args=[]), id="an empty argument"),
    pytest.param(main(args=["a", "b"]), main(args=["b", "a"]), id="another order"),
    pytest.param(
        main(resources={"limits": {"cpu": "0"}}), main(resources={"limits": {}}), id="a limit of none"
    ),
    pytest.param(main(resources={"limits": {"a": "1e3"}}), main(resources={"limits": {"a": "1E"}}), id="exa"),
    pytest.param(spec(overhead={}), TEMPLATE, id="an overhead, which admission refuses though it is empty"),
    pytest.param(spec(unknown={}), TEMPLATE, id="a field of a newer Kubernetes"),
    pytest.param(spec(unknown={"metadata": {}}), spec(unknown={}), id="a field in one"),
    pytest.param(spec(hostNetwork=0), TEMPLATE, id="a wrong type, which the API server refuses"),
    pytest.param(main(resources=[]), TEMPLATE, id="a list that is no object"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_what_is_empty_and_means_something_is_another_revision(one: Json, other: Json) -> None:
    assert revision(one) != revision(other)


QUANTITIES = [
    *[(text, text) for text in ("1", "500m", "100k", "64Mi", "1Gi", "1e3", "1n", "1E", "1Ei", "-1500m")],
    ("1000m", "1"),
    ("1000", "1k"),
    ("0m", "0"),
    ("0.5Ki", "512"),
    ("1.5Gi", "1536Mi"),
    ("+5.", "5"),
    ("1e99", "1e99"),
    ("1.1Ki", "1.1Ki"),
    ("0.1n", "0.1n"),
    (".", "."),
    ("lots", "lots"),
    ("9" * 5000, "9" * 5000),
]


@pytest.mark.parametrize(("given_", "meant"), QUANTITIES)
def test_quantities_are_as_the_api_server_writes_them(given_: str, meant: str) -> None:
    found = normalised(main(resources={"limits": {"x": given_}}))
    assert found == main(resources={"limits": {"x": meant}})


def spent(template: Json) -> float:
    """CPU seconds."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        normalised(template)
        times.append(time.thread_time() - began)
    return min(times)


@pytest.mark.parametrize(
    ("most", "of"),
    [
        pytest.param(
            8000, lambda n: main(env=[{"name": f"V{i}", "value": ""} for i in range(n)]), id="variables"
        ),
        pytest.param(
            16000, lambda n: main(resources={"limits": {f"x{i}": "1n" for i in range(n)}}), id="quantities"
        ),
        pytest.param(60000, lambda n: main(args=["x"] * n), id="arguments"),
    ],
)
def test_the_largest_templates_cost_no_more_than_in_proportion(most: int, of: Callable[[int], Json]) -> None:
    """The square of four would be sixteen."""
    assert spent(of(most)) < 10 * spent(of(most // 4)) + 0.001


@pytest.mark.parametrize("part", [{}, [], "", 0])
def test_what_is_empty_is_hashed_within_a_turn_of_the_loop(part: Any) -> None:
    count = 250_000 // (len(msgspec.json.encode(part)) + 1)
    for template in (main(env=[part] * count), main(args=[part] * count)):
        assert seconds(lambda template=template: hashes_of(template), 0.025) <= 0.025, "CPU; it took 0.09 s"


class TestUpgrade:
    """From a version that hashed the template as it was written."""

    noise = NOTHINGS[1].values[0]

    def before(self, template: Any) -> Status:
        return Status(observed_generation=1, current_revision=written(template))

    def test_what_ran_under_the_old_name_does_not_run_again(self) -> None:
        old, a = written(self.noise), node("a")
        assert old != revision(self.noise)
        record = {"a": entry(a, revision=old)}
        name, former = revisions_of(Spec(template=self.noise), self.before(self.noise))
        of = task(template=self.noise, status=self.before(self.noise))
        seen = snapshot(of, [a], entries=record, revision=name, former=former)
        made = plan(seen)
        assert started(made) == []
        stands = status_of(seen, made, Outcome())
        assert stands.current_revision == old
        # In other words: still the same.
        assert revision_of(Spec(template=TEMPLATE), stands) == old
        assert revision_of(Spec(template=NOTHINGS[0].values[0]), stands) == old
        # Another meaning, and back.
        other = revision_of(Spec(template=FULL), stands)
        assert other == revision(FULL)
        changed = msgspec.structs.replace(stands, current_revision=other)
        assert revision_of(Spec(template=self.noise), changed) == old

    def test_a_template_without_nothings_needs_no_second_name(self) -> None:
        assert revisions_of(Spec(template=FULL), self.before(FULL)) == (written(FULL), None)

    def test_a_spec_that_cannot_be_read_for_a_while_forgets_nothing(self) -> None:
        former = FormerRevision(revision(self.noise), written(self.noise))
        kept = Status(current_revision=revision({}), former_revision=former)
        assert revisions_of(Spec(), kept)[1] == former
        assert revision_of(Spec(template=self.noise), kept) == written(self.noise)
