"""The double's faults, its numbers of refreshes in flight and the events it sends."""

import pytest

from awsdoubles.faults import FaultError
from awsdoubles.gateway.faults import Fault, Faults
from awsdoubles.gateway.refresh import completion, upload
from awsdoubles.gateway.state import Refresh, World


def faults(*found: Fault) -> Faults:
    made = Faults()
    made.all += found
    return made


def test_a_fault_hits_as_often_as_told() -> None:
    known = faults(Fault("delay", count=2))
    assert [bool(known.take("RefreshCache", [])) for _ in range(3)] == [True, True, False]
    assert known.all[0].used == 2


def test_a_fault_hits_its_operation_and_its_share() -> None:
    known = faults(Fault("delay", share="mine", count=None), Fault("delay", operation="ListFileShares"))
    assert known.take("RefreshCache", ["other"]) == {}
    assert known.take("DescribeNFSFileShares", ["mine"]) == {}
    assert known.take("RefreshCache", ["other", "mine"]) == {"delay": known.all[0]}
    assert known.take("ListFileShares", []) == {"delay": known.all[1]}


def test_faults_meet_in_one_call_but_a_refusal_stands_alone() -> None:
    known = faults(Fault("delay"), Fault("lose_reply"))
    assert set(known.take("RefreshCache", [])) == {"delay", "lose_reply"}
    known = faults(Fault("delay"), Fault("refuse"))
    assert set(known.take("RefreshCache", [])) == {"refuse"}
    assert set(known.take("RefreshCache", [])) == {"delay"}


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(FaultError, match="none of refuse, delay"):
        Fault("explode")


@pytest.mark.parametrize(
    ("per", "expected"), [pytest.param("gateway", 2, id="gateway"), pytest.param("share", 1, id="share")]
)
def test_refreshes_in_flight(per: str, expected: int) -> None:
    world = World()
    world.settings.in_flight_per = per
    gateway = world.add_gateway("eu-west-1")
    mine, other = (world.add_share(gateway, "NFS", "bucket", "", "") for _ in range(2))
    elsewhere = world.add_share(world.add_gateway("eu-west-1"), "NFS", "bucket", "", "")
    world.refreshes += [Refresh(str(n), s, ["/"], True, True) for n, s in enumerate([mine, other, elsewhere])]
    world.refreshes.append(Refresh("done", mine, ["/"], True, True, completed_at=1.0))
    assert world.in_flight(mine) == expected


@pytest.mark.parametrize(
    ("prefix", "location", "expected"),
    [
        ("", "", "arn:aws:s3:::bucket"),
        ("in/", "", "arn:aws:s3:::bucket/in/"),
        ("in/", "alias-s3alias/in/", "alias-s3alias/in/"),
    ],
)
def test_the_location_of_a_share(prefix: str, location: str, expected: str) -> None:
    world = World()
    share = world.add_share(world.add_gateway("eu-west-1"), "NFS", "bucket", prefix, location)
    assert share.location == expected
    assert len(share.arn) >= 50  # AWS's own bound


def test_events_of_the_gateway() -> None:
    world = World()
    share = world.add_share(world.add_gateway("eu-west-1"), "NFS", "bucket", "", "")
    done = completion(Refresh("id", share, ["a"], False, True, accepted_at=0.0, completed_at=61.0))
    assert done["detail"] == {
        "event-type": "refresh-complete",
        "notification-id": "id",
        "started": "1970-01-01T00:00:00Z",
        "completed": "1970-01-01T00:01:01Z",
        "folderList": ["a"],
    }
    assert done["resources"] == upload(share, "key", 1)["resources"] == [share.arn, share.gateway.arn]
