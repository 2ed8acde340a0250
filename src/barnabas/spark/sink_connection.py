"""Things that a Python process of Spark keeps between tasks: connections to a cluster, and the decision log as far as it has
read it.

Spark reuses its Python processes, so a task of a micro-batch finds open connections and reads only the newest decisions.
Owner: the one thread of the process; after a fork each process makes its own.
"""

import os
import time
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_UNCOMMITTED
from barnabas.client.blocking import BlockingClient
from barnabas.client.blocking_transactions import BlockingTransactions
from barnabas.client.config import ClientConfig
from barnabas.client.errors import BrokerRefused, DeadlineExceeded
from barnabas.client.fetching import whole_batches_end
from barnabas.client.partitioner import partition_of_key
from barnabas.spark.decision import DecisionLog
from barnabas.spark.own_topic import find_topic, make_topic

_FETCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class _Read:
    """A partition of the decision log, read up to `position`."""

    topic_id: bytes
    position: int = -1
    log: DecisionLog = field(default_factory=DecisionLog)


class SinkConnection:
    def __init__(self, config: ClientConfig) -> None:
        self.client = BlockingClient(config)
        self.transactions = BlockingTransactions(self.client)
        self._read: dict[TopicPartition, _Read] = {}

    def close(self) -> None:
        self.client.close()

    def forget_topics(self) -> None:
        """Forget the metadata for the next task: topics grow, move, and are created again."""
        self.client.forget_leaders()

    def cluster_id(self) -> str:
        """Return the cluster's id, which is part of a batch's target."""
        if self.client.image.cluster_id is None:
            self.client.refresh([])
        return self.client.image.cluster_id or ""

    # -- the decision log -----------------------------------------------------------------------------------------------

    def decisions(self, topic: str, query: str) -> tuple[TopicPartition, DecisionLog] | None:
        """Return the partition with the query's decisions, read up to its end; None if the topic does not exist."""
        info = find_topic(self.client, topic)
        if info is None:
            return None
        partition = TopicPartition(topic, partition_of_key(query.encode(), len(info.partitions)))
        read = self._read.get(partition)
        if read is None or read.topic_id != info.topic_id:
            read = self._read[partition] = _Read(info.topic_id)
        try:
            self._catch_up(partition, read)
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            # The partition was truncated or created again while this process was idle: read it from the beginning.
            read = self._read[partition] = _Read(info.topic_id)
            self._catch_up(partition, read)
        return partition, read.log

    def _catch_up(self, partition: TopicPartition, read: _Read) -> None:
        if read.position < 0:
            read.position = self.client.list_offsets({partition: EARLIEST})[partition]
        # A new leader does not answer before it knows the high watermark (KIP-207). A fetch returns an older one until then.
        end = self.client.list_offsets({partition: LATEST})[partition]
        deadline_s = time.monotonic() + self.client.config.api_timeout_ms / 1000
        while read.position < end:
            # Uncommitted: another query's open transaction must not hide our own decision behind it.
            fetched = self.client.fetch(
                partition, read.position, max_bytes=_FETCH_BYTES, isolation_level=READ_UNCOMMITTED
            )
            data = memoryview(fetched.data)[: whole_batches_end(fetched.data)]
            if data:
                read.position = read.log.replay(data, read.position)
            elif fetched.high_watermark >= end:
                read.position = end  # compaction has removed the last records
            elif time.monotonic() > deadline_s:
                raise DeadlineExceeded(
                    f"decisions in {partition} could not be read to their end: offset {end} was promised, the leader's high "
                    f"watermark is {fetched.high_watermark}"
                )

    def make_decisions_topic(self, topic: str) -> None:
        configs = {
            "segment.bytes": str(16 * 1024 * 1024),
            "min.cleanable.dirty.ratio": "0.1",
            "compression.type": "producer",
        }
        make_topic(self.client, topic, configs)


_connections: dict[tuple[int, str], SinkConnection] = {}


def connection_to(config: ClientConfig) -> SinkConnection:
    """Return the connection of this process to the cluster; configurations that differ have connections of their own."""
    key = (os.getpid(), repr(config))
    connection = _connections.get(key)
    if connection is None:
        connection = _connections[key] = SinkConnection(config)
    return connection


def close_connections() -> None:
    """Close the connections of this process; the next task makes new ones."""
    for connection in _connections.values():
        connection.close()
    _connections.clear()
