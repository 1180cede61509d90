"""What people watch PoolStamps with.

Pure data.
"""

from typing import Final

from caretaker.poolstamp.wiring import Reason, pools
from prometheus_client import CollectorRegistry

from observability.metric import OBJECT, Metric
from observability.panel import HERE, JOB, NUMBER, Panel

REASONS: Final = (Reason,)
METRICS: Final = {"caretaker_poolstamp_pools": Metric("Node pools come and go.", OBJECT)}
PANELS: Final = (
    Panel(
        "Node pools",
        NUMBER,
        ((f"sum by (name) (caretaker_poolstamp_pools{{{JOB},{HERE}}})", "{{name}}"),),
        "That have a ConfigMap.",
    ),
)


def register(registry: CollectorRegistry) -> None:
    """Make its metrics."""
    pools(registry)
