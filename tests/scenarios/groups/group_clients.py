"""Consumers that run in threads of their own, and the records that they have seen."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import client_config
from barnabas.testing import wait_until
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

FAST_GROUPS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.migration.policy": "bidirectional",
    "offsets.topic.num.partitions": "6",
}

#: The group is in, or about to start, another generation: the member learns of it at its next poll, and can commit then.
NOT_NOW = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH)

CLASSIC = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
#: librdkafka's settings for each group protocol.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {**CLASSIC, "partition.assignment.strategy": "range"},
    "cooperative": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
    wait_until(
        lambda: all(_leaders(address, topic) == partitions for address in bootstrap.split(",")),
        what=f"every broker to know {topic}",
    )


def _leaders(address: str, topic: str) -> int:
    """Return how many partitions with a leader a broker knows: a client may ask any broker."""
    host, _, port = address.rpartition(":")
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with BlockingConnection(host, int(port), client_config(address)) as connection:
        [found] = connection.request(request, MetadataResponse).topics
    return sum(partition.leader_id > 0 for partition in found.partitions)


def produce(bootstrap: str, topic: str, values: Iterable[int], partitions: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    failed: list[KafkaError] = []

    def done(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        producer.produce(topic, value=str(value), partition=value % partitions, on_delivery=done)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, failed


class InHand:
    """Distinguishes a record that librdkafka delivers again by itself from one that was read twice.

    At each incremental rebalance librdkafka stops the fetchers of all partitions, and those of kept partitions continue after
    the last record that the application got. librdkafka notes a record as delivered a moment after it takes it from the queue
    (`rd_kafka_consume0`): if the fetchers stop between the two, they continue with that record instead of after it. A member
    continues with a kept partition by itself: it fetches no committed offset, and a broker has no part in it (librdkafka's mock
    cluster behaves in the same way). So the one record that was being delivered when a rebalance came may be delivered again,
    once, while the member keeps its partition.
    """

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._at_rebalance: tuple[int, int] | None = None

    def rebalanced(self) -> None:
        self._at_rebalance = self._last

    def taken(self, partitions: Iterable[int]) -> None:
        """Forget revoked partitions: their next owner continues at the committed offset."""
        if self._last is not None and self._last[0] in partitions:
            self._last = self._at_rebalance = None

    def comes_again(self, partition: int, offset: int) -> bool:
        """Whether this record is such a repetition. Called for every record that is read."""
        self._last = (partition, offset)
        if self._at_rebalance is None or self._at_rebalance[0] != partition:
            return False
        in_hand, self._at_rebalance = self._at_rebalance, None
        return in_hand == (partition, offset)


class Member:
    """One consumer in one thread. Before it gives up partitions, it commits what it has read."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **config: Any) -> None:
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # The first broker may hear of a new topic later than the client: refresh the metadata soon.
            "topic.metadata.refresh.interval.ms": 1000,
            **config,
        }
        self._topics = topics
        self.values: list[int] = []
        #: (when, event, its subject): assigned and revoked partitions, commits, and runs of offsets that were read.
        self.story: list[tuple[float, str, object]] = []
        self._run_of: dict[int, tuple[int, int]] = {}
        self._in_hand = InHand()
        #: The present partitions.
        self.owned: set[tuple[str, int]] = set()
        #: Number of assignments and revocations.
        self.assigned = 0
        self.revoked = 0
        #: Number of losses of partitions, after the group removed the member.
        self.lost = 0
        self.errors: list[object] = []
        self._stop = threading.Event()
        self._is_leaving = False
        self._thread = threading.Thread(target=self._run, name=f"member of {group}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = Consumer(self._config)
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        try:
            while not self._stop.is_set():
                self._read(consumer)
            # No offset can be committed during a rebalance: wait for its end, then leave.
            while not self._commit(consumer):
                self._read(consumer)
            self._is_leaving = True
        except KafkaException as error:
            self.errors.append(error)
        finally:
            consumer.close()
            self.owned = set()

    def _read(self, consumer: Consumer) -> None:
        # Read one by one: librdkafka's batch call repeats records at a rebalance.
        message = consumer.poll(0.05)
        if message is None:
            return
        error = message.error()
        if error is not None:
            self._tell("error", error)
            # As in Kafka, this broker may hear of a new topic later than the one that created it.
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART or self.owned:
                self.errors.append(error)
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        if self._in_hand.comes_again(partition, offset):
            self._tell("given again by the client itself", (partition, offset))
        else:
            self.values.append(int(message.value() or b"-1"))
            self._note_read(partition, offset)
        consumer.store_offsets(message)

    def _note_read(self, partition: int, offset: int) -> None:
        first, last = self._run_of.get(partition, (offset, offset - 1))
        if offset != last + 1:
            self._tell("read", (partition, first, last))
            first = offset
        self._run_of[partition] = (first, offset)

    def _end_runs(self, partitions: list[TopicPartition]) -> None:
        """End the runs of offsets of revoked partitions."""
        for each in partitions:
            run = self._run_of.pop(each.partition, None)
            if run is not None:
                self._tell("read", (each.partition, *run))

    def _tell(self, what: str, of: object) -> None:
        self.story.append((time.monotonic(), what, of))

    def _commit(self, consumer: Consumer) -> bool:
        """Commit; return False if that is not possible now."""
        try:
            committed = consumer.commit(asynchronous=False)
            self._tell("commit", [(each.partition, each.offset, each.error) for each in committed or []])
            refused = [each for each in committed or [] if each.error is not None]
            if refused:
                self.errors.append(refused)
        except KafkaException as error:
            self._tell("no commit", error)
            code = error.args[0].code()
            if code in NOT_NOW:
                return False
            if code != KafkaError._NO_OFFSET:
                raise
        return True

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1
        self._in_hand.rebalanced()
        self._tell("given", (consumer.memberid(), [each.partition for each in partitions]))
        self.owned |= {(each.topic, each.partition) for each in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += 1
        self._in_hand.rebalanced()
        self._in_hand.taken([each.partition for each in partitions])
        self._end_runs(partitions)
        self._tell("taken", [each.partition for each in partitions])
        if not self._is_leaving and not self._commit(consumer):
            self.errors.append("could not commit what is revoked")
        self.owned -= {(each.topic, each.partition) for each in partitions}

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += 1
        self._in_hand.rebalanced()
        self._in_hand.taken([each.partition for each in partitions])
        self._end_runs(partitions)
        self._tell("lost", [each.partition for each in partitions])
        self.owned -= {(each.topic, each.partition) for each in partitions}

    def stop(self) -> None:
        """Leave the group and stop."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Crew:
    """The members of one group on one topic."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, **config: Any) -> None:
        self.bootstrap, self.group, self.topic, self.partitions = bootstrap, group, topic, partitions
        self._config = config
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def join(self, count: int = 1, **config: Any) -> list[Member]:
        new = [Member(self.bootstrap, self.group, [self.topic], **{**self._config, **config}) for _ in range(count)]
        self.members += new
        return new

    def leave(self, member: Member) -> None:
        member.stop()
        self.members.remove(member)
        self.gone.append(member)

    @property
    def everybody(self) -> list[Member]:
        return [*self.members, *self.gone]

    @property
    def values(self) -> list[int]:
        return [value for member in self.everybody for value in member.values]

    def explain(self) -> str:
        """Return the members' stories in order, for records that were read twice or not at all."""
        events = [(when, number, *rest) for number, each in enumerate(self.everybody) for when, *rest in each.story]
        events += [
            (float("inf"), number, "read to the end", (partition, *run))
            for number, each in enumerate(self.everybody)
            for partition, run in each._run_of.items()
        ]
        lines = [str(each) for each in sorted(events, key=lambda each: each[:2])]
        for number, each in enumerate(self.everybody):
            lines.append(f"member {number}: errors {each.errors}, lost {each.lost} times")
        often = Counter(self.values)
        lines.append(f"more than once: {sorted(value for value in often if often[value] > 1)}")
        return "\n".join(lines)

    def is_balanced(self) -> bool:
        """Whether every partition has one owner and the load is even."""
        owned = [place for member in self.members for place in member.owned]
        loads = [len(member.owned) for member in self.members]
        return len(owned) == len(set(owned)) == self.partitions and max(loads) - min(loads) <= 1

    def wait_balanced(self, timeout_s: float = 60) -> None:
        wait_until(self.is_balanced, timeout_s, what=f"balance: {[sorted(m.owned) for m in self.members]}")

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        wait_until(lambda: len(self.values) >= count, timeout_s, what=f"{count} records, got {len(self.values)}")


@contextmanager
def crew(bootstrap: str, group: str, topic: str, partitions: int, **config: Any) -> Iterator[Crew]:
    create(bootstrap, topic, partitions)
    group_of_members = Crew(bootstrap, group, topic, partitions, **config)
    try:
        yield group_of_members
    finally:
        for member in list(group_of_members.members):
            group_of_members.leave(member)
