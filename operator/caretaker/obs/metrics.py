"""Prometheus metrics of the operator itself; each kind has a module `metrics` for its own.

Inputs: observations from the other layers, by the methods and the metric objects here. Each Metrics has a
registry of its own, so tests and two operators in one process do not meet. Labels are bounded
(docs/metrics.md has their values, and tests hold every series to it): few gauges name an object, and
forget() drops its series. It must not do I/O.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from caretaker.api.conditions import READY, Condition, ConditionStatus
from caretaker.obs.series import GaugeSeries, LabelLimiter, makers

# Buckets in seconds.
FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
PLAN: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.25, 0.5, 1)
LAG: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1, 2.5, 5, 10)
AWS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # a request times out after 10
# client-go's value for a request without an HTTP response (rest_client_requests_total in k8s.io/client-go).
NO_ANSWER: Final = "<error>"
VALUES: Final[dict[ConditionStatus, int]] = {"True": 1, "False": 0, "Unknown": -1}
Key = tuple[str, str, str]  # kind, namespace ("" if cluster-scoped), name


class AwsMetrics:
    """Metrics of the calls to AWS: an aws.connections.Observer, used in threads that make calls. Codes come
    from endpoints, so only the first hundred have a series of their own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.requests = counter(
            "caretaker_aws_requests_total",
            f"Requests to AWS, retries too; code=OK, AWS's error code, or {NO_ANSWER} without answer.",
            ("service", "operation", "code"),
        )
        self.request_seconds = histogram(
            "caretaker_aws_request_seconds",
            "Time a request to AWS took until its answer was read; long polls excepted.",
            ("service", "operation"),
            buckets=AWS,
        )
        self.connections = counter(
            "caretaker_aws_connections_opened_total",
            "Connections opened to AWS; each costs a name look-up and a TLS handshake.",
            ("service",),
        )
        self.long_polls = gauge("caretaker_aws_long_polls", "Long polls that wait for an answer of AWS now.")
        self._codes = LabelLimiter()

    def request(self, service: str, operation: str, code: str, seconds: float | None) -> None:
        """Count one request. `code` is "" where no answer came; `seconds` is None for a long poll."""
        self.requests.labels(service, operation, self._codes(code) if code else NO_ANSWER).inc()
        if seconds is not None:
            self.request_seconds.labels(service, operation).observe(seconds)

    def connection_opened(self, service: str) -> None:
        """One more connection."""
        self.connections.labels(service).inc()

    def polls(self, change: int) -> None:
        """A long poll began (+1) or ended (-1)."""
        self.long_polls.inc(change)


class ResourceMetrics:
    """The conditions of every custom resource, as its status has them. One series for each condition that a
    resource has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        _, gauge, _ = makers(registry)
        self.ready = gauge(
            "caretaker_ready",
            "1 where a resource's Ready condition is True, else 0; caretaker_condition has the reason.",
            ("kind", "namespace", "name"),
        )
        self.condition = gauge(
            "caretaker_condition",
            "The conditions of a resource: 1 True, 0 False, -1 Unknown; its status has the message.",
            ("kind", "namespace", "name", "type", "reason"),
        )
        self._conditions = GaugeSeries(self.condition)

    def show(self, key: Key, conditions: Iterable[Condition]) -> None:
        """Set the current conditions; series of earlier conditions and reasons are dropped."""
        now = {(one.type, one.reason): VALUES[one.status] for one in conditions}
        self._conditions.show(key, now)
        ready = any(kind == READY and value == 1 for (kind, _), value in now.items())
        self.ready.labels(*key).set(1 if ready else 0)

    def forget(self, key: Key) -> None:
        """Drop the series of a deleted resource. Does nothing if there are none."""
        self._conditions.show(key, {})
        self.ready.remove(*key)

    def clear(self) -> None:
        """Drop the series of all resources."""
        self.ready.clear()
        self._conditions.clear()


class ApiMetrics:
    """Metrics of requests to the Kubernetes API."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.requests = counter(
            "caretaker_api_requests_total",
            f"Requests to the Kubernetes API by HTTP status; code={NO_ANSWER} where no answer came.",
            ("verb", "resource", "code"),
        )
        self.request_seconds = histogram(
            "caretaker_api_request_seconds",
            "Time a request to the Kubernetes API took until its answer was read; watches excepted.",
            ("verb", "resource"),
            buckets=FAST,
        )
        self.missing_permission = gauge(
            "caretaker_missing_permission",
            "1 while the API refuses this verb on this resource (403): grant it in caretaker's role.",
            ("verb", "resource"),
        )
        self._refused = LabelLimiter()

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count one request. `code` is the HTTP status, 0 where no answer came; `seconds` its duration."""
        self.requests.labels(verb, resource, str(code) if code else NO_ANSWER).inc()
        if verb != "watch":
            self.request_seconds.labels(verb, resource).observe(seconds)

    def permission(self, verb: str, resource: str, *, missing: bool) -> None:
        """Set whether RBAC refuses `verb` on `resource`.

        Not derived from the status code: quotas and admission refuse with 403, too.
        """
        # The text of a refusal, which a webhook may have written.
        self.missing_permission.labels(self._refused(verb), self._refused(resource)).set(1 if missing else 0)


class PassMetrics:
    """Metrics of passes and of their queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.seconds = histogram(
            "caretaker_reconcile_seconds",
            "Time one pass over a resource took, from gather to after.",
            ("kind",),
            buckets=FAST,
        )
        self.errors = counter(
            "caretaker_reconcile_errors_total",
            "Passes that ended in an error, by kind of resource and reason; they are tried again.",
            ("kind", "reason"),
        )
        self.plan_cpu = histogram(
            "caretaker_plan_cpu_seconds",
            "CPU time one planning step took: the event loop does nothing else meanwhile.",
            ("kind",),
            buckets=PLAN,
        )
        self.cpu = histogram(
            "caretaker_pass_cpu_seconds",
            "CPU time one pass took on the event loop, with the tasks that it began.",
            ("kind",),
            buckets=FAST,
        )
        self.long_steps = counter(
            "caretaker_long_steps_total",
            "Steps of passes that held the event loop for 50 ms of CPU time or longer.",
            ("kind",),
        )
        self.queue_depth = gauge(
            "caretaker_queue_depth", "Objects that wait for a pass, delayed ones excepted."
        )
        self.paused = gauge(
            "caretaker_paused_resources",
            "Resources whose next pass is delayed: they took more CPU than one may use, or are large.",
            ("kind",),
        )
        self.queue_wait = histogram(
            "caretaker_queue_wait_seconds",
            "Time an object waited for its pass after it was due.",
            buckets=FAST,
        )
        self._reasons = LabelLimiter()

    def error(self, kind: str, reason: str) -> None:
        """One pass over an object of `kind` ended in an error and is tried again."""
        self.errors.labels(kind, self._reasons(reason)).inc()


class WatchMetrics:
    """Metrics of watches of the core API."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, _ = makers(registry)
        self.events = counter(
            "caretaker_reflector_events_total", "Watch events received, bookmarks included.", ("resource",)
        )
        self.relists = counter(
            "caretaker_reflector_relists_total",
            "Full lists of a watched resource, by what made one necessary.",
            ("resource", "reason"),
        )
        self.age = gauge(
            "caretaker_reflector_age_seconds",
            "Time since anything, bookmarks included, was last heard of a watched resource.",
            ("resource",),
        )


class Metrics:
    """The series of one operator. Kinds make theirs in `registry`, from which `/metrics` is written."""

    def __init__(self, version: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.api = ApiMetrics(registry)
        self.aws = AwsMetrics(registry)
        self.passes = PassMetrics(registry)
        self.resources = ResourceMetrics(registry)
        self.watches = WatchMetrics(registry)
        _, gauge, histogram = makers(registry)
        gauge("caretaker_build_info", "Always 1; the label has the version.", ("version",)).labels(
            version
        ).set(1)
        self.leader = gauge("caretaker_leader", "1 while this process holds the Lease and may write, else 0.")
        self.loop_lag = histogram(
            "caretaker_loop_lag_seconds",
            "How late the event loop woke a task that slept for 0.1 s.",
            buckets=LAG,
        )
        self.loop_lag_max = gauge(
            "caretaker_loop_lag_max_seconds", "The largest loop lag of the last minute."
        )


def process_registry() -> CollectorRegistry:
    """A new registry with the series of the process, the platform and the garbage collector."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def create_metrics(version: str) -> Metrics:
    """Metrics, in a registry that also has those of the process."""
    return Metrics(version, process_registry())
