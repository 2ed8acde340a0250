"""Builds the leader's side of share groups: the share partitions that this broker leads, and the APIs of their members."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import NamedTuple

from barnabas.base.config.derived import Derived
from barnabas.base.ids import BrokerId
from barnabas.broker.api.share_fetch import ShareFetchApi
from barnabas.broker.runtime.share_state import SharePersister
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.share.dead_letters import DeadLetterHost, DeadLetterTopics
from barnabas.broker.share.fetching import ShareFetchHost
from barnabas.broker.share.manager import SharePartitions
from barnabas.broker.share.metrics import DeadLetterCounts, ShareCounts
from barnabas.broker.share.partition import ShareHost
from barnabas.broker.share.settings import ShareSettings
from barnabas.broker.zookeeper_client.internal_topic import CreateTopic
from barnabas.wire.messages.produce import ProduceRequest, ProduceResponse


class ShareParts(NamedTuple):
    partitions: SharePartitions
    families: list[object]


def assemble(
    context: BrokerContext,
    persister: SharePersister,
    connections: BrokerConnections,
    loop: asyncio.AbstractEventLoop,
    *,
    chance: Random,
    create_topic: CreateTopic,
    load_settings: Callable[[Iterable[str]], Awaitable[None]],
    on_thread: OnThread,
    spawn: Spawn,
) -> ShareParts:
    replicas = context.replicas
    settings = Derived(lambda: context.config, ShareSettings)
    lane = connections.lane("dead letters")

    async def produce(broker: BrokerId, request: ProduceRequest) -> ProduceResponse:
        connection = await lane.to(broker)
        return await connection.request(
            request, ProduceResponse, timeout_ms=request.timeout_ms + context.config.request_timeout_ms
        )

    dead_letters = DeadLetterHost(
        metadata=context.metadata,
        fetches=replicas.fetches,
        produce=produce,
        create_topic=create_topic,
        load_settings=load_settings,
        log_config=context.dynamic.log_config,
        settings=settings,
        timeout_ms=lambda: context.config.request_timeout_ms,
        now_ms=context.clock.now_ms,
        on_thread=on_thread,
        chance=chance,
    )
    host = ShareHost(
        hosted=replicas.hosted,
        remote=replicas.fetches,
        persister=persister,
        config_of=context.dynamic.group_config,
        dead_letters=DeadLetterTopics(dead_letters, DeadLetterCounts.of(context.registry)),
        counts=ShareCounts.of(context.registry),
        now_ms=lambda: int(loop.time() * 1000),
        wall_ms=context.clock.now_ms,
        timers=loop,
        spawn=spawn,
    )
    partitions = SharePartitions(host, sessions_max=lambda: settings().sessions_max, registry=context.registry)
    fetch_host = ShareFetchHost(replicas.fetches, host.counts, replicas.hosted.fetch_purgatory, loop, on_thread, spawn)
    return ShareParts(partitions, [ShareFetchApi(context, partitions, fetch_host)])
