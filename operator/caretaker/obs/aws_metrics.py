"""Prometheus metrics of the calls to AWS.

Inputs: observations, from the threads that make the calls. Labels are bounded: codes come from
endpoints, so only the first hundred have a series of their own. It must not do I/O.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from caretaker.obs.label_limiter import LabelLimiter

# Buckets in seconds; a request to AWS times out after 10.
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class AwsMetrics:
    """An aws.connections.Observer."""

    # As caretaker_api_requests_total has it; Metrics.NO_ANSWER is the same word.
    NO_ANSWER: Final = "<error>"

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "caretaker_aws_requests_total",
            f"Requests to AWS, retries too; code=OK, AWS's error code, or {self.NO_ANSWER} without answer.",
            ("service", "operation", "code"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "caretaker_aws_request_seconds",
            "Time a request to AWS took until its answer was read; long polls excepted.",
            ("service", "operation"),
            buckets=SECONDS,
            registry=registry,
        )
        self.connections = Counter(
            "caretaker_aws_connections_opened_total",
            "Connections opened to AWS; each costs a name look-up and a TLS handshake.",
            ("service",),
            registry=registry,
        )
        self.long_polls = Gauge(
            "caretaker_aws_long_polls", "Long polls that wait for an answer of AWS now.", registry=registry
        )
        self._codes = LabelLimiter()

    def request(self, service: str, operation: str, code: str, seconds: float | None) -> None:
        """Count one request. `code` is "" where no answer came; `seconds` is None for a long poll."""
        self.requests.labels(service, operation, self._codes(code) if code else self.NO_ANSWER).inc()
        if seconds is not None:
            self.request_seconds.labels(service, operation).observe(seconds)

    def connection_opened(self, service: str) -> None:
        """One more connection."""
        self.connections.labels(service).inc()

    def polls(self, change: int) -> None:
        """A long poll began (+1) or ended (-1)."""
        self.long_polls.inc(change)
