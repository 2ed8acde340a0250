"""A leader as a follower sees it, with the times that a trace needs. Replaces the plain endpoint while tracing is on."""

from barnabas.base.errors import Malformed
from barnabas.base.ids import LeaderEpoch, TopicPartition
from barnabas.broker.features.tracing.spans import Tracing
from barnabas.broker.replication.fetch_steps import EpochAnswer, EpochQuestion, OffsetsAnswer, TierAnswer
from barnabas.broker.replication.follower_session import FetchPlan
from barnabas.broker.replication.leader_endpoint import FetchAnswer, LeaderEndpoint
from barnabas.wire.record_batch import iter_batches


class TracedLeader:
    """Owner: one replica fetcher."""

    def __init__(self, inner: LeaderEndpoint, leader: int, tracing: Tracing) -> None:
        self._inner = inner
        self._leader = leader
        self._tracing = tracing
        #: The traced batches of the last answer, and (below) when it arrived.
        self._carried: list[tuple[int, TopicPartition, int]] = []
        self._came_s = 0.0

    async def prepare(self) -> bool:
        return await self._inner.prepare()

    async def fetch(self, plan: FetchPlan, *, max_wait_ms: int) -> FetchAnswer:
        tracing = self._tracing
        start_s = tracing.now_s()
        if self._carried:
            # A follower's next fetch acknowledges the records that it has written.
            tracing.followed("follower append", self._carried, start_s=self._came_s, end_s=start_s, leader=self._leader)
            self._carried = []
        answer = await self._inner.fetch(plan, max_wait_ms=max_wait_ms)
        self._came_s = tracing.now_s()
        for each in answer.partitions:
            if each.records:
                self._note(each.partition, each.records)
        tracing.followed("follower fetch", self._carried, start_s=start_s, end_s=self._came_s, leader=self._leader)
        return answer

    def _note(self, partition: TopicPartition, records: memoryview | bytes) -> None:
        try:
            for _, header in iter_batches(records):
                trace_id = self._tracing.of_batch(partition, header.base_offset)
                if trace_id is not None:
                    self._carried.append((trace_id, partition, header.base_offset))
        except Malformed:
            return  # the last batch may be incomplete; the append decides about it

    async def epoch_ends(self, questions: dict[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        return await self._inner.epoch_ends(questions)

    async def list_offsets(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, OffsetsAnswer]:
        return await self._inner.list_offsets(epochs)

    async def tier_starts(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, TierAnswer]:
        return await self._inner.tier_starts(epochs)

    def close(self) -> None:
        self._inner.close()
