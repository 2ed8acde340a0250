"""The parts of the machine that a broker uses: time, randomness, disk, sockets, threads, ZooKeeper, a compaction worker,
an object store.

One object, passed to the broker. A simulation passes another one, and the broker cannot tell the difference.
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
    #: For ids of fetch sessions, and jitter. Secrets come from the operating system.
    random: Random = field(default_factory=Random)
    disk: Disk = field(default_factory=Disk)
    #: Creates threads for short-lived work: loading and closing logs.
    make_pool: Callable[[int, str], Executor] = thread_pool
    listen: Listen = listen
    #: Creates a connection to ZooKeeper; None: kazoo's.
    zookeeper: "Callable[..., KazooConnection] | None" = None
    make_cleaner_worker: Callable[[asyncio.AbstractEventLoop, LogEnvironment], Worker] = compaction_process
    #: Opens the object store of tiered storage by its URL and settings; None: the real one.
    open_store: Callable[[str, Mapping[str, str]], Any] | None = None
    #: Features of the running release: another release announces others.
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: ANNOUNCED)
