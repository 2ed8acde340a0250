"""Reads ZooKeeper itself: registrations, the controller, times of changes, and its disk.

The doctor connects without credentials and only reads. It reports what it is not allowed to read, or cannot reach.
"""

import asyncio
import contextlib
import os
import time
from typing import Final

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.ensemble import members_of
from barnabas.broker.zookeeper_client.open_znodes import find_open
from barnabas.broker.zookeeper_client.operations import Get, Operation, Result, ZkCode
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.broker.zookeeper_client.zk_errors import ZkError
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, ControllerRegistration
from barnabas.services.doctor.view import ZooKeeperView

CONNECT_TIMEOUT_MS: Final = 2_000
SESSION_TIMEOUT_MS: Final = 6_000
#: Limit of affected partitions whose times are read.
PARTITIONS_MAX: Final = 100


async def look_at_zookeeper(connect: str, in_trouble: list[TopicPartition]) -> ZooKeeperView:
    hosts, chroot = SessionConfig.split(connect)
    reasons = await asyncio.gather(*(_why_unreachable(host) for host in hosts.split(",")))
    if all(reasons):
        return ZooKeeperView(connect, trouble="; ".join(filter(None, reasons)))
    # Without the chroot path: a session with a path creates it, but the doctor changes nothing.
    session = ZooKeeperSession(
        SessionConfig(hosts, session_timeout_ms=SESSION_TIMEOUT_MS, connection_timeout_ms=CONNECT_TIMEOUT_MS)
    )
    try:
        async with asyncio.timeout(2 * CONNECT_TIMEOUT_MS / 1000):
            await session.start()
            return await _read(session, connect, chroot, in_trouble[:PARTITIONS_MAX])
    except (BarnabasError, TimeoutError) as error:
        return ZooKeeperView(connect, trouble=str(error) or f"no answer within {2 * CONNECT_TIMEOUT_MS} ms")
    finally:
        await session.stop()


async def _read(
    session: ZooKeeperSession, connect: str, chroot: str, in_trouble: list[TopicPartition]
) -> ZooKeeperView:
    started_s = time.monotonic()
    ids = sorted(int(name) for name in await session.children(chroot + paths.BROKER_IDS) if name.isdigit())
    latency_ms = (time.monotonic() - started_s) * 1000
    wanted: list[Operation] = [Get(chroot + paths.CONTROLLER)]
    wanted += [Get(chroot + paths.broker_id(each)) for each in ids]
    wanted += [Get(chroot + paths.partition_state(each)) for each in in_trouble]
    results = (await session.batch(wanted)).results
    registrations: dict[int, tuple[str, ...]] = {}
    for broker_id, result in zip(ids, results[1 : 1 + len(ids)], strict=True):
        if result.ok and result.data:
            found = BrokerRegistration.decode(broker_id, result.data)
            registrations[broker_id] = tuple(str(endpoint) for endpoint in found.endpoints)
    changed_ms = {
        partition: result.stat.mtime_ms
        for partition, result in zip(in_trouble, results[1 + len(ids) :], strict=True)
        if result.stat is not None
    }
    statistics = await _monitor(session.hosts)
    return ZooKeeperView(
        connect,
        registrations=registrations,
        controller_id=_controller_id(results[0]),
        changed_ms=changed_ms,
        open_znodes=tuple(await find_open(session, chroot)),
        latency_ms=latency_ms,
        total_bytes=int(statistics.get("zk_data_dir_total_bytes", -1)),
        usable_bytes=int(statistics.get("zk_data_dir_usable_bytes", -1)),
    )


def _controller_id(result: Result) -> int | None:
    if result.code is ZkCode.NO_NODE:
        return -1
    return ControllerRegistration.decode(result.data).broker_id if result.data else None


async def _why_unreachable(address: str) -> str | None:
    """Fail at once if the port is closed: a session would go on trying."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            _, writer = await asyncio.open_connection(*members_of(address)[0])
    except TimeoutError:
        return f"{address}: no answer within {CONNECT_TIMEOUT_MS} ms"
    except OSError as error:
        return f"{address}: {os.strerror(error.errno) if error.errno and error.errno > 0 else error}"
    writer.close()
    return None


async def _monitor(hosts: str) -> dict[str, str]:
    """Return `mntr` of the first server; empty if its whitelist lacks the command."""
    answer = b""
    with contextlib.suppress(OSError, ZkError):
        reader, writer = await asyncio.open_connection(*members_of(hosts)[0])
        try:
            writer.write(b"mntr")
            answer = await reader.read(1 << 20)
        finally:
            writer.close()
    lines = (line.partition("\t") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, tab, value in lines if tab}
