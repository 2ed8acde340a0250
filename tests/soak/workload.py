"""Clients under load that remember acknowledged records, and the checks of the cluster's promises.

Writers are idempotent acks=all producers (confluent-kafka). A value is `writer:partition:number`; numbers of a writer rise
by one in each partition. A reader reads all partitions from the beginning during the whole run.
"""

import contextlib
import random
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.wire.record_batch import HEADER, LOG_OVERHEAD, BatchHeader

#: Longer than any fault lasts: a producer that gives up would weaken the check.
DELIVERY_TIMEOUT_MS = 120_000
#: librdkafka logs every broken connection, and here all of them break.
QUIET: Final = {"log_level": 0, "log.connection.close": False, "error_cb": lambda error: None}


class PromiseBroken(AssertionError):
    """The cluster lost, repeated, reordered or invented something."""


def create_topic(bootstrap: str, topic: str, *, partitions: int, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    [done] = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, replication_factor=3, config=config or {})], request_timeout=20
    ).values()
    done.result()


@dataclass
class Writer:
    """One producer in a thread of its own."""

    name: str
    bootstrap: str
    topic: str
    partitions: int
    seed: int
    #: Approximate number of values a second.
    rate: int = 400
    #: (partition, number) -> offset
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    #: (when, partition) of each acknowledgement, by the monotonic clock.
    times: list[tuple[float, int]] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop. Return when every record is acknowledged or has failed."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
        except KafkaException as error:
            self.errors.append(str(error))

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 1000,
                **QUIET,
                "error_cb": lambda error: self.errors.append(str(error)) if error.fatal() else None,
            }
        )
        chance = random.Random(f"{self.seed} {self.name}")
        numbers: dict[int, int] = defaultdict(int)
        while not self._stop.is_set():
            for _ in range(max(1, self.rate // 100)):
                partition = chance.randrange(self.partitions)
                number = numbers[partition]
                value = f"{self.name}:{partition}:{number}"
                try:
                    producer.produce(
                        self.topic,
                        value.encode() + b" " * chance.randrange(200),
                        key=self.name.encode(),
                        partition=partition,
                        on_delivery=self._delivered,
                    )
                except BufferError:
                    break
                numbers[partition] += 1
            producer.poll(0.01)
        if producer.flush(DELIVERY_TIMEOUT_MS / 1000):
            self.errors.append("not everything was delivered when the writer stopped")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        _, partition, number = value.decode().split(":")
        if error is not None:
            self.errors.append(f"{value!r}: {error}")
            return
        # A duplicate whose offset the broker no longer knows is acknowledged without an offset.
        offset = message.offset()
        self.acknowledged[int(partition), int(number)] = -1 if offset is None else offset
        self.times.append((time.monotonic(), int(partition)))


@dataclass
class Reader:
    """A consumer without a group that reads everything once, in order, and asks for the partitions' end offsets."""

    bootstrap: str
    topic: str
    partitions: int
    #: Partition -> values in the order of their offsets.
    values: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    broken: list[str] = field(default_factory=list)
    ends_asked: int = 0
    #: Whether to ask for end offsets now and then (ListOffsets), which must not go back.
    asks_ends: bool = True

    def start(self) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, name="reader", daemon=True)]
        if self.asks_ends:
            self._threads.append(threading.Thread(target=self._ask, name="asker", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self, wanted: dict[int, int] | None = None, timeout_s: float = 60) -> None:
        """Stop. Return when `wanted` values of each partition were read."""
        deadline = time.monotonic() + timeout_s
        while wanted and not self.broken and any(len(self.values[p]) < count for p, count in wanted.items()):
            if time.monotonic() > deadline:
                have = {p: len(self.values[p]) for p in wanted}
                self.broken.append(f"not everything could be read: {have} of {wanted}")
                break
            time.sleep(0.02)
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 1000,
                **QUIET,
            }
        )

    def _read(self) -> None:
        consumer = self._consumer()
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self.broken.append(f"a consumer was sent away: {error}")
                continue
            self._take(message)
        consumer.close()

    def _take(self, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        read = self.values[partition]
        if offset != len(read):
            self.broken.append(f"partition {partition}: offset {offset} follows {len(read) - 1}")
        read.append(value)

    def _ask(self) -> None:
        """Check that the end offset that a client gets does not go back, also when the leader changes (KIP-207)."""
        consumer = self._consumer()
        ends: dict[int, int] = defaultdict(int)
        while not self._stop.is_set():
            for partition in range(self.partitions):
                with contextlib.suppress(KafkaException):
                    _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=1)
                    if end < ends[partition]:
                        self.broken.append(f"partition {partition}: the end went back from {ends[partition]} to {end}")
                    ends[partition] = max(end, ends[partition])
                    self.ends_asked += 1
            self._stop.wait(0.2)
        consumer.close()


def read_all(bootstrap: str, topic: str, ends: dict[int, int]) -> dict[int, list[bytes]]:
    """Read everything from the beginning with a new consumer."""
    reader = Reader(bootstrap, topic, max(ends) + 1, asks_ends=False)
    reader.start()
    reader.stop(ends)
    if reader.broken:
        raise PromiseBroken("; ".join(reader.broken[:5]))
    return reader.values


#: (first offset, producer id, producer epoch) of each batch of a partition, in order.
Batches = list[tuple[int, int, int]]


def batches_of(log: bytes) -> Batches:
    """Return the batches of a partition, given its segments one behind the other."""
    found: Batches = []
    position = 0
    while position + HEADER.size <= len(log):
        header = BatchHeader._make(HEADER.unpack_from(log, position))
        found.append((header.base_offset, header.producer_id, header.producer_epoch))
        position += header.batch_length + LOG_OVERHEAD
    return found


def check_promises(writers: list[Writer], values: dict[int, list[bytes]], batches: dict[int, Batches]) -> None:
    """Check that acknowledged records exist once, at the acknowledged offset, and that all records are in order and unique.

    The order must hold even when librdkafka repeats records under a new producer epoch. It does so after
    OUT_OF_ORDER_SEQUENCE_NUMBER, and a leader does not answer that to a batch that is only early (`replication.early_batches`).
    """
    broken: list[str] = []
    places: dict[tuple[str, int, int], int] = {}
    for partition, read in values.items():
        starts = [first for first, _, _ in batches[partition]]
        last: dict[str, tuple[int, int]] = defaultdict(lambda: (-1, -1))
        for offset, value in enumerate(read):
            name, said, number = value.decode().split(":")
            _, _, epoch = batches[partition][bisect_right(starts, offset) - 1]
            key = (name, int(said), int(number))
            if int(said) != partition:
                broken.append(f"{value!r} is in partition {partition}")
            last_number, last_epoch = last[name]
            if int(number) <= last_number:
                whose = "librdkafka, in a new epoch" if epoch > last_epoch else "the cluster"
                broken.append(
                    f"{key} at {offset} comes after number {last_number}, was at {places.get(key)}, by {whose}"
                )
            places.setdefault(key, offset)
            last[name] = (int(number), epoch)
    for writer in writers:
        broken += [f"writer {writer.name}: {error}" for error in writer.errors[:3]]
        for (partition, number), offset in writer.acknowledged.items():
            place = places.get((writer.name, partition, number))
            if place is None:
                broken.append(f"{writer.name}:{partition}:{number} was acknowledged at {offset} and is lost")
            elif writer.acknowledged.get((partition, number - offset - 1)) == -1:
                continue  # librdkafka counts from -1 if it does not know the offset of a duplicate batch
            elif offset >= 0 and values[partition][offset] != values[partition][place]:
                broken.append(f"{writer.name}:{partition}:{number} was acknowledged at {offset} and is at {place}")
    if broken:
        raise PromiseBroken(f"{len(broken)} broken promises: " + "; ".join(broken[:8]))
