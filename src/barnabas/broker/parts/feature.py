"""What a broker can do without plugs in here: the interface between a broker and its features.

A feature is a folder in `barnabas.broker.features` whose module `feature` has a `FEATURE`. It is built when the broker's parts
exist and nothing is served yet. It takes what it needs from the `Host`, sets its hooks there, and returns a `Plugin` with what
the broker calls later. The core knows this interface and no feature.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.parts.entity_settings import EntitySettings
from barnabas.broker.parts.replication import ReplicationParts
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.replication.partition import Partition
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
    produce: ProduceApi
    pipeline: Pipeline
    server: SocketServer
    metrics_server: MetricsServer
    timers: asyncio.AbstractEventLoop
    on_thread: OnThread
    spawn: Spawn


class Plugin:
    """What a feature adds to a broker. The methods do nothing here: a feature has those that it needs."""

    #: Families of APIs, see `barnabas.broker.server.handler`.
    apis: Sequence[object] = ()
    #: Topics of the feature's own. The broker counts their partitions before it serves.
    internal_topics: Sequence[InternalTopic] = ()

    def start(self) -> None:
        """The broker has registered and begins to serve."""

    def stop(self) -> None:
        """The broker stops: its fetchers have ended, its logs are still open."""

    def close(self) -> None:
        """Everything else has ended. Runs on a thread and may block."""

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        """This broker became leader or follower of these partitions."""

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        """`topic` is empty if the settings of every topic may have changed."""

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """The broker's dynamic settings changed."""

    def cluster_features_changed(self) -> None:
        """The finalized features of the cluster changed."""


class Feature(NamedTuple):
    is_wanted: Callable[[BrokerConfig], bool]
    build: Callable[[Host], Plugin]
