"""Applications that the tests of the public API simulate. A fresh interpreter loads this module."""

import asyncio
import datetime
import os
import random
import socket
import sqlite3
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Producer

from barnabas.testing import simulation
from barnabas.testing.simulation import World


async def take_orders(bootstrap: str, done: list[bytes], *, auto_commit: bool) -> None:
    """Work on orders, in batches. With `auto_commit` the client commits what it has handed out, and not what was done."""
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="kitchen",
        auto_offset_reset="earliest",
        enable_auto_commit=auto_commit,
        auto_commit_interval_ms=500,
    )
    await consumer.start()
    try:
        while True:
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                for message in messages:
                    await asyncio.sleep(0.05)
                    done.append(message.value)
            if not auto_commit:
                await consumer.commit()
    finally:
        await consumer.stop()


async def no_order_is_lost(world: World, *, auto_commit: bool = False) -> int:
    orders = await world.topic("orders", partitions=3)
    done: list[bytes] = []
    for number in range(2):
        world.process(f"cook-{number}", take_orders, world.bootstrap, done, auto_commit=auto_commit)
    await world.load(orders, rate=20)
    await world.calm()
    missing = {record.value for record in await world.records(orders)} - set(done)
    assert not missing
    return len(done)


@simulation.test(seeds=40, brokers=1, faults=["kill process"], virtual_minutes=0.3)
async def loses_orders(world: World) -> None:
    await no_order_is_lost(world, auto_commit=True)


async def says_what_time_it_is(world: World) -> dict[str, Any]:
    """Return what applications ask the machine for."""
    began_s = time.monotonic()
    await asyncio.sleep(3600)
    time.sleep(10)  # noqa: ASYNC251 (it holds the loop, and the world knows)
    return {
        "slept": round(time.monotonic() - began_s),
        "wall": round(time.time() - 1_767_225_600),
        "now": datetime.datetime.now().isoformat(timespec="seconds"),
        "today": datetime.date.today().isoformat(),
        "is datetime": isinstance(datetime.datetime.now(), datetime.datetime),
        "uuid": str(uuid.uuid4()),
        "uuid1": str(uuid.uuid1()),
        "chance": random.random(),
        "own chance": random.Random().random(),
        "bytes": os.urandom(4).hex(),
        "set": list({"one", "two", "three", "four"}),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "in a thread": await asyncio.to_thread(lambda: 41 + 1),
    }


async def does(world: World, *, what: str) -> None:
    """Do something that cannot be simulated."""

    def blocks() -> None:
        match what:
            case "threading.Thread":
                threading.Thread(target=print).start()
            case "socket.getaddrinfo":
                socket.create_connection(("localhost", 9))
            case "subprocess.Popen":
                subprocess.run(["true"], check=True)
            case "writing the file":
                Path("/tmp/simulated").write_text("x")
            case "sqlite3.connect":
                sqlite3.connect("orders.db")
            case "confluent_kafka.Producer":
                Producer({"bootstrap.servers": world.bootstrap})
            case "asyncio.run":
                asyncio.run(asyncio.sleep(1))
            case "os.remove":
                Path("/tmp/simulated").unlink()

    if what == "TLS":
        await asyncio.open_connection("b1", 9092, ssl=True)
    try:
        blocks()
    except Exception:
        await asyncio.sleep(10)  # catching everything does not hide it


async def talks_over_streams(world: World) -> list[str]:
    heard: list[str] = []

    async def serve() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "0.0.0.0", 7000) as server:
            await server.serve_forever()

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("shouter", 7000)
        writer.write(b"hello\nworld\n")
        writer.write_eof()
        heard.append((await reader.read()).decode())
        writer.close()
        await writer.wait_closed()

    shouter = world.process("shouter", serve)
    await asyncio.sleep(1)
    await world.process("asker", ask).returned()
    shouter.pause()
    try:
        async with asyncio.timeout(5):
            reader, _ = await asyncio.open_connection("shouter", 7000)
            await reader.readline()
    except TimeoutError:
        heard.append("silence")
    shouter.kill()
    try:
        await asyncio.open_connection("shouter", 7000)
    except ConnectionRefusedError:
        heard.append("refused")
    return heard


async def lives(world: World) -> list[str]:
    """What happens to a process, by hand."""
    events: list[str] = []

    async def life(name: str) -> None:
        events.append(f"{name} begins")
        try:
            await asyncio.sleep(30)
            events.append(f"{name} crashes")
            raise RuntimeError("on purpose")
        finally:
            events.append(f"{name} cleans up")

    process = world.process("worker", life, "worker")
    await asyncio.sleep(1)
    process.kill()
    events.append("killed")
    process.start()
    await asyncio.sleep(31.5)
    events.append(f"{len(process.crashes)} crash")
    process.clock_jump(100)
    world.at(world.now + 5, process.restart)
    await asyncio.sleep(6)
    return events


async def fails_with_two_brokers_away(world: World) -> None:
    """By hand: with one in-sync replica left, nothing is acknowledged; when the others are back, it is."""
    topic = await world.topic("orders")
    leader = world.leader(topic)
    others = [world.broker(number) for number in (1, 2, 3) if world.broker(number) is not leader]
    for broker in others:
        broker.kill()
    await asyncio.sleep(20)
    for broker in others:
        broker.start()
    await world.calm()
    assert len(await world.load(topic, count=5)) == 5


async def loses_answers(world: World) -> dict[str, Any]:
    """Every answer of the services is lost, until the world is calm."""
    asked: list[Any] = []
    database = world.database()
    events: list[str] = []

    async def shop(method: str, path: str, body: Any) -> tuple[int, Any]:
        asked.append((method, path, body))
        return 201, {"orders": len(asked)}

    async def customer() -> None:
        async with httpx.AsyncClient(base_url="http://shop:8080") as client:
            answer = await client.post("/orders", json={"dish": "soup"})
            events.append(f"{answer.status_code} {answer.json()}")
            world.lost_answers = 1.0
            try:
                await client.post("/orders", json={"dish": "bread"})
            except httpx.TransportError as error:
                events.append(type(error).__name__)
            try:
                async with database.transaction() as transaction:
                    await transaction.put("soup", 1)
            except simulation.AnswerLost:
                events.append("AnswerLost")
            world.lost_answers = 0.0
            try:
                async with database.transaction() as transaction:
                    await transaction.insert("soup", 2)
            except simulation.Duplicate:
                events.append("Duplicate")

    async def both_add() -> None:
        for _ in range(10):
            try:
                async with database.transaction() as transaction:
                    await transaction.put("count", await transaction.get("count", 0) + 1)
            except simulation.Conflict:
                events.append("Conflict")

    world.http("shop", shop, port=8080)
    await world.process("customer", customer).returned()
    adders = [world.process(name, both_add) for name in ("one", "two")]
    for adder in adders:
        await adder.returned()
    conflicts = events.count("Conflict")
    return {
        "events": events[:4],
        "asked": asked,
        "soup": database.rows()["soup"],
        "counted": database.rows()["count"] + conflicts,
        "conflicts": conflicts > 0,
    }


async def two_work_at_once(world: World) -> None:
    async def work() -> None:
        with world.owning("orders-0"):
            await asyncio.sleep(10)

    first = world.process("first", work)
    await asyncio.sleep(1)
    first.pause()
    world.process("second", work)  # a paused one does not work
    await asyncio.sleep(1)
    world.process("third", work)
    await asyncio.sleep(1)
