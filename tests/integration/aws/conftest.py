"""Endpoints on loopback, and an environment in which nothing of the machine's own AWS set-up shows."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from caretaker.aws.calls import Aws
from caretaker.aws.session import Options
from fakes.aws import FakeAws

OWN_KEY = "AKIAOWN"


@pytest.fixture
def fake() -> Iterator[FakeAws]:
    with FakeAws() as server:
        yield server


@pytest.fixture
def imds() -> Iterator[FakeAws]:
    """What answers in place of the instance metadata service."""
    with FakeAws() as server:
        yield server


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: FakeAws, imds: FakeAws) -> None:
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url,
        "AWS_ACCESS_KEY_ID": OWN_KEY,
        "AWS_SECRET_ACCESS_KEY": "own-secret",
        "AWS_ENDPOINT_URL": fake.url,
        # Clients put the account and a dot before the host. Before "@" they are a user's name.
        "AWS_ENDPOINT_URL_S3_CONTROL": fake.url.replace("://", "://account@"),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def aws() -> AsyncIterator[Aws]:
    async with Aws(Options(threads=4, per_client=4)) as made:
        yield made
