"""A place for an operator that is listened to."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from awsdoubles.ministack import MiniStack
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.refreshplace import Place, refresh_place


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path) -> AsyncIterator[Place]:
    async with refresh_place(cluster, admin, ministack.url, tmp_path) as made:
        yield made
        await asyncio.to_thread(made.close)
