"""`barnabas producer-perf-test`: kafka-producer-perf-test.sh."""

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say
from barnabas.cli._parsing import pairs
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


def command(
    topic: Annotated[str, typer.Option("--topic", help="The topic to produce to.")],
    num_records: Annotated[int, typer.Option("--num-records", help="How many records.")],
    throughput: Annotated[float, typer.Option("--throughput", help="Records/s at most; -1: no limit.")],
    record_size: Annotated[int | None, typer.Option("--record-size", help="Bytes of each record.")] = None,
    payload_file: Annotated[str | None, typer.Option("--payload-file", help="Payloads, chosen at random.")] = None,
    payload_monotonic: Annotated[bool, typer.Option("--payload-monotonic", help="Payloads 0, 1, 2, …")] = False,
    payload_delimiter: Annotated[str, typer.Option("--payload-delimiter", help="Between payloads.")] = "\\n",
    producer_props: Annotated[
        list[str] | None,
        typer.Option("--producer-props", metavar="NAME=VALUE …", help="Settings, bootstrap.servers among them."),
    ] = None,
    producer_config_file: Annotated[
        str | None,
        typer.Option("--producer.config", metavar="FILE", help="Properties file with settings of the client."),
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", help="Instead of bootstrap.servers in --producer-props.")
    ] = None,
    print_metrics: Annotated[bool, typer.Option("--print-metrics", hidden=True)] = False,
    transactional_id: Annotated[str | None, typer.Option("--transactional-id", help="Use transactions.")] = None,
    transaction_duration_ms: Annotated[
        int | None, typer.Option("--transaction-duration-ms", help="How long each transaction lasts. [3000]")
    ] = None,
    more_props: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", hidden=True)] = None,
) -> None:
    """Measure producing."""
    if sum((record_size is not None, payload_file is not None, payload_monotonic)) != 1:
        raise UsageError("exactly one of --record-size, --payload-file and --payload-monotonic is required")
    if num_records <= 0:
        raise UsageError("--num-records should be greater than zero")
    if record_size is not None and record_size <= 0:
        raise UsageError("--record-size should be greater than zero")
    if transaction_duration_ms is not None and transaction_duration_ms <= 0:
        raise UsageError("--transaction-duration-ms should be greater than zero")
    if more_props and not producer_props:
        raise UsageError(f"{more_props[0]!r} is not understood")
    if print_metrics:
        raise UsageError("--print-metrics: this producer has no metrics; use the brokers' metrics")
    properties = load_properties(producer_config_file) if producer_config_file else {}
    properties |= pairs([*(producer_props or ()), *(more_props or ())], option="--producer-props")
    properties.setdefault("client.id", "perf-producer-client")
    transactional = transactional_id or properties.get("transactional.id")
    if transactional is None and transaction_duration_ms is not None:
        transactional = f"performance-producer-{uuid.uuid4()}"
    if transactional is not None:
        properties["transactional.id"] = transactional
        transaction_duration_ms = transaction_duration_ms or _TRANSACTION_MS
    payload = _payloads(record_size, payload_file, payload_delimiter)
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
