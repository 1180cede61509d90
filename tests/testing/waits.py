"""Shorter waits of an operator, for tests against real servers, which have real time.

The operator's code has no factor for time. Listed here are its constants for back-offs, floors and checks,
and the durations of specs that are never as short as a test needs them. The clock stays as it is: the
operator compares it with the time stamps of others.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from caretaker.aws.services import Rate, policy

Table = Mapping[str, tuple[str, ...]]

# Constants by module: seconds, or a tuple of seconds.
WAITS: Final[Table] = {
    "caretaker.app": ("STUCK_SECONDS",),
    "caretaker.daemontask.apply": ("FLUSH_INTERVAL", "INTENT_SECONDS"),
    "caretaker.daemontask.controller": ("AGAIN",),
    "caretaker.daemontask.cordon_control": ("AGAIN_SECONDS", "RIGHTS_SECONDS"),
    "caretaker.daemontask.data_reader": ("DATA_SECONDS",),
    "caretaker.daemontask.decision": ("BACKOFF_BASE", "BACKOFF_MAX"),
    "caretaker.daemontask.drain": ("FIRST_WAIT", "FRESH", "LONGEST_WAIT"),
    "caretaker.daemontask.drain_control": ("ASKED_MAX", "TURN_SECONDS"),
    "caretaker.daemontask.ecs.plan": (
        "BACKOFF",
        "BACKOFF_REFUSED",
        "CONFIRM_SECONDS",
        "LIST_SECONDS",
        "MERGE_SECONDS",
    ),
    "caretaker.daemontask.exclusion": ("OFFER_SECONDS",),
    "caretaker.daemontask.gate_pacing": (
        "BASE",
        "BRIEF_MAX",
        "BRIEF_SECONDS",
        "MAX",
        "RETRY_PAUSE",
        "RIGHT_MAX",
    ),
    "caretaker.daemontask.intents": ("PATIENCE",),
    "caretaker.daemontask.pod_control": ("CONFIRMED_SECONDS", "LABEL_LOST_SECONDS"),
    "caretaker.daemontask.refused_pods": ("BACKOFF_BASE", "BACKOFF_MAX"),
    "caretaker.daemontask.retention": ("ABSENCE", "ABSENCE_CHECK", "TTL_FLOOR"),
    "caretaker.daemontask.watch_handlers": ("SLOW",),
    "caretaker.handlers": ("ABSENT_SECONDS",),
    "caretaker.imds.change_attempts": ("BACKOFF_SECONDS", "BACKOFF_MAX_SECONDS", "REVERSAL_SECONDS"),
    "caretaker.imds.checks": ("OWN_SECONDS",),
    "caretaker.imds.controller": ("AGAIN_SECONDS", "LEAST_SECONDS", "PROBE_SECONDS", "RETRY_SECONDS"),
    "caretaker.imds.enforce": ("PASS_SECONDS", "POLL_SECONDS", "READY_SECONDS", "SOON_SECONDS"),
    "caretaker.imds.enforce_input": ("FRESH_SECONDS", "WATCH_SECONDS"),
    "caretaker.imds.inventory": ("BACKOFF_SECONDS", "POLL_SECONDS"),
    "caretaker.imds.observations": ("LOST_SECONDS",),
    "caretaker.imds.policy_state": ("AGAIN_SECONDS",),
    "caretaker.imds.rate_limiter": ("BATCH_SECONDS", "RECOVERY_SECONDS"),
    "caretaker.imds.soak": ("MINUTE", "WINDOW_SECONDS"),
    "caretaker.imds.token_gate": ("READ_SECONDS",),
    "caretaker.imds.token_metrics": ("CANARY_SECONDS",),
    "caretaker.imds.watch_handlers": ("JOIN_SECONDS",),
    "caretaker.runtime.queue_consumer": ("BACKOFF_SECONDS", "MALFORMED_SECONDS"),
    "caretaker.runtime.work_queue": ("BACKOFF_BASE", "BACKOFF_MAX", "CONFLICT_MAX", "STORM_INTERVAL"),
    "caretaker.s3refresh.concurrency": ("GATEWAY_SECONDS", "OTHERS_SECONDS"),
    "caretaker.s3refresh.controller": ("SLOT_SECONDS",),
    "caretaker.s3refresh.costs": ("MINUTE_SECONDS", "RETRY_SECONDS"),
    "caretaker.s3refresh.credentials": ("KEYS_DOUBTED_SECONDS", "KEYS_SECONDS"),
    "caretaker.s3refresh.gather": ("FLUSH_SECONDS",),
    "caretaker.s3refresh.inspection": ("BACKOFF_SECONDS", "CHECK_SECONDS", "REDISCOVER_SECONDS"),
    "caretaker.s3refresh.target_types": ("REDISCOVER_SECONDS",),
    "caretaker.s3refresh.targets.access_points": ("LINE_SECONDS", "RETRY_SECONDS"),
    "caretaker.s3refresh.targets.http_target": ("HEADERS_SECONDS",),
    "caretaker.s3refresh.targets.storagegateway": ("ASSUME_SECONDS", "ASSUME_UNTRACKED_SECONDS"),
    "caretaker.s3refresh.worker": ("ENDS_SECONDS",),
}
# Not shorter than so many seconds: a pass takes real time between its read and the change, which is not sent
# after an older read.
AT_LEAST: Final = {
    ("caretaker.imds.enforce_input", "FRESH_SECONDS"): 1.0,
    ("caretaker.imds.enforce_input", "WATCH_SECONDS"): 1.5,
}
# Defaults of parameters, by the module that calls.
DEFAULTS: Final[Table] = {
    "caretaker.app": ("ReflectorOptions.denied", "ObsServer.metrics_every"),
    "caretaker.s3refresh.resource": ("DebounceOptions.claim_lost",),
}
# Functions that return seconds of a spec; those that return a Rate.
FUNCTIONS: Final[Table] = {"caretaker.daemontask.ecs.plan": ("resync_of",)}
RATES: Final[Table] = {"caretaker.imds.rate_limiter": ("cap", "regional")}
# Fields of specs that a module reads with seconds_of().
FIELDS: Final[Table] = {
    "caretaker.imds.resource": (
        "pendingTimeout",
        "resyncInterval",
        "safety.canary.soak",
        "verification.interval",
    ),
    "caretaker.s3refresh.resource": ("debounce.minInterval", "retry.initial", "retry.max"),
    "caretaker.s3refresh.targets.storagegateway": (
        "target.storageGateway.completion.assumeAfter",
        "target.storageGateway.completion.timeout",
        "target.storageGateway.rediscoverEvery",
    ),
}
# Times of the Lease, and of the writes that must end before it may. With shorter ones than by this factor, a
# busy machine costs a leader its Lease.
LEAST_LEASE: Final = 0.4
LEASE: Final[Table] = {"caretaker.kube.transport": ("WRITE_SECONDS",)}
LEASE_DEFAULTS: Final[Table] = {
    "caretaker.app": ("Options.connect_seconds", "Options.read_seconds"),
    "caretaker.runtime.lease": ("LeaseTimes.duration", "LeaseTimes.renew_deadline", "LeaseTimes.retry"),
}


def shorten(factor: float, *, lease: bool) -> None:
    """Each wait of the operator that this process becomes takes `factor` of its time, each rate is as much
    higher. `lease`: it has a Lease. AttributeError or KeyError: a table, but for FIELDS, names a thing that
    is gone."""
    _constants(WAITS, factor)
    _defaults(DEFAULTS, factor)
    _functions(FUNCTIONS, lambda seconds: seconds * factor)
    _functions(RATES, lambda rate: Rate(rate.per_second / factor, rate.burst))
    for home, fields in FIELDS.items():
        module = importlib.import_module(home)
        module.seconds_of = _shorter_fields(module.seconds_of, fields, factor)  # type: ignore[attr-defined]
    _ec2(factor)
    if lease:
        _constants(LEASE, max(factor, LEAST_LEASE))
        _defaults(LEASE_DEFAULTS, max(factor, LEAST_LEASE))


def _constants(table: Table, factor: float) -> None:
    for home, names in table.items():
        module = importlib.import_module(home)
        for name in names:
            value, least = getattr(module, name), AT_LEAST.get((home, name), 0.0)
            shorter = [max(one * factor, least) for one in (value if isinstance(value, tuple) else (value,))]
            _replace(home, name, tuple(shorter) if isinstance(value, tuple) else shorter[0])


def _functions(table: Table, change: Callable[[Any], Any]) -> None:
    for home, names in table.items():
        module = importlib.import_module(home)
        for name in names:
            _replace(home, name, _changed(getattr(module, name), change))


def _changed(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args: change(function(*args))


def _replace(home: str, name: str, changed: Any) -> None:
    """In its module, and in those that have imported it: they have the same object."""
    value = getattr(sys.modules[home], name)
    for key, module in list(sys.modules.items()):
        own = key != home and name in WAITS.get(key, ())
        if key.startswith("caretaker.") and vars(module).get(name) is value and not own:
            setattr(module, name, changed)


def _defaults(table: Table, factor: float) -> None:
    for home, names in table.items():
        module = importlib.import_module(home)
        for name in names:
            called, _, parameter = name.partition(".")
            before = getattr(module, called)
            default = inspect.signature(before).parameters[parameter].default
            setattr(module, called, partial(before, **{parameter: default * factor}))


def _shorter_fields(
    seconds_of: Callable[[str, str], float], fields: tuple[str, ...], factor: float
) -> Callable[[str, str], float]:
    def shorter_seconds_of(field: str, text: str) -> float:
        return seconds_of(field, text) * (factor if field in fields else 1.0)

    return shorter_seconds_of


def _ec2(factor: float) -> None:
    """EC2's calls a second."""
    app, rate = importlib.import_module("caretaker.app"), policy("ec2").rate
    faster = Rate(rate.per_second / factor, rate.burst)
    app.Aws = partial(app.Aws, rates={"ec2": faster})  # type: ignore[attr-defined]
