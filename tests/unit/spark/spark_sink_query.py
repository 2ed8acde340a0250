"""A query without Spark: tasks that write and drivers that decide, each start of it with the same rows in the same batches."""

import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from barnabas.client.blocking_transactions import BlockingTransactions
from barnabas.spark import sink
from barnabas.spark.sink import StreamWriter, Written, stream_writer
from barnabas.spark.sink_connection import SinkConnection, connection_to
from barnabas.testing import wait_until
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

SCHEMA = StructType().add("value", "string")


class Died(Exception):
    """Stands for the death of the driver's process."""


class Task:
    """Spark's TaskContext, as far as the sink looks at it."""

    def __init__(self, query: str, run: str, batch: int, partition: int, attempt: int) -> None:
        self._properties = {sink.QUERY_ID: query, sink.BATCH_ID: str(batch), sink.RUN_ID: run}
        self._partition, self._attempt = partition, attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return self._attempt


class Run:
    """One start of a query: its driver and its executors."""

    _names = itertools.count()

    def __init__(self, query: "Query", **options: str) -> None:
        self.query = query
        self.run = f"run{next(self._names):05}"
        self._options = query.options | options

    def writer(self, dies_at: str | None = None) -> StreamWriter:
        writer = stream_writer(self._options, SCHEMA, False)
        if dies_at is not None:

            def reached(point: str) -> None:
                if point == dies_at:
                    raise Died(point)

            writer.reached = reached  # type: ignore[method-assign]
        return writer

    def write(self, batch: int, partition: int, rows: Sequence[str], *, attempt: int = 0) -> Written:
        self.query.plan(batch)
        self.query.monkeypatch.setattr(
            sink, "_task", lambda: Task(self.query.name, self.run, batch, partition, attempt)
        )
        data = [pa.record_batch([pa.array(list(rows), pa.string())], names=["value"])] if rows else []
        return self.writer().write(iter(data))

    def write_all(self, batch: int, tasks: int = 3) -> list[Written | None]:
        """Write a batch: every start of a query has the same rows in the same batch."""
        return [self.write(batch, task, rows_of(batch, task)) for task in range(tasks)]

    def do(self, batch: int, *, dies_at: str | None = None, spark_lives: bool = False) -> list[Written | None]:
        """Write and commit a batch. With `spark_lives` only the process that commits dies: Spark then aborts without knowing
        the decision."""
        messages = self.write_all(batch)
        try:
            self.writer(dies_at).commit(messages, batch)
        except Died:
            if spark_lives:
                self.writer().abort(messages, batch)
            raise
        return messages


class Query:
    def __init__(self, bootstrap: str, monkeypatch: pytest.MonkeyPatch, name: str, *, replicas: int = 1) -> None:
        self.bootstrap = bootstrap
        self.monkeypatch = monkeypatch
        self.name = name
        self.topic = f"{name}-out"
        self.checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-"))
        (self.checkpoint / "offsets").mkdir()
        (self.checkpoint / "metadata").write_text(json.dumps({"id": name}))
        self.options = {
            "checkpointLocation": str(self.checkpoint),
            "kafka.bootstrap.servers": bootstrap,
            "topic": self.topic,
            "decisionsTopic": "decisions",
            "kafka.transaction.timeout.ms": "60000",
        }
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [made] = admin.create_topics([NewTopic(self.topic, 2, replicas)]).values()
        made.result(60)

    def plan(self, batch: int, end: int | None = None, *, at_ms: int = 1) -> None:
        """Note the offsets of a batch as Spark does before it makes the writer. A batch that comes again is not planned
        again."""
        file = self.checkpoint / "offsets" / str(batch)
        if not file.exists():
            metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": {}})
            file.write_text(f"v1\n{metadata}\n{json.dumps({'in': {'0': 10 * batch if end is None else end}})}")

    def forget(self, batch: int) -> None:
        """Remove the plan of a batch, as an operator does to make Spark plan it again."""
        (self.checkpoint / "offsets" / str(batch)).unlink()

    def start(self, **options: str) -> Run:
        return Run(self, **options)

    def connection(self) -> SinkConnection:
        return connection_to(sink.parse(self.options).client)

    def open_transactions(self) -> list[str]:
        return BlockingTransactions(self.connection().client).ongoing(f"barnabas-spark/{self.name}/")

    def being_ended(self) -> list[str]:
        """Return transactions that have ended, but whose markers have not all been written."""
        client, found = self.connection().client, []
        client.refresh([])
        for broker_id in client.image.brokers:
            request = ListTransactionsRequest(state_filters=["PrepareCommit", "PrepareAbort"])
            response = client.connection(broker_id).request(request, ListTransactionsResponse)
            found += [
                each.transactional_id for each in response.transaction_states if self.name in each.transactional_id
            ]
        return found

    def seen(self) -> list[str]:
        """Return the rows that a read_committed consumer sees, once all ended transactions have their markers."""
        wait_until(lambda: not self.being_ended(), timeout_s=60)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        rows, at_end = [], set()
        try:
            consumer.assign([TopicPartition(self.topic, index, 0) for index in range(2)])
            while len(at_end) < 2:
                message = consumer.poll(60)
                assert message is not None
                if message.error() is not None:
                    at_end.add(message.partition())
                else:
                    rows.append(message.value().decode())
        finally:
            consumer.close()
        return sorted(rows)


def rows_of(batch: int, task: int) -> list[str]:
    return [f"{batch}-{task}-{number}" for number in range(5)]


def all_of(*batches: int, tasks: int = 3) -> list[str]:
    return sorted(row for batch in batches for task in range(tasks) for row in rows_of(batch, task))
