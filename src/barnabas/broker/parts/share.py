"""Builds the leader's side of share groups: the share partitions that this broker leads, and the APIs of their members."""

import asyncio
from typing import NamedTuple

from barnabas.base.config.derived import Derived
from barnabas.broker.api.share_fetch import ShareFetchApi
from barnabas.broker.runtime.share_state import SharePersister
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.share.fetching import ShareFetchHost
from barnabas.broker.share.manager import SharePartitions
from barnabas.broker.share.metrics import ShareCounts
from barnabas.broker.share.partition import ShareHost
from barnabas.broker.share.settings import ShareSettings


class ShareParts(NamedTuple):
    partitions: SharePartitions
    families: list[object]


def assemble(
    context: BrokerContext,
    persister: SharePersister,
    loop: asyncio.AbstractEventLoop,
    *,
    on_thread: OnThread,
    spawn: Spawn,
) -> ShareParts:
    replicas = context.replicas
    host = ShareHost(
        hosted=replicas.hosted,
        remote=replicas.fetches,
        persister=persister,
        config_of=context.dynamic.group_config,
        counts=ShareCounts.of(context.registry),
        now_ms=lambda: int(loop.time() * 1000),
        wall_ms=context.clock.now_ms,
        timers=loop,
        spawn=spawn,
    )
    settings = Derived(lambda: context.config, ShareSettings)
    partitions = SharePartitions(host, sessions_max=lambda: settings().sessions_max, registry=context.registry)
    fetch_host = ShareFetchHost(replicas.fetches, replicas.hosted.fetch_purgatory, loop, on_thread, spawn)
    return ShareParts(partitions, [ShareFetchApi(context, partitions, fetch_host)])
