"""Clients that disconnect while a broker reads from the store for them: the broker must drop the data."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, EARLIEST_LOCAL, LATEST
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.fetching import ConsumerConfig
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.load import Client, Persistent
from tests.simulation.tier_troubles import LOOK_S, Trouble

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: How long a client waits for records, and for a broker to ask the store.
_PATIENCE_S: Final = 2.0


class Leaving(Trouble):
    def clients(self) -> list[Client]:
        return [Leaver(self._cluster, f"leaver{number}", self._cluster.partitions) for number in range(2)]


class Leaver(Persistent):
    """Fetches the first records of one partition, which only the store has, and records of another from disk. It disconnects
    when the broker has read the latter and asks the store for the former.
    """

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)

    async def _live(self) -> None:
        async with self.connect(api_timeout_ms=5_000) as cluster:
            while not self.ending:
                for broker, positions in (await self._wanted(cluster)).items():
                    await self._come_and_go(self.cluster.brokers[broker], positions)
                await self.pause(0.1, 0.4)

    async def _wanted(self, cluster: AsyncClient) -> dict[int, dict[TopicPartition, int]]:
        """Return, by leader: one partition from its first record on, and another from the first record that is on disk."""
        starts, borders, ends = [
            await list_offsets(cluster, dict.fromkeys(self._partitions, each))
            for each in (EARLIEST, EARLIEST_LOCAL, LATEST)
        ]
        wanted: dict[int, dict[TopicPartition, int]] = {}
        for broker, led in (await cluster.leaders(self._partitions)).items():
            pairs = [
                (there, here)
                for there in led
                for here in led
                if there != here
                and starts[there].offset < borders[there].offset
                and borders[here].offset < ends[here].offset
            ]
            if pairs:
                there, here = self.chance.choice(pairs)
                wanted[broker] = {here: borders[here].offset, there: starts[there].offset}
        return wanted

    async def _come_and_go(self, broker: BrokerProcess, positions: dict[TopicPartition, int]) -> None:
        config = ConsumerConfig(auto_offset_reset="none")
        async with self.connect() as own, Consumer(own, config) as consumer:
            consumer.assign(positions)
            waiting = asyncio.create_task(consumer.poll(int(_PATIENCE_S * 1000)))
            until_s = self.world.now_s + _PATIENCE_S
            while not waiting.done() and not self._asks(broker) and self.world.now_s < until_s:
                await asyncio.sleep(LOOK_S)
            if not waiting.done():
                self.note(f"disconnects from {broker.name}, which asks the store for {', '.join(map(str, positions))}")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    def _asks(self, broker: BrokerProcess) -> bool:
        """Whether a fetch waits on the broker for data in the store."""
        return (
            broker.is_serving and broker.broker is not None and len(broker.broker.replicas.fetches.tier.purgatory) > 0
        )


KINDS: dict[str, type[Trouble]] = {"leaving": Leaving}
