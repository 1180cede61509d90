"""Pod templates, and other ways to write them: what kubectl, Helm and Go programs add and take away.

Strategies. noisy(template) says the same; the Pods are the same to the API server.
"""

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from caretaker.api.podtypes import STRUCTS

Json = dict[str, Any]

# A template with most of what has an empty value that says nothing, or something.
FULL: Final[Json] = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"note": ""}},
    "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/os": "linux", "empty": ""},
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsUser": 0},
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "main",
                "image": "busybox:1.37",
                "command": ["sh", "-c", ""],
                "env": [{"name": "A", "value": "1"}, {"name": "B"}],
                "ports": [{"containerPort": 80, "name": "http"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": "http"}, "initialDelaySeconds": 5},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "securityContext": {"privileged": False},
            },
            {"name": "second", "image": "busybox:1.37"},
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "host", "hostPath": {"path": "/"}},
            {"name": "word", "secret": {"secretName": "s", "optional": True}},
        ],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "topologyKey": "zone",
                            "labelSelector": {"matchLabels": {"a": "b"}},
                        },
                    }
                ]
            }
        },
    },
}
# Defaults as the API server writes them: struct, field -> value.
SPELT: Final[dict[tuple[str, str], Any]] = {
    ("Container", "terminationMessagePath"): "/dev/termination-log",
    ("Container", "terminationMessagePolicy"): "File",
    ("ContainerPort", "protocol"): "TCP",
    ("HTTPGetAction", "path"): "/",
    ("HTTPGetAction", "scheme"): "HTTP",
    ("HostPathVolumeSource", "type"): "",
    ("PodSpec", "dnsPolicy"): "ClusterFirst",
    ("PodSpec", "enableServiceLinks"): True,
    ("PodSpec", "schedulerName"): "default-scheduler",
    ("PodSpec", "terminationGracePeriodSeconds"): 30,
    ("Probe", "failureThreshold"): 3,
    ("Probe", "periodSeconds"): 10,
    ("Probe", "successThreshold"): 1,
    ("Probe", "timeoutSeconds"): 1,
    ("SecretVolumeSource", "defaultMode"): 420,
}
WORDS: Final = {
    "1": ("1000m", 1, "1.0", "1.000"),
    "500m": ("0.5", ".5", "500000u"),
    "1Gi": ("1024Mi", "1048576Ki"),
    "64Mi": ("65536Ki", "0.0625Gi"),
}
# What the CRD does not let through.
_NOT_HERE: Final = {"ObjectMeta": {"labels", "annotations", "creationTimestamp"}}
# Of these, an empty object says nothing; of other pointers it may.
_EMPTY: Final = ("affinity", "dnsConfig", "securityContext", "lifecycle")


@st.composite
def noisy(draw: st.DrawFn, template: Json) -> Json:
    """The same template in other words."""
    return _struct(draw, "PodTemplateSpec", template)


def _struct(draw: st.DrawFn, name: str, found: Json) -> Json:
    fields = STRUCTS[name]
    made = {key: _value(draw, fields[key], value) for key, value in found.items()}
    free = [key for key in fields if key not in found and key in _NOT_HERE.get(name, fields)]
    for key in draw(st.lists(st.sampled_from(free), max_size=2, unique=True)) if free else ():
        made[key] = draw(st.sampled_from(_nothings(name, key, fields[key])))
    return dict(draw(st.permutations(list(made.items()))))


def _value(draw: st.DrawFn, code: str, value: Any) -> Any:
    code = code.removeprefix("*")
    if code.startswith("[]"):
        return [_value(draw, code[2:], item) for item in value]
    if code.startswith("{}"):
        return {key: _value(draw, code[2:], item) for key, item in value.items()}
    if code in STRUCTS:
        return _struct(draw, code, value)
    return draw(st.sampled_from((value, *WORDS.get(value, ())))) if code == "quantity" else value


def _nothings(name: str, key: str, code: str) -> list[Any]:
    """Values of an absent field that say nothing. The CRD has an opinion of restartPolicy."""
    found: list[Any] = [] if key == "restartPolicy" else [None]
    zeros: dict[str, Any] = {"str": "", "bool": False, "num": 0}
    if code in zeros:
        found.append(zeros[code])
    if code.startswith("[]"):
        found.append([])
    if (code.startswith("{}") and key != "overhead") or code in STRUCTS or key in _EMPTY:
        found.append({})
    if (name, key) in SPELT:
        found.append(SPELT[name, key])
    return found or [None]


def changes(template: Json) -> list[Json]:
    """Templates that say something else, each in one place: every leaf and every branch taken away, every
    scalar changed, every list turned round."""
    found: list[Json] = []
    _change(template, found.append)
    return found


def _change(value: Any, put: Callable[[Any], None]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            rest = {other: kept for other, kept in value.items() if other != key}
            put(rest)
            _change(item, lambda changed, key=key: put({**value, key: changed}))  # type: ignore[misc]
    elif isinstance(value, list):
        if len(value) > 1:
            put(value[::-1])
        for place, item in enumerate(value):
            put([*value[:place], *value[place + 1 :]])
            _change(
                item,
                lambda changed, place=place: put([*value[:place], changed, *value[place + 1 :]]),  # type: ignore[misc]
            )
    elif isinstance(value, bool):
        put(not value)
    else:
        put(value + 1 if isinstance(value, int) else f"{value}9")
