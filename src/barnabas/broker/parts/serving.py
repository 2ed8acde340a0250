"""Builds the request side of a broker: quotas, the pipeline that answers, and the sockets.

Owner: the event loop.
"""

import asyncio
from collections.abc import Callable

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.metrics.registry import Registry
from barnabas.broker.parts.readiness import CLUSTER_APIS
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread, ThreadPool
from barnabas.broker.server.listener import SocketServer
from barnabas.broker.server.pipeline import Pipeline
from barnabas.broker.server.platform import Platform
from barnabas.broker.server.quota_parts import QuotaParts
from barnabas.broker.server.settings import buffer_bytes, connection_limits, connection_rate_limits


class ServingParts:
    """The handlers are added later: the ports are bound before the broker uses ZooKeeper."""

    def __init__(
        self,
        config: BrokerConfig,
        platform: Platform,
        registry: Registry,
        loop: asyncio.AbstractEventLoop,
        pool: ThreadPool,
        *,
        on_bug: Callable[[BaseException], None],
        on_thread: OnThread,
        spawn: Spawn,
    ) -> None:
        self.quotas = QuotaParts(config, registry, now_s=loop.time, spawn=spawn)
        self.pipeline = Pipeline(
            {},
            registry,
            now_s=loop.time,
            spawn=spawn,
            on_bug=on_bug,
            request_bytes_max=config.socket_request_max_bytes,
            queued_requests_max=config.queued_max_requests,
            held_apis=CLUSTER_APIS,
            request_quota=self.quotas.requests,
            elements_max=config.barnabas_request_max_elements,
            on_thread=on_thread,
        )
        self.server = SocketServer(
            loop,
            self.pipeline,
            pool,
            registry,
            limits=connection_limits(config),
            rates=self.quotas.connections,
            spawn=spawn,
            backlog=config.socket_listen_backlog_size,
            send_buffer_bytes=buffer_bytes(config, "socket.send.buffer.bytes"),
            receive_buffer_bytes=buffer_bytes(config, "socket.receive.buffer.bytes"),
            queued_bytes_max=config.queued_max_request_bytes,
            listen=platform.listen,
            monotonic_s=platform.clock.monotonic_s,
        )

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.server.set_limits(connection_limits(after))
        self.quotas.connections.limits = connection_rate_limits(after)
        self.pipeline.elements_max = after.barnabas_request_max_elements
