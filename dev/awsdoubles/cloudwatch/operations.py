"""GetMetricData, as its API reference has it; metric math and percentiles are refused as unknown here.

Pure: world and time are arguments.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final

from awsdoubles.cloudwatch.state import STATISTICS, Fault, Metric, World, metric_of
from awsdoubles.jsonprotocol import AwsError, Json

MOST_QUERIES: Final = 500
MOST_DATAPOINTS: Final = 100_800
_ID: Final = re.compile(r"[a-z][a-zA-Z0-9_]*")
_SHORT_PERIODS: Final = (1, 5, 10, 20, 30)


def _invalid(message: str) -> AwsError:
    return AwsError("ValidationError", message)


def metrics_named(body: Json) -> list[str]:
    """The names of the metrics that a call asks for."""
    stats = (one.get("MetricStat", {}) for one in body.get("MetricDataQueries", []))
    return [one["Metric"]["MetricName"] for one in stats if "MetricName" in one.get("Metric", {})]


def get_metric_data(world: World, region: str, body: Json, now: float, taken: Mapping[str, Fault]) -> Json:
    """One page. The queries share it: what does not fit of a query, and those after it, follow."""
    _check(body)
    skipped = _offset(body)
    room = body.get("MaxDatapoints") or MOST_DATAPOINTS
    results: list[Json] = []
    before, rest = 0, False
    for query in body["MetricDataQueries"]:
        if query.get("ReturnData") is False:
            continue
        lost = _lost(query, taken)
        found = [] if lost else _found(world, region, body, query, now)
        start = min(max(skipped - before, 0), len(found))
        shown = found[start : start + room]
        room -= len(shown)
        more = start + len(shown) < len(found)
        if shown or more or (not found and before >= skipped):
            results.append(_result(query, shown, lost or ("PartialData" if more else "Complete")))
        before, rest = before + len(found), rest or more
    page: Json = {"MetricDataResults": results, "Messages": []}
    if rest:
        page["NextToken"] = _token(body, skipped + sum(len(one["Values"]) for one in results))
    return page


def _lost(query: Json, taken: Mapping[str, Fault]) -> str:
    """The StatusCode of a query whose datapoints a fault takes; "" = it has them."""
    fault = taken.get("withhold")
    if fault is None or fault.metric not in ("", query["MetricStat"]["Metric"]["MetricName"]):
        return ""
    return fault.code


def _check(body: Json) -> None:
    queries = body["MetricDataQueries"]
    if not 0 < len(queries) <= MOST_QUERIES:
        raise _invalid(
            f"The collection MetricDataQueries must not have a size greater than {MOST_QUERIES}, or of 0."
        )
    if body["StartTime"] >= body["EndTime"]:
        raise _invalid("The parameter StartTime must be less than the parameter EndTime.")
    if not 1 <= body.get("MaxDatapoints", 1) <= MOST_DATAPOINTS:
        raise _invalid(f"The parameter MaxDatapoints must be between 1 and {MOST_DATAPOINTS}.")
    ids = [query["Id"] for query in queries]
    if len(set(ids)) < len(ids):
        raise _invalid("The values for parameter id in MetricDataQueries are not unique.")
    for query in queries:
        _check_query(query)


def _check_query(query: Json) -> None:
    if _ID.fullmatch(query["Id"]) is None:
        raise _invalid(f"The value {query['Id']} for parameter id does not begin with a lowercase letter.")
    if ("MetricStat" in query) == ("Expression" in query):
        raise _invalid("Exactly one of the parameters MetricStat and Expression must be set.")
    if "Expression" in query:
        raise _invalid("The double has no metric math.")
    stat = query["MetricStat"]
    if stat["Period"] % 60 and stat["Period"] not in _SHORT_PERIODS:
        raise _invalid(f"Period must be 1, 5, 10, 20, 30 or a multiple of 60, not {stat['Period']}.")
    if stat["Stat"] not in STATISTICS:
        raise _invalid(f"The double has no statistic {stat['Stat']}.")
    if not {"Namespace", "MetricName"} <= stat["Metric"].keys():
        raise _invalid("The parameters Metric.Namespace and Metric.MetricName must be set.")


def _found(world: World, region: str, body: Json, query: Json, now: float) -> list[tuple[float, float]]:
    stat = query["MetricStat"]
    points = world.datapoints(
        _metric(region, stat["Metric"]), body["StartTime"], body["EndTime"], stat["Period"], stat["Stat"], now
    )
    return points if body.get("ScanBy") == "TimestampAscending" else points[::-1]


def _metric(region: str, given: Json) -> Metric:
    dimensions = {one["Name"]: one["Value"] for one in given.get("Dimensions", [])}
    return metric_of(region, given["Namespace"], given["MetricName"], dimensions)


def _result(query: Json, points: list[tuple[float, float]], status: str) -> Json:
    return {
        "Id": query["Id"],
        "Label": query.get("Label", query["MetricStat"]["Metric"]["MetricName"]),
        "Timestamps": [at for at, _ in points],
        "Values": [value for _, value in points],
        "StatusCode": status,
    }


def _fingerprint(body: Json) -> str:
    """A token belongs to its request."""
    asked = {name: value for name, value in body.items() if name != "NextToken"}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _token(body: Json, offset: int) -> str:
    return base64.urlsafe_b64encode(f"{offset} {_fingerprint(body)}".encode()).decode()


def _offset(body: Json) -> int:
    if not body.get("NextToken"):
        return 0
    try:
        offset, _, belongs = base64.urlsafe_b64decode(body["NextToken"]).decode().partition(" ")
        if belongs == _fingerprint(body):
            return int(offset)
    except ValueError:
        pass
    raise AwsError("InvalidNextToken", "The next token specified is invalid.")
