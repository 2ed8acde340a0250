"""`barnabas producer-perf-test`: kafka-producer-perf-test.sh."""

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say
from barnabas.cli._parsing import pairs
from barnabas.cli.tool import BOOTSTRAP, Option, Tool, exactly_one
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.producer import Batch, Producer, ProducerConfig
from barnabas.client.settings import producer_config

_REPORT_MS: Final = 5_000
_SAMPLES_MAX: Final = 500_000
_TRANSACTION_MS: Final = 3_000
#: Maps any byte to one of A to Z, so that a random payload takes one call.
_LETTERS: Final = bytes(65 + byte % 26 for byte in range(256))


def _above_zero(flag: str) -> Callable[[str], int]:
    def number(text: str) -> int:
        if (value := int(text)) <= 0:
            raise UsageError(f"{flag} should be greater than zero")
        return value

    return number


TOOL = Tool(
    note="`--print-metrics` is refused: the clients have no metrics.",
    kafka="kafka-producer-perf-test.sh",
    options=(
        replace(BOOTSTRAP, help="Instead of bootstrap.servers in --producer-props."),
        Option("--producer.config", "Properties file with settings of the client.", metavar="FILE", name="config_file"),
        Option("--producer-props", "Settings, bootstrap.servers among them.", metavar="NAME=VALUE …", rest=True),
        Option("--topic", "The topic to produce to. Required.", required=True),
        Option(
            "--num-records", "How many records. Required.", _above_zero("--num-records"), metavar="N", required=True
        ),
        Option("--throughput", "Records/s at most; -1: no limit. Required.", float, required=True),
        Option("--record-size", "Bytes of each record.", _above_zero("--record-size"), metavar="BYTES"),
        Option("--payload-file", "Payloads, chosen at random.", metavar="FILE"),
        Option("--payload-delimiter", "Between payloads.", metavar="TEXT", default="\\n"),
        Option("--payload-monotonic", "Payloads 0, 1, 2, …", bool),
        Option("--transactional-id", "Use transactions."),
        Option(
            "--transaction-duration-ms",
            "How long each transaction lasts. [3000]",
            _above_zero("--transaction-duration-ms"),
            metavar="MS",
        ),
        Option(
            "--print-metrics",
            "Refused.",
            bool,
            refused="--print-metrics: this producer has no metrics; use the brokers' metrics",
        ),
    ),
    rules=(
        exactly_one(
            "--record-size",
            "--payload-file",
            "--payload-monotonic",
            says="exactly one of --record-size, --payload-file and --payload-monotonic is required",
        ),
    ),
    examples=("barnabas producer-perf-test --topic orders --num-records 1000000 --record-size 100 --throughput -1",),
)


@TOOL.main
def _measure(
    bootstrap_server: str | None,
    config_file: str | None,
    producer_props: Sequence[str],
    topic: str,
    num_records: int,
    throughput: float,
    record_size: int | None,
    payload_file: str | None,
    payload_monotonic: bool,
    payload_delimiter: str,
    transactional_id: str | None,
    transaction_duration_ms: int | None,
) -> None:
    properties = load_properties(config_file) if config_file else {}
    properties |= pairs(producer_props, option="--producer-props")
    properties.setdefault("client.id", "perf-producer-client")
    transactional = transactional_id or properties.get("transactional.id")
    if transactional is None and transaction_duration_ms is not None:
        transactional = f"performance-producer-{uuid.uuid4()}"
    if transactional is not None:
        properties["transactional.id"] = transactional
        transaction_duration_ms = transaction_duration_ms or _TRANSACTION_MS
    payload = _payloads(record_size, None if payload_monotonic else payload_file, payload_delimiter)
    names.require_known(properties, names.PRODUCER, what="a producer")
    client = options(bootstrap_server, properties=properties, known=names.PRODUCER)
    config = producer_config(properties)
    stats = Stats(num_records)
    run(
        client,
        lambda cluster: _produce(
            cluster, topic, num_records, throughput, payload, config, transaction_duration_ms, stats
        ),
        fast=True,
    )
    say(stats.total(time.time()))
    if stats.failed:
        raise UsageError(f"{stats.failed} records were not sent: {stats.last_error}")


def _payloads(size: int | None, file: str | None, delimiter: str) -> Callable[[int], bytes]:
    chance = random.Random(0)
    if size is not None:
        return lambda index: chance.randbytes(size).translate(_LETTERS)
    if file is None:
        return lambda index: str(index).encode()
    path = Path(file).absolute()
    say(f"Reading payloads from: {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    if not text:
        raise UsageError("File does not exist or empty file provided.")
    lines = [line.encode() for line in text.rstrip("\n").split("\n" if delimiter == "\\n" else delimiter)]
    say(f"Number of messages read: {len(lines)}")
    return lambda index: chance.choice(lines)


async def _produce(
    cluster: AsyncClient,
    topic: str,
    count: int,
    throughput: float,
    payload: Callable[[int], bytes],
    config: ProducerConfig,
    transaction_ms: int | None,
    stats: "Stats",
) -> None:
    async with Producer(cluster, config) as producer:
        await producer.partition_count(topic)
        transaction = producer.transaction
        began = stats.start(time.time())
        transaction_began = 0.0
        sent: dict[Batch, _Sent] = {}
        for index in range(count):
            value = payload(index)
            now = time.time()
            if transaction is not None and not transaction.open:
                await transaction.begin()
                transaction_began = now
            batch = (await producer.send(topic, value)).batch
            entry = sent.get(batch)
            if entry is None:
                entry = sent[batch] = _Sent()
                batch.done.add_done_callback(lambda _, batch=batch: stats.batch_done(batch, sent.pop(batch)))  # type: ignore[misc]
            entry.times.append(now)
            entry.bytes += len(value)
            if transaction is not None and transaction_ms and (now - transaction_began) * 1000 >= transaction_ms:
                await transaction.commit()
            if throughput > 0:
                ahead_s = began + (index + 1) / throughput - time.time()
                if ahead_s > 0.002:
                    await asyncio.sleep(ahead_s)
        if transaction is not None and transaction.open:
            await transaction.commit()


@dataclass(slots=True)
class _Sent:
    """The records of a batch: the send time of each, and their total size."""

    times: list[float] = field(default_factory=list)
    bytes: int = 0


class Stats:
    """Kafka's statistics: totals, a line every five seconds, percentiles of up to half a million samples."""

    def __init__(self, expected: int) -> None:
        self._sampling = max(1, expected // min(expected, _SAMPLES_MAX))
        self._latencies: list[int] = []
        self._count = self._bytes = self._total_ms = self._max_ms = 0
        self._start_s = 0.0
        self._window = [0, 0, 0, 0]
        self._window_start_s = 0.0
        self.failed = 0
        self.last_error: BaseException | None = None

    def start(self, now_s: float) -> float:
        self._start_s = self._window_start_s = now_s
        return now_s

    def batch_done(self, batch: Batch, sent: _Sent) -> None:
        error = batch.done.exception()
        if error is not None:
            self.failed += len(sent.times)
            self.last_error = error
            return
        now_s = time.time()
        self.record([int((now_s - at) * 1000) for at in sent.times], sent.bytes, now_s)

    def record(self, latencies_ms: list[int], size: int, now_s: float) -> None:
        self._latencies += latencies_ms[:: self._sampling]
        count, total, worst = len(latencies_ms), sum(latencies_ms), max(latencies_ms)
        self._count += count
        self._bytes += size
        self._total_ms += total
        self._max_ms = max(self._max_ms, worst)
        window = self._window
        self._window = [window[0] + count, window[1] + size, window[2] + total, max(window[3], worst)]
        if (now_s - self._window_start_s) * 1000 >= _REPORT_MS:
            say(self.window(now_s))
            sys.stdout.flush()

    def window(self, now_s: float) -> str:
        """Return the line of the last interval, and begin a new one."""
        count, size, total, worst = self._window
        elapsed_s = max(now_s - self._window_start_s, 1e-3)
        self._window, self._window_start_s = [0, 0, 0, 0], now_s
        return (
            f"{count} records sent, {count / elapsed_s:.1f} records/sec ({size / elapsed_s / 1048576:.2f} MB/sec), "
            f"{total / max(count, 1):.1f} ms avg latency, {float(worst):.1f} ms max latency."
        )

    def total(self, now_s: float) -> str:
        elapsed_s = max(now_s - self._start_s, 1e-3)
        samples = sorted(self._latencies) or [0]
        tails = [samples[min(int(share * len(samples)), len(samples) - 1)] for share in (0.5, 0.95, 0.99, 0.999)]
        return (
            f"{self._count} records sent, {self._count / elapsed_s:.6f} records/sec "
            f"({self._bytes / elapsed_s / 1048576:.2f} MB/sec), {self._total_ms / max(self._count, 1):.2f} ms avg latency, "
            f"{float(self._max_ms):.2f} ms max latency, {tails[0]} ms 50th, {tails[1]} ms 95th, {tails[2]} ms 99th, "
            f"{tails[3]} ms 99.9th."
        )
