"""What counts as killed, what is listed as equivalent, and that the list can be read."""

import pytest

from mutants.score import FILE, Change, change, equivalents, obsolete, place, scored, table
from mutants.workplace import modules

DIFF = """# caretaker.imds.rate_limiter.xǁAdaptiveRateLimiterǁnext__mutmut_3: survived
--- src/caretaker/imds/rate_limiter.py
+++ src/caretaker/imds/rate_limiter.py
@@ -1,5 +1,4 @@
 def next(self) -> int:
-    found = first(
-        self.one)
+    found = None
     return found
"""
LISTED = """
[[equivalent]]
in = "imds.rate_limiter.AdaptiveRateLimiter.next"
why = "nobody reads it"
changes = [['found = first( self.one)', 'found = None'], ['a', 'b']]
"""
MUTANT = Change("imds.rate_limiter.AdaptiveRateLimiter.next", "found = first( self.one)", "found = None")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("caretaker.daemontask.node_eligibility.x__show__mutmut_12", "daemontask.node_eligibility._show"),
        ("caretaker.daemontask.ecs.plan.x_xor__mutmut_1", "daemontask.ecs.plan.xor"),
        (
            "caretaker.daemontask.node_eligibility.xǁNodeEligibilityǁ_special__mutmut_1",
            "daemontask.node_eligibility.NodeEligibility._special",
        ),
        (
            "caretaker.daemontask.node_eligibility.xǁNodeEligibilityǁ__init____mutmut_1",
            "daemontask.node_eligibility.NodeEligibility.__init__",
        ),
    ],
)
def test_where_a_mutant_is(name: str, expected: str) -> None:
    assert place(name) == expected


def test_a_mutant_is_known_by_the_lines_that_it_changes() -> None:
    name = "caretaker.imds.rate_limiter.xǁAdaptiveRateLimiterǁnext__mutmut_3"
    assert change(name, DIFF) == change(name, DIFF.replace("@@ -1,5 +1,4 @@", "@@ -7,5 +9,4 @@")) == MUTANT


def test_what_is_equivalent_is_left_out_of_the_score() -> None:
    listed = equivalents(LISTED)
    assert listed[MUTANT] == "nobody reads it"
    statuses = {"a": "killed", "b": "timeout", "c": "survived", "d": "no tests", "e": "segfault"}
    changes = {"c": MUTANT, "d": Change("imds.rate_limiter.AdaptiveRateLimiter.next", "x", "y")}
    score = scored("imds.rate_limiter", statuses, changes, listed)
    assert (score.killed, score.equivalent, score.survivors, score.percent) == (3, 1, ("d",), 75.0)


def test_the_table_has_how_many_of_the_killed_only_ran_out_of_time() -> None:
    score = scored("imds.rate_limiter", {"a": "killed", "b": "timeout", "c": "segfault"}, {}, ())
    head, line = table([score]).splitlines()
    assert head.split() == ["module", "mutants", "killed", "timeout", "equivalent", "survived", "score"]
    assert line.split() == ["imds.rate_limiter", "3", "3", "1", "0", "0", "100.0%"]


def test_a_module_without_mutants_has_no_survivors() -> None:
    assert scored("imds.rate_limiter", {}, {}, ()).percent == 100.0


def test_an_entry_that_no_mutant_needs_is_told() -> None:
    listed = equivalents(LISTED)
    assert obsolete("imds.rate_limiter", [MUTANT], listed) == [
        Change("imds.rate_limiter.AdaptiveRateLimiter.next", "a", "b")
    ]
    assert obsolete("imds.rate_limiterr", [], listed) == []


def test_the_list_has_a_reason_for_each_and_names_modules_that_are_mutated() -> None:
    listed = equivalents(FILE.read_text())
    assert all(listed.values())
    places = [name for kind in ("daemontask", "s3refresh", "imds", "aws", "api") for name in modules(kind)]
    assert [one for one in listed if not any(one.place.startswith(f"{name}.") for name in places)] == []
