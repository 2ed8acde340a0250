"""The contents that the browser tests show: a cluster under load, records in every format, and hostile records."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from barnabas.cli.local_cluster import LocalCluster
from barnabas.spark.pipelines.events import Progress
from barnabas.spark.reports import Reports

DEADLINE_S: Final = 60.0
ORDERS, FORMATS, EMPTY, HOSTILE = "orders", "formats", "empty", "hostile"
BILLING, STUCK, LETTERS = "billing", "stuck", "orders-dead"

#: Each calls `alert` if any of it becomes markup, an attribute, an address or a script.
PAYLOADS: Final = (
    "<script>alert('script')</script>",
    "<img src=x onerror=alert('img')>",
    "<svg/onload=alert('svg')>",
    "\"><script>alert('quote')</script>",
    "' onmouseover='alert(1)' x='",
    "javascript:alert('url')",
    "</title><script>alert('title')</script>",
    "</script><script>alert('end')</script>",
    "<iframe srcdoc=\"<script>parent.alert('frame')</script>\">",
    "<a href=\"javascript:alert('link')\">click</a>",
    "{{constructor.constructor('alert(1)')()}}${alert('template')}`${alert(1)}`",
    "<style>*{background:url('javascript:alert(1)')}</style>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert('mutation')>",
    '<meta http-equiv="refresh" content="0;url=data:text/html,<script>alert(1)</script>">',
    "\u202e\u0000\u0007\x1b]0;title\x07<b>bold</b>",
)
AVRO_ORDER: Final = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "doc": PAYLOADS[1],
        "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": "string", "doc": PAYLOADS[0]}],
    }
)
PROTO_ORDER: Final = 'syntax = "proto3";\nmessage Order { int64 id = 1; string customer = 2; }\n'


@contextmanager
def started(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Start the cluster from another thread: the browser's driver keeps an event loop in ours, which forbids `asyncio.run`."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(cluster.start).result()
            yield cluster
        finally:
            thread.submit(cluster.stop).result()


def make_topics(bootstrap: str, *, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [
        NewTopic(name, partitions, replicas)
        for name, partitions in ((ORDERS, 6), (FORMATS, 1), (EMPTY, 3), (HOSTILE, 1), (LETTERS, 1))
    ]
    for made in admin.create_topics(new).values():
        made.result(DEADLINE_S)


def order(number: int) -> bytes:
    return json.dumps({"order": number, "amount": number % 500, "customer": f"c-{number % 50}"}).encode()


def produce(bootstrap: str, topic: str, records: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(DEADLINE_S) == 0, f"{topic}: not all records were acknowledged"


def write_formats(bootstrap: str, registry_url: str | None) -> None:
    """Write one record for each format; the key is the format's name."""
    records: list[dict[str, Any]] = [
        {"key": "text", "value": "plain text, naïve 漢字 🎉"},
        {"key": "json", "value": '{"amount": 120, "nested": {"list": [1, null, true]}, "text": "in JSON"}'},
        {"key": "number", "value": "42"},
        {"key": "bytes", "value": bytes(range(256))},
        {"key": "tombstone", "value": None},
        {"key": "nothing", "value": ""},
        {"key": "long", "value": "long " * 20_000},
        {"key": "headers", "value": "with headers", "headers": [("trace", b"abc"), ("bytes", b"\xff\x00"), ("none", None)]},
    ]  # fmt: skip
    if registry_url is not None:
        with SchemaRegistryClient({"url": registry_url}) as registry:
            avro = AvroSerializer(registry, AVRO_ORDER)
            context = SerializationContext(FORMATS, MessageField.VALUE)
            records.append({"key": "avro", "value": avro({"id": 7, "customer": "avro customer"}, context)})
            number = registry.register_schema("proto-value", Schema(PROTO_ORDER, "PROTOBUF"))
        body = b"\x08\x09\x12\x0eproto customer"
        records.append({"key": "protobuf", "value": b"\0" + number.to_bytes(4, "big") + b"\0" + body})
    produce(bootstrap, FORMATS, records)


def write_reports(bootstrap: str) -> None:
    """Write status reports as Spark queries do: one query runs, one has failed, one has stopped reporting."""
    now_s = time.time()
    produce(bootstrap, LETTERS, [{"key": "k", "value": "{no order"}] * 3)
    for name, error, ago_s in (("clean", None, 0.0), ("broken", "no such column: amount", 0.0), ("quiet", None, 300.0)):
        times_s = iter(now_s - ago_s - 40 + 2 * number for number in range(100))
        reports = Reports(bootstrap, pipeline="shop", dead_letters=[LETTERS], clock=partial(next, times_s))
        for number in range(20):
            counts = {"orders.late orders": {"action": "drop", "passed": 100 * number, "failed": number % 3}}
            reports.progressed(
                name,
                Progress(
                    "", name, number, 100 * number, 900.0 + 50 * (number % 7), 400 + 30 * (number % 5), 20 - number,
                    1_000 * number, 1 << 20, "2026-01-01T00:00:00.000Z", counts, [ORDERS],
                ),
            )  # fmt: skip
        if error is not None:
            reports.over(name, error=error)
        reports.close()


def write_hostile(bootstrap: str) -> None:
    """Write payloads as keys, values, headers and JSON, as group, member and client ids, as commit metadata, and as users."""
    produce(bootstrap, HOSTILE, [{"key": text, "value": text, "headers": [(text, text.encode())]} for text in PAYLOADS])
    produce(
        bootstrap,
        HOSTILE,
        [{"key": json.dumps({text: text}), "value": json.dumps({text: [text]})} for text in PAYLOADS],
    )
    for text in PAYLOADS:
        if "\0" in text:
            continue  # librdkafka ends a text at a zero byte
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"hostile {text}", "client.id": text})
        commit_until_taken(consumer, [TopicPartition(HOSTILE, 0, 1, metadata=text)])
        consumer.close()


def write_hostile_users(bootstrap: str) -> None:
    """Create SCRAM users whose names are payloads."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    wanted = [UserScramCredentialUpsertion(text, info, b"secret") for text in PAYLOADS[:4]]
    for done in admin.alter_user_scram_credentials(wanted).values():
        done.result(DEADLINE_S)


@contextmanager
def load(bootstrap: str, *, rate: int = 200) -> Iterator[None]:
    """Write orders all the time, with a group that reads them and one that has stopped."""
    ends = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
        number = 0
        while not ends.wait(0.05):
            for _ in range(max(1, rate // 20)):
                producer.produce(ORDERS, order(number), f"c-{number % 50}")
                number += 1
            producer.poll(0)
        producer.flush(5)

    def read() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": BILLING, "client.id": "billing-1", "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500, "log_level": 0,
            }
        )  # fmt: skip
        consumer.subscribe([ORDERS])
        while not ends.is_set():
            consumer.consume(500, 0.1)
        consumer.close()

    still = Consumer({"bootstrap.servers": bootstrap, "group.id": STUCK, "log_level": 0})
    commit_until_taken(still, [TopicPartition(ORDERS, part, 0) for part in range(6)])
    still.close()
    threads = [threading.Thread(target=target, daemon=True) for target in (write, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join(DEADLINE_S)


def commit_until_taken(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Commit until it succeeds: a cluster that has just started may have no coordinator yet."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
