"""The narrow Protocols say what AWS's own descriptions say."""

import inspect
import typing
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from botocore import xform_name
from botocore.model import ServiceModel

from caretaker.aws.cloudwatch import CloudWatch
from caretaker.aws.ec2 import AutoScaling, Ec2, Ec2Writer
from caretaker.aws.ecs import Ecs
from caretaker.aws.response_check import Sts
from caretaker.aws.s3control import S3Control
from caretaker.aws.sqs import Sqs
from caretaker.aws.storagegateway import StorageGateway
from testing.servicemodels import service_model

SERVICES: dict[str, type] = {
    "autoscaling": AutoScaling,
    "cloudwatch": CloudWatch,
    "ec2": Ec2,
    "ecs": Ecs,
    "s3control": S3Control,
    "sqs": Sqs,
    "storagegateway": StorageGateway,
    "sts": Sts,
}
METHODS = [
    (service, name)
    for service, protocol in (*SERVICES.items(), ("ec2", Ec2Writer))
    for name in vars(protocol)
    if not name.startswith("_")
]


@cache
def model(service: str) -> tuple[ServiceModel, dict[str, str]]:
    """It, and its operations by the names of boto3's methods."""
    found = service_model(service)
    return found, {xform_name(name): name for name in found.operation_names}


def method_of(service: str, method: str) -> Any:
    return getattr(SERVICES[service], method, None) or getattr(Ec2Writer, method)


def operation(service: str, method: str) -> Any:
    found, operations = model(service)
    return found.operation_model(operations[method])


@pytest.mark.parametrize(("service", "method"), METHODS)
def test_a_method_has_the_operations_parameters(service: str, method: str) -> None:
    shape = operation(service, method).input_shape
    parameters = list(inspect.signature(method_of(service, method)).parameters.values())[1:]
    names = {p.name for p in parameters}
    assert names <= set(shape.members)
    # S3 Control's host holds the account, so botocore fills in what its description does not require.
    required = {p.name for p in parameters if p.default is inspect.Parameter.empty}
    assert set(shape.required_members) <= required


@pytest.mark.parametrize(("service", "method"), METHODS)
def test_a_result_has_the_operations_members(service: str, method: str) -> None:
    result = typing.get_type_hints(method_of(service, method))["return"]
    agree(result, operation(service, method).output_shape)


# The Python types that botocore returns for the types of AWS's service models.
SCALARS = {
    "string": str,
    "integer": int,
    "long": int,
    "double": float,
    "boolean": bool,
    "timestamp": datetime,
}


def agree(result: Any, shape: Any) -> None:
    """Every key that is read exists and has its type, and lists hold structures of the same members."""
    members = shape.members
    for name, kind in typing.get_type_hints(result).items():
        assert name in members, f"{shape.name} has no {name}"
        alike(kind, members[name], f"{shape.name}.{name}")


def alike(kind: Any, shape: Any, where: str) -> None:
    """The type matches the shape."""
    if shape.type_name in SCALARS:
        assert kind is SCALARS[shape.type_name], where
    elif shape.type_name == "list":
        assert typing.get_origin(kind) is list, where
        alike(typing.get_args(kind)[0], shape.member, where)
    elif typing.is_typeddict(kind):
        agree(kind, shape)
    else:
        assert typing.get_origin(kind) is dict, where
        key, value = typing.get_args(kind)
        assert key is str, where
        assert value is Any or (shape.type_name == "map" and value is SCALARS[shape.value.type_name]), where
