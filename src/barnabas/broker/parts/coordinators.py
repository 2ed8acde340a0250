"""Builds the group, the transaction and the share coordinator, and the leader's side of share groups. The first two need each
other, and get it by a function.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from random import Random
from typing import NamedTuple

from barnabas.base.topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.base.words import TRANSACTION_VERSION
from barnabas.broker.parts import groups, share, share_state, transactions
from barnabas.broker.parts.groups import GroupParts
from barnabas.broker.parts.membership import MembershipParts
from barnabas.broker.parts.share import ShareParts
from barnabas.broker.parts.share_state import ShareStateParts
from barnabas.broker.parts.transactions import TransactionParts
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread, ThreadPool
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.coordinator_log import InternalTopicLog
from barnabas.broker.server.log_ends import LogEnds
from barnabas.broker.server.settings import allows_protocol
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.features import GROUP_VERSION
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.topic_lookup import count_partitions, partition_exists
from barnabas.wire.compression import Codec


class Coordinators(NamedTuple):
    groups: GroupParts
    transactions: TransactionParts
    share_state: ShareStateParts
    share: ShareParts

    @property
    def families(self) -> list[object]:
        """Families of APIs."""
        return [*self.groups.families, *self.transactions.families, *self.share_state.families, *self.share.families]

    def close(self) -> None:
        self.groups.coordinator.close()
        self.transactions.coordinator.close()
        self.share.partitions.close()
        self.share_state.close()


def assemble(
    context: BrokerContext,
    membership: MembershipParts,
    session: ZooKeeperSession,
    loop: asyncio.AbstractEventLoop,
    pool: ThreadPool,
    *,
    chance: Random,
    load_settings: Callable[[Iterable[str]], Awaitable[None]],
    on_thread: OnThread,
    spawn: Spawn,
    on_bug: Callable[[BaseException], None],
) -> Coordinators:
    features = membership.features

    def coordinator_context(topic: str, codec: Callable[[], int] = lambda: Codec.NONE) -> CoordinatorContext:
        return CoordinatorContext(
            log=InternalTopicLog(topic, context.replicas, pool, codec=codec),
            metadata=context.metadata,
            config=lambda: context.config,
            now_ms=context.clock.now_ms,
            timers=loop,
            spawn=spawn,
            create_topic=membership.controller_client.create_topic,
            count_partitions=partial(count_partitions, session),
            registry=context.registry,
        )

    share_state_parts = share_state.assemble(
        context,
        coordinator_context(
            SHARE_GROUP_STATE_TOPIC, lambda: context.config.share_coordinator_state_topic_compression_codec
        ),
        membership.connections,
    )
    group_parts = groups.assemble(
        context,
        coordinator_context(GROUP_METADATA_TOPIC, lambda: context.config.offsets_topic_compression_codec),
        consumer_protocol_enabled=lambda: (
            features.level(GROUP_VERSION) >= 1 and allows_protocol(context.config, "consumer")
        ),
        verify_transaction=transactions.offsets_verifier(context, lambda: transaction_parts.verifier),
        share_persister=share_state_parts.persister,
        find_ends=LogEnds(context, membership.connections).find,
        create_topics=membership.controller_client.create_for_group,
    )
    transaction_parts = transactions.assemble(
        context,
        coordinator_context(TRANSACTION_STATE_TOPIC),
        membership.connections,
        ask_controller=membership.controller_client.allocate_producer_ids,
        offsets_partition_for=group_parts.coordinator.partition_for,
        offsets_marked=group_parts.coordinator.txn_completed,
        exists=partial(partition_exists, session),
        transaction_version=lambda: features.level(TRANSACTION_VERSION),
        on_bug=on_bug,
    )
    share_parts = share.assemble(
        context,
        share_state_parts.persister,
        membership.connections,
        loop,
        chance=chance,
        create_topic=membership.controller_client.create_topic,
        load_settings=load_settings,
        on_thread=on_thread,
        spawn=spawn,
    )
    return Coordinators(group_parts, transaction_parts, share_state_parts, share_parts)
