"""The transaction of a producer: which partitions take part, and how it ends."""

from typing import TYPE_CHECKING

from barnabas.client.cluster import TRANSACTION
from barnabas.client.errors import check
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from barnabas.client.producer import Producer

#: From version 4 on AddPartitionsToTxn is the brokers' own; from version 5 on EndTxn raises the epoch (KIP-890).
_ADD_PARTITIONS_VERSION_MAX = 3
_END_TXN_VERSION_MAX = 4


class Transaction:
    """`begin`, then records, then `commit` or `abort`. One at a time."""

    def __init__(self, producer: "Producer") -> None:
        transactional_id = producer.config.transactional_id
        assert transactional_id is not None
        self._id = transactional_id
        self._producer = producer
        self._partitions: set[TopicPartition] = set()
        self.open = False

    async def begin(self) -> None:
        assert not self.open, "a transaction is under way"
        await self._producer.initialise()
        self._partitions.clear()
        self.open = True

    async def take_part(self, partition: TopicPartition) -> None:
        """Tell the coordinator before the first record of the transaction goes to a partition."""
        assert self.open, "begin a transaction first"
        if partition in self._partitions:
            return
        producer_id, producer_epoch = await self._producer.initialise()
        topics = [AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=topics,
        )

        async def once() -> None:
            response = await self._producer.cluster.ask_coordinator(
                self._id,
                request,
                AddPartitionsToTxnResponse,
                kind=TRANSACTION,
                version_max=_ADD_PARTITIONS_VERSION_MAX,
                error_of=lambda r: r.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            )
            check(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        await self._producer.cluster.retrying("AddPartitionsToTxn", once)
        self._partitions.add(partition)

    async def commit(self) -> None:
        await self._producer.flush()
        await self._end(committed=True)

    async def abort(self) -> None:
        await self._producer.flush()
        await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        assert self.open, "no transaction is under way"
        if self._partitions:
            producer_id, producer_epoch = await self._producer.initialise()
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=committed,
            )

            async def once() -> None:
                response = await self._producer.cluster.ask_coordinator(
                    self._id,
                    request,
                    EndTxnResponse,
                    kind=TRANSACTION,
                    version_max=_END_TXN_VERSION_MAX,
                    error_of=lambda answer: answer.error_code,
                )
                check(response.error_code)

            await self._producer.cluster.retrying("EndTxn", once)
        self.open = False
