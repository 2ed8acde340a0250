"""A broker without ZooKeeper gives up what another broker leads by now, and nothing else."""

import asyncio
from collections.abc import Sequence

import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.replication.lost_leadership import LostLeadership
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.client.errors import ConnectionLost
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

ME = BrokerId(1)
EPOCH = 5
ORDERS = b"o" * 16


class Others:
    """What the brokers 2 and 3 say."""

    def __init__(self) -> None:
        self.alive = [2, 3]
        #: Broker -> (leader, epoch) of orders-0. Brokers that are missing here do not answer.
        self.leaders = {2: (2, EPOCH + 1), 3: (2, EPOCH + 1)}
        self.topic_id = ORDERS
        self.asked: list[list[str]] = []

    async def answer(self, broker: BrokerId, request: MetadataRequest) -> MetadataResponse:
        assert not request.allow_auto_topic_creation
        names = [each.name or "" for each in request.topics or []]
        self.asked.append(names)
        if broker not in self.leaders:
            raise ConnectionLost("cut off")
        leader, epoch = self.leaders[broker]
        state = MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=[1, 2, 3],
            isr_nodes=[2, 3],
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=each, host="h", port=9092) for each in self.alive],
            topics=[
                MetadataResponseTopic(error_code=0, name=name, topic_id=self.topic_id, partitions=[state])
                for name in names
            ],
        )


class World:
    def __init__(self, *, replicas: tuple[int, ...] = (1, 2, 3)) -> None:
        self.others = Others()
        self.metadata = MetadataCache()
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=2,
                live_brokers=[UpdateMetadataBroker(id=each, endpoints=[]) for each in (1, 2, 3)],
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name="orders",
                        topic_id=ORDERS,
                        partition_states=[
                            UpdateMetadataPartitionState(
                                partition_index=0,
                                leader=1,
                                leader_epoch=EPOCH,
                                isr=list(replicas),
                                replicas=list(replicas),
                            )
                        ],
                    )
                ],
            )
        )
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=30_000)
        brokers = tuple(map(BrokerId, replicas))
        machine.become_leader(
            PartitionLeadership(leader=1, leader_epoch=EPOCH, isr=brokers, partition_epoch=1, replicas=brokers),
            log_end=0,
            now_ms=0,
        )
        self.partition = Partition(
            TopicPartition("orders", 0), machine, SystemClock(), on_high_watermark=lambda p: None
        )
        self.stopped = asyncio.Event()
        self.checks = LostLeadership(
            ME,
            self.metadata,
            [self.partition],
            ask=self.others.answer,
            stop_leading=self._stop,
            session_timeout_s=0.03,
        )

    def _stop(self, partitions: Sequence[Partition]) -> None:
        for each in partitions:
            each.machine.stop()
        self.stopped.set()

    async def gives_up(self, *, is_away: bool = True) -> bool:
        """Whether the partition is given up within the time of a few questions."""
        running = asyncio.create_task(self.checks.run())
        self.checks.zookeeper_changed(is_away=is_away)
        try:
            async with asyncio.timeout(0.3):
                await self.stopped.wait()
        except TimeoutError:
            return False
        finally:
            running.cancel()
        return True


async def test_partition_that_another_broker_leads_is_given_up_and_clients_are_sent_there():
    world = World()
    assert await world.gives_up()
    assert not world.partition.is_leader
    state = world.metadata.partition(TopicPartition("orders", 0))
    assert state is not None and (state.leader, state.leader_epoch) == (2, EPOCH + 1)


async def test_no_broker_is_asked_while_zookeeper_answers():
    world = World()
    assert not await world.gives_up(is_away=False)
    assert world.others.asked == []


async def test_leaders_are_asked_for_only_where_this_broker_counts_as_dead():
    world = World()
    world.others.alive = [1, 2, 3]
    assert not await world.gives_up()
    assert world.others.asked and all(names == [] for names in world.others.asked)


@pytest.mark.parametrize("known", [(1, EPOCH + 1), (2, EPOCH), (-1, EPOCH + 1)], ids=["me", "not newer", "nobody"])
async def test_only_a_newer_epoch_with_another_leader_ends_a_leadership(known: tuple[int, int]):
    world = World()
    world.others.leaders = dict.fromkeys((2, 3), known)
    assert not await world.gives_up()
    assert world.partition.is_leader


async def test_one_answer_is_enough():
    world = World()
    del world.others.leaders[2]
    assert await world.gives_up()


async def test_topic_that_was_made_again_is_another_one():
    world = World()
    world.others.topic_id = b"n" * 16
    assert not await world.gives_up()


async def test_partition_that_only_this_broker_has_is_kept_without_asking_for_its_leader():
    world = World(replicas=(1,))
    assert not await world.gives_up()
    assert all(names == [] for names in world.others.asked)
    # The broker knows that others count it as dead, until it reaches ZooKeeper again.
    assert world.checks.is_outside
    world.checks.zookeeper_changed(is_away=False)
    assert not world.checks.is_outside


async def test_broker_that_is_back_at_zookeeper_waits_for_the_controller():
    world = World()
    running = asyncio.create_task(world.checks.run())
    world.checks.zookeeper_changed(is_away=True)
    await asyncio.sleep(0)
    world.checks.zookeeper_changed(is_away=False)
    await asyncio.sleep(0.1)
    running.cancel()
    assert world.others.asked == [] and world.partition.is_leader
