"""Builds the share coordinator, its handlers, and the persister through which this broker reaches all share coordinators."""

from typing import NamedTuple

from barnabas.base.ids import BrokerId
from barnabas.broker.api.share_state import ShareStateApi
from barnabas.broker.runtime.share_state import SharePersister
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.share_coordinator import persister as persisting
from barnabas.broker.share_coordinator.coordinator import ShareCoordinator
from barnabas.broker.share_coordinator.persister import CoordinatorPersister
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.wire.messages.base import ApiMessage

KINDS = (
    persisting.INITIALIZE,
    persisting.READ,
    persisting.WRITE,
    persisting.DELETE,
    persisting.SUMMARY,
)


class ShareStateParts(NamedTuple):
    coordinator: ShareCoordinator
    persister: CoordinatorPersister
    families: list[object]

    def close(self) -> None:
        self.persister.close()
        self.coordinator.close()


def assemble(
    context: BrokerContext, coordinator_context: CoordinatorContext, connections: BrokerConnections
) -> ShareStateParts:
    """Requests to this broker itself use no connection."""
    coordinator = ShareCoordinator(coordinator_context)
    api = ShareStateApi(context, coordinator)
    # A broker answers the requests of a connection in order, so each kind has its own.
    lanes = {kind.request: connections.lane(f"share-state-{kind.name}") for kind in KINDS}

    async def send(broker: BrokerId, request: ApiMessage) -> ApiMessage:
        if broker == context.broker_id:
            return await api.answer(request)
        connection = await lanes[type(request)].to(broker)
        return await connection.request(request, timeout_ms=context.config.request_timeout_ms)

    persister = CoordinatorPersister(
        coordinator.topic,
        context.metadata,
        send=send,
        spawn=coordinator_context.spawn,
        timeout_ms=lambda: context.config.request_timeout_ms,
    )
    _as_interface: SharePersister = persister
    return ShareStateParts(coordinator, persister, [api])
