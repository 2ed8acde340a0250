"""The order desk: writes down orders, and counts them. confluent-kafka."""

import json
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, Message, Producer


class NotTaken(Exception):
    """The order is not in the log, and the guest must be told."""


class Desk:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "retry.backoff.ms": 20, "log_level": 0}
        )
        self._topic = topic

    def take(self, table: int, dish: str) -> int:
        """Write an order down for good; its offset. Orders of one table stay in order."""
        outcome: list[tuple[KafkaError | None, Message]] = []
        value = json.dumps({"table": table, "dish": dish})
        self._producer.produce(self._topic, value, key=str(table), on_delivery=lambda *answer: outcome.append(answer))
        self._producer.flush(30)
        if not outcome:
            raise NotTaken("no answer")
        error, message = outcome[0]
        if error is not None:
            raise NotTaken(error.str())
        return message.offset() or 0


def bill(bootstrap: str, topic: str, *, group: str, orders: int, timeout_s: float = 20.0) -> Counter[tuple[int, str]]:
    """Read `orders` orders, and count the dishes of each table; fewer if they do not come in time."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    counted: Counter[tuple[int, str]] = Counter()
    deadline_s = time.monotonic() + timeout_s
    try:
        while counted.total() < orders and time.monotonic() < deadline_s:
            for message in consumer.consume(orders - counted.total(), 0.2):
                if message.error() is None:
                    order = json.loads(message.value() or b"")
                    counted[order["table"], order["dish"]] += 1
    finally:
        consumer.close()
    return counted
