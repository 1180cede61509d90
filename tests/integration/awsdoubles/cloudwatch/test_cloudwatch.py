"""The CloudWatch double says what Amazon CloudWatch says (API reference, GetMetricData)."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from awsdoubles.clients import client as made_client
from awsdoubles.cloudwatch.control import Control, ControlError
from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.cloudwatch.state import World

HOUR = 3600
DAY = 24 * HOUR
MEDIA = {"BucketName": "media", "StorageType": "AllStorageTypes"}


@pytest.fixture(scope="module")
def server() -> Iterator[CloudWatch]:
    with CloudWatch() as double:
        yield double


@pytest.fixture
def control(server: CloudWatch) -> Control:
    server.control.reset()
    server.control.clear_faults()
    return server.control


@pytest.fixture(scope="module")
def client(server: CloudWatch) -> Iterator[Any]:
    made = made_client("cloudwatch", server.url)
    yield made
    made.close()


def today() -> float:
    return time.time() // DAY * DAY


def query(number: int = 0, dimensions: dict[str, str] | None = None, **stat: Any) -> dict[str, Any]:
    given = [{"Name": name, "Value": value} for name, value in (dimensions or MEDIA).items()]
    metric = {"Namespace": "AWS/S3", "MetricName": "NumberOfObjects", "Dimensions": given}
    return {"Id": f"m{number}", "MetricStat": {"Metric": metric, "Period": DAY, "Stat": "Average", **stat}}


def asked(client: Any, *queries: dict[str, Any], days: float = 7, **how: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.get_metric_data(
        MetricDataQueries=list(queries) or [query()],
        StartTime=datetime.fromtimestamp(today() - days * DAY, UTC),
        EndTime=datetime.fromtimestamp(today() + DAY, UTC),
        **how,
    )
    return answer


def refusal(client: Any, *queries: dict[str, Any], **how: Any) -> str:
    with pytest.raises(ClientError) as error:
        asked(client, *queries, **how)
    return str(error.value.response["Error"]["Code"])


def put(control: Control, *points: tuple[float, float], dimensions: dict[str, str] | None = None) -> None:
    control.put("AWS/S3", "NumberOfObjects", dimensions or MEDIA, points)


def test_a_period_without_datapoints_is_absent_and_not_zero(control: Control, client: Any) -> None:
    put(control, (today() - 5 * DAY, 10), (today() - 2 * DAY, 20))
    (found,) = asked(client)["MetricDataResults"]
    assert found["Values"] == [20, 10]  # TimestampDescending is the default
    assert [one.timestamp() for one in found["Timestamps"]] == [today() - 2 * DAY, today() - 5 * DAY]
    assert (found["Id"], found["Label"], found["StatusCode"]) == ("m0", "NumberOfObjects", "Complete")
    (oldest_first,) = asked(client, ScanBy="TimestampAscending")["MetricDataResults"]
    assert oldest_first["Values"] == [10, 20]


def test_an_unknown_metric_is_complete_and_empty(control: Control, client: Any) -> None:
    """Dimensions are part of a metric's name, and so is the region."""
    put(control, (today(), 1))
    other = query(1, {"BucketName": "media"})
    (found,) = asked(client, other)["MetricDataResults"]
    assert (found["Values"], found["StatusCode"]) == ([], "Complete")
    elsewhere = made_client("cloudwatch", control._url, region="us-east-1")
    assert asked(elsewhere)["MetricDataResults"][0]["Values"] == []
    elsewhere.close()


def test_datapoints_of_a_period_are_one_value(control: Control, client: Any) -> None:
    hour = time.time() // HOUR * HOUR - 5 * HOUR
    put(control, *[(hour + at, at) for at in (0, 60, 120)])
    stats = ("Sum", "Average", "Minimum", "Maximum", "SampleCount")
    queries = [query(at, Period=HOUR, Stat=stat) for at, stat in enumerate(stats)]
    assert [one["Values"] for one in asked(client, *queries)["MetricDataResults"]] == [
        [180],
        [60],
        [0],
        [120],
        [3],
    ]


def test_the_start_is_inclusive_and_the_end_is_not(control: Control, client: Any) -> None:
    put(control, (today() - 7 * DAY, 1), (today() + DAY, 2))
    control.advance(2 * DAY)
    assert asked(client)["MetricDataResults"][0]["Values"] == [1]


def test_a_datapoint_appears_at_its_time(control: Control, client: Any) -> None:
    put(control, (time.time() + HOUR / 2, 7))
    ask = query(Period=60)
    assert asked(client, ask)["MetricDataResults"][0]["Values"] == []
    control.advance(HOUR)
    answer = client.get_metric_data(
        MetricDataQueries=[ask],
        StartTime=datetime.fromtimestamp(time.time(), UTC),
        EndTime=datetime.fromtimestamp(time.time() + 2 * HOUR, UTC),
    )
    assert answer["MetricDataResults"][0]["Values"] == [7]


def test_old_datapoints_are_kept_for_longer_periods(control: Control, client: Any) -> None:
    """User guide, "Metrics retention": 60 s for 15 days, 300 s for 63, 3600 s for 455."""
    put(control, (today() - 20 * DAY, 1), (today() - 70 * DAY, 1))
    found = {
        period: len(asked(client, query(Period=period), days=400)["MetricDataResults"][0]["Values"])
        for period in (60, 300, HOUR, DAY)
    }
    assert found == {60: 0, 300: 1, HOUR: 2, DAY: 2}


def test_pages_have_at_most_the_datapoints_that_are_asked_for(control: Control, client: Any) -> None:
    for number in range(3):
        dimensions = {"BucketName": f"b{number}"}
        put(control, *[(today() - at * DAY, number * 10 + at) for at in range(4)], dimensions=dimensions)
    queries = [query(number, {"BucketName": f"b{number}"}) for number in range(3)]
    values: dict[str, list[float]] = {}
    sizes, statuses, more = [], [], {}
    while True:
        page = asked(client, *queries, MaxDatapoints=5, **more)
        sizes.append(sum(len(one["Values"]) for one in page["MetricDataResults"]))
        statuses.append({one["Id"]: one["StatusCode"] for one in page["MetricDataResults"]})
        for one in page["MetricDataResults"]:
            values.setdefault(one["Id"], []).extend(one["Values"])
        if "NextToken" not in page:
            break
        more = {"NextToken": page["NextToken"]}
    assert sizes == [5, 5, 2]
    assert statuses[0] == {"m0": "Complete", "m1": "PartialData", "m2": "PartialData"}
    assert values == {f"m{n}": [n * 10 + at for at in range(4)] for n in range(3)}


def test_a_token_belongs_to_its_request(control: Control, client: Any) -> None:
    put(control, (today(), 1), (today() - DAY, 2))
    token = asked(client, MaxDatapoints=1)["NextToken"]
    assert refusal(client, MaxDatapoints=2, NextToken=token) == "InvalidNextToken"
    assert refusal(client, NextToken="x") == "InvalidNextToken"


def test_500_metrics_a_call(control: Control, client: Any) -> None:
    assert len(asked(client, *[query(n) for n in range(500)])["MetricDataResults"]) == 500
    assert refusal(client, *[query(n) for n in range(501)]) == "ValidationError"


@pytest.mark.parametrize(
    "how",
    [
        {"MaxDatapoints": 100_801},
        {"days": -3},
        {"ScanBy": "Sideways"},
    ],
)
def test_what_the_service_does_not_take_is_refused(control: Control, client: Any, how: Any) -> None:
    assert refusal(client, **how) == "ValidationError"


@pytest.mark.parametrize(
    "queries",
    [
        [query(), query()],
        [{**query(), "Id": "M"}],
        [{**query(), "Expression": "m1"}],
        [{"Id": "m0"}],
        [query(Period=61)],
        [query(Stat="p99")],
    ],
)
def test_queries_that_the_service_does_not_take_are_refused(
    control: Control, client: Any, queries: Any
) -> None:
    assert refusal(client, *queries) == "ValidationError"
    assert control.calls()[-1]["status"] == 400


def test_it_refuses_throttles_and_counts(control: Control, client: Any) -> None:
    control.deny()
    assert refusal(client) == "AccessDenied"
    control.allow()
    control.throttle()
    assert refusal(client) == "Throttling"
    control.fault("refuse")
    assert refusal(client) == "InternalServiceFault"
    asked(client)
    assert [one["code"] for one in control.calls("GetMetricData")] == [
        "AccessDenied",
        "Throttling",
        "InternalServiceFault",
        "",
    ]
    assert {(one["region"], one["key"]) for one in control.calls()} == {("eu-west-1", "test")}
    control.clear_calls()
    assert control.calls() == []


def test_more_than_50_calls_a_second_are_throttled() -> None:
    """User guide, "CloudWatch service quotas"."""
    world = World()
    assert all(world.admits("eu-west-1", 100 + at / 100) for at in range(50))
    assert not world.admits("eu-west-1", 100.6)
    assert world.admits("us-east-1", 100.6)
    assert world.admits("eu-west-1", 101.0)
    world.settings.throttling = False
    assert all(world.admits("eu-west-1", 101.0) for _ in range(100))


def test_a_metric_loses_its_datapoints_alone(control: Control, client: Any) -> None:
    put(control, (today(), 1))
    for code in ("InternalError", "Forbidden", "PartialData"):
        control.fault("withhold", metric="NumberOfObjects", code=code)
        (found,) = asked(client)["MetricDataResults"]
        assert (found["StatusCode"], found["Values"]) == (code, [])
    assert asked(client)["MetricDataResults"][0]["Values"] == [1]


def test_a_reply_can_be_lost(control: Control, client: Any) -> None:
    control.fault("lose_reply")
    with pytest.raises(ConnectionClosedError):
        asked(client)
    assert control.calls()[-1]["code"] == "(reply lost)"
    with pytest.raises(ControlError):
        control.fault("explode")
