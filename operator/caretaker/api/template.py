"""The parts of a pod template that caretaker itself reads, with the types they must have.

Pure data. The CRD keeps most of the PodSpec as it comes, so a wrong type in it is stored without objection;
here it is found, and named by its path, before anything is computed from it. All else is the dry run's.
"""

from typing import Any, Final

import msgspec

# Each gets variables of its own: a Pod of as many as fit into a template would have 26 MB, and take a second.
MAX_CONTAINERS: Final = 1000


class _Camel(msgspec.Struct, rename="camel"):
    """A part of corev1.PodTemplateSpec; unnamed fields are not looked at."""


class _Requirement(_Camel):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(_Camel):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _Selector(_Camel):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(_Camel):
    required_during_scheduling_ignored_during_execution: _Selector | None = None


class _Affinity(_Camel):
    node_affinity: _NodeAffinity | None = None


class _Toleration(_Camel):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Variable(_Camel):
    name: str


class _Container(_Camel):
    env: list[_Variable] | None = None


class _OS(_Camel):
    name: str


class _PodSpec(_Camel):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    host_network: bool | None = None
    os: _OS | None = None


class _Meta(_Camel):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Template(_Camel):
    metadata: _Meta | None = None
    spec: _PodSpec | None = None


def wrong_type(template: dict[str, Any], at: str = "spec.template") -> str:
    """The type error of a field, or too many containers, with the field's path in the resource; "" = there is
    none. `at`: the path of the template."""
    try:
        spec = msgspec.convert(template, _Template).spec or _PodSpec()
    except msgspec.ValidationError as error:
        return str(error).replace("`$", f"`{at}")
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        if containers is not None and len(containers) > MAX_CONTAINERS:
            return f"{at}.spec.{field}: has {len(containers)} items, more than {MAX_CONTAINERS}"
    return ""
