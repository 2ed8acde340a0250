"""The sink of format `barnabas`: rows of a batch or of a micro-batch into topics.

Tasks write. With `deliveryGuarantee=exactly-once` (the default) each task leaves a transaction of its own open, and the
driver decides for all of them at once (`transactions.py`). With `at-least-once` the rows of a task are final when it ends.
"""

import hashlib
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.client.blocking_producer import BlockingProducer
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.spark import decision
from barnabas.spark.batch_identity import BatchIdentity
from barnabas.spark.checkpoint import Planned, planned_once, read_planned
from barnabas.spark.decision import BATCH, STREAM, AlreadyDecided, Refused, Undecided
from barnabas.spark.destinations import decided_by_column
from barnabas.spark.encode_settings import TOPIC
from barnabas.spark.sink_connection import SinkConnection, connection_to
from barnabas.spark.sink_options import SinkOptions, check_schema, parse
from barnabas.spark.transactions import BatchOf, Driver
from barnabas.spark.worker_memory import keep_imports

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: Arrow batches are put together up to this size: with many partitions they would otherwise make tiny record batches.
_CHUNK_BYTES = 4 * 1024 * 1024

#: Names that an attempt tries before it takes the first one away from its producer.
_NAMES_MAX = 8
#: States of a transactional id whose last transaction is over, so that no producer writes with it.
_DONE = frozenset({"CompleteCommit", "CompleteAbort"})

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchWriter":
    if overwrite:
        raise ConfigError("Save mode overwrite is not allowed: a topic can only be appended to. Use mode('append')")
    parsed = _parsed(options, schema)
    return BatchWriter(parsed, uuid.uuid4().hex)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "StreamWriter":
    """Make the writer of a stream. `overwrite`: output mode complete. Each batch's whole result is appended, as in Spark's own
    sink."""
    return StreamWriter(_parsed(options, schema))


def _parsed(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    parsed = parse(options)
    check_schema(schema, parsed.encoder.topic)
    column = next((field for field in schema.fields if field.name.lower() == TOPIC), None)
    if decided_by_column(column, parsed.encoder.topic):
        return replace(parsed, encoder=parsed.encoder._replace(topic=None))
    return parsed


@dataclass
class Written(WriterCommitMessage):
    """A task's message to the driver."""

    batch: BatchOf
    records: int = 0
    size_bytes: int = 0
    #: The open transaction with its rows; None if the task opened none.
    transactional_id: str | None = None
    identity: ProducerIdentity = NO_IDENTITY
    #: The task wrote no rows: the batch was decided before the task began, or the user wants it skipped.
    skipped: bool = False
    skipped_rows: int = 0


class BatchWriter(DataSourceArrowWriter):
    """Created once per `df.write…save()`; executors and the driver have copies of it."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._planned = _planned(options) if options.query_name else Planned()
        self._batch = BatchOf(job, job[:8], 0, BATCH)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        batch = _part_of_micro_batch(self._options, self._planned) if self._options.query_name else self._batch
        return write_rows(self._options, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, self.reached)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)

    def reached(self, point: str) -> None:
        """Tests stop the driver at this point."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Created for each micro-batch, on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        #: Spark has planned the batch by now: executors get its description from the checkpoint.
        self._planned = _planned(options)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return write_rows(self._options, _micro_batch(self._options, self._planned), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, messages, self.reached)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages)

    def reached(self, point: str) -> None:
        """Tests stop the driver at this point."""


# -- tasks ------------------------------------------------------------------------------------------------------------


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks of Spark"
    return context


def _planned(options: SinkOptions) -> Planned:
    """Read the plan of the micro-batch from the checkpoint. On the driver."""
    if not options.exactly_once:
        return Planned()
    if options.once:
        return planned_once(options.once, options.once_checkpoint, accept=options.accepted_checkpoint)
    if not options.checkpoint_location:
        return Planned(
            reason="The sink does not know the checkpoint's location: give the query the option checkpointLocation "
            "(Spark does not pass on spark.sql.streaming.checkpointLocation)"
        )
    return read_planned(options.checkpoint_location, accept=options.accepted_checkpoint)


def _micro_batch(options: SinkOptions, planned: Planned) -> BatchOf:
    context = _task()
    query = planned.known_as or context.getLocalProperty(QUERY_ID) or (planned.query if options.once else None)
    # A write within `foreachBatch` gives its number: it may differ from Spark's (`once=`), and a Spark Connect server runs the
    # write in another process than its batch.
    batch = options.batch_id or context.getLocalProperty(BATCH_ID)
    if not batch:
        raise ConfigError(
            "the sink finds no batch id: queries in micro-batches have one, and writes within foreachBatch"
        )
    if query is None:
        if not options.checkpoint_location:
            raise ConfigError("the query has no id: give it a checkpointLocation, by which it is known after a restart")
        known_by = f"{planned.option or options.checkpoint_location}\0{options.query_name}"
        query = hashlib.sha256(known_by.encode()).hexdigest()[:32]
    run = (options.run_id or context.getLocalProperty(RUN_ID) or "0")[:8]
    return BatchOf(query, run, int(batch), STREAM, planned)


def _part_of_micro_batch(options: SinkOptions, planned: Planned) -> BatchOf:
    """A batch write within `foreachBatch`, known by the query's id and the name that the write was given."""
    batch = _micro_batch(options, planned)
    named = hashlib.sha256(f"{batch.query}\0{options.query_name}".encode()).hexdigest()[:32]
    return replace(batch, query=named)


def _identified(options: SinkOptions, connection: SinkConnection, batch: BatchOf) -> BatchOf:
    """Return the batch with its identity, which the cluster's id is part of."""
    planned = batch.planned
    if planned is None:
        return batch  # a batch write: no other write has its name
    identity = BatchIdentity(
        query=batch.query,
        checkpoint=planned.checkpoint,
        batch=batch.batch,
        offsets=planned.offsets_of(batch.batch),
        target=f"cluster {connection.cluster_id()}, {_topic_of(options)}",
    )
    return replace(batch, identity=identity)


def _topic_of(options: SinkOptions) -> str:
    return (
        "the topics that the column topic names" if options.encoder.topic is None else f"topic {options.encoder.topic}"
    )


def write_rows(options: SinkOptions, batch: BatchOf, rows: "Iterator[pa.RecordBatch]") -> Written:
    """Run in each task. If the batch was written before, count its rows and do not write them again."""
    connection = connection_to(options.client)
    connection.forget_topics()
    task: _TaskWriter | None = None
    try:
        for chunk in _chunks(rows):
            if task is None:
                if options.exactly_once:
                    batch = _identified(options, connection, batch)
                    if _is_decided(connection, options, batch):
                        skipped_rows = chunk.num_rows + sum(rest.num_rows for rest in rows)
                        return Written(batch, skipped=True, skipped_rows=skipped_rows)
                task = _TaskWriter(options, connection, batch)
            task.write(chunk)
        return Written(batch) if task is None else task.finish()
    except BaseException as error:
        if task is not None:
            task.abort()
        if isinstance(error, BrokerRefused) and error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise ConfigError(
                f"{error}. Set kafka.batch.size (now {options.encoder.batch_bytes}) below the topic's max.message.bytes; "
                "a single row that is larger needs a larger max.message.bytes"
            ) from error
        raise


def _is_decided(connection: SinkConnection, options: SinkOptions, batch: BatchOf) -> bool:
    """Whether the task should not write: the same batch was decided or another one, or the user wants the batch skipped.

    The driver comes to the same verdict, and then logs it or raises.
    """
    if batch.kind == BATCH:
        return False  # a batch write comes once, from the one start that knows its name
    found = connection.decisions(options.decisions_topic, batch.query)
    if found is None:
        return False
    match decision.judge(found[1].of(batch.query), batch.candidate(options)):
        case Refused() | AlreadyDecided():
            return True
        case Undecided(is_skipped=is_skipped):
            return is_skipped
    return False  # another start of the query decides: the driver raises that


def _begin(connection: SinkConnection, name: str, options: SinkOptions) -> tuple[str, ProducerIdentity]:
    """Start a transaction for this attempt alone; return its transactional id and identity.

    Spark numbers attempts from 0 again when it repeats a stage, and does not tell Python so: an attempt of the former
    stage may have written under this very name, and may have won. So an attempt takes the next free name, and leaves the
    transaction of the other one alone.
    """
    timeout_ms = options.transaction_timeout_ms
    try:
        for candidate in (name, *(f"{name}.{number}" for number in range(1, _NAMES_MAX))):
            state = connection.transactions.describe_all([candidate])[candidate]
            if isinstance(state, BrokerRefused):
                if state.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise state
                return candidate, connection.transactions.initialise(candidate, timeout_ms=timeout_ms)
            if state.transaction_state in _DONE:
                last = ProducerIdentity(state.producer_id, state.producer_epoch)
                try:
                    return candidate, connection.transactions.initialise(
                        candidate, timeout_ms=timeout_ms, expected=last
                    )
                except BrokerRefused as refused:
                    if refused.code not in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                        raise
        return name, connection.transactions.initialise(name, timeout_ms=timeout_ms)
    except BrokerRefused as refused:
        if refused.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigError(
                f"kafka.transaction.timeout.ms={timeout_ms} is more than the brokers allow: lower it, or raise their "
                "transaction.max.timeout.ms. It has to be longer than the slowest batch"
            ) from refused
        if refused.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise ConfigError(
                f"no permission to write as {name}: allow Write and Describe on transactional ids that begin with "
                f"'{options.transactional_id_prefix}/', or set transactionalIdPrefix or deliveryGuarantee=at-least-once"
            ) from refused
        raise


class _TaskWriter:
    def __init__(self, options: SinkOptions, connection: SinkConnection, batch: BatchOf) -> None:
        self._connection = connection
        self._written = Written(batch)
        identity = NO_IDENTITY
        if options.exactly_once:
            context = _task()
            attempt = f"{context.partitionId()}/{context.attemptNumber()}"
            name, identity = _begin(connection, batch.ids(options.transactional_id_prefix) + attempt, options)
            self._written.transactional_id = name
        elif options.idempotent:
            identity = connection.transactions.initialise(None, timeout_ms=0)
        self._written.identity = identity
        # Here, because only tasks encode: the process that commits a micro-batch loads neither numba nor Arrow's functions.
        from barnabas.spark.encode import Encoder

        keep_imports()
        self._producer = BlockingProducer(
            connection.client,
            options.producer,
            identity=identity,
            transactional_id=self._written.transactional_id,
        )
        self._encoder = Encoder(options.encoder, self._producer.partition_count, chance=random.Random(os.urandom(8)))

    def write(self, rows: "pa.RecordBatch") -> None:
        ready = self._encoder.encode(rows, now_ms=time.time_ns() // 1_000_000)
        self._producer.announce(batch.partition for batch in ready)
        for batch in ready:
            self._written.size_bytes += len(batch.data)
            self._producer.send(batch)
        self._written.records += rows.num_rows

    def finish(self) -> Written:
        self._producer.flush()
        return self._written

    def abort(self) -> None:
        """Abort the transaction as well as possible: if this fails, the driver aborts it, or it times out."""
        self._producer.discard()
        name = self._written.transactional_id
        if name is None:
            return
        try:
            self._connection.transactions.end(name, self._written.identity, committed=False)
        except ClientError as error:
            log.warning("transaction %s cannot be aborted, so it stays open until it times out: %s", name, error)


def _chunks(rows: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in rows:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= _CHUNK_BYTES:
            yield from _together(held)
            held, held_bytes = [], 0
    yield from _together(held)


def _together(held: "list[pa.RecordBatch]") -> "list[pa.RecordBatch]":
    if len(held) < 2:
        return held
    import pyarrow as pa

    return list(pa.Table.from_batches(held).combine_chunks().to_batches())


# -- the driver -------------------------------------------------------------------------------------------------------


def _commit(options: SinkOptions, messages: list[WriterCommitMessage | None], reached: Callable[[str], None]) -> None:
    reports = [message for message in messages if isinstance(message, Written)]
    written = _transactions(reports)
    skipped = sum(message.skipped for message in reports)
    if not options.exactly_once or not (written or skipped):
        return  # the batch has no rows
    # A task without rows has not read the decision log, and does not know the batch's identity.
    batch = next(message.batch for message in reports if message.records or message.skipped)
    rows = sum(message.records + message.skipped_rows for message in reports)
    driver = Driver(options, connection_to(options.client), at=reached)
    driver.commit(batch, written, skipped=skipped, rows=rows)


def _abort(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    reports = [message for message in messages if isinstance(message, Written)]
    written = _transactions(reports)
    if options.exactly_once and written:
        Driver(options, connection_to(options.client)).abort(reports[0].batch, written)


def _transactions(reports: list[Written]) -> dict[str, ProducerIdentity]:
    return {
        message.transactional_id: message.identity
        for message in reports
        if message.transactional_id is not None and message.records
    }
