"""A service of which nothing can be changed."""

from typing import Any

import pytest

from caretaker.aws.services import ReadOnlyError, read_only


class Ec2:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, operation: str) -> Any:
        async def call(**_: Any) -> str:
            self.calls.append(operation)
            return operation

        return call


@pytest.mark.parametrize("operation", ["describe_instances", "describe_launch_template_versions"])
async def test_what_changes_nothing_is_passed_on(operation: str) -> None:
    ec2: Any = Ec2()
    assert await getattr(read_only(ec2), operation)(MaxResults=5) == operation
    assert ec2.calls == [operation]


@pytest.mark.parametrize(
    "operation",
    [
        "modify_instance_metadata_options",
        "create_launch_template_version",
        "terminate_instances",
        "an_operation_of_next_year",
    ],
)
def test_whatever_may_change_something_is_refused_before_it_is_sent(operation: str) -> None:
    ec2: Any = Ec2()
    with pytest.raises(ReadOnlyError, match="is refused"):
        getattr(read_only(ec2), operation)
    assert ec2.calls == []
