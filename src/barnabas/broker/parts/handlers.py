"""Builds the handler of each API."""

from collections.abc import Iterable, Mapping

from barnabas.broker.api import registry
from barnabas.broker.api.cluster import ClusterApi
from barnabas.broker.api.configs import ConfigsApi
from barnabas.broker.api.control import ControlApi
from barnabas.broker.api.fetch import FetchApi
from barnabas.broker.api.find_coordinator import FindCoordinatorApi, KeyType
from barnabas.broker.api.log_dirs import LogDirsApi
from barnabas.broker.api.metadata import MetadataApi
from barnabas.broker.api.offsets import OffsetsApi
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.api.quotas import QuotasApi
from barnabas.broker.api.scram import ScramApi
from barnabas.broker.api.topics import TopicsApi
from barnabas.broker.parts.coordinators import Coordinators
from barnabas.broker.parts.entity_settings import EntitySettings
from barnabas.broker.parts.feature import Plugin
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.replication.control_requests import ControlRequests
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import ApiHandler
from barnabas.broker.zookeeper_client.features import ClusterFeatures

#: Families of APIs that need only the context.
FAMILIES = (FetchApi, MetadataApi, OffsetsApi, LogDirsApi, TopicsApi, ClusterApi)


def build_handlers(
    context: BrokerContext,
    features: ClusterFeatures,
    *,
    control_requests: ControlRequests,
    settings: EntitySettings,
    security: SecurityParts,
    coordinators: Coordinators,
    produce: ProduceApi,
    plugins: Iterable[Plugin],
) -> Mapping[int, ApiHandler]:
    families: list[object] = [
        *(family(context) for family in FAMILIES),
        produce,
        ControlApi(context, control_requests),
        ConfigsApi(context, settings.store, settings.read_broker, settings.change),
        QuotasApi(context, settings.store, settings.change),
        ScramApi(context, settings.store, settings.change),
        *security.families(context),
        *coordinators.families,
        *(family for plugin in plugins for family in plugin.apis),
        FindCoordinatorApi(
            context,
            {
                KeyType.GROUP: coordinators.groups.coordinator.topic,
                KeyType.TRANSACTION: coordinators.transactions.coordinator.topic,
                KeyType.SHARE: coordinators.share_state.coordinator.topic,
            },
        ),
    ]
    return registry.build(families, features, cluster_id=context.cluster_id, broker_id=context.broker_id)
