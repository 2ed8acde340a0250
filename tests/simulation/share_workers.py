"""Members of share groups: our share consumer, in processes of their own that are killed and paused."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.client.admin.configs import alter_configs
from barnabas.client.admin.topics import NewTopic, create_partitions, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.share_consumer import ShareConsumer, ShareRecord
from barnabas.client.share_session import AcknowledgementMode, AcknowledgeType, AcquireMode, ShareConfig
from tests.simulation.admin import Administrator
from tests.simulation.load import COMING, Client, Persistent
from tests.simulation.share_ledger import Decision

if TYPE_CHECKING:
    from tests.simulation.share_world import ShareWorld

JOBS: Final = "jobs"
#: The dead-letter topic.
LETTERS: Final = "dlq.jobs"
PARTITIONS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A share group and its settings."""

    name: str
    reads_committed: bool
    begins_at_latest: bool
    has_letters: bool

    @property
    def settings(self) -> dict[str, str]:
        settings = {
            "share.isolation.level": "read_committed" if self.reads_committed else "read_uncommitted",
            "share.auto.offset.reset": "latest" if self.begins_at_latest else "earliest",
        }
        return {**settings, "errors.deadletterqueue.topic.name": LETTERS} if self.has_letters else settings


class ShareMaker(Client):
    """Creates the dead-letter topic and the settings of the groups, and ends. Members wait for it."""

    async def main(self) -> None:
        world: ShareWorld = self.cluster  # type: ignore[assignment]
        while True:
            try:
                async with self.connect() as cluster:
                    await self._create(cluster)
                    for group in world.groups:
                        changes = {name: (AlterOperation.SET, value) for name, value in group.settings.items()}
                        await alter_configs(cluster, ConfigResourceType.GROUP, group.name, changes)
                break
            except ClientError as error:
                self.note(f"tries again: {error}")
                await self.pause(0.1, 0.3)
        world.is_made = True

    async def _create(self, cluster: AsyncClient) -> None:
        settings = {"min.insync.replicas": "2", "errors.deadletterqueue.group.enable": "true"}
        try:
            await create_topics(cluster, [NewTopic(name=LETTERS, partitions=1, replication_factor=3, configs=settings)])
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


class ShareAdministrator(Administrator):
    """Also adds partitions."""

    async def _add_partitions(self, cluster: AsyncClient) -> None:
        count, factor, configs = self.cluster.topics[JOBS]
        if count >= PARTITIONS_MAX:
            return
        self.note(f"adds partition {count} to {JOBS}")
        try:
            await create_partitions(cluster, {JOBS: count + 1})
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.INVALID_PARTITIONS:
                raise
        world: ShareWorld = self.cluster  # type: ignore[assignment]
        self.cluster.topics[JOBS] = (count + 1, factor, configs)
        world.written.append(TopicPartition(JOBS, count))


class ShareWorker(Persistent):
    """A member that accepts, releases, rejects, renews and forgets. Now and then it leaves, and joins with another id."""

    def __init__(self, cluster: "ShareWorld", name: str, group: GroupKind) -> None:
        super().__init__(cluster, name)
        self._share_world = cluster
        self._ledger = cluster.ledger
        self.group = group
        self._is_implicit = self.chance.random() < 0.3
        self._is_lazy = self.chance.random() < 0.3
        #: Decisions that have no answer yet.
        self._sent: dict[tuple[TopicPartition, int], Decision] = {}
        #: In implicit mode: the records of the last `poll`.
        self._polled: list[ShareRecord] = []
        self._member_id = ""

    async def _live(self) -> None:
        while not self._share_world.is_made:
            await asyncio.sleep(0.2)
        mode = AcknowledgementMode.IMPLICIT if self._is_implicit else AcknowledgementMode.EXPLICIT
        config = ShareConfig(
            group_id=self.group.name,
            acknowledgement_mode=mode,
            acquire_mode=self.chance.choice(list(AcquireMode)),
            max_poll_records=self.chance.choice([1, 3, 50]),
            fetch_max_wait_ms=self.chance.choice([300, 1_000]),
            fetch_min_bytes=self.chance.choice([1, 1, 1, 500]),
        )
        self._sent.clear()
        self._polled = []
        async with (
            self.connect(api_timeout_ms=8_000) as cluster,
            ShareConsumer(cluster, config, topics=[JOBS, COMING], on_acknowledged=self._answered) as consumer,
        ):
            self._member_id = consumer.member_id
            until_s = self.world.now_s + self.chance.uniform(4, 20)
            while not self.ending and (self.is_draining or self.world.now_s < until_s):
                records = await self._poll(consumer)
                if not self._is_implicit:
                    await self._decide(consumer, records)
                elif not self.is_draining and self.chance.random() < 0.2:
                    await self.pause(0.5, 4.0)
                if self.chance.random() < 0.3:
                    await self._commit(consumer)
            if self._is_implicit:
                await self._commit(consumer)

    @property
    def is_draining(self) -> bool:
        return self._share_world.is_draining

    async def _poll(self, consumer: ShareConsumer) -> list[ShareRecord]:
        self._accept_polled()
        records = await consumer.poll(1_000)
        for each in records:
            name = bytes(each.record.value or b"").decode()
            self._ledger.sees(self.group.name, name, reads_committed=self.group.reads_committed)
        if self._is_implicit:
            self._polled = records
        return records

    def _accept_polled(self) -> None:
        """Note that the next request accepts what the last `poll` returned."""
        for each in self._polled:
            self._note(each, AcknowledgeType.ACCEPT)
        self._polled = []

    def _note(self, record: ShareRecord, kind: AcknowledgeType) -> None:
        tp, offset = record.partition, record.offset
        self._sent[tp, offset] = self._ledger.decides(self._member_id, tp, offset, kind, record.delivery_count)

    async def _commit(self, consumer: ShareConsumer) -> None:
        self._accept_polled()
        await consumer.commit()

    async def _decide(self, consumer: ShareConsumer, records: list[ShareRecord]) -> None:
        if self._is_lazy and not self.is_draining and records and self.chance.random() < 0.3:
            await self.pause(0.2, 4.0)
        for record in records:
            if self.is_draining:
                kind = AcknowledgeType.ACCEPT
            else:
                kind = self.chance.choice(_DECISIONS)
            if kind is AcknowledgeType.RENEW:
                self._acknowledge(consumer, record, kind)
                await self._commit(consumer)
                await self.pause(0.1, 2.5)
                kind = AcknowledgeType.ACCEPT
            try:
                self._acknowledge(consumer, record, kind)
            except ValueError:
                self.note(f"lost {record.partition} offset {record.offset}")

    def _acknowledge(self, consumer: ShareConsumer, record: ShareRecord, kind: AcknowledgeType) -> None:
        self._note(record, kind)
        consumer.acknowledge(record, kind)

    def _answered(self, tp: TopicPartition, offsets: Collection[int], code: ErrorCode) -> None:
        decided = {offset: self._sent.pop((tp, offset)) for offset in offsets if (tp, offset) in self._sent}
        self._ledger.answered(self._member_id, tp, decided, code)


_DECISIONS: Final = (
    *(AcknowledgeType.ACCEPT,) * 6,
    *(AcknowledgeType.RELEASE,) * 3,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
