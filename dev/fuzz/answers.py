"""Responses of AWS as subjects: of every operation that the operator has a method for, as botocore has parsed
them, with what reads them.

A sample has every member that is read: it is made from the type of the response.
"""

import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from caretaker.api.s3refresh import SQSSource
from caretaker.aws.response_check import PROTOCOLS, fault_of
from caretaker.aws.services import api_name
from caretaker.daemontask.ecs.check import Call, CheckParams, ServiceState, UnclearError, check, following
from caretaker.imds.inventory import cluster_tag
from caretaker.imds.launching import account_of, scaling_group, template_of
from caretaker.imds.observations import observed_instance
from caretaker.s3refresh import queue_view
from fuzz import awssamples
from fuzz.making import MIB, Subject, of_json, prepared, sound

_SCALARS: Final = {
    str: "x",
    int: 1,
    float: 1.5,
    bool: True,
    datetime: "2026-01-01T00:00:00Z",
    Any: {"x": "x"},
}


def sample_of(form: Any) -> Any:
    """A value of this type with every member."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if typing.is_typeddict(form):
        return {name: sample_of(kind) for name, kind in typing.get_type_hints(form).items()}
    if origin is list:
        return [sample_of(arguments[0])]
    if origin is dict:
        return {"x": sample_of(arguments[1])}
    return _SCALARS[form]


def operations() -> Iterator[tuple[str, Any]]:
    """(method, type of its response) of all services."""
    for protocol in PROTOCOLS:
        for name, method in vars(protocol).items():
            if not name.startswith("_"):
                yield name, typing.get_type_hints(method)["return"]


def _instances(answer: Any) -> Any:
    every = [one for group in answer["Reservations"] for one in group["Instances"]]
    return [observed_instance(one, 1.0) for one in every], cluster_tag(every)


def _attributes(answer: Any) -> Any:
    found = answer["Attributes"]
    return queue_view.view_of(found, SQSSource("https://sqs/1/a")), queue_view.dead_letter_queue(found)


# What reads a response; of the others its members are read one by one, or the look at ECS reads it.
_READERS: Final[Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
    "describe_instances": (_instances, awssamples.INSTANCES),
    "get_queue_attributes": (_attributes, awssamples.QUEUE),
    "describe_auto_scaling_groups": (
        lambda answer: [scaling_group(one) for one in answer["AutoScalingGroups"]],
        awssamples.GROUPS,
    ),
    "describe_launch_template_versions": (
        lambda answer: template_of(answer["LaunchTemplateVersions"]),
        awssamples.VERSIONS,
    ),
    "get_instance_metadata_defaults": (
        lambda answer: account_of(answer["AccountLevel"]),
        awssamples.ACCOUNT,
    ),
}


def _answer(method: str, form: Any) -> Subject:
    """Responses are held against their type in a thread of their own, and read in the event loop."""

    def valid(content: bytes) -> Any:
        answer = msgspec.json.decode(sound(content))
        return None if fault_of(api_name(method), answer) else answer

    if method not in _READERS:
        return Subject(of_json(MIB, valid, sample_of(form)), seconds=2.0)
    return Subject(prepared(MIB, valid, *_READERS[method]))


def _answers(content: bytes) -> dict[str, Any] | None:
    """Those that have no fault, by method."""
    found = msgspec.json.decode(sound(content))
    if not isinstance(found, dict):
        return None
    return {name: one for name, one in found.items() if not fault_of(api_name(name), one)}


def look(answers: Mapping[str, Any]) -> ServiceState | Call:
    """A look at a cluster, each of whose calls gets the same answer whenever it is made; of a list the first
    page alone, because a page is a turn of the event loop. A Call: the last one, which has no answer."""
    looking = check(CheckParams("prod", "agent", "Active", max_count=50, max_decrease_percent=50))
    step = following(looking, None)
    while isinstance(step, Call) and step.method in answers:
        step = following(looking, {**answers[step.method], "nextToken": ""})
    return step


SUBJECTS: Final = {
    **{f"aws-{method.replace('_', '-')}": _answer(method, form) for method, form in operations()},
    "ecs-look": Subject(prepared(MIB, _answers, look, awssamples.LOOK), (UnclearError,)),
}
