"""Roles are assumed separately for each resource, except for a queue that several resources read."""

from typing import Any

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.aws.identity import ClientKey, User
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.receiver import Queues
from caretaker.s3refresh.resource import RawRefresh, Reading, read, user_of, worker_config_of
from caretaker.s3refresh.targets import Tools, make, registry

ROLE = "arn:aws:iam::111122223333:role/media"
URL = "https://sqs.eu-west-1.amazonaws.com/111122223333"


class Aws:
    """Records the requested clients."""

    def __init__(self) -> None:
        self.targets: list[ClientKey] = []

    def sqs(self, target: ClientKey) -> Any:
        self.targets.append(target)
        return self

    storagegateway = sqs

    async def receive_message(self, **_: Any) -> Any:
        raise AssertionError("nothing is received")


class Client:
    """A client of the API server that is never called."""

    host = "https://192.0.2.1"
    guard = None


def made(aws: Aws, name: str, source: str, role: str = ROLE) -> tuple[Reading, Reading]:
    """The readings of a resource, and its target's clients in `aws`."""
    meta = WireMeta(name=name, namespace="media")
    body = {
        "aws": {"region": "eu-west-1", "roleARN": role},
        "source": {"sqs": {"queueURL": f"{URL}/{source}"}},
        "target": {"storageGateway": {"shares": {"discover": {}}, "completion": {"queueURL": f"{URL}/ends"}}},
    }
    spec = read(RawRefresh(meta, msgspec.Raw(msgspec.json.encode(body))), registry().spec).spec
    assert spec is not None
    make(spec, Tools(aws, Client(), meta))  # type: ignore[arg-type]
    first, second = worker_config_of(spec, None, user_of(meta)).readings
    return first, second


def test_queues_and_gateways_are_asked_in_the_resources_name() -> None:
    aws = Aws()
    readings = made(aws, "photos", "photos")
    mine = User("media", "s3ar", "photos")
    assert [one.identity.user for one in aws.targets] == [mine]
    assert [reading.target.identity.user for reading in readings] == [mine, mine]
    own = made(aws, "photos", "photos", role="")
    assert {reading.target.identity.user for reading in own} == {None}


async def test_readers_of_one_queue_share_it_in_the_first_ones_session() -> None:
    """Otherwise each would take the completion events of the other."""
    aws = Aws()
    queues = Queues(aws, lambda _: False)  # type: ignore[arg-type]
    (_, one), (_, other) = made(aws, "photos", "photos"), made(aws, "films", "films")
    (_, another) = made(aws, "texts", "texts", role=f"{ROLE}-2")
    aws.targets.clear()
    pollers = [
        queues.join(Key("S3AggregatedRefresh", "media", name), reading, lambda: None, owner=False)
        for name, reading in {"photos": one, "films": other, "texts": another}.items()
    ]
    await queues.close()
    assert pollers[0] is pollers[1] is not pollers[2]
    assert [one.identity.user for one in aws.targets] == [
        User("media", "s3ar", "photos"),
        User("media", "s3ar", "texts"),
    ]


def count(polls: Any) -> int:
    return sum(map(len, polls.queues.values()))


async def test_queues_at_endpoints_share_the_long_polls_of_their_namespace() -> None:
    """Long polls at an endpoint that hangs end late, and would keep the slots of all others."""
    aws = Aws()
    queues = Queues(aws, lambda _: False)  # type: ignore[arg-type]
    (reading, _) = made(aws, "photos", "photos", role="")
    polls = {}
    for namespace, name, url in (
        ("a", "1", "http://a"),
        ("a", "2", "http://b"),
        ("b", "3", "http://c"),
        ("a", "4", ""),
        ("b", "5", "http://c"),
    ):
        target = msgspec.structs.replace(reading.target, endpoint_url=url)
        key = Key("S3AggregatedRefresh", namespace, name)
        one = msgspec.structs.replace(reading, target=target)
        polls[name] = queues.join(key, one, lambda: None, owner=False).long_polls
    assert [len({id(one) for one in polls.values()}), polls["1"] is polls["2"]] == [3, True]
    assert [count(polls[name]) for name in "1345"] == [2, 1, 1, 1]
    await queues.leave(Key("S3AggregatedRefresh", "a", "1"))
    assert [count(polls[name]) for name in "1345"] == [1, 1, 1, 1]
    await queues.close()
    assert [count(polls[name]) for name in "1345"] == [0, 0, 0, 0]
