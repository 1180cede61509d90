"""What a look that failed leaves for the next try."""

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from caretaker.aws.classes import ErrorClass
from caretaker.aws.errors import AwsError
from caretaker.daemontask.ecs.check import Call
from caretaker.daemontask.ecs.plan import Plan
from caretaker.daemontask.ecs.work import Work
from caretaker.obs.ecs_metrics import EcsMetrics
from unit.daemontask.ecs.build import INSTANCE, Account, notice, spec


class Ecs:
    """An account; `errors` are raised first, one a call."""

    def __init__(self, account: Account, *errors: AwsError) -> None:
        self.account = account
        self.errors = list(errors)

    def __getattr__(self, method: str) -> Any:
        async def answer(**parameters: Any) -> Any:
            if self.errors:
                raise self.errors.pop(0)
            return self.account.answer(Call(method, parameters))  # type: ignore[arg-type]

        return answer


def test_a_look_that_an_event_asked_for_takes_three_calls_when_it_is_tried_again() -> None:
    async def run() -> tuple[list[str], float]:
        account = Account(desiredCount=1)
        account.active = {f"{INSTANCE}/prod/a", f"{INSTANCE}/prod/b"}
        throttled = AwsError(ErrorClass.THROTTLED, "ThrottlingException", "no", service="ecs", operation="x")
        news = asyncio.Event()
        registry = CollectorRegistry()
        ecs: Any = Ecs(account, throttled)
        work = Work("u1", spec("prod"), ecs, EcsMetrics(registry), news.set)
        work.hear([notice("b")])
        for _ in range(2):
            news.clear()
            work.begin(Plan(("prod",)))
            await asyncio.wait_for(news.wait(), 10)
        return account.calls, registry.get_sample_value("caretaker_daemontask_ecs_lag_seconds_count") or 0

    calls, lags = asyncio.run(run())
    assert calls == ["describe_services", "describe_clusters", "update_service"]
    assert lags == 1, "how late a change was followed is told, failures included"
