"""Asks CloudWatch for the objects of buckets, once for all resources that sign alike.

Inputs: clients, and buckets that are due, on record as asked for. Counts are kept for as long as the process
lives. A count that was read from a status counts within its namespace alone: a user of another one may have
written it. It must not delay a pass: a failure is a count, too. It must not delay a refresh: at most one of
the threads for calls to AWS waits for CloudWatch.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.s3refresh import CostStatus
from caretaker.aws.cloudwatch import MOST_QUERIES, CloudWatch, MetricDataResult
from caretaker.aws.errors import AwsError, word
from caretaker.aws.pages import pages
from caretaker.runtime.tasks import cancel
from caretaker.s3refresh import conditions, costs
from caretaker.s3refresh.costs import DAY, Count, Place

logger = logging.getLogger(__name__)

FIELD: Final = "spec.cost"
WINDOW_DAYS: Final = 3  # before today, in which the newest figure lies
_FINE: Final = ("", "Complete", "PartialData")


class Signer(msgspec.Struct, frozen=True):
    """Equal for resources whose calls are made by one identity. `namespace`: of a Secret, whose keys may be
    replaced."""

    role_arn: str
    external_id: str
    sts_endpoint_url: str
    secret: str
    namespace: str

    @classmethod
    def of(cls, spec: AwsSpec, namespace: str) -> "Signer":
        """That of spec.aws."""
        of_secret = namespace if spec.secret_name else ""
        return cls(spec.role_arn, spec.external_id, spec.endpoint_url("sts"), spec.secret_name, of_secret)


class ObjectCounts:
    """`found()` is the last count, `ask()` makes the calls."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._next: dict[tuple[Signer, str], dict[str, Count]] = {}  # buckets of calls that have not begun
        self._made: dict[tuple[Signer, Place], Count] = {}
        self._recalled: dict[tuple[str, Signer, Place], Count] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: dict[tuple[Signer, Place], list[Callable[[], None]]] = {}

    def found(self, namespace: str, signer: Signer, place: Place) -> Count | None:
        """The last count for a resource of the namespace."""
        made = self._made.get((signer, place))
        return made if made is not None else self._recalled.get((namespace, signer, place))

    def recall(self, namespace: str, signer: Signer, status: CostStatus | None, now: float) -> None:
        """Counts on record, of a former process."""
        for one in status.buckets if status is not None else ():
            key, count = (namespace, signer, (one.region, one.bucket)), costs.decode(one, now)
            if key not in self._recalled or self._recalled[key].asked_at < count.asked_at:
                self._recalled[key] = count

    def ask(
        self,
        signer: Signer,
        clients: Mapping[str, CloudWatch],
        due: Mapping[Place, Count],
        on_news: Callable[[], None],
    ) -> None:
        """Ask for these buckets, by one call for each region; not for those that a call is under way for. A
        call that has not begun takes buckets of further resources in.
        `clients` by region; `on_news` is called once there is an answer."""
        for place, count in due.items():
            made, (region, bucket) = self._made.get((signer, place)), place
            due_at = made.due_at() if made is not None and made.counts_at(count.asked_at) else 0.0
            if due_at > count.asked_at:
                on_news()  # answered since the pass began
                continue
            waiting = self._waiting.setdefault((signer, place), [])
            waiting.append(on_news)
            if len(waiting) > 1:
                continue
            asked = self._next.get((signer, region))
            if asked is None or len(asked) == MOST_QUERIES:
                asked = self._next[signer, region] = {}
                call = self._call(signer, region, clients[region], asked)
                task = asyncio.create_task(call, name="s3refresh-count")
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
            asked[bucket] = count

    async def stop(self) -> None:
        """Another process may lead from now on."""
        await cancel(*self._calls)
        self._made.clear()
        self._recalled.clear()
        self._next.clear()
        self._waiting.clear()

    async def _call(
        self, signer: Signer, region: str, client: CloudWatch, asked: Mapping[str, Count]
    ) -> None:
        async with self._one_at_a_time:
            if self._next.get((signer, region)) is asked:
                del self._next[signer, region]
            await self._ask(signer, region, client, asked)

    async def _ask(self, signer: Signer, region: str, client: CloudWatch, asked: Mapping[str, Count]) -> None:
        at = max(count.asked_at for count in asked.values())
        found, problem = dict[str, Count](), ""
        try:
            found = await counted(client, list(asked), at)
        except AwsError as error:
            problem = conditions.describe(error, FIELD)
        except Exception as error:  # an unexpected answer must not end the resource's work
            logger.exception("the objects of buckets cannot be counted")
            problem = f"{FIELD}: {type(error).__name__}: {error}"
        self._made = {key: one for key, one in self._made.items() if at - one.asked_at < 2 * DAY}
        for bucket, count in asked.items():
            key = signer, (region, bucket)
            failed = Count(count.asked_at, failures=count.failures, problem=problem)
            self._made[key] = _with_failures(found.get(bucket, failed), count.failures)
            for notify in self._waiting.pop(key, []):
                notify()


def _with_failures(found: Count, failures: int) -> Count:
    return msgspec.structs.replace(found, failures=failures) if found.failures else found


async def counted(client: CloudWatch, buckets: Sequence[str], now: float) -> dict[str, Count]:
    """The newest figure of each bucket, by one call. Raises AwsError."""
    today = now // DAY * DAY
    given = {f"m{number}": bucket for number, bucket in enumerate(buckets)}
    results: dict[str, list[MetricDataResult]] = {}
    async for page in pages(
        client.get_metric_data,
        MetricDataQueries=[_query(name, bucket) for name, bucket in given.items()],
        StartTime=datetime.fromtimestamp(today - WINDOW_DAYS * DAY, UTC),
        EndTime=datetime.fromtimestamp(today + DAY, UTC),
    ):
        for one in page["MetricDataResults"]:
            results.setdefault(one["Id"], []).append(one)
    return {bucket: _count(results.get(name, []), now) for name, bucket in given.items()}


def _query(name: str, bucket: str) -> dict[str, object]:
    dimensions = {"BucketName": bucket, "StorageType": "AllStorageTypes"}
    metric = {
        "Namespace": "AWS/S3",
        "MetricName": "NumberOfObjects",
        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
    }
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": DAY, "Stat": "Average"}}


def _count(results: Sequence[MetricDataResult], now: float) -> Count:
    """A status other than Complete without any figure is a failure."""
    pairs = [
        pair
        for one in results
        for pair in zip(one["Timestamps"], one["Values"], strict=False)
        if _fits(pair[1])
    ]
    if pairs:
        at, value = max(pairs)
        return Count(now, round(value), min(at.timestamp(), now))
    code = next((one.get("StatusCode", "") for one in results if one.get("StatusCode", "") not in _FINE), "")
    if code:
        return Count(now, failures=1, problem=f"{FIELD}: CloudWatch answers {word(code)}")
    return Count(now, problem=costs.NO_DATA)


def _fits(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= costs.MOST_OBJECTS
