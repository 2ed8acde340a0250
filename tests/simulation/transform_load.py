"""Read, transform, write, and commit the input offsets in the same transaction: one output for each input, always.

And transactions in two phases (KIP-939): a prepared transaction waits for its owner, however long that takes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_COMMITTED
from barnabas.client.admin.groups import committed_offsets, decode_assignment
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.group import RangeProtocol
from barnabas.client.identity import NO_IDENTITY
from barnabas.client.membership import GroupConfig, GroupMember
from barnabas.client.producer import Producer, ProducerConfig
from barnabas.client.transactions import Transactions
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.simulation.consumer_protocol_members import Member
from tests.simulation.load import Client, Persistent, give_up, settle
from tests.simulation.oracle import Fate, Sum

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: The last versions without KIP-890 part 2.
_ADD_OFFSETS_V1: Final = 3
_TXN_OFFSET_COMMIT_V1: Final = 4
OUTPUT: Final = TopicPartition("outcome", 0)


class Seat(Protocol):
    """A membership of the group, in either protocol."""

    member_id: str

    @property
    def generation(self) -> int: ...

    @property
    def must_move(self) -> bool:
        """Whether its partitions change: the caller finishes its transaction and calls `sit`."""

    async def sit(self) -> dict[TopicPartition, int]:
        """Return the partitions that it now owns, with the first offset of each."""

    async def leave(self) -> None: ...


class ClassicSeat:
    def __init__(self, cluster: AsyncClient, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self.member_id, self.generation = "", -1
        protocol = RangeProtocol(cluster)
        protocol.topics = topics
        self._member = GroupMember(
            cluster,
            GroupConfig(
                group_id=group, session_timeout_ms=6_000, rebalance_timeout_ms=8_000, heartbeat_interval_ms=1_500
            ),
            protocol,
        )

    @property
    def must_move(self) -> bool:
        return self._member.rejoin_needed

    async def sit(self) -> dict[TopicPartition, int]:
        owned = decode_assignment(await self._member.join())
        # If the member is removed later, its commit must carry the present identity, and so be refused.
        self.member_id, self.generation = self._member.member_id, self._member.generation
        found = await committed_offsets(self._cluster, self._group, owned, require_stable=True)
        return {tp: found[tp].offset if tp in found else 0 for tp in owned}

    async def leave(self) -> None:
        await self._member.leave()


class ModernSeat:
    def __init__(self, cluster: AsyncClient, group: str, topics: Sequence[str], member_id: str) -> None:
        self.member_id = member_id
        self._member = Member(cluster, group, topics, member_id)

    @property
    def generation(self) -> int:
        return self._member.epoch

    @property
    def must_move(self) -> bool:
        return self._member.must_settle or self._member.lost is not None

    async def sit(self) -> dict[TopicPartition, int]:
        if self._member.lost is not None:
            raise self._member.lost
        if self._member.epoch == 0:
            await self._member.join()
        await self._member.settle()
        owned = sorted(self._member.owned)
        found = await self._member.committed(owned) if owned else {}
        return {tp: max(0, found.get(tp, 0)) for tp in owned}

    async def leave(self) -> None:
        await self._member.leave()


class Transformer(Persistent):
    """After any error it starts again as another member of the group, from the group's committed offsets."""

    is_transactional = True

    def __init__(self, cluster: "SimCluster", name: str, group: str, topics: Sequence[str], *, is_modern: bool) -> None:
        super().__init__(cluster, name)
        self._group = group
        self._topics = list(topics)
        self._is_modern = is_modern
        self._count = 0

    def _seat(self, cluster: AsyncClient) -> Seat:
        if self._is_modern:
            return ModernSeat(cluster, self._group, self._topics, f"{self.name}-{self.chance.getrandbits(64):016x}")
        return ClassicSeat(cluster, self._group, self._topics)

    async def _live(self) -> None:
        config = ProducerConfig(
            transactional_id=self.name,
            transaction_timeout_ms=8_000,
            delivery_timeout_ms=5_000,
            request_timeout_ms=2_000,
        )
        reading = ConsumerConfig(
            isolation_level=READ_COMMITTED,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=1_000,
            partition_max_bytes=self.chance.choice([200, 2_000]),
        )
        async with (
            self.connect(api_timeout_ms=10_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
            Consumer(cluster, reading) as consumer,
        ):
            seat = self._seat(cluster)
            until_s = self.world.now_s + self.chance.uniform(5, 20)
            try:
                consumer.assign(await seat.sit())
                while not self.ending and self.world.now_s < until_s:
                    if seat.must_move:
                        consumer.assign(await seat.sit())
                    fetched = await consumer.poll(1_000)
                    if fetched:
                        await self._transform(cluster, producer, seat, fetched)
            finally:
                await seat.leave()

    async def _transform(self, cluster: AsyncClient, producer: Producer, seat: Seat, inputs: list[Fetched]) -> None:
        assert producer.transaction is not None
        read = [
            (each.partition, record.offset)
            for each in inputs
            for record in each.records(isolation_level=READ_COMMITTED)
        ]
        if not read:
            return
        await producer.transaction.begin()
        self._count += 1
        sum_ = self.oracle.begins(f"{self.name}#{self._count}")
        offsets = {each.partition: each.next_position for each in inputs}
        try:
            deliveries = []
            for source in read:
                record = self.oracle.sends(self.name, OUTPUT, is_durable=True, is_idempotent=True, transaction=sum_)
                record.source = source
                deliveries.append(
                    (record, await producer.send(OUTPUT.topic, record.name.encode(), partition=OUTPUT.partition))
                )
            failed = await settle(self, deliveries)
            if not failed and self.chance.random() < 0.85:
                await self._send_offsets(cluster, producer, seat, offsets)
                await producer.transaction.commit()
                sum_.fate = Fate.DONE
                return
            await producer.transaction.abort()
            sum_.fate = Fate.ABORTED
        except ClientError as error:
            give_up(sum_)
            self.note(f"gives up {sum_.name}: {error}")
            raise
        raise BrokerRefused(ErrorCode.OPERATION_NOT_ATTEMPTED, f"{sum_.name} was aborted")

    async def _send_offsets(
        self, cluster: AsyncClient, producer: Producer, seat: Seat, offsets: Mapping[TopicPartition, int]
    ) -> None:
        assert producer.transaction is not None
        identity, adds_itself = producer.transaction.identity, producer.transaction.raises_epochs
        if not adds_itself:
            answer = await cluster.ask_coordinators(
                {
                    self.name: AddOffsetsToTxnRequest(
                        transactional_id=self.name,
                        producer_id=identity.producer_id,
                        producer_epoch=identity.epoch,
                        group_id=self._group,
                    )
                },
                AddOffsetsToTxnResponse,
                kind=TRANSACTION,
                error_of=lambda answer: answer.error_code,
                version_max=_ADD_OFFSETS_V1,
            )
            check(answer[self.name].error_code)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self._group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=seat.generation,
            member_id=seat.member_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=tp.topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=tp.partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
                for tp, offset in offsets.items()
            ],
        )

        async def once() -> None:
            committed = await cluster.ask_coordinator(
                self._group,
                request,
                TxnOffsetCommitResponse,
                error_of=lambda answer: answer.topics[0].partitions[0].error_code,
                version_max=None if adds_itself else _TXN_OFFSET_COMMIT_V1,
            )
            for topic in committed.topics:
                for partition in topic.partitions:
                    check(partition.error_code)

        await cluster.retrying("TxnOffsetCommit", once)


class TwoPhaseProducer(Client):
    """Prepares transactions and ends them later: only itself may end them (KIP-939)."""

    is_transactional = True

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._count = 0

    async def main(self) -> None:
        while not self.ending:
            try:
                async with self.connect(api_timeout_ms=10_000) as cluster:
                    await self._pledge(cluster)
            except ClientError as error:
                self.note(f"starts again: {error!r}")
            await self.pause(*self.cluster.pace_s)
        await self._clear()

    async def _clear(self) -> None:
        """End its open transaction: otherwise readers would wait for it for ever."""
        while True:
            try:
                async with self.connect(api_timeout_ms=10_000) as cluster:
                    await Transactions(cluster).initialise(self.name, timeout_ms=5_000)
                return
            except ClientError as error:
                self.note(f"tries again: {error!r}")
                await self.pause(0.1, 0.5)

    async def _pledge(self, cluster: AsyncClient) -> None:
        config = ProducerConfig(
            transactional_id=self.name,
            transaction_timeout_ms=5_000,
            delivery_timeout_ms=5_000,
            request_timeout_ms=2_000,
        )
        self._count += 1
        sum_ = self.oracle.begins(f"{self.name}#{self._count}")
        try:
            async with Producer(cluster, config, clock=self.clock, chance=self.chance) as producer:
                assert producer.transaction is not None
                await producer.transaction.begin()
                deliveries = []
                for _ in range(self.chance.randint(1, 3)):
                    tp = self.chance.choice(self._partitions)
                    record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True, transaction=sum_)
                    deliveries.append(
                        (record, await producer.send(tp.topic, record.name.encode(), partition=tp.partition))
                    )
                if await settle(self, deliveries):
                    await producer.transaction.abort()
                    sum_.fate = Fate.ABORTED
                    return
            await self._end(cluster, sum_)
        except ClientError:
            give_up(sum_)
            raise

    async def _end(self, cluster: AsyncClient, sum_: Sum) -> None:
        transactions = Transactions(cluster)
        sum_.fate = Fate.UNKNOWN
        kept = (await transactions.keep_all([self.name]))[self.name]
        if isinstance(kept, BrokerRefused):
            self.note(f"cannot prepare {sum_.name}: {kept}")
            return
        if kept.ongoing == NO_IDENTITY:
            self.note(f"{sum_.name} had ended before it was prepared")
            return
        self.note(f"has prepared {sum_.name}")
        if not self.ending:
            await asyncio.sleep(self.chance.choice([0.0, 1.0, 7.0]))
        commit = self.chance.random() < 0.7
        try:
            await transactions.end(self.name, kept.identity, committed=commit)
        except BrokerRefused as refused:
            if not self.oracle.is_log_excused("__transaction_state"):
                self.world.violate("a prepared transaction waits for its owner", f"{sum_.name}: {refused}")
            raise
        sum_.fate = Fate.DONE if commit else Fate.ABORTED
        self.note(f"has {'committed' if commit else 'aborted'} {sum_.name}")
