"""Three brokers, clients under load, and faults by seed: `python -m tests.soak.chaos --seconds 300 --seed 7`.

Each broker has two log directories, settings of its own and a connection to ZooKeeper that can be cut. At the end every
acknowledged record must exist exactly once and in order, committed transactions are complete and aborted ones invisible, a
group's committed offsets stayed, the replicas' logs are equal byte for byte, no consumer saw a gap or an end offset that went
back, and no broker stopped by itself. A failed run keeps its data and prints where.
"""

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from barnabas.cli.local_cluster import wait_until
from barnabas.testing import Cluster
from tests.soak.more_load import OffsetCommitter, StableEnds, TransactionWriter, check_transactions
from tests.soak.proxy import Proxy
from tests.soak.workload import (
    QUIET,
    PromiseBroken,
    Reader,
    Writer,
    batches_of,
    check_promises,
    create_topic,
    read_all,
)

TOPIC = "chaos"
TRANSACTIONS = "chaos-transactions"
TRANSACTION_PARTITIONS = 2
SESSION_TIMEOUT_MS = 2000
#: Session timeouts are limited to 2 to 20 ticks.
TICK_TIME_MS = 500
CLUSTER_CONFIG = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    # A broker must not end only because the machine is busy.
    "zookeeper.connection.timeout.ms": "18000",
    "replica.lag.time.max.ms": "3000",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "5",
    "log.segment.bytes": "1048576",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}
#: Settings in which the brokers of one cluster may differ, as during a rolling change.
DIFFERING = {
    "transaction.partition.verification.enable": ("true", "false"),
    "transaction.two.phase.commit.enable": ("true", "false"),
    "min.insync.replicas": ("1", "2"),
}


@dataclass(kw_only=True)
class ChaosCluster(Cluster):
    """Brokers with two log directories, a proxy before ZooKeeper, and settings that differ between them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        #: ZooKeeper's port, which it keeps when it starts again.
        self._port = 0
        self.lines = {broker: Proxy(lambda: (self.host, self._port)) for broker in self.broker_ids}
        self.settings: dict[int, dict[str, str]] = {}

    def _start_zookeeper(self, port: str = "0") -> None:
        super()._start_zookeeper(port)
        self._port = int(self.zookeeper_connect.rpartition(":")[2])

    def log_dirs(self, broker_id: int) -> list[Path]:
        first = self.log_dir(broker_id)
        return [first, first.with_name(f"{first.name}-second")]

    def _properties(self, broker_id: int) -> dict[str, str]:
        return {
            **super()._properties(broker_id),
            "log.dirs": ",".join(map(str, self.log_dirs(broker_id))),
            "zookeeper.connect": self.lines[broker_id].address,
            **self.settings.get(broker_id, {}),
        }

    def stop(self) -> None:
        for line in self.lines.values():
            line.speak()
        super().stop()
        for line in self.lines.values():
            line.close()


def chaos_cluster(data: Path | None = None, **config: str) -> ChaosCluster:
    return ChaosCluster(
        brokers=3,
        data=data,
        config={**CLUSTER_CONFIG, **config},
        zookeeper_options=("--tick-time", str(TICK_TIME_MS)),
    )


@dataclass
class Chaos:
    """One run. `faults` are drawn from FAULTS unless they are given."""

    cluster: ChaosCluster
    seed: int
    partitions: int = 4
    writers: int = 3
    rate: int = 400
    story: list[str] = field(default_factory=list)
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._began = time.monotonic()
        for broker in self.cluster.broker_ids:
            self.draw_settings(broker)

    def run(self, *, seconds: float, faults: list[str] | None = None) -> None:
        bootstrap = self.cluster.bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        create_topic(bootstrap, TOPIC, partitions=self.partitions)
        create_topic(bootstrap, TRANSACTIONS, partitions=TRANSACTION_PARTITIONS)
        self.transactions = [
            TransactionWriter(f"x{n}", bootstrap, TRANSACTIONS, TRANSACTION_PARTITIONS, self.seed) for n in range(2)
        ]
        self.offsets = OffsetCommitter("chaos-group", bootstrap, TOPIC, self.partitions)
        self.stable_ends = StableEnds(bootstrap, TRANSACTIONS, TRANSACTION_PARTITIONS)
        self.clients = [
            Writer(f"w{n}", bootstrap, TOPIC, self.partitions, self.seed, self.rate) for n in range(self.writers)
        ]
        self.reader = Reader(bootstrap, TOPIC, self.partitions)
        self.reader.start()
        load = [*self.clients, *self.transactions, self.offsets, self.stable_ends]
        for client in load:
            client.start()
        try:
            self._break_things(seconds, faults)
        except BaseException:
            self._heal()
            self.reader.stop()
            raise
        finally:
            for client in load:
                client.stop()
        self._note(
            f"stopped writing, {sum(len(w.acknowledged) for w in self.clients)} acknowledged; transactions: "
            f"{sum(len(w.committed) for w in self.transactions)} committed, "
            f"{sum(len(w.aborted) for w in self.transactions)} aborted, "
            f"{sum(len(w.unknown) for w in self.transactions)} unknown; {sum(self.offsets.acknowledged.values())} offsets"
        )
        self.verify()

    def _heal(self) -> None:
        """Repair everything so that clients can finish; defects have shown by now."""
        for line in self.cluster.lines.values():
            line.speak()
        self.cluster.resume_zookeeper()
        for broker in self.cluster.broker_ids:
            self.cluster.resume(broker)

    def _break_things(self, seconds: float, faults: list[str] | None) -> None:
        deadline = time.monotonic() + seconds
        queue = list(faults or ())
        time.sleep(self._chance.uniform(0.2, 0.6))
        while queue if faults else time.monotonic() < deadline:
            name = queue.pop(0) if faults else self._chance.choice(list(FAULTS))
            FAULTS[name](self)
            self._everyone_runs()
            time.sleep(self._chance.choice([0.05, 0.3, 1.0, 2.0]))

    def _note(self, line: str) -> None:
        line = f"{time.monotonic() - self._began:7.2f}  {line}"
        self.story.append(line)
        self.say(line)

    # -- who ----------------------------------------------------------------------------------------------------------

    def _leader(self) -> int:
        with contextlib.suppress(KafkaException):
            topic = self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC]
            leaders = sorted(p.leader for p in topic.partitions.values() if p.leader > 0)
            if leaders:
                return self._chance.choice(leaders)
        return self._anyone()

    def _controller(self) -> int:
        with contextlib.suppress(KafkaException):
            controller = self._admin.list_topics(TOPIC, timeout=5).controller_id
            if controller > 0:
                return controller
        return self._anyone()

    def _anyone(self) -> int:
        return self._chance.choice(list(self.cluster.broker_ids))

    def _victim(self) -> int:
        kind = self._chance.choice(["leader", "controller", "anyone"])
        broker = {"leader": self._leader, "controller": self._controller, "anyone": self._anyone}[kind]()
        self._note(f"next is {kind} {broker}")
        return broker

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill_one(self) -> None:
        broker = self._victim()
        self._note(f"kill -9 {broker}")
        self.cluster.kill(broker)
        time.sleep(self._chance.choice([0, 0, 1, SESSION_TIMEOUT_MS / 1000 + 1]))
        self._start(broker)

    def terminate_one(self) -> None:
        broker = self._victim()
        self._note(f"terminate {broker}")
        self._terminated(broker)
        time.sleep(self._chance.choice([0, 0.5, SESSION_TIMEOUT_MS / 1000 + 1]))
        self._start(broker)

    def pause_past_session(self) -> None:
        broker = self._victim()
        pause_s = SESSION_TIMEOUT_MS / 1000 * self._chance.uniform(1.1, 2.0)
        self._note(f"pause {broker} for {pause_s:.1f} s")
        self.cluster.pause(broker)
        time.sleep(pause_s)
        self.cluster.resume(broker)

    def pause_briefly(self) -> None:
        broker = self._victim()
        self._note(f"pause {broker} briefly")
        self.cluster.pause(broker)
        time.sleep(self._chance.uniform(0.1, 0.9))
        self.cluster.resume(broker)

    def restart_zookeeper(self) -> None:
        kill = self._chance.random() < 0.5
        self._note(f"{'kill -9' if kill else 'terminate'} ZooKeeper")
        self.cluster.restart_zookeeper(kill=kill)

    def rolling_restart(self) -> None:
        for broker in self._chance.sample(list(self.cluster.broker_ids), 3):
            self._note(f"rolling: {broker}")
            self._terminated(broker)
            self._start(broker)

    def kill_two(self) -> None:
        brokers = self._chance.sample(list(self.cluster.broker_ids), 2)
        self._note(f"kill -9 {brokers}")
        for broker in brokers:
            self.cluster.kill(broker)
        time.sleep(self._chance.choice([0, 1, SESSION_TIMEOUT_MS / 1000 + 1]))
        for broker in brokers:
            self._start(broker)

    def kill_all(self) -> None:
        self._note("kill -9 all")
        brokers = self._chance.sample(list(self.cluster.broker_ids), 3)
        for broker in brokers:
            self.cluster.kill(broker)
        for broker in brokers:
            self._start(broker, wait=False)
        for broker in brokers:
            self.cluster.wait_ready(broker)

    def kill_and_zookeeper(self) -> None:
        broker = self._victim()
        self._note(f"kill -9 {broker} and ZooKeeper")
        self.cluster.kill(broker)
        self.cluster.restart_zookeeper(kill=True)
        self._start(broker)

    def pause_controller_and_kill_another(self) -> None:
        controller = self._controller()
        other = self._chance.choice([broker for broker in self.cluster.broker_ids if broker != controller])
        self._note(f"pause controller {controller}, kill -9 {other}")
        self.cluster.pause(controller)
        self.cluster.kill(other)
        time.sleep(SESSION_TIMEOUT_MS / 1000 * self._chance.uniform(0.5, 1.6))
        self.cluster.resume(controller)
        self._start(other)

    def return_without_disk(self) -> None:
        """Start a new machine with a dead one's id, once the ISRs do not contain it: until then its disk may have the only
        copy.
        """
        broker = self._victim()
        self._note(f"kill -9 {broker} for good")
        self.cluster.kill(broker)
        time.sleep(SESSION_TIMEOUT_MS / 1000 + 1)
        try:
            wait_until(lambda: self._left_isrs(broker), 10, what=f"that the ISRs are without {broker}")
        except TimeoutError:
            self._note(f"{broker} is the last of an ISR: it keeps its disk")
        else:
            for folder in self.cluster.log_dirs(broker):
                shutil.rmtree(folder)
            self._note(f"{broker} has lost its disk")
        self._start(broker)
        self._wait_in_sync()

    def _left_isrs(self, broker: int) -> bool:
        with contextlib.suppress(KafkaException):
            topics = self._admin.list_topics(timeout=5).topics.values()
            return all(broker not in p.isrs and p.leader > 0 for topic in topics for p in topic.partitions.values())
        return False

    def dead_directory(self) -> None:
        """Let a log directory fail. It is still dead when its broker starts again, and works after a second restart."""
        broker = self._victim()
        folder = self._chance.choice(self.cluster.log_dirs(broker))
        if self._chance.random() < 0.5:
            self._note(f"{folder.name} fails")
            self.cluster.fail_log_dir(broker, folder)
            time.sleep(self._chance.choice([0, 1, 3]))
        self._stop(broker)
        away = folder.with_name(f"{folder.name}-away")
        folder.rename(away)
        folder.write_text("a disk that is dead")
        self._note(f"{folder.name} is dead")
        self._start(broker)
        time.sleep(self._chance.choice([0, 1, 3]))
        if self._chance.random() < 0.5:
            other = self._chance.choice([each for each in self.cluster.broker_ids if each != broker])
            self._stop(other)
            self._start(other)
        self._stop(broker)
        folder.unlink()
        away.rename(folder)
        self._note(f"{folder.name} is repaired")
        self._start(broker)

    def cut_one_way(self) -> None:
        """Let a broker hear nothing from another one, or from both; they hear it."""
        broker = self._victim()
        others = [each for each in self.cluster.broker_ids if each != broker]
        deaf_to = others if self._chance.random() < 0.3 else [self._chance.choice(others)]
        self._note(f"{broker} does not hear {deaf_to}")
        self.cluster.be_deaf_to(broker, deaf_to)
        time.sleep(self._chance.choice([0.5, 2, 5]))
        self.cluster.heal()

    def cut_off(self) -> None:
        broker = self._victim()
        self._note(f"{broker} is cut off from the other brokers")
        self.cluster.cut_off(broker)
        time.sleep(self._chance.choice([0.5, 2, 5]))
        self.cluster.heal()

    def break_connections(self) -> None:
        for _ in range(self._chance.randrange(1, 6)):
            broker = self._anyone()
            self._note(f"all connections to {broker} break")
            self.cluster.drop_connections(broker)
            time.sleep(self._chance.choice([0, 0.05, 0.3]))

    def cut_from_zookeeper(self) -> None:
        """Cut a broker off from ZooKeeper, both ways so that its session expires while it serves, or only one way."""
        broker = self._victim()
        to_server, to_client = self._chance.choice([(True, True), (True, False), (False, True)])
        seconds = SESSION_TIMEOUT_MS / 1000 * self._chance.uniform(0.5, 3)
        self._note(
            f"{broker} and ZooKeeper: to it {'not' if to_server else 'yes'}, from it {'not' if to_client else 'yes'}"
        )
        line = self.cluster.lines[broker]
        line.silence(to_server=to_server, to_client=to_client)
        time.sleep(seconds)
        if self._chance.random() < 0.5:
            line.drop()
        line.speak()

    def zookeeper_away(self) -> None:
        away_s = SESSION_TIMEOUT_MS / 1000 * self._chance.uniform(0.5, 2)
        kill = self._chance.random() < 0.5
        self._note(f"{'kill -9' if kill else 'terminate'} ZooKeeper for {away_s:.1f} s")
        self.cluster.restart_zookeeper(kill=kill, away_s=away_s)

    def pause_zookeeper(self) -> None:
        pause_s = SESSION_TIMEOUT_MS / 1000 * self._chance.uniform(0.2, 2)
        self._note(f"pause ZooKeeper for {pause_s:.1f} s")
        self.cluster.pause_zookeeper()
        time.sleep(pause_s)
        self.cluster.resume_zookeeper()

    def other_settings(self) -> None:
        broker = self._victim()
        self.draw_settings(broker)
        self._stop(broker)
        self._start(broker)

    def draw_settings(self, broker: int) -> None:
        drawn = {name: self._chance.choice(values) for name, values in DIFFERING.items()}
        self.cluster.settings[broker] = drawn
        self._note(f"{broker} has {', '.join(f'{name}={value}' for name, value in drawn.items())}")

    def _stop(self, broker: int) -> None:
        if self._chance.random() < 0.5:
            self._note(f"kill -9 {broker}")
            self.cluster.kill(broker)
        else:
            self._note(f"terminate {broker}")
            self._terminated(broker)

    def _terminated(self, broker: int) -> None:
        code = self.cluster.terminate(broker)
        if code != 0:
            raise PromiseBroken(f"broker {broker} was stopped and ended with {code}\n{self._log_end(broker)}")

    def _start(self, broker: int, *, wait: bool = True) -> None:
        self.cluster.start_broker(broker, wait=wait)
        self._note(f"started {broker}")

    def _everyone_runs(self) -> None:
        for broker in self.cluster.broker_ids:
            if not self.cluster.member(broker).running:
                code = self.cluster.member(broker).exit_code
                raise PromiseBroken(f"broker {broker} ended by itself with {code}\n{self._log_end(broker)}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        self._wait_in_sync()
        self._note("all replicas are in sync")
        ends = self._ends()
        self.reader.stop(ends)
        if self.reader.broken:
            raise PromiseBroken("; ".join(self.reader.broken[:5]))
        read_again = read_all(self.cluster.bootstrap, TOPIC, ends)
        for partition in ends:
            if read_again[partition] != self.reader.values[partition]:
                raise PromiseBroken(f"partition {partition} is not what the consumer saw all along")
        check_transactions(self.cluster.bootstrap, TRANSACTIONS, TRANSACTION_PARTITIONS, self.transactions)
        if broken := [*self.offsets.broken, *self.stable_ends.broken]:
            raise PromiseBroken("; ".join(broken[:5]))
        self._note("transactions are whole, committed offsets have stayed")
        self._everyone_runs()
        for broker in self.cluster.broker_ids:
            self._terminated(broker)
        logs = self._compare_replicas(TOPIC, self.partitions)
        self._compare_replicas(TRANSACTIONS, TRANSACTION_PARTITIONS)
        self._note("replicas are the same bytes")
        check_promises(self.clients, read_again, {p: batches_of(log) for p, log in logs.items()})
        self._read_logs()
        self._note(f"promises kept; ends were asked for {self.reader.ends_asked} times")

    def _wait_in_sync(self) -> None:
        def in_sync() -> bool:
            with contextlib.suppress(KafkaException):
                topics = self._admin.list_topics(timeout=5).topics.values()
                return all(len(p.isrs) == 3 and p.leader > 0 for topic in topics for p in topic.partitions.values())
            return False

        wait_until(in_sync, 60, what="that all replicas are in sync")

    def _ends(self) -> dict[int, int]:
        ends = {}
        for partition in range(self.partitions):
            offsets = [o for writer in self.clients for (p, _), o in writer.acknowledged.items() if p == partition]
            ends[partition] = max(offsets, default=-1) + 1
        return ends

    def _compare_replicas(self, topic: str, partitions: int) -> dict[int, bytes]:
        compared = {}
        for partition in range(partitions):
            logs = {broker: self._log_bytes(broker, f"{topic}-{partition}") for broker in self.cluster.broker_ids}
            if len(set(logs.values())) != 1:
                sizes = {broker: len(data) for broker, data in logs.items()}
                raise PromiseBroken(f"the replicas of {topic}-{partition} differ: {sizes}")
            compared[partition] = logs[1]
        return compared

    def _log_bytes(self, broker: int, partition: str) -> bytes:
        folders = [each / partition for each in self.cluster.log_dirs(broker) if (each / partition).exists()]
        if len(folders) != 1:
            raise PromiseBroken(f"broker {broker} has {len(folders)} logs of {partition}: {folders}")
        [folder] = folders
        return b"".join(file.read_bytes() for file in sorted(folder.glob("*.log")))

    def _read_logs(self) -> None:
        for file in self.cluster.folder.glob("*.log"):
            text = file.read_text(errors="replace")
            for sign in ("Traceback", " CRITICAL ", "exception was never retrieved", "Task was destroyed"):
                if sign in text:
                    at = text.index(sign)
                    raise PromiseBroken(f"{sign} in {file.name}: {text[max(0, at - 300) : at + 1500]}")

    def _log_end(self, broker: int) -> str:
        return "\n".join(self.cluster.log(broker).splitlines()[-30:])


FAULTS: dict[str, Callable[[Chaos], None]] = {
    "kill": Chaos.kill_one,
    "terminate": Chaos.terminate_one,
    "pause": Chaos.pause_past_session,
    "hiccup": Chaos.pause_briefly,
    "zookeeper": Chaos.restart_zookeeper,
    "rolling": Chaos.rolling_restart,
    "kill two": Chaos.kill_two,
    "kill all": Chaos.kill_all,
    "kill and zookeeper": Chaos.kill_and_zookeeper,
    "pause controller and kill another": Chaos.pause_controller_and_kill_another,
    "new disk": Chaos.return_without_disk,
    "dead directory": Chaos.dead_directory,
    "one way": Chaos.cut_one_way,
    "cut off": Chaos.cut_off,
    "connections": Chaos.break_connections,
    "cut from zookeeper": Chaos.cut_from_zookeeper,
    "zookeeper away": Chaos.zookeeper_away,
    "pause zookeeper": Chaos.pause_zookeeper,
    "settings": Chaos.other_settings,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="duration of the faults of each seed")
    parser.add_argument("--seed", type=int, action="append", help="may be given more than once")
    parser.add_argument("--seeds", type=int, default=1, help="number of random seeds if none is given")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rate", type=int, default=400, help="values a second for each of three writers")
    parser.add_argument("--faults", help=f"comma-separated faults instead of random ones, of {', '.join(FAULTS)}")
    options = parser.parse_args()
    faults = options.faults.split(",") if options.faults else None
    if unknown := [name for name in faults or () if name not in FAULTS]:
        parser.error(f"no such faults: {', '.join(unknown)}")
    seeds = options.seed or [random.randrange(1_000_000) for _ in range(options.seeds)]
    print(f"seeds: {' '.join(map(str, seeds))}", flush=True)
    failed = [seed for seed in seeds if not _run(seed, options, faults)]
    print(f"{len(seeds) - len(failed)} of {len(seeds)} seeds kept every promise", *(f"; not {seed}" for seed in failed))
    return 1 if failed else 0


def _run(seed: int, options: argparse.Namespace, faults: list[str] | None) -> bool:
    data = Path(tempfile.mkdtemp(prefix="barnabas-chaos-"))
    try:
        cluster = chaos_cluster(data)
        chaos = Chaos(cluster, seed, options.partitions, rate=options.rate, say=lambda line: print(line, flush=True))
        with cluster:
            chaos.run(seconds=options.seconds, faults=faults)
    except BaseException as error:
        print(f"seed {seed}: {type(error).__name__}: {error}\ndata: {data}", file=sys.stderr, flush=True)
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    shutil.rmtree(data)
    print(f"seed {seed}: kept every promise", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
