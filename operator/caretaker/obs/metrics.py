"""Prometheus metrics: every series of caretaker, and the monitor of the event loop's lag.

Inputs: observations from the other layers, by the methods and the metric objects here. Each Metrics has a
registry of its own, so tests and two operators in one process do not meet. Labels are bounded: one
gauge of each kind names an object, and its forget() drops that series. It must not do I/O.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from caretaker.obs.aws_metrics import AwsMetrics
from caretaker.obs.s3refresh_metrics import S3RefreshMetrics

# Buckets in seconds.
FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
PLAN: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.25, 0.5, 1)
LAG: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1, 2.5, 5, 10)
RUNS: Final = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)
# What client-go writes where no HTTP answer came (rest_client_requests_total in k8s.io/client-go).
NO_ANSWER: Final = "<error>"
_WRITES: Final = ("create", "patch", "delete")
_DAEMONTASK_WRITES: Final = ("pods", "configmaps", "daemontasks", "events")


class DaemonTaskMetrics:
    """What the DaemonTask controller tells of its work."""

    STATES: Final = ("desired", "active", "succeeded", "failed", "pending", "blocked")

    def __init__(self, registry: CollectorRegistry) -> None:
        self.nodes = Gauge(
            "caretaker_daemontask_nodes",
            "Nodes of a DaemonTask by state, as in its status; state=desired is the sum of the others.",
            ("namespace", "name", "state"),
            registry=registry,
        )
        self.run_duration = Histogram(
            "caretaker_daemontask_run_duration_seconds",
            "Time from the creation of a run's Pod to its end.",
            buckets=RUNS,
            registry=registry,
        )
        self.runs = Counter(
            "caretaker_daemontask_runs_total",
            "Pods that ended and were recorded, each attempt apart, by result: Succeeded, Failed, Retry.",
            ("result",),
            registry=registry,
        )
        self.reconcile = Histogram(
            "caretaker_daemontask_reconcile_seconds",
            "Time one pass over a DaemonTask took: gather, plan, execute, status.",
            buckets=FAST,
            registry=registry,
        )
        self.api_writes = Counter(
            "caretaker_daemontask_api_writes_total",
            "Writes sent to the Kubernetes API for DaemonTasks, dry runs and Events included.",
            ("verb", "resource"),
            registry=registry,
        )

    def set_nodes(self, namespace: str, name: str, counts: Mapping[str, int]) -> None:
        """Show a task's counts; states that `counts` leaves out are 0. Keys are STATES."""
        for state in self.STATES:
            self.nodes.labels(namespace, name, state).set(counts.get(state, 0))

    def forget(self, namespace: str, name: str) -> None:
        """Drop the series of a deleted task. Does nothing if there are none."""
        for state in self.STATES:
            self.nodes.remove(namespace, name, state)


class Metrics:
    """All series of one operator. Write `/metrics` from `registry`."""

    def __init__(self, version: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.daemontask = DaemonTaskMetrics(registry)
        self.s3refresh = S3RefreshMetrics(registry)
        self.aws = AwsMetrics(registry)
        self.build_info = Gauge(
            "caretaker_build_info", "Always 1; the label tells the version.", ("version",), registry=registry
        )
        self.build_info.labels(version).set(1)
        self.leader = Gauge(
            "caretaker_leader",
            "1 while this process holds the Lease and may write, else 0.",
            registry=registry,
        )
        self._requests(registry)
        self._work(registry)
        self._reflectors(registry)
        self._loop(registry)

    def _requests(self, registry: CollectorRegistry) -> None:
        self.api_requests = Counter(
            "caretaker_api_requests_total",
            f"Requests to the Kubernetes API by HTTP status; code={NO_ANSWER} where no answer came.",
            ("verb", "resource", "code"),
            registry=registry,
        )
        self.api_request_seconds = Histogram(
            "caretaker_api_request_seconds",
            "Time a request to the Kubernetes API took until its answer was read; watches excepted.",
            ("verb", "resource"),
            buckets=FAST,
            registry=registry,
        )
        self.missing_permission = Gauge(
            "caretaker_missing_permission",
            "1 while the API refuses this verb on this resource (403): grant it in caretaker's role.",
            ("verb", "resource"),
            registry=registry,
        )

    def _work(self, registry: CollectorRegistry) -> None:
        self.reconcile_errors = Counter(
            "caretaker_reconcile_errors_total",
            "Passes that ended in an error, by kind of resource and reason; they are tried again.",
            ("kind", "reason"),
            registry=registry,
        )
        self.plan_cpu = Histogram(
            "caretaker_plan_cpu_seconds",
            "CPU time one planning step took: the event loop does nothing else meanwhile.",
            ("kind",),
            buckets=PLAN,
            registry=registry,
        )
        self.queue_depth = Gauge(
            "caretaker_queue_depth", "Objects that wait for a pass, delayed ones excepted.", registry=registry
        )
        self.queue_wait = Histogram(
            "caretaker_queue_wait_seconds",
            "Time an object waited for its pass after it was due.",
            buckets=FAST,
            registry=registry,
        )

    def _reflectors(self, registry: CollectorRegistry) -> None:
        self.reflector_events = Counter(
            "caretaker_reflector_events_total",
            "Watch events received, bookmarks included.",
            ("resource",),
            registry=registry,
        )
        self.reflector_relists = Counter(
            "caretaker_reflector_relists_total",
            "Full lists of a watched resource, by what made one necessary.",
            ("resource", "reason"),
            registry=registry,
        )
        self.reflector_age = Gauge(
            "caretaker_reflector_age_seconds",
            "Time since anything, bookmarks included, was last heard of a watched resource.",
            ("resource",),
            registry=registry,
        )

    def _loop(self, registry: CollectorRegistry) -> None:
        self.loop_lag = Histogram(
            "caretaker_loop_lag_seconds",
            "How late the event loop woke a task that slept for 0.1 s.",
            buckets=LAG,
            registry=registry,
        )
        self.loop_lag_max = Gauge(
            "caretaker_loop_lag_max_seconds", "The largest loop lag of the last minute.", registry=registry
        )

    def api_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count one request. `code` is the HTTP status, 0 where no answer came; `seconds` its duration."""
        self.api_requests.labels(verb, resource, str(code) if code else NO_ANSWER).inc()
        if verb in _WRITES and resource in _DAEMONTASK_WRITES:
            self.daemontask.api_writes.labels(verb, resource).inc()
        if verb != "watch":
            self.api_request_seconds.labels(verb, resource).observe(seconds)

    def reconciled(self, kind: str, seconds: float) -> None:
        """One pass over an object of `kind` took `seconds`."""
        if kind == "DaemonTask":
            self.daemontask.reconcile.observe(seconds)

    def reconcile_error(self, kind: str, reason: str) -> None:
        """One pass over an object of `kind` ended in an error and is tried again."""
        self.reconcile_errors.labels(kind, reason).inc()

    def permission(self, verb: str, resource: str, *, missing: bool) -> None:
        """Tell whether RBAC refuses `verb` on `resource`.

        Not derived from the status code: quotas and admission refuse with 403, too.
        """
        self.missing_permission.labels(verb, resource).set(1 if missing else 0)

    def watch_reflector(self, resource: str, age: Callable[[], float]) -> None:
        """Read `age`, seconds since the reflector of `resource` last heard anything, at each scrape."""
        self.reflector_age.labels(resource).set_function(age)


def create_metrics(version: str) -> Metrics:
    """Metrics with a new registry that also holds the process, platform and garbage collector's series."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return Metrics(version, registry)


class LoopLag:
    """Measures how late the event loop wakes a sleeper: what every other task waits, too.

    `clock` gives seconds that never go back.
    """

    INTERVAL: Final = 0.1  # seconds; at most ten wake-ups a second
    WINDOW: Final = 60.0  # seconds that caretaker_loop_lag_max_seconds looks back
    RECENT: Final = 5.0  # seconds for which one lag over the limit counts as unhealthy

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        # (time, lag), lags falling from left to right: the leftmost is the window's largest.
        self._largest: deque[tuple[float, float]] = deque()
        self._due = 0.0
        metrics.loop_lag_max.set_function(self.largest)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due = self._clock() + self.INTERVAL
            await asyncio.sleep(self.INTERVAL)
            self.record(self._clock() - self._due)

    def record(self, lag: float) -> None:
        """Take one measurement in seconds."""
        lag, now = max(lag, 0.0), self._clock()
        self._metrics.loop_lag.observe(lag)
        while self._largest and self._largest[-1][1] <= lag:
            self._largest.pop()
        self._largest.append((now, lag))
        while self._largest[0][0] < now - self.WINDOW:
            self._largest.popleft()

    def largest(self, seconds: float = WINDOW) -> float:
        """The largest lag of the last `seconds` (at most WINDOW), in seconds."""
        since = self._clock() - seconds
        return next((lag for at, lag in self._largest if at >= since), 0.0)

    def check(self, limit: float = 10.0) -> str | None:
        """Why the loop is unhealthy, or None. One long stall is told for RECENT seconds, then forgiven."""
        overdue = self._clock() - self._due if self._due else 0.0
        worst = max(self.largest(self.RECENT), overdue)
        if worst <= limit:
            return None
        return f"the event loop stood still for {worst:.1f} s (limit {limit:g} s)"
