"""The group side of a broker, put together: the coordinator, and the handlers that use it."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from barnabas.api import consumer_groups, group_admin, group_offsets, groups
from barnabas.coordination.internal_topic import CreateTopic
from barnabas.groups.coordinator import GroupCoordinator, VerifyTransaction, trust
from barnabas.runtime.internal_log import CoordinatorLog
from barnabas.runtime.timers import Timers
from barnabas.server.context import BrokerContext
from barnabas.server.pipeline import ApiHandler


class GroupParts(NamedTuple):
    coordinator: GroupCoordinator
    #: Without FindCoordinator, which serves transactions as well: see `barnabas.api.find_coordinator`.
    families: list[list[ApiHandler]]


def assemble(
    context: BrokerContext,
    coordinator_log: CoordinatorLog,
    *,
    create_topic: CreateTopic,
    consumer_protocol_enabled: Callable[[], bool],
    timers: Timers,
    spawn: Callable[[Coroutine[Any, Any, None], str], object],
    verify_transaction: VerifyTransaction = trust,
) -> GroupParts:
    """Sets `context.groups`."""
    coordinator = context.groups = GroupCoordinator(
        coordinator_log,
        metadata=context.metadata,
        config=lambda: context.config,
        now_ms=context.clock.now_ms,
        timers=timers,
        spawn=spawn,
        create_topic=create_topic,
        consumer_protocol_enabled=consumer_protocol_enabled,
        verify_transaction=verify_transaction,
        registry=context.registry,
    )

    families = [
        family.handlers(context, coordinator) for family in (groups, group_offsets, group_admin, consumer_groups)
    ]
    return GroupParts(coordinator, families)
