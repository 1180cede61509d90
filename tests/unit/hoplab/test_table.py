"""The table of the lab, as a person reads it."""

from typing import Literal

from hoplab.measure import Measurement, Needed
from hoplab.table import table


def test_a_row_per_place_and_a_column_per_hop_limit() -> None:
    def measured(
        place: str, hops: int, tokens: Literal["optional", "required"], seconds: float, version: str
    ) -> Measurement:
        return Measurement(
            "boto3", place, hops, tokens, seconds, version, "" if version else "no credentials"
        )

    found = [
        measured("node", 1, "optional", 0.022, "IMDSv2"),
        measured("pod", 1, "optional", 1.034, "IMDSv1"),
        measured("pod", 2, "optional", 0.0296, "IMDSv2"),
        measured("pod", 1, "required", 1.02, ""),
    ]
    needed = [Needed("node", 1, 1), Needed("pod", 2, None), Needed("dind", None, None)]
    assert table(found, needed).splitlines() == [
        "client  place         needed  tokens    hop limit 1             hop limit 2",
        "boto3   host network  1       optional  22 ms, IMDSv2",
        "boto3   pod           2       optional  1.03 s, IMDSv1          30 ms, IMDSv2",
        "boto3   pod           2       required  1.02 s, no credentials",
    ]
