"""What ledgers take up in memory: with hundreds of tasks on a thousand nodes they are most of the process."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from caretaker.api.daemontask import LedgerStatus
from caretaker.daemontask.ledger import Entry, decode_entry, encode_entry
from caretaker.daemontask.shards import Shards
from caretaker.kube.client import KubeClient
from fakes.apiserver import FakeApiServer
from fakes.objects import Objects
from unit.daemontask.build import NOW, entry, node

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
# Longer than what decoders keep of their own accord.
NAMES = [f"ip-10-0-0-{number}.eu-central-1.compute.internal" for number in (1, 2)]
NODES = [node(name) for name in NAMES]
COMMON = ("node_uid", "boot_id", "revision", "nonce")


def fresh(of: Any) -> Entry:
    """The entry of a run, with strings of its own, as everything is that was read off a Pod."""
    made = entry(of, nonce="2026-01-01T00:00:00Z")
    found = msgspec.json.decode(encode_entry(made), type=Entry)
    assert all(getattr(found, name) is not getattr(made, name) for name in COMMON)
    return found


def test_entries_of_a_node_in_the_ledgers_of_two_tasks_have_one_copy_of_what_they_share() -> None:
    one, other = (decode_entry(encode_entry(fresh(NODES[0]))) for _ in range(2))
    assert isinstance(one, Entry)
    assert isinstance(other, Entry)
    assert [name for name in COMMON if getattr(one, name) is not getattr(other, name)] == []


async def test_so_have_the_ledgers_that_were_read_and_those_that_were_written(tmp_path: Path) -> None:
    ledgers, told = [], LedgerStatus()
    async with FakeApiServer() as api, await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
        for name in ("x", "y"):
            Objects(api, CONFIG_MAPS, "configmaps", "ConfigMap")
            written, read = (Shards(client, "default", name, f"uid-{name}") for _ in range(2))
            await written.load(NOW)
            await written.write({of.name: fresh(of) for of in NODES}, ())
            await read.load(NOW)
            ledgers += [written.ledger(told).entries, read.ledger(told).entries]
    for of in NODES:
        for name in COMMON:
            assert len({id(getattr(entries[of.name], name)) for entries in ledgers}) == 1, (of.name, name)
    read_names = [sys.intern(name) for name in NAMES]
    for entries in ledgers[1::2]:
        assert [id(name) for name in entries] == [id(name) for name in read_names]
