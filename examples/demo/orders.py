"""The stream of orders: a producer that never repeats itself, a warehouse that reads along, and what both have counted."""

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS, CUSTOMERS = "orders", "customers"
ENRICHED, TOTALS, DEAD = "orders-enriched", "order-totals", "orders-dead"
PARTITIONS = 6
PRODUCTS = ("coffee", "bread", "ink", "paper", "a map of the castle")
COUNTRIES = ("Bohemia", "Moravia", "Silesia")
CUSTOMER_COUNT = 50
#: One order in so many is not an order at all.
BAD_EVERY = 200
BATCH = 50
PAUSE_S = 0.05


def create_topics(bootstrap: str) -> None:
    """The topics, and the customers in their compacted one."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 3) for name in (ORDERS, ENRICHED, DEAD)]
    topics += [NewTopic(name, 1, 3, config={"cleanup.policy": "compact"}) for name in (CUSTOMERS, TOTALS)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(CUSTOMER_COUNT):
        who = {"name": f"customer {number}", "country": COUNTRIES[number % len(COUNTRIES)]}
        producer.produce(CUSTOMERS, json.dumps(who), key=str(number))
    assert producer.flush(30) == 0, "the customers were not written"


@dataclass
class Stream:
    """Orders in and out, as the two client threads see them."""

    bootstrap: str
    stop: threading.Event = field(default_factory=threading.Event)
    #: The producer has the last of its answers.
    produced: threading.Event = field(default_factory=threading.Event)
    #: The warehouse has everything that was acknowledged.
    drained: threading.Event = field(default_factory=threading.Event)
    acknowledged: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    last_ack_s: float = 0.0
    longest_gap_s: float = 0.0
    failed: list[str] = field(default_factory=list)

    @property
    def bad(self) -> set[str]:
        return {order for order in self.acknowledged if _is_bad(int(order))}

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
        while not self.stop.wait(PAUSE_S):
            for _ in range(BATCH):
                producer.produce(ORDERS, _order(number, chance), key=str(number), on_delivery=self._acknowledged)
                number += 1
            producer.poll(0)
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
        consumer.subscribe([ORDERS])
        idle_since = time.monotonic()
        while not self.drained.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.received[(message.key() or b"").decode()] += 1
                    idle_since = time.monotonic()
            if self.produced.is_set() and self.received.keys() >= self.acknowledged.keys():
                self.drained.set()
            elif self.produced.is_set() and time.monotonic() - idle_since > 20:
                break
        consumer.close()


def _is_bad(number: int) -> bool:
    return number % BAD_EVERY == BAD_EVERY - 1


def _order(number: int, chance: random.Random) -> str:
    if _is_bad(number):
        return f"a scribble where order {number} should be"
    order = {
        "order": number,
        "customer": chance.randrange(CUSTOMER_COUNT),
        "product": chance.choice(PRODUCTS),
        "amount": round(chance.uniform(1, 99), 2),
    }
    return json.dumps(order)
