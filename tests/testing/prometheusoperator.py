"""What the Prometheus operator's API takes of the chart's objects, where no cluster has its CRDs.

Written after the CRDs of monitoring.coreos.com/v1 in prometheus-operator 0.84
(example/prometheus-operator-crd/), as far as the chart uses them: a field that is new in the chart is unknown
here until it has been looked up there. helm is the validator, since it has one for values.
"""

import json
from pathlib import Path
from typing import Any, Final

import chart

Json = dict[str, Any]

_DURATION: Final = {
    "type": "string",
    "pattern": "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
_STRING: Final = {"type": "string"}
_STRINGS: Final = {"type": "object", "additionalProperties": _STRING}


def _object(required: tuple[str, ...], **properties: Json) -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_META: Final = _object(("name",), name=_STRING, namespace=_STRING, labels=_STRINGS)
_ENDPOINT: Final = _object(
    (), port=_STRING, interval=_DURATION, honorLabels={"type": "boolean"}, bearerTokenFile=_STRING
)
_MONITOR: Final = _object(
    ("selector", "endpoints"),
    selector=_object((), matchLabels=_STRINGS),
    namespaceSelector=_object((), matchNames=_list(_STRING)),
    endpoints=_list(_ENDPOINT),
)
_ALERT: Final = _object(
    ("expr",),
    alert=_STRING,
    expr={"type": ["string", "integer"]},
    labels=_STRINGS,
    annotations=_STRINGS,
    **{"for": _DURATION},
)
_GROUP: Final = _object(("name",), name={**_STRING, "minLength": 1}, rules=_list(_ALERT))
_SPECS: Final = {"ServiceMonitor": _MONITOR, "PrometheusRule": _object((), groups=_list(_GROUP))}


def faults(body: Json, folder: Path) -> str:
    """What the API would say against a ServiceMonitor or a PrometheusRule; "" = nothing."""
    schema = _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": body["kind"]},
        metadata=_META,
        spec=_SPECS[body["kind"]],
    )
    judge = folder / "judge"
    judge.mkdir(exist_ok=True)
    (judge / "Chart.yaml").write_text("apiVersion: v2\nname: judge\nversion: 0.0.0\n")
    (judge / "values.schema.json").write_text(json.dumps(schema))
    (judge / "values.json").write_text(json.dumps(body))
    try:
        chart.helm("template", "judge", judge, "--values", judge / "values.json")
    except chart.ChartError as refused:
        return str(refused)
    # A list whose key is the group's name: the API refuses the second of that name.
    names = [group["name"] for group in body["spec"].get("groups", ())]
    return "" if len(set(names)) == len(names) else f"groups of one name: {names}"
