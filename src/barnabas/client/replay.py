"""Send dead letters back to the topics that they came from, each once.

A replay reads a dead-letter topic up to its current end and writes each letter as its original record: key, value, time and
headers, without the error headers. One transaction contains both the written records and the read position. So a replay
that was killed resumes where it stopped, and a repeated replay sends only new letters. It needs no Spark.

A record that fails again returns as a dead letter whose `__barnabas.replays` is one higher. Above `replays_max` it stays in
the dead-letter topic, so a poison record does not circulate forever.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED
from barnabas.client import error_headers as names
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from barnabas.client.admin.partitions import by_topic, list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import ClientError, check
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.producer import Producer, ProducerConfig
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from barnabas.wire.record_decode import Record

#: Letters in one transaction: few enough to end soon, many enough that the commits do not dominate.
RECORDS_PER_TRANSACTION: Final = 500
_POLL_MS: Final = 1_000
#: Versions before KIP-890, in which a client adds partitions and offsets itself.
_ADD_OFFSETS_VERSION_MAX: Final = 3
_TXN_OFFSET_COMMIT_VERSION_MAX: Final = 4


class ReplayError(Exception):
    """A replay that cannot continue. The transactions so far are committed."""


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """What to replay. With `to_topic=None` every letter goes to the topic that its headers name."""

    from_topic: str
    to_topic: str | None = None
    #: Only letters whose `exception.class.name` contains this.
    exception_class: str | None = None
    #: The consumer group that stores the position. By default, each topic and exception class has its own.
    group: str | None = None
    from_beginning: bool = False
    limit: int | None = None
    replays_max: int = 5
    dry_run: bool = False

    @property
    def group_id(self) -> str:
        chosen = f"-{self.exception_class}" if self.exception_class else ""
        return self.group or f"barnabas-replay-{self.from_topic}{chosen}"


@dataclass
class ReplayReport:
    read: int = 0
    #: Letters of another exception class than the chosen one.
    passed_over: int = 0
    #: Letters that were replayed too often already.
    given_up: int = 0
    replayed: Counter[str] = field(default_factory=Counter)


class Letter(NamedTuple):
    """The decision about one dead letter: the topic that it goes to, or why it stays."""

    topic: str | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    replays: int = 0
    chosen: bool = True


def judge(record: Record, where: TopicPartition, plan: ReplayPlan) -> Letter:
    """Decide about one letter. Raise `ReplayError` if neither its headers nor the plan name a topic."""
    last: dict[str, bytes | None] = dict(record.headers)
    kind = (last.get(names.EXCEPTION_CLASS_NAME) or b"").decode(errors="replace")
    if plan.exception_class is not None and plan.exception_class not in kind:
        return Letter(None, chosen=False)
    replays = _count(last.get(names.REPLAYS))
    if replays >= plan.replays_max:
        return Letter(None, replays=replays)
    origin = (last.get(names.TOPIC) or b"").decode(errors="replace")
    topic = plan.to_topic or origin
    if not topic:
        raise ReplayError(
            f"{where} at offset {record.offset} has no header {names.TOPIC}: say where to send it with --to"
        )
    if topic == plan.from_topic:
        raise ReplayError(
            f"{where} at offset {record.offset} would go back to {topic} itself: choose another with --to"
        )
    kept = [one for one in record.headers if not one[0].startswith(names.PREFIX) and one[0] != names.REPLAYS]
    return Letter(topic, (*kept, (names.REPLAYS, str(replays + 1).encode())), replays)


def _count(value: bytes | None) -> int:
    text = (value or b"").decode(errors="replace")
    return int(text) if text.isdecimal() else 0


async def replay(cluster: AsyncClient, plan: ReplayPlan) -> ReplayReport:
    """Replay the letters up to the current end; return a report."""
    if plan.to_topic == plan.from_topic:
        raise ReplayError(f"{plan.from_topic} cannot be replayed into itself")
    report = ReplayReport()
    config = ProducerConfig(transactional_id=plan.group_id, linger_ms=5)
    reader = ConsumerConfig(isolation_level=READ_COMMITTED, auto_offset_reset="none", fetch_max_wait_ms=100)
    async with Consumer(cluster, reader) as consumer, Producer(cluster, config) as producer:
        if not plan.dry_run:
            await producer.initialise()  # aborts the transaction of a killed replay with its offsets
        positions, ends = await _range(cluster, plan)
        consumer.assign(positions)
        while any(positions[one] < ends[one] for one in positions) and not _is_full(plan, report):
            chunk: list[tuple[TopicPartition, Record]] = []
            for fetched in await consumer.poll(_POLL_MS):
                where, end = fetched.partition, ends[fetched.partition]
                records = fetched.records(isolation_level=READ_COMMITTED)
                chunk += [(where, one) for one in records if one.offset < end]
                positions[where] = min(fetched.next_position, end)
            # Send the records first: the positions after them are valid only once the whole chunk is sent.
            await _send(cluster, producer, plan, chunk, positions, report)
    return report


def _is_full(plan: ReplayPlan, report: ReplayReport) -> bool:
    return plan.limit is not None and report.replayed.total() >= plan.limit


async def _range(cluster: AsyncClient, plan: ReplayPlan) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the offsets to begin and to end at, by partition."""
    info = (await cluster.topics([plan.from_topic], auto_create=False)).get(plan.from_topic)
    check(info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {plan.from_topic}")
    assert info is not None
    partitions = [TopicPartition(plan.from_topic, index) for index in range(len(info.partitions))]
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)
    for one in partitions:
        check(starts[one].error, str(one))
        check(ends[one].error, str(one))
    known: Mapping[TopicPartition, CommittedOffset] = {}
    if not plan.from_beginning:
        known = await committed_offsets(cluster, plan.group_id, partitions, require_stable=not plan.dry_run)
    begin = {one: max(known[one].offset if one in known else 0, starts[one].offset) for one in partitions}
    return begin, {one: ends[one].offset for one in partitions}


async def _send(
    cluster: AsyncClient,
    producer: Producer,
    plan: ReplayPlan,
    chunk: Sequence[tuple[TopicPartition, Record]],
    positions: Mapping[TopicPartition, int],
    report: ReplayReport,
) -> None:
    """Send a chunk in transactions of a few hundred letters. The last one also commits the positions past invisible records."""
    at = 0
    done: dict[TopicPartition, int] = {}
    while at < len(chunk) and not _is_full(plan, report):
        part = chunk[at : at + RECORDS_PER_TRANSACTION]
        letters: list[tuple[Record, Letter]] = []
        for where, record in part:
            if _is_full(plan, report):
                break
            at += 1
            letter = _judged(record, where, plan, report)
            done[where] = record.offset + 1
            if letter.topic is not None:
                letters.append((record, letter))
                report.replayed[letter.topic] += 1
        if at == len(chunk):
            done |= {one: positions[one] for one, _ in chunk}
        if not plan.dry_run:
            await _transact(cluster, producer, plan, letters, done)


def _judged(record: Record, where: TopicPartition, plan: ReplayPlan, report: ReplayReport) -> Letter:
    letter = judge(record, where, plan)
    report.read += 1
    report.passed_over += not letter.chosen
    report.given_up += letter.chosen and letter.topic is None
    return letter


async def _transact(
    cluster: AsyncClient,
    producer: Producer,
    plan: ReplayPlan,
    letters: Iterable[tuple[Record, Letter]],
    done: Mapping[TopicPartition, int],
) -> None:
    letters = list(letters)
    if not letters:
        outcome = await commit_offsets(cluster, plan.group_id, {at: CommittedOffset(to) for at, to in done.items()})
        for where, code in outcome.items():
            check(code, f"commit of {where}")
        return
    transaction = producer.transaction
    assert transaction is not None
    await transaction.begin()
    try:
        sent = []
        for record, letter in letters:
            assert letter.topic is not None
            sent.append(
                await producer.send(
                    letter.topic,
                    record.value,
                    key=record.key,
                    headers=letter.headers,
                    timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
                )
            )
        await producer.flush()
        for delivery in sent:
            await delivery.offset()  # raises if the record was not delivered
        await _add_offsets(cluster, producer, plan, done)
    except ClientError:
        await transaction.abort()
        raise
    await transaction.commit()


async def _add_offsets(
    cluster: AsyncClient, producer: Producer, plan: ReplayPlan, done: Mapping[TopicPartition, int]
) -> None:
    """Add the read position of the replay to its transaction."""
    assert producer.transaction is not None, "offsets are a part of a transaction"
    producer_id, producer_epoch = producer.transaction.identity
    add = AddOffsetsToTxnRequest(
        transactional_id=plan.group_id, producer_id=producer_id, producer_epoch=producer_epoch, group_id=plan.group_id
    )
    commit = TxnOffsetCommitRequest(
        transactional_id=plan.group_id,
        group_id=plan.group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=done[TopicPartition(topic, index)],
                        committed_metadata="",
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(done).items()
        ],
    )

    def first_error(response: TxnOffsetCommitResponse) -> int:
        return next((part.error_code for one in response.topics for part in one.partitions if part.error_code), 0)

    async def add_once() -> None:
        response = await cluster.ask_coordinator(
            plan.group_id,
            add,
            AddOffsetsToTxnResponse,
            kind=TRANSACTION,
            version_max=_ADD_OFFSETS_VERSION_MAX,
            error_of=lambda answer: answer.error_code,
        )
        check(response.error_code)

    async def commit_once() -> None:
        response = await cluster.ask_coordinator(
            plan.group_id,
            commit,
            TxnOffsetCommitResponse,
            version_max=_TXN_OFFSET_COMMIT_VERSION_MAX,
            error_of=first_error,
        )
        check(first_error(response))

    await cluster.retrying("AddOffsetsToTxn", add_once)
    await cluster.retrying("TxnOffsetCommit", commit_once)
