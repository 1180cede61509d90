"""How the annotations of a request for a refresh are read."""

from typing import Any

import msgspec
import pytest

from caretaker.api.names import REFRESH_AT, REFRESH_FOLDERS
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import RequestsStatus
from caretaker.s3refresh.annotation_requests import MAX_FOLDERS, Place, RefreshRequests, read_requests

T1, T2, T3 = (f"2026-01-31T12:00:0{n}.000000+00:00" for n in (1, 2, 3))
Z1, Z2, Z3 = (f"2026-01-31T12:00:0{n}Z" for n in (1, 2, 3))
HERE = Place("", "2026/11")
SOON = 1_769_860_800.0  # 2026-01-31T12:00:00Z


def read(before: RequestsStatus | None = None, *, now: float = SOON, **marks: Any) -> RefreshRequests:
    """`at` and `folders` as a person writes them."""
    keys = {"at": REFRESH_AT, "folders": REFRESH_FOLDERS}
    texts = {
        keys.get(name, name): one if isinstance(one, str) else msgspec.json.encode(one).decode()
        for name, one in marks.items()
    }
    return read_requests(WireMeta(annotations=texts), before, now)


class TestRead:
    def test_without_annotations_there_is_no_request(self) -> None:
        assert read_requests(WireMeta(), None, SOON) == RefreshRequests()
        assert not RefreshRequests().any

    def test_everything_once_for_each_new_time(self) -> None:
        assert read(at=Z1) == RefreshRequests(everything=True, at=T1)
        assert not read(RequestsStatus(refresh_at=T1), at=Z1).any
        assert not read(RequestsStatus(refresh_at=T1), at="2026-01-31T13:00:01+01:00").any
        assert read(RequestsStatus(refresh_at=T1), at=Z2).everything

    def test_an_earlier_time_asks_for_nothing_and_is_told(self) -> None:
        """Git has the one before."""
        found = read(RequestsStatus(T2, T2), at=Z1, folders={"2026/11": Z1})
        assert not found.any
        assert found.errors == (
            f"metadata.annotations[{REFRESH_AT}]: '{Z1}' is earlier than {T2}, the last time that was taken: "
            "set a later one",
            f"metadata.annotations[{REFRESH_FOLDERS}]['2026/11']: '{Z1}' is earlier than {T2}, the last time "
            "that was taken: set a later one",
        )

    def test_each_folder_once_for_each_time(self) -> None:
        first = read(folders={"a": Z1, "2026/11": Z2})
        assert (first.places, first.folders_at) == ((Place("", "a"), HERE), T2)
        after = first.marks(None)
        again = read(after, folders={"a": Z1, "/2026/11": "2026-01-31T13:00:02+01:00"})
        assert again == RefreshRequests()
        assert read(after, folders={"a": Z1, "2026/11": Z3}).places == (HERE,)

    def test_others_within_the_same_second_count(self) -> None:
        """`date -u +%FT%TZ`, once for each folder."""
        after, found = None, []
        for folder in ("a", "b", "c"):
            request = read(after, folders={folder: Z1})
            found += request.places
            after = request.marks(after)
        assert found == [Place("", "a"), Place("", "b"), Place("", "c")]

    def test_a_folder_of_two_names_has_the_later_time(self) -> None:
        assert read(folders={"2026/11": Z2, "/2026/11/": Z1}) == read(folders={"2026/11": Z2})
        assert read(folders={"2026/11": Z1, "/2026/11/": Z2}) == read(folders={"2026/11": Z2})

    def test_a_time_far_ahead_is_refused_as_all_that_follow_it_would_be(self) -> None:
        found = read(now=SOON - 86_402, at=Z3, folders={"2026/11": Z3})
        assert not found.any
        assert [": '2026-01-31T12:00:03Z' lies more than a day ahead" in one for one in found.errors] == [
            True,
            True,
        ]
        assert read(now=SOON - 86_396, at=Z3, folders={"2026/11": Z3}).places == (HERE,)

    def test_what_was_taken_stays_on_record(self) -> None:
        before = RequestsStatus(T1, T2, T3, ("x",))
        both = read(before, at=Z2, folders={"a": Z2})
        assert both.marks(before) == RequestsStatus(T2, T2, taken=both.taken)
        assert len(both.taken) == 1
        assert read(before, at=Z2).marks(before) == RequestsStatus(T2, T2, taken=("x",))
        assert read(before, folders={"a": Z3}).marks(before).refresh_at == T1

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("2026/11", HERE),
            ("/2026/11/", HERE),
            ("s3://media/2026/11", Place("media", "2026/11")),
            ("s3://media", Place("media", "")),
            ("s3://media/", Place("media", "")),
            ("/", Place("", "")),
        ],
    )
    def test_a_folder_is_named_as_keys_begin(self, text: str, place: Place) -> None:
        found = read(folders={text: Z1})
        assert (found.places, found.folders_at, found.errors) == ((place,), T1, ())

    @pytest.mark.parametrize(
        ("marks", "words"),
        [
            pytest.param({"at": "soon"}, "'soon' is not an RFC 3339 time such as", id="no time"),
            pytest.param({"folders": "in/2026"}, "want {folder: time}: JSON is malformed", id="no JSON"),
            pytest.param({"folders": ["2026/11"]}, "want {folder: time}: Expected `object`", id="a list"),
            pytest.param(
                {"folders": {"a": "now"}}, "['a']: 'now' is not an RFC 3339 time", id="a folder's time"
            ),
            pytest.param({"folders": {"": Z1}}, "'' names no folder: write / for everything", id="nothing"),
            pytest.param(
                {"folders": {"a\n\u202e": "x"}}, r"['a\n\u202e']: 'x' is not", id="control characters"
            ),
            pytest.param({"folders": {"a//b": Z1}}, "has the part '', below which", id="an empty part"),
            pytest.param({"folders": {"a/../b": Z1}}, "has the part '..', below which", id="dots"),
            pytest.param({"folders": {"s3:///a": Z1}}, "names no bucket: write s3://BUCKET/", id="no bucket"),
            pytest.param({"folders": {"a" * 1025: Z1}}, "has 1025 characters, and a folder has", id="long"),
            pytest.param(
                {"folders": {f"{n}": Z1 for n in range(MAX_FOLDERS + 1)}},
                "51 folders, and at most 50 at a time: name the folders above them, or set",
                id="many",
            ),
            pytest.param(
                {"caretaker.dev/refresh-ta": Z1},
                "metadata.annotations[caretaker.dev/refresh-ta]: means nothing; did you mean "
                "caretaker.dev/refresh-at?",
                id="a slip",
            ),
        ],
    )
    def test_a_bad_annotation_is_told_and_asks_nothing(self, marks: dict[str, Any], words: str) -> None:
        found = read(**marks)
        assert not found.any
        (error,) = found.errors
        assert words in error
        assert error.startswith("metadata.annotations[caretaker.dev/refresh-")

    def test_the_good_part_of_it_applies(self) -> None:
        found = read(at="soon", folders={"2026/11": Z1, "a//b": Z1})
        assert (found.places, len(found.errors)) == ((HERE,), 2)

    def test_few_of_many_faults_are_named(self) -> None:
        found = read(folders={f"{n}/": "x" * 1000 for n in range(MAX_FOLDERS)})
        assert len(found.errors) == 11
        assert found.errors[-1].endswith(": 40 more ask for nothing")
        assert max(map(len, found.errors)) < 300

    def test_a_mark_of_another_purpose_is_left_alone(self) -> None:
        assert read(**{"caretaker.dev/looked-at": Z1, "caretaker.dev/rerun-at": Z1}) == RefreshRequests()
