"""Fail-over time, memory and creation time by number of partitions, beside Apache Kafka 3.9.1:
`python -m bench failover [-- PARTITIONS…]`.

Three brokers, RF 3, min.insync.replicas 2, session timeout 2 s; ours with the embedded ZooKeeper, Kafka with Apache's. For each
number of partitions it measures the time to create them (until every one has a leader), the brokers' memory, and the gap
between two acknowledgements of a partition in three cases: its leader is killed and is also the controller, its leader is
stopped cleanly, its leader is killed. After the last kill it measures how long Metadata names the dead leader. Kafka is
measured with the largest number that is not above `--kafka-most`: it takes a minute to create 4,000.

The watched partition is the only one of its topic, and the last one that the controller handles. The benchmark measures the
work of the cluster for all partitions, not the time that a client needs to read large metadata twenty times a second.
"""

import argparse
import itertools
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster, wait_until
from bench.broker import Target
from bench.cluster import wait_for_cluster
from bench.kafka import ApacheKafka
from bench.limits import Limit, machine_limits
from bench.report import Curve, Panel, announce, limits_text, write_panels

RESULTS = Path(__file__).parent / "results"
SESSION_TIMEOUT_MS = 2000
TICK_TIME_MS = 500
#: The controller handles topics in the order of their names.
TOPIC = "watched"
OTHERS = "others"
#: Keep librdkafka's own pauses short, because the cluster is measured. (Without a leader it looks for another one once a
#: second, whatever its back-off is, except for the regular refresh.)
CLIENT = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 50,
    "log_level": 0,
}


@dataclass(frozen=True)
class Point:
    system: str
    partitions: int
    #: Seconds until Metadata shows a leader for every partition.
    create_s: float
    #: Memory of the three brokers after creation: proportional set size, so that shared pages count once.
    memory_mb: float
    #: The killed leader is also the controller.
    controller_gap_ms: float
    stop_gap_ms: float
    kill_gap_ms: float
    #: From kill -9 until Metadata names another leader for the partition.
    kill_metadata_ms: float
    #: Time until a broker that is stopped cleanly has ended, and until a restarted one is in every ISR again.
    stop_s: float
    restart_s: float


System = LocalCluster | ApacheKafka
CONFIG = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS), "auto.leader.rebalance.enable": "false"}


class Pulse:
    """Writes one record after the other to one partition, and remembers when each was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.times: list[float] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0, **CLIENT}
        )
        self._thread = threading.Thread(target=self._run, name="pulse")

    def __enter__(self) -> "Pulse":
        self._thread.start()
        wait_until(lambda: len(self.times) > 20, what="the first acknowledgements")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(TOPIC, b"x" * 100, partition=0, on_delivery=self._delivered)
            self._producer.poll(0.005)
        self._producer.flush(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.times.append(time.monotonic())

    def gap_ms_after(self, moment: float) -> float:
        """Return the longest pause between two acknowledgements around and after `moment`."""
        wait_until(
            lambda: self.times[-1] > moment + SESSION_TIMEOUT_MS / 1000 + 1,
            120,
            what="acknowledgements after a fault",
        )
        times = [each for each in self.times if each > moment - 0.5]
        return max(b - a for a, b in itertools.pairwise(times)) * 1000


def agreed_leader(cluster: System) -> int:
    """Return the leader, once every broker names the same one."""
    admins = [AdminClient({"bootstrap.servers": cluster.address(each), "log_level": 0}) for each in cluster.broker_ids]
    named: set[int] = set()

    def agree() -> bool:
        named.clear()
        named.update(leader_of(admin) for admin in admins)
        return len(named) == 1 and -1 not in named

    wait_until(agree, 120, what="that all brokers name the same leader")
    return named.pop()


def leader_of(admin: AdminClient) -> int:
    return int(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader)


def memory_mb(cluster: System) -> float:
    return float(sum(psutil.Process(cluster.pid(each)).memory_full_info().pss for each in cluster.broker_ids)) / 1e6


def create(admin: AdminClient, partitions: int, *, leader: int, brokers: Sequence[int]) -> float:
    """Return the seconds until every partition has a leader; the watched one gets `leader`."""
    topics = {OTHERS: partitions - 1, TOPIC: 1}
    watched = NewTopic(TOPIC, 1, replica_assignment=[sorted(brokers, key=lambda each: each != leader)])
    news = [NewTopic(OTHERS, num_partitions=partitions - 1, replication_factor=3)] if partitions > 1 else []
    began = time.monotonic()
    for new in (*news, watched):
        [created] = admin.create_topics([new], request_timeout=120).values()
        created.result()
    for name, count in topics.items():
        if count:
            wait_until(lambda name=name, count=count: _is_led(admin, name, count), 120, what="leaders")  # type: ignore[misc]
    return time.monotonic() - began


def ours() -> LocalCluster:
    return LocalCluster(brokers=3, config=CONFIG, zookeeper_options=("--tick-time", str(TICK_TIME_MS)))


def kafka() -> ApacheKafka:
    config = {**CONFIG, "min.insync.replicas": "2", "default.replication.factor": "3"}
    return ApacheKafka(brokers=3, config=config, heap="512m", tick_time_ms=TICK_TIME_MS)


def measure(name: str, start: Callable[[], System], partitions: int) -> Point:
    with start() as cluster:
        wait_for_cluster(Target(name, cluster.bootstrap, []), 3)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        controller = admin.list_topics(timeout=10).controller_id
        create_s = create(admin, partitions, leader=controller, brokers=cluster.broker_ids)
        time.sleep(1)
        memory = memory_mb(cluster)
        with Pulse(cluster.bootstrap) as pulse:
            moment = time.monotonic()
            cluster.kill(controller)
            controller_gap_ms = pulse.gap_ms_after(moment)
            cluster.start_broker(controller)
            wait_until(lambda: _all_in_sync(admin, partitions), 120, what="that all replicas are in sync")
            leader = agreed_leader(cluster)
            moment = time.monotonic()
            cluster.terminate(leader, timeout_s=120)
            stop_s = time.monotonic() - moment
            stop_gap_ms = pulse.gap_ms_after(moment)
            began = time.monotonic()
            cluster.start_broker(leader)
            wait_until(lambda: _all_in_sync(admin, partitions), 120, what="that all replicas are in sync")
            restart_s = time.monotonic() - began
            leader = agreed_leader(cluster)
            moment = time.monotonic()
            cluster.kill(leader)
            wait_until(lambda: leader_of(admin) not in (leader, -1), 120, what="another leader in Metadata")
            kill_metadata_ms = (time.monotonic() - moment) * 1000
            kill_gap_ms = pulse.gap_ms_after(moment)
        if pulse.errors:
            raise RuntimeError(f"records were not delivered: {pulse.errors[:3]}")
    return Point(
        name,
        partitions,
        create_s,
        memory,
        controller_gap_ms,
        stop_gap_ms,
        kill_gap_ms,
        kill_metadata_ms,
        stop_s,
        restart_s,
    )


def _is_led(admin: AdminClient, name: str, partitions: int) -> bool:
    try:
        topic = admin.list_topics(name, timeout=10).topics[name]
    except KafkaException:
        return False
    return len(topic.partitions) == partitions and all(each.leader > 0 for each in topic.partitions.values())


def _all_in_sync(admin: AdminClient, partitions: int) -> bool:
    try:
        topics = admin.list_topics(timeout=10).topics
    except KafkaException:
        return False
    found = [each for name in (TOPIC, OTHERS) if name in topics for each in topics[name].partitions.values()]
    return len(found) == partitions and all(len(each.isrs) == 3 for each in found)


def write_curves(points: list[Point], rounds: int, limits: Sequence[Limit]) -> None:
    """`bench/results/failover.{txt,json,svg}`"""
    title = (
        f"Fail-over, memory and creation by partitions (3 brokers, RF 3, session time-out {SESSION_TIMEOUT_MS} ms; "
        f"median of {rounds} interleaved rounds)"
    )
    heads = [
        "partitions",
        "create s",
        "memory MB",
        "controller gap ms",
        "stop gap ms",
        "kill gap ms",
        "kill, Metadata ms",
        "stop s",
        "back s",
    ]
    lines = [title, "", f"{'':12}  " + "  ".join(f"{head:>17}" for head in heads)]
    for point in points:
        system, *values = asdict(point).values()
        lines.append(f"{system:12}  " + "  ".join(f"{value:>17,.2f}".replace(".00", "   ") for value in values))
    text = "\n".join(lines) + limits_text(limits)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "failover.txt").write_text(text + "\n")
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    data = {
        "title": title,
        "machine": machine,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "rounds": rounds,
        "points": [asdict(point) for point in points],
        "limits": [asdict(each) for each in limits],
    }
    (RESULTS / "failover.json").write_text(json.dumps(data, indent=1) + "\n")
    systems = list(dict.fromkeys(point.system for point in points))

    def curves(field: str) -> list[Curve]:
        return [
            Curve(system, [(point.partitions, getattr(point, field)) for point in points if point.system == system])
            for system in systems
        ]

    write_panels(
        "failover",
        "3 brokers, RF 3, by partitions",
        [
            Panel("leader killed: ms without acknowledgement", curves("kill_gap_ms"), limit=1000),
            Panel("leader and controller killed: ms without", curves("controller_gap_ms"), limit=1000),
            Panel("leader stopped: ms without", curves("stop_gap_ms"), limit=500),
            Panel("memory of three brokers, MB", curves("memory_mb")),
            Panel("s to create them", curves("create_s")),
        ],
        limits,
    )


def median(points: list[Point]) -> Point:
    fields = [asdict(point) for point in points]
    numbers = {name: statistics.median(each[name] for each in fields) for name in fields[0] if name != "system"}
    return Point(system=points[0].system, **numbers)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench failover --", description=__doc__)
    parser.add_argument("partitions", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kafka-most", type=int, default=1000, help="partitions of Apache Kafka; 0: without it")
    options = parser.parse_args(arguments)
    counts = sorted(options.partitions)
    theirs = [each for each in counts if each <= options.kafka_most][-1:]
    ours_s, theirs_s = sum(16 + each / 150 for each in counts), sum(50 + each / 50 for each in theirs)
    announce("failover", options.rounds, round_s=ours_s + theirs_s, setup_s=5)
    found: dict[tuple[str, int], list[Point]] = {}
    for _, partitions in itertools.product(range(options.rounds), counts):
        systems: list[tuple[str, Callable[[], System]]] = [("barnabas", ours)]
        if partitions in theirs:
            systems.append(("Apache Kafka", kafka))
        for name, start in systems:
            point = measure(name, start, partitions)
            print(point, flush=True)
            found.setdefault((name, partitions), []).append(point)
    write_curves([median(points) for points in found.values()], options.rounds, machine_limits())


if __name__ == "__main__":
    main()
