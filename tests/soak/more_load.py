"""Transactions and group offsets under faults: committed transactions are complete, aborted ones are invisible, and committed
group offsets stay.
"""

import contextlib
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.cli.local_cluster import wait_until
from tests.soak.workload import QUIET, PromiseBroken

#: Records of a transaction in each partition.
RECORDS = 3
#: Longer than a fault lasts, shorter than the wait at the end.
TIMEOUT_S = 30.0
BACKOFF = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 1000,
}


@dataclass
class TransactionWriter:
    """Writes one transaction after the other, each with records in all partitions, and aborts some on purpose."""

    name: str
    bootstrap: str
    topic: str
    partitions: int
    seed: int
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    #: Transactions whose client gave up while it committed: either all or none of their records exist.
    unknown: set[int] = field(default_factory=set)
    #: The errors after which a producer had to be replaced.
    fatal: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._chance = random.Random(f"{self.seed} {self.name}")
        self._thread = threading.Thread(target=self._run, name=f"transactions {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer: Producer | None = None
        number = 0
        while not self._stop.is_set():
            try:
                if producer is None:
                    producer = self._producer()
                self._transaction(producer, number)
            except KafkaException as error:
                self.fatal.append(f"transaction {number}: {error}")
                producer = None
            number += 1
            self._stop.wait(0.05)

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": 20_000,
                "message.timeout.ms": 20_000,
                "linger.ms": 2,
                **BACKOFF,
                **QUIET,
            }
        )
        _retried(lambda: producer.init_transactions(TIMEOUT_S))
        return producer

    def _transaction(self, producer: Producer, number: int) -> None:
        """Write one transaction. Raise if the producer cannot be used any more; the transaction is accounted for in any
        case.
        """
        commits = self._chance.random() < 0.8
        is_committing = False
        try:
            producer.begin_transaction()
            for record in range(RECORDS):
                for partition in range(self.partitions):
                    producer.produce(self.topic, f"{self.name}:{number}:{record}".encode(), partition=partition)
                producer.poll(0.005)
            if commits:
                is_committing = True
                _retried(lambda: producer.commit_transaction(TIMEOUT_S))
                self.committed.add(number)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                (self.unknown if is_committing else self.aborted).add(number)
                raise
        self.aborted.add(number)
        _retried(lambda: producer.abort_transaction(TIMEOUT_S))


def _retried(call) -> None:
    """Repeat a call of a transactional producer as long as its error is retriable."""
    deadline = time.monotonic() + 60
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


@dataclass
class OffsetCommitter:
    """Commits increasing offsets for a group, and checks that committed offsets stay."""

    group: str
    bootstrap: str
    topic: str
    partitions: int
    acknowledged: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    attempted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    broken: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and check once more on the repaired cluster."""
        self._stop.set()
        self._thread.join()
        consumer = self._consumer()
        wait_until(lambda: self._check(consumer), 60, what="the group's offsets")
        consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                **BACKOFF,
                **QUIET,
            }
        )

    def _run(self) -> None:
        consumer = self._consumer()
        offset = 0
        while not self._stop.is_set():
            offset += 1
            partition = offset % self.partitions
            self.attempted[partition] = offset
            with contextlib.suppress(KafkaException):
                consumer.commit(offsets=[TopicPartition(self.topic, partition, offset)], asynchronous=False)
                self.acknowledged[partition] = offset
            self._check(consumer)
            self._stop.wait(0.1)
        consumer.close()

    def _check(self, consumer: Consumer) -> bool:
        try:
            places = consumer.committed([TopicPartition(self.topic, p) for p in range(self.partitions)], timeout=5)
        except KafkaException:
            return False
        for place in places:
            if place.error is not None:
                return False
            least, most = self.acknowledged[place.partition], self.attempted[place.partition]
            if not least <= max(place.offset, 0) <= most:
                self.broken.append(
                    f"group {self.group}, partition {place.partition}: {place.offset} is committed, "
                    f"{least} was acknowledged, {most} tried last"
                )
        return True


@dataclass
class StableEnds:
    """Reads the last stable offset of partitions all the time: it must not go back."""

    bootstrap: str
    topic: str
    partitions: int
    broken: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="last stable offsets", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = reader(self.bootstrap, "read_committed")
        ends: dict[int, int] = defaultdict(int)
        while not self._stop.is_set():
            for partition in range(self.partitions):
                with contextlib.suppress(KafkaException):
                    end = end_of(consumer, self.topic, partition, timeout_s=1)
                    if end < ends[partition]:
                        self.broken.append(
                            f"{self.topic}-{partition}: the last stable offset went back from {ends[partition]} to {end}"
                        )
                    ends[partition] = max(end, ends[partition])
            self._stop.wait(0.2)
        consumer.close()


def reader(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **BACKOFF,
            **QUIET,
        }
    )


def end_of(consumer: Consumer, topic: str, partition: int, *, timeout_s: float = 5) -> int:
    """Return the high watermark, or the last stable offset for a read_committed consumer."""
    return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)[1])


def check_transactions(bootstrap: str, topic: str, partitions: int, writers: list[TransactionWriter]) -> None:
    """Check that no transaction stays open, that committed ones are complete, unique and in order, and aborted ones
    invisible.
    """
    committed, all_records = reader(bootstrap, "read_committed"), reader(bootstrap, "read_uncommitted")
    for partition in range(partitions):

        def is_stable(partition: int = partition) -> bool:
            with contextlib.suppress(KafkaException):
                return end_of(committed, topic, partition) == end_of(all_records, topic, partition)
            return False

        wait_until(is_stable, 60, what=f"that every transaction in {topic}-{partition} has ended")
    seen = _read(committed, topic, partitions)
    committed.close()
    all_records.close()
    broken: list[str] = []
    for writer in writers:
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for partition, values in seen.items():
            mine = [value.split(":") for value in values if value.startswith(f"{writer.name}:")]
            numbers = [int(number) for _, number, _ in mine]
            if numbers != sorted(numbers):
                broken.append(f"transactions of {writer.name} are out of order in partition {partition}")
            for _, number, record in mine:
                places[int(number)].append((partition, int(record)))
        whole = sorted((partition, record) for partition in range(partitions) for record in range(RECORDS))
        for number in writer.committed:
            if sorted(places[number]) != whole:
                broken.append(f"{writer.name}:{number} was committed, and there is {sorted(places[number])}")
        for number in writer.aborted:
            if places[number]:
                broken.append(f"{writer.name}:{number} was aborted, and there is {sorted(places[number])}")
        for number in writer.unknown:
            if places[number] and sorted(places[number]) != whole:
                broken.append(f"{writer.name}:{number} is there in part: {sorted(places[number])}")
    if broken:
        raise PromiseBroken(f"{len(broken)} broken transactions: " + "; ".join(broken[:6]))


def _read(consumer: Consumer, topic: str, partitions: int) -> dict[int, list[str]]:
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    seen: dict[int, list[str]] = defaultdict(list)
    at_end: set[int] = set()
    deadline = time.monotonic() + 60
    while len(at_end) < partitions:
        if time.monotonic() > deadline:
            raise PromiseBroken(f"{topic} could not be read to its end")
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            seen[message.partition()].append(message.value().decode())
        elif message.error().code() == -191:  # _PARTITION_EOF
            at_end.add(message.partition())
    return seen
