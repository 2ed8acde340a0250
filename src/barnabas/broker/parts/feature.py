"""The interface between a broker and its optional features.

A feature is a folder in `barnabas.broker.features` whose module `feature` has a `build`. The broker calls it with the `Host`
when its parts exist, before it serves. `build` takes parts from the host, sets its hooks there, and returns a `Plugin` with the
methods that the broker calls later. The core knows this interface and no feature.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.parts.entity_settings import EntitySettings
from barnabas.broker.parts.replication import ReplicationParts
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.replication.partition import Partition
from barnabas.broker.runtime.share_state import SharePersister
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.controller_client import ControllerClient
from barnabas.broker.server.listener import SocketServer
from barnabas.broker.server.metrics_http import MetricsServer
from barnabas.broker.server.pipeline import Pipeline
from barnabas.broker.server.platform import Platform
from barnabas.broker.transactions.coordinator import TransactionCoordinator
from barnabas.broker.zookeeper_client.features import ClusterFeatures
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.session import ZooKeeperSession


@dataclass(slots=True, kw_only=True)
class Host:
    """The parts of one broker that features use. Owner: the event loop."""

    context: BrokerContext
    platform: Platform
    session: ZooKeeperSession
    connections: BrokerConnections
    controller_client: ControllerClient
    cluster_features: ClusterFeatures
    settings: EntitySettings
    security: SecurityParts
    replication: ReplicationParts
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_persister: SharePersister
    produce: ProduceApi
    pipeline: Pipeline
    server: SocketServer
    metrics_server: MetricsServer
    timers: asyncio.AbstractEventLoop
    on_thread: OnThread
    spawn: Spawn


class Plugin:
    """The methods that a feature adds to a broker. They do nothing here: a feature overrides those that it needs."""

    #: Families of APIs, see `barnabas.broker.server.handler`.
    apis: Sequence[object] = ()
    #: The feature's own topics. The broker counts their partitions before it serves.
    internal_topics: Sequence[InternalTopic] = ()

    def start(self) -> None:
        """Start: the broker has registered and begins to serve."""

    def stop(self) -> None:
        """Stop: the broker's fetchers have ended, its logs are still open."""

    async def close(self) -> None:
        """Close: everything else has ended."""

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        """React: this broker became leader or follower of these partitions."""

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        """React to changed topic settings. `topic` is empty if the settings of every topic may have changed."""

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """React to changed dynamic settings of the broker."""

    def cluster_features_changed(self) -> None:
        """React to changed finalized features of the cluster."""
