"""The group side of a broker, put together: the coordinator, and the handlers that use it."""

from collections.abc import Callable
from typing import NamedTuple

from barnabas.broker.api import consumer_groups, group_admin, group_offsets, groups
from barnabas.broker.groups.coordinator import GroupCoordinator, VerifyTransaction
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.pipeline import ApiHandler
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext


class GroupParts(NamedTuple):
    coordinator: GroupCoordinator
    #: Without FindCoordinator, which serves transactions as well: see `barnabas.broker.api.find_coordinator`.
    families: list[list[ApiHandler]]


def assemble(
    context: BrokerContext,
    coordinator_context: CoordinatorContext,
    *,
    consumer_protocol_enabled: Callable[[], bool],
    verify_transaction: VerifyTransaction,
) -> GroupParts:
    """Sets `context.groups`."""
    coordinator = context.groups = GroupCoordinator(
        coordinator_context,
        consumer_protocol_enabled=consumer_protocol_enabled,
        verify_transaction=verify_transaction,
    )

    families = [
        family.handlers(context, coordinator) for family in (groups, group_offsets, group_admin, consumer_groups)
    ]
    return GroupParts(coordinator, families)
