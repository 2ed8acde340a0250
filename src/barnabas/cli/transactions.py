"""`barnabas transactions`: kafka-transactions.sh."""

import time
from collections.abc import Sequence

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json, table
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, at_least_one, needs
from barnabas.client.admin import transactions as admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused
from barnabas.wire.messages.describe_producers import ProducerState

_OLD = "For brokers before 3.0."
TOOL = Tool(
    kafka="kafka-transactions.sh",
    options=(
        *CONNECTION,
        Option("--duration-filter", "Only those that run for longer.", int, metavar="MS", default=-1),
        Option("--transactional-id", "Whose."),
        Option("--topic", "The topic."),
        Option("--partition", "The partition.", int),
        Option("--broker-id", "The replica to ask, or to search.", int),
        Option("--start-offset", "Where the transaction starts.", int),
        Option("--producer-id", _OLD, int),
        Option("--producer-epoch", _OLD, int),
        Option("--coordinator-epoch", _OLD, int),
        Option("--max-transaction-timeout", "Only older ones.", int, metavar="MINUTES", default=15),
        JSON,
    ),
    examples=(
        "barnabas transactions list",
        "barnabas transactions find-hanging --topic orders",
        "barnabas transactions abort --topic orders --partition 0 --start-offset 1200",
    ),
)


def _print(headers: Sequence[str], rows: Sequence[Sequence[object]], json: bool) -> None:
    """Print Kafka's table: each column as wide as its widest cell, with a tab after each."""
    texts = [[str(cell) for cell in row] for row in rows]
    if json:
        say_json([dict(zip(headers, row, strict=True)) for row in rows])
        return
    widths = [max(len(row[index]) for row in [list(headers), *texts]) for index in range(len(headers))]

    def plain() -> None:
        for row in [list(headers), *texts]:
            say("".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)))

    table(headers, texts, plain)


@TOOL.action("list", "List transactions.")
async def _list(cluster: AsyncClient, duration_filter: int, json: bool) -> None:
    listed = await admin.list_transactions(cluster, duration_ms=duration_filter)
    rows = [(entry.transactional_id, entry.coordinator_id, entry.producer_id, entry.state) for entry in listed]
    _print(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), rows, json)


@TOOL.action("describe", "Describe a transaction.", needs=("--transactional-id",))
async def _describe(cluster: AsyncClient, transactional_id: str, json: bool) -> None:
    coordinator, state = await admin.describe_transaction(cluster, transactional_id)
    started_ms = state.transaction_start_time_ms
    partitions = sorted(TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions)
    _print(
        (
            "CoordinatorId",
            "TransactionalId",
            "ProducerId",
            "ProducerEpoch",
            "TransactionState",
            "TransactionTimeoutMs",
            "CurrentTransactionStartTimeMs",
            "TransactionDurationMs",
            "TopicPartitions",
        ),
        [
            (
                coordinator,
                transactional_id,
                state.producer_id,
                state.producer_epoch,
                state.transaction_state,
                state.transaction_timeout_ms,
                started_ms if started_ms >= 0 else "None",
                int(time.time() * 1000) - started_ms if started_ms >= 0 else "None",
                ",".join(map(str, partitions)),
            )
        ],
        json,
    )


@TOOL.action("describe-producers", "Describe the producers of a partition.", needs=("--topic", "--partition"))
async def _describe_producers(
    cluster: AsyncClient, topic: str, partition: int, broker_id: int | None, json: bool
) -> None:
    producers = await admin.describe_producers(cluster, TopicPartition(topic, partition), broker_id=broker_id)
    _print(
        (
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ),
        [
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else "None",
            )
            for producer in producers
        ],
        json,
    )


@TOOL.action(
    "abort",
    "Abort a transaction.",
    needs=("--topic", "--partition"),
    rules=(
        at_least_one(
            "--start-offset",
            "--producer-id",
            says="The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or "
            "with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)",
        ),
    ),
)
async def _abort(
    cluster: AsyncClient,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    where = TopicPartition(topic, partition)
    if start_offset is not None:
        found = [
            producer
            for producer in await admin.describe_producers(cluster, where)
            if producer.current_txn_start_offset == start_offset
        ]
        if not found:
            raise UsageError(
                f"Could not find any open transactions starting at offset {start_offset} on partition {where}"
            )
        producer_id, producer_epoch = found[0].producer_id, found[0].producer_epoch
        coordinator_epoch = found[0].coordinator_epoch
    assert producer_id is not None, "a rule asks for it or for --start-offset"
    if producer_epoch is None:
        raise UsageError("Missing required argument --producer-epoch")
    if coordinator_epoch is None:
        raise UsageError("Missing required argument --coordinator-epoch")
    await admin.abort_transaction(
        cluster,
        where,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        # A transaction that hung before its producer's first end has -1. 0 is not above any leader's epoch, so it is accepted.
        coordinator_epoch=max(coordinator_epoch, 0),
    )


@TOOL.action(
    "find-hanging",
    "Find transactions that hang.",
    rules=(
        needs("--partition", "--topic", says="The --partition argument requires --topic to be provided"),
        at_least_one(
            "--topic",
            "--broker-id",
            says="The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search",
        ),
    ),
)
async def _find_hanging(
    cluster: AsyncClient,
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    max_transaction_timeout: int,
    json: bool,
) -> None:
    """Print open transactions on partitions for which their coordinator will never write a marker."""
    now_ms, older_ms = int(time.time() * 1000), max_transaction_timeout * 60_000
    candidates: list[tuple[TopicPartition, ProducerState]] = []
    for where in await _partitions(cluster, topic, partition, broker_id):
        for producer in await admin.describe_producers(cluster, where, broker_id=broker_id):
            if producer.current_txn_start_offset >= 0 and now_ms - producer.last_timestamp > older_ms:
                candidates.append((where, producer))
    producer_ids = sorted({producer.producer_id for _, producer in candidates})
    owners = {
        listing.producer_id: listing.transactional_id
        for listing in (await admin.list_transactions(cluster, producer_ids=producer_ids) if producer_ids else [])
    }
    hanging = []
    for where, producer in candidates:
        expected = await _expected(cluster, owners.get(producer.producer_id))
        if where not in expected:
            hanging.append(
                (
                    where.topic,
                    where.partition,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                    producer.last_timestamp,
                    (now_ms - producer.last_timestamp) // 60_000,
                )
            )
    headers = (
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    )
    _print(headers, hanging, json)


async def _partitions(
    cluster: AsyncClient, topic: str | None, partition: int | None, broker_id: int | None
) -> list[TopicPartition]:
    if topic is not None and partition is not None:
        return [TopicPartition(topic, partition)]
    found = await cluster.topics([topic]) if topic is not None else await cluster.all_topics()
    return [
        TopicPartition(name, part.index)
        for name, info in sorted(found.items())
        for part in info.partitions
        if broker_id is None or broker_id in part.replicas
    ]


async def _expected(cluster: AsyncClient, transactional_id: str | None) -> set[TopicPartition]:
    """Return the partitions for which the coordinator will still write a marker."""
    if transactional_id is None:
        return set()
    try:
        _, state = await admin.describe_transaction(cluster, transactional_id)
    except BrokerRefused as refused:
        if refused.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return set()
        raise
    return {TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions}
