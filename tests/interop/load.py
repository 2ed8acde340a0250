"""Load with a ledger: writers keep the acknowledged records, and in the end all are counted."""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)


class _Thread:
    """A loop in a thread; `stop` raises its exception again."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=type(self).__name__, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 120.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{type(self).__name__} did not stop"
        if self._failure is not None:
            raise self._failure

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            self._failure = failure

    def run(self) -> None:
        raise NotImplementedError


class Writer(_Thread):
    """An idempotent producer with acks=all and numbered values; `acked` maps (partition, offset) to the value."""

    def __init__(self, bootstrap: str, topic: str, *, pause_s: float = 0.002, first: int = 0, **config: Any) -> None:
        super().__init__()
        self.topic = topic
        #: Number of the next value. A writer that continues after another begins with that one's.
        self.number = first
        self._pause_s = pause_s
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "log_level": 0,
        }
        self._producer = Producer({**settings, "message.timeout.ms": 120_000, **config})
        self.acked: dict[tuple[int, int], bytes] = {}
        self.refused: list[str] = []

    def run(self) -> None:
        while not self._stopping.is_set():
            value, key = f"{self.number:08d}".encode(), f"k{self.number % 64}"
            self._producer.produce(self.topic, value, key, on_delivery=self._delivered)
            self.number += 1
            self._producer.poll(0)
            time.sleep(self._pause_s)
        assert self._producer.flush(90) == 0, "records without an answer"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            self.acked[message.partition(), message.offset()] = message.value()


class GroupReader(_Thread):
    """A member of a consumer group that commits what it has read."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        super().__init__()
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "session.timeout.ms": 10_000, **config})
        self._consumer.subscribe([topic])
        self.seen: Counter[bytes] = Counter()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                messages = [message for message in self._consumer.consume(500, 0.2) if message.error() is None]
                for message in messages:
                    self.seen[message.value()] += 1
                if messages:
                    self._commit()
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        # The coordinator moves, or the group rebalances: the next commit includes this one.
        except KafkaException as refused:
            error = refused.args[0]
            assert not error.fatal(), error


class Transactor(_Thread):
    """Writes each number to two partitions in one transaction, and aborts every fifth transaction."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str, *, pause_s: float = 0.02) -> None:
        super().__init__()
        self.topic = topic
        self._id = transactional_id
        self._pause_s = pause_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.unknown: set[bytes] = set()

    def run(self) -> None:
        self._producer.init_transactions(90)
        number = 0
        while not self._stopping.is_set():
            self._one(number)
            number += 1
            time.sleep(self._pause_s)

    def _one(self, number: int) -> None:
        value = f"{self._id}-{number:06d}".encode()
        self._producer.begin_transaction()
        try:
            for partition in (0, 1):
                self._producer.produce(self.topic, value, partition=partition)
            if number % 5 == 4:
                self._producer.flush(60)
                self._producer.abort_transaction(60)
                self.aborted.add(value)
                return
            self._commit(value)
        except KafkaException as refused:
            error = refused.args[0]
            assert error.txn_requires_abort(), (value, error)
            self._producer.abort_transaction(60)
            self.aborted.add(value)

    def _commit(self, value: bytes) -> None:
        deadline_s = time.monotonic() + 90
        while True:
            try:
                self._producer.commit_transaction(30)
            except KafkaException as refused:
                if not refused.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
            else:
                self.committed.add(value)
                return


def read_all(
    bootstrap: str, topic: str, *, isolation: str = "read_uncommitted", timeout_s: float = 60.0
) -> list[Message]:
    """Return every record of a topic without writers."""
    settings = {"bootstrap.servers": bootstrap, "group.id": f"read-all-{time.monotonic_ns()}"}
    reader = Consumer(
        {**settings, "isolation.level": isolation, "enable.partition.eof": True, "enable.auto.commit": False}
    )
    try:
        deadline_s = time.monotonic() + timeout_s
        # A broker that has just started knows no topic until the controller sends its metadata.
        while not (partitions := reader.list_topics(topic, timeout=30).topics[topic].partitions):
            assert time.monotonic() < deadline_s, f"{topic} is not there"
            time.sleep(0.05)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: list[Message] = []
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            assert time.monotonic() < deadline_s, f"{len(at_end)} of {len(partitions)} partitions read to their end"
            message = reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                assert error.retriable(), error
        return found
    finally:
        reader.close()


def check_nothing_lost(bootstrap: str, writer: Writer) -> None:
    assert writer.refused == []
    found = {(message.partition(), message.offset()): message.value() for message in read_all(bootstrap, writer.topic)}
    lost = {place: value for place, value in writer.acked.items() if found.get(place) != value}
    assert lost == {}, f"{len(lost)} of {len(writer.acked)} acknowledged records are not where they were"
    twice = [value for value, times in Counter(found.values()).items() if times > 1]
    assert twice == []


def check_transactions(bootstrap: str, topic: str, transactors: Iterable[Transactor]) -> None:
    seen: dict[int, Counter[bytes]] = {0: Counter(), 1: Counter()}
    for message in read_all(bootstrap, topic, isolation="read_committed"):
        seen[message.partition()][message.value()] += 1
    committed = {value for transactor in transactors for value in transactor.committed}
    assert committed
    for partition, counts in seen.items():
        assert set(counts) == committed, f"partition {partition}: {set(counts) ^ committed}"
        assert max(counts.values()) == 1
