"""What a loop's lag is told as; a real loop's is measured in tests/integration/obs."""

import pytest
from prometheus_client import CollectorRegistry

from caretaker.obs.looplag import LoopLag
from caretaker.obs.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0", CollectorRegistry())


def observed(metrics: Metrics, up_to: str = "") -> float:
    """How many observations there are, in all or of so many seconds at most."""
    name, labels = ("bucket", {"le": up_to}) if up_to else ("count", {})
    return metrics.registry.get_sample_value(f"caretaker_loop_lag_seconds_{name}", labels) or 0.0


def test_a_stall_is_observed_as_a_sleeper_of_a_tenth_of_a_second_would_see_it(metrics: Metrics) -> None:
    lag = LoopLag(metrics, lambda: 1000.0)
    lag.stalled(1000.0, 1000.02)
    assert observed(metrics) == 0
    lag.stalled(1000.35, 1000.95)  # it would have woken in time at .1, .2 and .3; then at .4, but for this
    assert [observed(metrics, le) for le in ("0.001", "0.5", "1.0")] == [3, 3, 4]
    assert lag.largest() == pytest.approx(0.6)
    lag.stalled(1001.04, 1001.049)
    assert observed(metrics) == 4
    lag.stalled(1001.06, 1001.07)
    assert (observed(metrics), observed(metrics, "0.001")) == (5, 4)
    assert lag.check(limit=0.5) is not None
