"""What a broker takes from the machine it runs on: time, chance, disk, sockets, threads, ZooKeeper, a compaction worker,
an object store.

One object, handed to the broker. A simulation hands in another one; the broker cannot tell the difference.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from barnabas.base.clock import Clock, SystemClock
from barnabas.base.host.disk import Disk
from barnabas.broker.server.listener import Listen, listen
from barnabas.broker.storage.cleaner.process import ProcessWorker, Worker
from barnabas.broker.storage.environment import LogEnvironment, thread_pool
from barnabas.broker.zookeeper_client.features import ANNOUNCED

if TYPE_CHECKING:
    from barnabas.broker.zookeeper_client.kazoo_client import KazooConnection


def compaction_process(loop: asyncio.AbstractEventLoop, env: LogEnvironment) -> Worker:
    return ProcessWorker(loop, env)


@dataclass(slots=True, kw_only=True)
class Platform:
    clock: Clock = field(default_factory=SystemClock)
    #: Ids of fetch sessions, jitter. Secrets come from the operating system.
    random: Random = field(default_factory=Random)
    disk: Disk = field(default_factory=Disk)
    #: Threads for work that runs at once and ends: loading and closing logs.
    make_pool: Callable[[int, str], Executor] = thread_pool
    listen: Listen = listen
    #: Makes a connection to ZooKeeper; None: kazoo's.
    zookeeper: "Callable[..., KazooConnection] | None" = None
    make_cleaner_worker: Callable[[asyncio.AbstractEventLoop, LogEnvironment], Worker] = compaction_process
    #: Opens the object store of tiered storage by its URL and settings; None: the real one.
    open_store: Callable[[str, Mapping[str, str]], Any] | None = None
    #: Of the release that runs here: another one announces others.
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: ANNOUNCED)
