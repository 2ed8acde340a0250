"""The demo: three brokers, a stream of orders, a leader that dies in front of you, and every record counted.

`make demo` runs it and ends by itself; `make demo KEEP=1` leaves the cluster up until Ctrl-C. In a terminal it shows a
live view, elsewhere it prints plain lines.
"""

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from barnabas.cli.local_cluster import LocalCluster

#: Where the tools are: the demo runs without its environment being activated.
BIN = Path(os.path.relpath(sys.executable)).parent
TOPIC = "orders"
PARTITIONS = 6
PRODUCTS = ("coffee", "bread", "ink", "paper", "a map of the castle")


@dataclass
class Stream:
    """Orders in and out, as the two client threads see them."""

    bootstrap: str
    stop: threading.Event = field(default_factory=threading.Event)
    #: The producer has the last of its answers.
    produced: threading.Event = field(default_factory=threading.Event)
    #: The consumer has everything that was acknowledged.
    drained: threading.Event = field(default_factory=threading.Event)
    acknowledged: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    last_ack_s: float = 0.0
    longest_gap_s: float = 0.0
    failed: list[str] = field(default_factory=list)

    def produce(self, seed: int) -> None:
        chance = random.Random(seed)
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 10,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        number = 0
        while not self.stop.is_set():
            for _ in range(50):
                order = f"{number}"
                producer.produce(TOPIC, f"{chance.choice(PRODUCTS)}:{order}", key=order, on_delivery=self._acknowledged)
                number += 1
            producer.poll(0.02)
        producer.flush(30)
        self.produced.set()

    def _acknowledged(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        now = time.monotonic()
        if self.last_ack_s:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_ack_s)
        self.last_ack_s = now
        self.acknowledged[(message.key() or b"").decode()] += 1

    def consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "warehouse",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        idle_since = time.monotonic()
        while not self.drained.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.received[(message.key() or b"").decode()] += 1
                    idle_since = time.monotonic()
            if self.produced.is_set() and self.received.keys() >= self.acknowledged.keys():
                self.drained.set()
            elif self.produced.is_set() and time.monotonic() - idle_since > 20:
                return
        consumer.close()


class View:
    """What is shown: a live panel in a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, cluster: LocalCluster, stream: Stream) -> None:
        self.console = console
        self.cluster = cluster
        self.stream = stream
        self.said: list[str] = []
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._before = (time.monotonic(), 0)
        self._leaders: dict[int, tuple[int, list[int]]] = {}

    def say(self, line: str) -> None:
        self.said.append(line)
        if not self.console.is_terminal:
            self.console.print(line)

    def leaders(self) -> dict[int, tuple[int, list[int]]]:
        try:
            partitions = self._admin.list_topics(TOPIC, timeout=1).topics[TOPIC].partitions
            self._leaders = {n: (p.leader, sorted(p.isrs)) for n, p in sorted(partitions.items())}
        except KafkaException:
            # The broker that was asked is the one that died: the view shows what it knew, and asks again.
            return self._leaders
        return self._leaders

    def render(self) -> Group:
        now, count = time.monotonic(), sum(self.stream.acknowledged.values())
        rate = (count - self._before[1]) / max(now - self._before[0], 0.001)
        self._before = (now, count)
        brokers = Table(title="brokers", expand=True)
        for title in ("id", "address", "process"):
            brokers.add_column(title)
        for broker_id in self.cluster.broker_ids:
            running = self.cluster.member(broker_id).running
            state = f"[green]pid {self.cluster.pid(broker_id)}[/]" if running else "[red]dead[/]"
            brokers.add_row(str(broker_id), self.cluster.address(broker_id), state)
        partitions = Table(title=f"topic {TOPIC}", expand=True)
        for title in ("partition", "leader", "in sync"):
            partitions.add_column(title)
        for number, (leader, isr) in self.leaders().items():
            partitions.add_row(str(number), str(leader), ", ".join(map(str, isr)))
        received = sum(self.stream.received.values())
        flow = f"{rate:,.0f} orders/s acknowledged   {count:,} in   {received:,} out   lag {count - received:,}"
        return Group(brokers, partitions, Panel(flow, title="stream"), Panel("\n".join(self.said[-6:]), title="story"))


def tell_story(view: View, cluster: LocalCluster, stream: Stream, refresh: "Live | None") -> bool:
    def watch(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if refresh is not None:
                refresh.update(view.render())
            time.sleep(0.25)

    view.say(f"three brokers are up at {cluster.bootstrap}")
    view.say("orders flow: an idempotent producer with acks=all, a consumer group behind it")
    watch(4)
    leader = view.leaders()[0][0]
    view.say(f"kill -9 of broker {leader}, which leads partition 0")
    stream.longest_gap_s = 0.0
    cluster.kill(leader)
    deadline = time.monotonic() + 30
    while view.leaders()[0][0] in (leader, -1) and time.monotonic() < deadline:
        watch(0.3)
    view.say(f"partition 0 is led by broker {view.leaders()[0][0]} now; the producer has noticed and goes on")
    watch(3)
    view.say(f"the longest gap between two acknowledgements was {stream.longest_gap_s:.1f} s (session time-out: 6 s)")
    cluster.start_broker(leader)
    view.say(f"broker {leader} is back on its data and catches up")
    deadline = time.monotonic() + 30
    while any(len(isr) < 3 for _, isr in view.leaders().values()) and time.monotonic() < deadline:
        watch(0.3)
    view.say("all three replicas of every partition are in sync again")
    stream.stop.set()
    stream.drained.wait(30)
    watch(0.3)
    lost = stream.acknowledged.keys() - stream.received.keys()
    twice = [order for order, times in stream.received.items() if times > 1]
    view.say(f"{len(stream.acknowledged):,} orders acknowledged, {len(stream.received):,} received")
    view.say(f"{len(lost)} lost, {len(twice)} twice, {len(stream.failed)} refused")
    watch(0.3)
    return not lost and not twice and not stream.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up until Ctrl-C")
    options = parser.parse_args()
    console = Console()
    with LocalCluster(brokers=3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        stream = Stream(cluster.bootstrap)
        view = View(console, cluster, stream)
        threads = [
            threading.Thread(target=stream.produce, args=(42,), name="producer"),
            threading.Thread(target=stream.consume, name="consumer"),
        ]
        for thread in threads:
            thread.start()
        try:
            if console.is_terminal:
                with Live(view.render(), console=console, refresh_per_second=4) as live:
                    good = tell_story(view, cluster, stream, live)
            else:
                good = tell_story(view, cluster, stream, None)
        finally:
            stream.stop.set()
            stream.drained.set()
            for thread in threads:
                thread.join()
        console.print(
            "[bold green]every acknowledged order arrived, once[/]" if good else "[bold red]records are missing[/]"
        )
        if not options.keep:
            console.print("make demo KEEP=1 leaves the cluster up, to look around in it")
        else:
            look = f"{BIN}/barnabas topics --bootstrap-server {cluster.bootstrap} --describe"
            console.print(f"look around: {look}", soft_wrap=True)
            console.print("the cluster stays up; Ctrl-C ends it")
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                console.print("stopping")
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
