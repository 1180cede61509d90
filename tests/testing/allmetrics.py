"""The series of an operator with all kinds."""

from prometheus_client import CollectorRegistry

from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.imds.metrics import PolicyMetrics
from caretaker.obs.metrics import Metrics
from caretaker.s3refresh.metrics import S3RefreshMetrics


class AllMetrics(Metrics):
    """Metrics, and those of each kind."""

    def __init__(self, version: str = "1", registry: CollectorRegistry | None = None) -> None:
        super().__init__(version, registry or CollectorRegistry())
        self.daemontask = DaemonTaskMetrics(self.registry)
        self.s3refresh = S3RefreshMetrics(self.registry)
        self.imds = PolicyMetrics(self.registry)
