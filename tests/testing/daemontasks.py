"""DaemonTasks to create and to have refused: builders of specs."""

from typing import Any

from testing.customobjects import Spec

POD = {"containers": [{"name": "main", "image": "busybox"}]}
TEMPLATE = {"spec": POD}


def task(**fields: Any) -> Spec:
    return {"template": TEMPLATE, **fields}


def pod(**fields: Any) -> Spec:
    return {"template": {"spec": {**POD, **fields}}}


def once(**pod_fields: Any) -> Spec:
    """At most once, with what that needs."""
    return {**pod(**pod_fields), "runGuarantee": "AtMostOnce", "backoffLimit": 0}


def meta(**fields: Any) -> Spec:
    return {"template": {"metadata": fields, "spec": POD}}


def rules(*rules: Any, **pod_fields: Any) -> Spec:
    return {**pod(**pod_fields), "podFailurePolicy": {"rules": list(rules)}}


def exit_codes(*values: Any, operator: str = "In", **fields: Any) -> Spec:
    return rules(
        {"action": "FailIndex", "onExitCodes": {"operator": operator, "values": list(values), **fields}}
    )


DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
