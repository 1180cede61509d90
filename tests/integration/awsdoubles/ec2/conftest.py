"""One EC2 double and one client for a file: a client costs more time than most tests take."""

from collections.abc import Iterator
from typing import Any

import pytest

from awsdoubles.clients import client as made_client
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2


@pytest.fixture(scope="module")
def server() -> Iterator[Ec2]:
    with Ec2() as double:
        yield double


@pytest.fixture
def ec2(server: Ec2) -> Ec2:
    """As new."""
    server.control.reset()
    return server


@pytest.fixture
def control(ec2: Ec2) -> Control:
    """Its clock stands still."""
    ec2.control.stop_clock()
    return ec2.control


@pytest.fixture(scope="module")
def client(server: Ec2) -> Iterator[Any]:
    made = made_client("ec2", server.url)
    yield made
    made.close()


@pytest.fixture
def node(control: Control) -> str:
    """The id of an instance."""
    return str(control.add_nodes(1)[0]["id"])
