"""A write that contradicts the state is taken back, and other writes never wait for it without end."""

import asyncio
from collections.abc import Sequence

import pytest

from barnabas.base.clock import SystemClock
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.services.registry.election import Identity
from barnabas.services.registry.errors import Refusal
from barnabas.services.registry.log import SchemaLog, SchemaLogConfig
from barnabas.services.registry.node import Node, NodeConfig
from barnabas.services.registry.records import Record
from barnabas.services.registry.store import Store


class RecreatedLog(SchemaLog):
    """The topic is created again after each append: no appended record is ever read."""

    async def append(self, written: Sequence[Record]) -> int:
        return self.position + len(written)


async def test_record_that_never_arrives_does_not_hold_up_later_writes() -> None:
    client = ClientConfig(bootstrap=(("localhost", 1),))
    node = Node(NodeConfig(client=client, identity=Identity(host="localhost", port=8081), write_timeout_ms=50))
    cluster = AsyncClient(client)
    log = RecreatedLog(cluster, cluster, Store(default_compatibility="NONE"), SchemaLogConfig(), clock=SystemClock())
    node._log = log
    async with asyncio.timeout(10):
        with pytest.raises(Refusal, match="taken back"):
            await node._take_back([Record(b"{}", None)])
        await node._take_back([])
    assert not log.is_claimed, "the next write claims the log, and so reads all of it"
