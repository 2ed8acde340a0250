"""The schema registry: lookups and registrations per second, memory with many subjects, and the time to start.

One broker and one registry as processes; the clients are raw connections in this process, each with one request at a time.
Karapace is not on PyPI, and Confluent's registry is not on Maven Central: `--beside NAME=URL` measures a running one with the
same requests, after ours.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import psutil

from barnabas.cli.local_cluster import REGISTRY, LocalCluster
from bench.report import RESULTS

CONNECTIONS: Final = 16
SUBJECTS: Final = 10_000
SECONDS: Final = 5.0


class Connection:
    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)

    async def open(self) -> None:
        host, port = self._address.hostname, self._address.port
        self._reader, self._writer = await asyncio.open_connection(host, port)

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: registry\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        document = await self._reader.readexactly(size)
        if b" 200 " not in answer[:16]:
            raise RuntimeError(document.decode())
        return document

    def close(self) -> None:
        self._writer.close()


def schema(number: int) -> bytes:
    fields = [{"name": f"field_{index}", "type": "string"} for index in range(10)]
    text = json.dumps({"type": "record", "name": f"Order{number}", "namespace": "shop", "fields": fields})
    return json.dumps({"schema": text}).encode()


async def rate(
    url: str, work: Callable[[Connection, int], Awaitable[object]], numbers: Iterator[int], end_s: float
) -> float:
    """Return requests per second of all connections together."""
    connections = [Connection(url) for _ in range(CONNECTIONS)]
    for connection in connections:
        await connection.open()
    done = 0

    async def lane(connection: Connection) -> None:
        nonlocal done
        for number in numbers:
            await work(connection, number)
            done += 1
            if time.monotonic() - began_s >= end_s:
                return

    began_s = time.monotonic()
    await asyncio.gather(*(lane(connection) for connection in connections))
    found = done / (time.monotonic() - began_s)
    for connection in connections:
        connection.close()
    return found


def by_id(connection: Connection, number: int) -> Awaitable[bytes]:
    return connection.ask("GET", f"/schemas/ids/{number % 100 + 1}")


def latest(connection: Connection, number: int) -> Awaitable[bytes]:
    return connection.ask("GET", f"/subjects/orders-{number % 100}-value/versions/latest")


def register(connection: Connection, number: int) -> Awaitable[bytes]:
    return connection.ask("POST", f"/subjects/orders-{number}-value/versions", schema(number))


def rate_of(url: str, work: Callable[[Connection, int], Awaitable[object]], rounds: int) -> float:
    return statistics.median(asyncio.run(rate(url, work, iter(range(10**9)), SECONDS)) for _ in range(rounds))


def memory_mib(cluster: LocalCluster) -> float:
    return float(psutil.Process(cluster._members[REGISTRY].pid).memory_info().rss) / 2**20


def measure(subjects: int, rounds: int) -> dict[str, float]:
    with LocalCluster(brokers=1, schema_registry=True) as cluster:
        url = cluster.schema_registry_url
        empty_mib = memory_mib(cluster)
        registered = asyncio.run(rate(url, register, iter(range(subjects)), float("inf")))
        full_mib = memory_mib(cluster)
        gets = rate_of(url, by_id, rounds)
        reads = rate_of(url, latest, rounds)
        member = cluster._members[REGISTRY]
        os.kill(member.pid, 15)
        cluster._wait_exit(member, 30.0)
        began_s = time.monotonic()
        cluster._start_schema_registry()
        started_s = time.monotonic() - began_s
    return {
        "schemas by id, a second": gets,
        "latest versions (never stale), a second": reads,
        "registrations, a second": registered,
        f"memory with {subjects} subjects and schemas, MiB": full_mib,
        "memory when empty, MiB": empty_mib,
        f"start with {subjects} subjects, s": started_s,
    }


def measure_other(url: str, rounds: int, registrations: int) -> dict[str, float]:
    registered = asyncio.run(rate(url, register, iter(range(registrations)), float("inf")))
    return {
        "schemas by id, a second": rate_of(url, by_id, rounds),
        "latest versions (never stale), a second": rate_of(url, latest, rounds),
        "registrations, a second": registered,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench registry --")
    parser.add_argument("--beside", metavar="NAME=URL", help="an empty registry that runs already")
    parser.add_argument("--beside-subjects", type=int, default=1000, help="how many are registered there")
    parser.add_argument("--subjects", type=int, default=SUBJECTS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    found = measure(options.subjects, options.rounds)
    if options.beside:
        other, _, url = options.beside.partition("=")
        there = measure_other(url, options.rounds, options.beside_subjects)
        found |= {f"{other}: {name}": value for name, value in there.items()}
    width = max(map(len, found))
    text = "\n".join(f"{name:{width}}  {value:>10.1f}" for name, value in found.items())
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "registry.txt").write_text(f"The schema registry, {CONNECTIONS} connections\n\n{text}\n")
    (RESULTS / "registry.json").write_text(json.dumps({"rounds": options.rounds, "rows": found}, indent=1) + "\n")
