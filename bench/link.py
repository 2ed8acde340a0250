"""A link beside our own replica fetcher, and beside MirrorMaker 2 of Kafka 4.3.0; all on the same cores.

Throughput is catching up with a full topic. Beside the fetcher: from one of our brokers to another, measured from the creation
of the link. Beside MirrorMaker: from Kafka 4.3.0 in KRaft mode to one of our brokers, both measured from the first mirrored
record, since both must first find the topic and create it. Lag is the time from a record's creation at the source, at a steady
50 MB/s, until a consumer of the mirror has it. Rounds alternate, and both Java programs are warmed up first.
"""

import argparse
import contextlib
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.interop.kraft import KraftCluster
from tests.interop.maven import classpath

from barnabas.base import ids
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin import links
from barnabas.client.admin.partitions import alter_reassignments
from barnabas.client.blocking import BlockingClient, drive
from barnabas.client.config import client_config
from bench.broker import Load, Target, create_topic, measure_produce, payload
from bench.kafka import cpu_seconds
from bench.limits import Limit, machine_limits
from bench.memory import touched_memory
from bench.report import Row, announce, write_report

MIRROR_MAKER = ("org.apache.kafka:connect-mirror:4.3.0",)
#: More records for the fast ones, since creating a mirror takes half a second.
CATCH_UP = Load("1 KB", 1000, 1_000_000, "1")
BESIDE_MIRROR_MAKER = Load("1 KB", 1000, 400_000, "1")
#: 400 MB would be copied before the first measurement.
LINK_BESIDE_MIRROR_MAKER = Load("1 KB", 1000, 1_500_000, "1")
WARM_UP = Load("1 KB", 1000, 100_000, "1")
LAG_MB_PER_S = 50
LAG_RECORD_BYTES = 10_000
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Work:
    """The amount, the time, and the CPU time of the side that copies (for MirrorMaker, of it and the target)."""

    megabytes: float
    seconds: float
    cpu_s: float
    source_cpu_s: float

    def measures(self, name: str) -> Iterator[tuple[str, float]]:
        yield f"{name} MB/s", self.megabytes / self.seconds
        yield f"{name} CPU s/GB", self.cpu_s / self.megabytes * 1000
        yield f"{name} source CPU s/GB", self.source_cpu_s / self.megabytes * 1000


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not after {PATIENCE_S} s")
        time.sleep(0.01)


class End:
    """Read the end offset of a partition from its leader, often and at little cost."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "end", "log_level": 0})
        self._partition = TopicPartition(topic, 0)

    def __call__(self) -> int:
        try:
            return int(self._consumer.get_watermark_offsets(self._partition, timeout=5)[1])
        except KafkaException:
            return -1  # does not exist yet

    def close(self) -> None:
        self._consumer.close()


def copying(
    bootstrap: str, topic: str, load: Load, pids: list[int], source_pids: list[int], begin: Callable[[], None]
) -> Work:
    """Measure from `begin` until the mirror has everything."""
    cpu, source_cpu, began = cpu_seconds(pids), cpu_seconds(source_pids), time.monotonic()
    begin()
    with contextlib.closing(End(bootstrap, topic)) as end:
        until(lambda: end() >= load.count, f"{topic} is copied")
    took = time.monotonic() - began
    used, source_used = cpu_seconds(pids) - cpu, cpu_seconds(source_pids) - source_cpu
    return Work(load.count * load.size_bytes / 1e6, took, used, source_used)


def rest_of(bootstrap: str, topic: str, load: Load, pids: list[int], source_pids: list[int]) -> Work:
    """Measure from the first mirrored record until the mirror has everything."""
    with contextlib.closing(End(bootstrap, topic)) as end:
        until(lambda: end() > 0, f"{topic} begins to be copied")
        rest = load.count - end()
    done = copying(bootstrap, topic, load, pids, source_pids, lambda: None)
    return replace(done, megabytes=rest * load.size_bytes / 1e6)


# -- links --------------------------------------------------------------------------------------------------------------


def create_link(source: str, target: LocalCluster, topic: str) -> None:
    configs = {"bootstrap.servers": source, "link.replication.factor": "1"}
    with BlockingClient(client_config(target.bootstrap)) as client:
        drive(links.create_link(client.core, f"bench-{topic}", configs=configs, topics=topic))


def delete_link(target: LocalCluster, topic: str) -> None:
    """Promote and delete: a mirror can only be deleted after its promotion."""
    name = f"bench-{topic}"
    with BlockingClient(client_config(target.bootstrap)) as client:
        drive(links.alter_link(client.core, name, "promote-now"))

        def is_promoted() -> bool:
            [link] = drive(links.describe_links(client.core, [name]))
            return all(each.state == "promoted" for each in link.topics)

        until(is_promoted, f"{topic} is promoted")
        drive(links.delete_link(client.core, name))


def link_catches_up(source: Target, target: LocalCluster, topic: str, load: Load) -> Work:
    """Measure from the creation of the link."""

    def begin() -> None:
        create_link(source.bootstrap, target, topic)

    work = copying(target.bootstrap, topic, load, [target.pid(1)], source.pids, begin)
    delete_link(target, topic)
    return work


def link_catches_up_from_its_first_record(source: Target, target: LocalCluster, topic: str, load: Load) -> Work:
    """Measure as for MirrorMaker: without finding and creating the topic."""
    create_link(source.bootstrap, target, topic)
    work = rest_of(target.bootstrap, topic, load, [target.pid(1)], source.pids)
    delete_link(target, topic)
    return work


def fetcher_catches_up(cluster: LocalCluster, topic: str, load: Load) -> Work:
    """Add a second replica to a full partition: from its assignment until it is in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    other = 3 - leader
    cpu, source_cpu = cpu_seconds([cluster.pid(other)]), cpu_seconds([cluster.pid(leader)])
    with BlockingClient(client_config(cluster.bootstrap)) as client:
        began = time.monotonic()
        drive(alter_reassignments(client.core, {ids.TopicPartition(topic, 0): [leader, other]}))
        until(lambda: len(client.refresh([topic]).topics[topic].partitions[0].isr) == 2, f"{topic} is in sync")
    took = time.monotonic() - began
    used, source_used = cpu_seconds([cluster.pid(other)]) - cpu, cpu_seconds([cluster.pid(leader)]) - source_cpu
    return Work(load.count * load.size_bytes / 1e6, took, used, source_used)


# -- MirrorMaker 2 ------------------------------------------------------------------------------------------------------


@contextmanager
def mirror_maker(source: str, target: str, topics: str) -> Iterator[list[int]]:
    """Start MirrorMaker with settings that favour throughput over its defaults."""
    settings = {
        "clusters": "from,to",
        "from.bootstrap.servers": source,
        "to.bootstrap.servers": target,
        "from->to.enabled": "true",
        "from->to.topics": topics,
        "to->from.enabled": "false",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "sync.topic.acls.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "refresh.topics.interval.seconds": "1",
        "from.consumer.max.poll.records": "5000",
        "from.consumer.max.partition.fetch.bytes": "8388608",
        "to.producer.batch.size": "1000000",
        "to.producer.buffer.memory": "134217728",
        "to.producer.max.request.size": "8388608",
    }
    with tempfile.TemporaryDirectory(prefix="mirror-maker-") as name:
        folder = Path(name)
        file = folder / "mm2.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        command = ["java", "-Xmx1g", "-XX:+UseG1GC", "-cp", classpath(*MIRROR_MAKER), main, str(file)]
        with (folder / "mm2.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield [process.pid]
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def mirror_maker_catches_up(source: Target, target: LocalCluster, topic: str, warm: str, load: Load) -> Work:
    """MirrorMaker is warm: it has copied another topic. Measured from its first record, because it polls for new topics."""
    with mirror_maker(source.bootstrap, target.bootstrap, f"{warm}.*,{topic}") as pids:
        with contextlib.closing(End(target.bootstrap, warm)) as end:
            until(lambda: end() >= WARM_UP.count, "MirrorMaker is warm")
        measure_produce(source, topic, load)
        return rest_of(target.bootstrap, topic, load, [*pids, target.pid(1)], source.pids)


# -- lag ----------------------------------------------------------------------------------------------------------------


def lag(source: str, target: str, topic: str, seconds: float) -> dict[str, float]:
    """Return seconds from creation at the source to a consumer of the mirror."""
    producer = Producer({"bootstrap.servers": source, "acks": "1", "linger.ms": 5, "batch.size": 1_000_000})
    consumer = Consumer({"bootstrap.servers": target, "group.id": "lag", "fetch.wait.max.ms": 100, "log_level": 0})
    with contextlib.closing(End(target, topic)) as end:
        until(lambda: end() >= 0, f"the mirror of {topic} is there")
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    value = payload(LAG_RECORD_BYTES)
    total, per_second = int(seconds * LAG_MB_PER_S * 1e6 / LAG_RECORD_BYTES), LAG_MB_PER_S * 1e6 / LAG_RECORD_BYTES
    lags: list[float] = []
    sent, began = 0, time.monotonic()
    while len(lags) < total:
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(f"{len(lags)} of {total} records of {topic} came")
        due = min(total, int((time.monotonic() - began) * per_second))
        while sent < due:
            producer.produce(topic, value, partition=0, timestamp=time.time_ns() // 1_000_000)
            sent += 1
        producer.poll(0)
        for message in consumer.consume(1000, 0.005):
            if message.error() is None:
                lags.append(time.time() - message.timestamp()[1] / 1000)
    producer.flush(30)
    consumer.close()
    warm = sorted(lags[len(lags) // 5 :])
    return {name: warm[math.ceil(share * len(warm)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}


# -- the run ------------------------------------------------------------------------------------------------------------


def against_fetcher(results: dict[str, list[float]], rounds: int) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(LocalCluster(brokers=2))
        source = stack.enter_context(LocalCluster(brokers=1))
        target = stack.enter_context(LocalCluster(brokers=1))
        full = Target("barnabas", source.bootstrap, [source.pid(1)])
        for number in range(rounds):
            topic = f"full-{number}"
            create_topic(full, topic)
            measure_produce(full, topic, CATCH_UP)
            for name, value in link_catches_up(full, target, topic, CATCH_UP).measures("link from barnabas"):
                results.setdefault(name, []).append(value)
            of_pair = Target("barnabas", pair.bootstrap, [])
            create_topic(of_pair, topic)
            measure_produce(of_pair, topic, CATCH_UP)
            for name, value in fetcher_catches_up(pair, topic, CATCH_UP).measures("replica fetcher"):
                results.setdefault(name, []).append(value)
            print(f"round {number + 1} of {rounds}: link and fetcher done")


def against_mirror_maker(results: dict[str, list[float]], rounds: int, lag_s: float) -> None:
    with ExitStack() as stack:
        kafka = stack.enter_context(KraftCluster(nodes=1, heap="1g", is_short_lived=False))
        target = stack.enter_context(LocalCluster(brokers=1))
        source = Target("Apache Kafka", kafka.bootstrap, kafka.pids)
        for number in range(rounds):
            full, warm, other = f"full-{number}", f"warm-{number}", f"other-{number}"
            for topic, load in ((warm, WARM_UP), (full, LINK_BESIDE_MIRROR_MAKER)):
                create_topic(source, topic)
                measure_produce(source, topic, load)
            linked = link_catches_up_from_its_first_record(source, target, full, LINK_BESIDE_MIRROR_MAKER)
            for name, value in linked.measures("link from Kafka"):
                results.setdefault(name, []).append(value)
            create_topic(source, other)
            work = mirror_maker_catches_up(source, target, other, warm, BESIDE_MIRROR_MAKER)
            for name, value in work.measures("MirrorMaker 2"):
                results.setdefault(name, []).append(value)
            _lags(results, source, target, number, lag_s)
            print(f"round {number + 1} of {rounds}: link and MirrorMaker done")


def _lags(results: dict[str, list[float]], source: Target, target: LocalCluster, number: int, lag_s: float) -> None:
    by_link, by_maker = f"lag-link-{number}", f"lag-maker-{number}"
    create_topic(source, by_link)
    create_link(source.bootstrap, target, by_link)
    for name, value in lag(source.bootstrap, target.bootstrap, by_link, lag_s).items():
        results.setdefault(f"link lag {name} s", []).append(value)
    delete_link(target, by_link)
    create_topic(source, by_maker)
    with mirror_maker(source.bootstrap, target.bootstrap, by_maker):
        for name, value in lag(source.bootstrap, target.bootstrap, by_maker, lag_s).items():
            results.setdefault(f"MirrorMaker 2 lag {name} s", []).append(value)


def report(results: dict[str, list[float]], rounds: int, limits: Sequence[Limit]) -> None:
    def row(name: str, ours: str, theirs: str) -> Row:
        return Row(name, statistics.median(results[ours]), statistics.median(results[theirs]))

    rows = [
        row(f"{measure}, against {rival}", f"{ours} {measure}", f"{rival} {measure}")
        for ours, rival in (("link from barnabas", "replica fetcher"), ("link from Kafka", "MirrorMaker 2"))
        for measure in ("MB/s", "CPU s/GB", "source CPU s/GB")
    ]
    rows += [
        row(
            f"lag {quantile} s at {LAG_MB_PER_S} MB/s, against MirrorMaker 2",
            f"link lag {quantile} s",
            f"MirrorMaker 2 lag {quantile} s",
        )
        for quantile in ("p50", "p99")
    ]
    title = "A link: catching up, and lag; one partition"
    write_report("link", title, rows, rounds=rounds, raw=results, rival="the other", limits=limits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lag-seconds", type=float, default=15.0)
    given = parser.parse_args(arguments)
    announce("link", given.rounds, round_s=25 + 2 * given.lag_seconds, setup_s=15)
    limits = machine_limits()
    results: dict[str, list[float]] = {}
    with touched_memory():
        against_fetcher(results, given.rounds)
    with touched_memory():  # the files of the first clusters are deleted, and their memory is free
        against_mirror_maker(results, given.rounds, given.lag_seconds)
    report(results, given.rounds, limits)


if __name__ == "__main__":
    main()
