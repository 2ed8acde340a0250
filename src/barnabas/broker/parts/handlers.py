"""The handler of each API, put together."""

from collections.abc import Callable, Mapping

from barnabas.broker.api import (
    cluster,
    configs,
    control,
    fetch,
    find_coordinator,
    log_dirs,
    metadata,
    offsets,
    produce,
    quotas,
    registry,
    scram,
    topics,
)
from barnabas.broker.api.find_coordinator import KeyType
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.parts.entity_settings import EntitySettings
from barnabas.broker.parts.groups import GroupParts
from barnabas.broker.parts.links import LinkParts
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.parts.transactions import TransactionParts
from barnabas.broker.replication.control_requests import ControlRequests
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.pipeline import ApiHandler
from barnabas.broker.server.schema_checks import SchemaChecks
from barnabas.broker.transactions.verification import Verifier
from barnabas.broker.zookeeper_client.features import ClusterFeatures

MakeProduce = Callable[[BrokerContext, Verifier, SchemaChecks], ProduceApi]

#: API families that need nothing but the context.
FAMILIES = (fetch, metadata, offsets, log_dirs, topics, cluster)


def build_handlers(
    context: BrokerContext,
    features: ClusterFeatures,
    *,
    control_requests: ControlRequests,
    settings: EntitySettings,
    security: SecurityParts,
    groups: GroupParts,
    transactions: TransactionParts,
    schemas: SchemaChecks,
    links: LinkParts,
    make_produce: MakeProduce = ProduceApi,
) -> Mapping[int, ApiHandler]:
    families = [
        *(family.handlers(context) for family in FAMILIES),
        produce.handlers(make_produce(context, transactions.verifier, schemas)),
        control.handlers(context, control_requests),
        configs.handlers(context, settings.store, settings.read_broker, settings.change),
        *(family.handlers(context, settings.store, settings.change) for family in (quotas, scram)),
        *security.families(context),
        *groups.families,
        *transactions.families,
        *links.families,
        find_coordinator.handlers(
            context,
            {KeyType.GROUP: groups.coordinator.topic, KeyType.TRANSACTION: transactions.coordinator.topic},
        ),
    ]
    return registry.build(families, features)
