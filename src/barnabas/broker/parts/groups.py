"""Builds the group side of a broker: the coordinator, and the handlers that use it."""

from collections.abc import Callable
from typing import NamedTuple

from barnabas.broker.api.consumer_groups import ConsumerGroupsApi
from barnabas.broker.api.group_admin import GroupAdminApi
from barnabas.broker.api.group_offsets import GroupOffsetsApi
from barnabas.broker.api.groups import GroupsApi
from barnabas.broker.api.share_groups import ShareGroupsApi
from barnabas.broker.api.streams_groups import StreamsGroupsApi
from barnabas.broker.groups.coordinator import GroupCoordinator, VerifyTransaction
from barnabas.broker.groups.share_groups import FindEnds
from barnabas.broker.groups.streams_groups import CreateTopics
from barnabas.broker.runtime.share_state import SharePersister
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext


class GroupParts(NamedTuple):
    coordinator: GroupCoordinator
    #: Families of APIs. FindCoordinator is not among them, because it serves transactions, too.
    families: list[object]


def assemble(
    context: BrokerContext,
    coordinator_context: CoordinatorContext,
    *,
    consumer_protocol_enabled: Callable[[], bool],
    verify_transaction: VerifyTransaction,
    share_persister: SharePersister,
    find_ends: FindEnds,
    create_topics: CreateTopics,
) -> GroupParts:
    """Return the parts, and set `context.groups`."""
    coordinator = context.groups = GroupCoordinator(
        coordinator_context,
        consumer_protocol_enabled=consumer_protocol_enabled,
        verify_transaction=verify_transaction,
        group_config=context.dynamic.group_config,
        share_persister=share_persister,
        find_ends=find_ends,
        create_topics=create_topics,
    )
    families = (GroupsApi, GroupOffsetsApi, GroupAdminApi, ConsumerGroupsApi, ShareGroupsApi, StreamsGroupsApi)
    return GroupParts(coordinator, [family(context, coordinator) for family in families])
