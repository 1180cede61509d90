"""The operator's AWS layer, aimed at the doubles."""

from collections.abc import AsyncIterator

import pytest

from caretaker.aws.calls import Aws as AwsCalls


@pytest.fixture
async def calls(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsCalls]:
    """Calls with the doubles' keys; their endpoints are in the targets."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    async with AwsCalls() as made:
        yield made
