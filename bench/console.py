"""The console on a large cluster: 1,000 topics, 10,000 partitions, 15,000 groups, ten viewers.

Three brokers of ours and one console, as processes. Groups are created by commits without members, one for each, over all
topics.
A page's time is that of its HTTP request to the last byte, over a persistent connection. The age of lag is the time from a
record's acknowledgement to the event on a viewer's stream that counts it. The console's cost to the brokers is their CPU time
with ten viewers minus that without a console.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
import psutil
from confluent_kafka import Producer

from barnabas.base.ids import TopicPartition
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.groups import CommittedOffset, commit_offsets
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from bench.kafka import cpu_seconds
from bench.report import RESULTS

FULL_TOPIC, EMPTY_TOPIC, LAG_TOPIC, LAG_GROUP = "topic-0000", "topic-0001", "topic-0002", "group-00002"
RECORDS: Final = 100_000
VIEWERS: Final = 10
PAGES: Final = 20
LAG_RECORDS: Final = 20
DEADLINE_S: Final = 120.0


@dataclass(frozen=True)
class Size:
    topics: int = 1_000
    partitions: int = 10
    groups: int = 15_000
    cpu_s: float = 30.0


# -- the cluster ----------------------------------------------------------------------------------------------------------


async def populate(bootstrap: str, size: Size) -> None:
    async with AsyncClient(client_config(bootstrap)) as cluster:
        names = [f"topic-{number:04}" for number in range(size.topics)]
        began_s = time.monotonic()
        for at in range(0, len(names), 50):
            new = [
                NewTopic(name=name, partitions=size.partitions, replication_factor=1) for name in names[at : at + 50]
            ]
            await create_topics(cluster, new)
            print(f"{at + len(new):,} topics in {time.monotonic() - began_s:.0f} s", end="\r", flush=True)
        print()
        await cluster.all_topics()
        numbers = iter(range(size.groups))

        async def lane() -> None:
            for number in numbers:
                topic = names[number % len(names)]
                offsets = {TopicPartition(topic, index): CommittedOffset(0) for index in range(size.partitions)}
                await commit_offsets(cluster, f"group-{number:05}", offsets)
                if number % 500 == 0:
                    print(f"{number:,} groups in {time.monotonic() - began_s:.0f} s", end="\r", flush=True)

        began_s = time.monotonic()
        await asyncio.gather(*(lane() for _ in range(32)))
        print(f"{size.groups:,} groups in {time.monotonic() - began_s:.0f} s")


def fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(RECORDS):
        value = json.dumps({"order": number, "amount": number % 997, "customer": f"customer-{number % 5000}"})
        producer.produce(FULL_TOPIC, value, f"{number % 5000}")
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0, "not all records were acknowledged"


# -- the console ----------------------------------------------------------------------------------------------------------


@contextmanager
def console(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Start a console; return its address and process."""
    command = [sys.executable, "-m", "barnabas", "console", "--bootstrap-server", bootstrap, "--port", "0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready"):
                log.seek(0)
                raise RuntimeError(f"the console did not start: {log.read().decode()[-2000:]}")
            yield line.partition("console=")[2].strip(), process.pid
        finally:
            process.terminate()
            process.wait(30)


async def events(http: httpx.AsyncClient, path: str) -> AsyncIterator[Any]:
    """Yield the documents of a server-sent stream."""
    async with http.stream("GET", path, timeout=None) as answer:
        answer.raise_for_status()
        data: list[str] = []
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                data.append(line[5:])
            elif not line and data:
                yield json.loads("\n".join(data))
                data.clear()


def paths() -> dict[str, str]:
    return {
        "topic list": "/api/topics?count=100",
        "topic list by size": "/api/topics?count=100&sort=size&descending=1",
        "group list": "/api/groups?count=100",
        "group list by lag": "/api/groups?count=100&sort=lag&descending=1",
        "a group": f"/api/groups/{LAG_GROUP}",
        "message page, full topic": f"/api/topics/{FULL_TOPIC}/messages?count=50",
        "message page, empty topic": f"/api/topics/{EMPTY_TOPIC}/messages?count=50",
    }


async def page_ms(http: httpx.AsyncClient, path: str) -> float:
    began_s = time.monotonic()
    answer = await http.get(path)
    took_s = time.monotonic() - began_s
    if answer.status_code != 200:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
    return took_s * 1000


async def view(http: httpx.AsyncClient, number: int) -> None:
    """Simulate one viewer: read a page as it changes, and go to the next one now and then."""
    shown = list(paths().values())[:5]
    while True:
        path = shown[number % len(shown)]
        number += 1
        await page_ms(http, path)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                async for _ in events(http, f"/api/events?watch={quote(path, safe='')}"):
                    pass


def lag_of(document: Any) -> int:
    """Yield all values of `lag` in a document, at any depth."""
    if isinstance(document, list):
        return sum(lag_of(each) for each in document)
    if not isinstance(document, dict):
        return 0
    own = document.get("lag")
    return (own if isinstance(own, int) else 0) + sum(lag_of(each) for each in document.values())


async def lag_ages_s(http: httpx.AsyncClient, bootstrap: str) -> list[float]:
    """Measure the time from a record's acknowledgement to the first event that counts it."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    ages: list[float] = []
    acknowledged_s, seen = 0.0, 0
    async with asyncio.timeout(DEADLINE_S):
        async for document in events(http, f"/api/events?watch={quote(f'/api/groups/{LAG_GROUP}', safe='')}"):
            now_s = time.monotonic()
            if acknowledged_s and lag_of(document) > seen:
                ages.append(now_s - acknowledged_s)
            elif acknowledged_s:
                continue
            seen = lag_of(document)
            if len(ages) == LAG_RECORDS:
                return ages
            await asyncio.sleep(0.37 * (len(ages) % 3))  # varies, so that it is not in step with the console
            producer.produce(LAG_TOPIC, b"one more", partition=0)
            if producer.flush(10):
                raise RuntimeError("a record was not acknowledged")
            acknowledged_s = time.monotonic()
    raise AssertionError("the stream ended")


async def measure(url: str, bootstrap: str, brokers: list[int], process: int, size: Size) -> dict[str, float]:
    found: dict[str, float] = {}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, limits=limits, trust_env=False) as http:
        for name, path in paths().items():
            found[f"{name}, first time, ms"] = await page_ms(http, path)
        async with asyncio.TaskGroup() as tasks:
            viewers = [tasks.create_task(view(http, number)) for number in range(VIEWERS)]
            await asyncio.sleep(15)  # wait for the first figures and rates
            began = cpu_seconds(brokers), cpu_seconds([process])
            await asyncio.sleep(size.cpu_s)
            found["brokers' CPU with ten viewers, % of a core"] = (cpu_seconds(brokers) - began[0]) / size.cpu_s * 100
            found["console's CPU with ten viewers, % of a core"] = (
                (cpu_seconds([process]) - began[1]) / size.cpu_s * 100
            )
            for name, path in paths().items():
                took: list[float] = []
                for _ in range(PAGES):
                    took.append(await page_ms(http, path))
                    await asyncio.sleep(0.3)
                found[f"{name}, median ms"] = statistics.median(took)
                found[f"{name}, slowest of {PAGES}, ms"] = max(took)
            ages = await lag_ages_s(http, bootstrap)
            found["age of lag, median s"] = statistics.median(ages)
            found[f"age of lag, greatest of {LAG_RECORDS}, s"] = max(ages)
            for viewer in viewers:
                viewer.cancel()
    found["console's resident memory, MB"] = psutil.Process(process).memory_info().rss / 1e6
    return found


def run(size: Size) -> dict[str, float]:
    with LocalCluster(brokers=3, config={"auto.create.topics.enable": "false"}) as cluster:
        asyncio.run(populate(cluster.bootstrap, size))
        fill(cluster.bootstrap)
        brokers = [cluster.pid(broker) for broker in cluster.broker_ids]
        time.sleep(15)  # wait until flushes and the first cleanings are over
        began = cpu_seconds(brokers)
        time.sleep(size.cpu_s)
        alone = (cpu_seconds(brokers) - began) / size.cpu_s * 100
        with console(cluster.bootstrap) as (url, process):
            found = asyncio.run(measure(url, cluster.bootstrap, brokers, process, size))
    watched = found["brokers' CPU with ten viewers, % of a core"]
    found["brokers' CPU without a console, % of a core"] = alone
    found["what the console costs the brokers, % of a core"] = watched - alone
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench console --", description=__doc__)
    parser.add_argument("--topics", type=int, default=Size.topics)
    parser.add_argument("--partitions", type=int, default=Size.partitions, help="of each topic")
    parser.add_argument("--groups", type=int, default=Size.groups)
    parser.add_argument("--cpu-seconds", type=float, default=Size.cpu_s, help="for which CPU time is counted")
    options = parser.parse_args(arguments)
    size = Size(options.topics, options.partitions, options.groups, options.cpu_seconds)
    found = run(size)
    width = max(map(len, found))
    partitions = size.topics * size.partitions
    title = f"The console: {size.topics:,} topics, {partitions:,} partitions, {size.groups:,} groups, {VIEWERS} viewers"
    text = "\n".join([title, "", *(f"{name:{width}}  {value:>10.2f}" for name, value in found.items())])
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "console.txt").write_text(text + "\n")
    (RESULTS / "console.json").write_text(json.dumps({"title": title, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
