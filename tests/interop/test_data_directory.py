"""One data directory, two kinds of broker: what one leaves, cleanly or after kill -9, the other takes over whole."""

import subprocess
import sys

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.testing import wait_until
from tests.interop import maven
from tests.interop.kinds import APACHE, KAFKA, OURS, MixedCluster
from tests.interop.load import read_all

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("java")]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Story:
    """Writes, reads and remembers; `check` asks whoever has the directory now."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.values: list[bytes] = []
        self.committed_to_group = 0
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wait_until(lambda: admin.list_topics(timeout=20).controller_id == 1, what="a controller")
        small = {"segment.bytes": "20000", "retention.ms": "-1"}
        for future in admin.create_topics(
            [NewTopic("log", 1, 1, config=small), NewTopic("keys", 1, 1, config={"cleanup.policy": "compact"})]
        ).values():
            future.result(30)

    def write(self, name: str) -> None:
        bootstrap = self.cluster.bootstrap
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec})
            values = [f"{name} {codec} {number}".encode() * 5 for number in range(100)]
            for value in values:
                producer.produce("log", value, b"key", headers={"h": b"1"})
            assert producer.flush(30) == 0
            self.values += values
        transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "teller"})
        transactional.init_transactions(60)
        for number, commits in enumerate((True, False, True)):
            transactional.begin_transaction()
            value = f"{name} transaction {number}".encode()
            transactional.produce("log", value)
            assert transactional.flush(30) == 0
            transactional.commit_transaction(30) if commits else transactional.abort_transaction(30)
            if commits:
                self.values.append(value)
        self._commit_offset()

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "g", "log_level": 0})

    def _commit_offset(self) -> None:
        consumer = self._consumer()
        self.committed_to_group = len(self.values)
        consumer.commit(offsets=[TopicPartition("log", 0, self.committed_to_group)], asynchronous=False)
        consumer.close()

    def check(self) -> None:
        found = read_all(self.cluster.bootstrap, "log", isolation="read_committed")
        assert [message.value() for message in found] == self.values
        consumer = self._consumer()

        def committed() -> int:
            try:
                [partition] = consumer.committed([TopicPartition("log", 0)], timeout=10)
            except KafkaException:  # the coordinator is still loading
                return -1
            return int(partition.offset)

        wait_until(lambda: committed() == self.committed_to_group, what="the group's offset")
        consumer.close()

    def leave_open(self) -> Producer:
        """A transaction that is open when its broker goes: its successor must know of it."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "transactional.id": "left", "log_level": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("keys", b"open", b"k")
        assert producer.flush(30) == 0
        return producer


def dumps(cluster: MixedCluster, partition: str) -> tuple[str, str]:
    """What Kafka's tool and ours say of a partition's files."""
    folder = cluster.log_dir(1) / partition
    files = ",".join(str(path) for path in sorted(folder.glob("*")) if path.suffix in (".log", ".index", ".timeindex"))
    arguments = ["--files", files, "--print-data-log"]
    kafka = ["java", "-Xmx256m", "-cp", maven.classpath(*KAFKA), "kafka.tools.DumpLogSegments", *arguments]
    ours = [sys.executable, "-m", "barnabas", "dump-log", *arguments]
    theirs, mine = (
        subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        for command in (kafka, ours)
    )
    return theirs, mine


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", [OURS, APACHE])
def test_directory_changes_hands_and_back(first: str, is_clean: bool) -> None:
    second = APACHE if first == OURS else OURS
    with MixedCluster(kinds={1: first}) as cluster:
        story = Story(cluster)
        story.write(first)
        opened = story.leave_open()
        for kind in (second, first, second):
            cluster.stop(1) if is_clean else cluster.kill(1)
            if kind == second:
                theirs, mine = dumps(cluster, "log-0")
                assert theirs.splitlines() == mine.splitlines()
                assert "isvalid: false" not in theirs
            cluster.start(1, kind)
            story.check()
            if opened is not None:
                opened.commit_transaction(60)
                opened = None
                [record] = read_all(cluster.bootstrap, "keys", isolation="read_committed")
                assert record.value() == b"open"
            story.write(kind)
            story.check()


def test_group_of_the_new_protocol_keeps_its_offsets_at_kafka_and_back() -> None:
    """Kafka 3.9 with ZooKeeper does not know such groups: it passes their records over, and leaves them where they are."""
    with MixedCluster(kinds={1: OURS}) as cluster:
        story = Story(cluster)
        story.write(OURS)
        settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "new", "log_level": 0}
        # Committing by itself, librdkafka would go past records that nobody has seen when it closes: it takes the markers
        # of transactions that it has fetched for consumed.
        modern = Consumer(
            {**settings, "group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        modern.subscribe(["log"])
        seen = 0
        while seen < 100:
            seen += sum(message.error() is None for message in modern.consume(100, 1.0))
        modern.commit(asynchronous=False)
        [place] = modern.committed([TopicPartition("log", 0)], timeout=10)
        modern.close()
        for kind in (APACHE, OURS):
            cluster.stop(1)
            cluster.start(1, kind)
            story.check()
            asking = Consumer(settings)
            [found] = asking.committed([TopicPartition("log", 0)], timeout=20)
            asking.close()
            assert found.offset == place.offset > 0
