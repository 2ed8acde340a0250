"""confluent-kafka helpers of these scenarios, as in an application."""

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition


def produce(
    bootstrap: str | dict[str, str], topic: str, count: int = 1, partition: int = 0, padding: str = "", **config: Any
) -> list[KafkaError | None]:
    """Produce `count` records, each a number with `padding`; return their results. `bootstrap`: an address, or settings."""
    settings = bootstrap if isinstance(bootstrap, dict) else {"bootstrap.servers": bootstrap}
    producer = Producer({**settings, "log_level": 0, "retry.backoff.ms": 10, **config})
    errors: list[KafkaError | None] = []
    for number in range(count):
        producer.produce(
            topic, f"{number}{padding}", partition=partition, on_delivery=lambda error, message: errors.append(error)
        )
    producer.flush(60)
    return errors


def consume(bootstrap: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    deadline_s = time.monotonic() + 60
    while len(messages) < count and time.monotonic() < deadline_s:
        messages += consumer.consume(count, 0.2)
    consumer.close()
    return messages


def values(messages: list[Message]) -> list[bytes]:
    return [message.value() or b"" for message in messages]
