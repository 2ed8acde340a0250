"""Read and write a cluster's metadata in ZooKeeper: all except offsets, even while no broker runs.

Topics keep their ids and leaders their epochs, so brokers whose `log.dirs` survived find their logs again.
"""

import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from barnabas.base.clock import SystemClock
from barnabas.base.ids import NO_BROKER, TopicId, TopicPartition, format_uuid, parse_uuid
from barnabas.base.words import AclOperation
from barnabas.broker.api.quotas import entity_path, quota_text, stored_quotas
from barnabas.broker.controller.placement import BrokerPlace, Start, assign_replicas
from barnabas.broker.security import acl
from barnabas.broker.security.acl_store import AclStore
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.operations import Create, Get, Operation, ZkCode
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.broker.zookeeper_client.zk_errors import NoNode, checked
from barnabas.broker.zookeeper_client.znodes import (
    BrokerRegistration,
    LeaderAndIsr,
    ProducerIdBlock,
    ReplicaAssignment,
    TopicAssignment,
    decode_cluster_id,
    encode_cluster_id,
)
from barnabas.cli.backup.document import Document, Entity, Partition, Topic, entity
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.wire.auth.mechanisms.scram import BY_NAME

#: Epochs and producer ids continue this far above those of the backup, because logs and clients may have seen newer ones.
LEADER_EPOCH_MARGIN: Final = 1_000
PRODUCER_ID_MARGIN: Final = 1_000_000
_USER_OF_MARGIN: Final = -1


@asynccontextmanager
async def session_with(config: SessionConfig) -> AsyncIterator[ZooKeeperSession]:
    session = ZooKeeperSession(config)
    await session.start()
    try:
        yield session
    finally:
        await session.stop()


async def read(session: ZooKeeperSession) -> Document:
    """Read everything. Writes nothing. A ZooKeeper without a cluster gives an empty document."""
    found = Document(cluster_id=await _cluster_id(session))
    store = ConfigStore(session, SystemClock())
    await _read_topics(session, store, found)
    found.brokers = {name: held for name, held in (await store.read_all(paths.BROKERS_ENTITY)).items() if held}
    if await session.exists(paths.config_type(paths.USERS)) is not None:
        for named, values in await stored_quotas(store):
            found.quotas[entity(named)] = {key: float(value) for key, value in values.items()}
    for user, settings in (await store.read_all(paths.USERS)).items():
        if verifiers := {name: settings[name] for name in settings if name in BY_NAME}:
            found.scram[paths.desanitize(user)] = verifiers
    await _read_acls(session, found)
    found.producer_id_next = await _producer_id_next(session)
    if links := len(await _children(session, paths.LINKS)):
        found.left_out.append(f"{links} links to other clusters: create them again")
    if tokens := len(await _children(session, paths.DELEGATION_TOKENS)):
        found.left_out.append(f"{tokens} delegation tokens: they are short-lived, and their owners ask for new ones")
    return found


async def _children(session: ZooKeeperSession, path: str) -> tuple[str, ...]:
    try:
        return await session.children(path)
    except NoNode:
        return ()


async def _cluster_id(session: ZooKeeperSession) -> str | None:
    try:
        data, _ = await session.get(paths.CLUSTER_ID)
    except NoNode:
        return None
    return decode_cluster_id(data or b"")


async def _producer_id_next(session: ZooKeeperSession) -> int | None:
    try:
        data, _ = await session.get(paths.LATEST_PRODUCER_ID_BLOCK)
    except NoNode:
        return None
    return ProducerIdBlock.decode(data).last + 1 if data else None


async def _read_topics(session: ZooKeeperSession, store: ConfigStore, found: Document) -> None:
    names = await _children(session, paths.BROKER_TOPICS)
    going = set(await _children(session, paths.DELETE_TOPICS))
    settings = await store.read_many(paths.TOPICS, names) if names else {}
    reads: list[Operation] = [Get(paths.topic(name)) for name in names]
    answers = (await session.batch(reads)).results if reads else ()
    moving = 0
    for name, answer in zip(names, answers, strict=True):
        # A topic without data was begun by a restore that did not finish.
        if name in going or not answer.ok or not answer.data:
            continue
        assignment = TopicAssignment.decode(name, answer.data)
        moving += sum(each.is_being_reassigned for each in assignment.partitions.values())
        numbers = sorted(assignment.partitions)
        states = await _states(session, name, numbers)
        partitions = tuple(
            _partition(assignment.partitions[number], state) for number, state in zip(numbers, states, strict=True)
        )
        topic_id = format_uuid(assignment.topic_id) if assignment.topic_id is not None else None
        found.topics[name] = Topic(name, topic_id, partitions, settings[name])
    if moving:
        found.left_out.append(
            f"unfinished moves of {moving} partitions: the backup has their replicas from before the move"
        )


async def _states(session: ZooKeeperSession, topic: str, numbers: list[int]) -> list[LeaderAndIsr | None]:
    where = [TopicPartition(topic, number) for number in numbers]
    reads: list[Operation] = [Get(paths.partition_state(each)) for each in where]
    answers = (await session.batch(reads)).results
    return [
        LeaderAndIsr.decode(each, answer.data, 0) if answer.ok and answer.data else None
        for each, answer in zip(where, answers, strict=True)
    ]


def _partition(assignment: ReplicaAssignment, state: LeaderAndIsr | None) -> Partition:
    replicas = assignment.origin
    if state is None:
        return Partition(replicas, replicas, 0)
    return Partition(replicas, tuple(each for each in state.isr if each in replicas), state.leader_epoch)


async def _read_acls(session: ZooKeeperSession, found: Document) -> None:
    authorizer = acl.AclAuthorizer()
    await AclStore(session, authorizer, SystemClock()).load()
    for pattern in authorizer.patterns():
        found_pattern = ResourcePattern(pattern.resource_type, pattern.name, pattern.pattern_type)
        found.acls[found_pattern] = frozenset(
            Ace(each.principal, each.host, AclOperation(each.operation), each.permission)
            for each in authorizer.entries(pattern)
        )


async def live_brokers(session: ZooKeeperSession) -> dict[int, str | None]:
    """Return the ids and racks of live brokers."""
    found: dict[int, str | None] = {}
    for name in await _children(session, paths.BROKER_IDS):
        data, _ = await session.get(paths.broker_id(int(name)))
        found[int(name)] = BrokerRegistration.decode(int(name), data or b"").rack
    return found


async def prepare(session: ZooKeeperSession) -> None:
    """Create the top-level paths, as brokers do before they write."""
    await create_top_level_paths(session)


class ZnodesTarget:
    """Writes znodes, and the notifications that running brokers watch."""

    def __init__(self, session: ZooKeeperSession, brokers: Mapping[int, str | None], *, spread: bool) -> None:
        self._session = session
        self._brokers = brokers
        self._spread = spread
        self._store = ConfigStore(session, SystemClock())
        self._acls = AclStore(session, acl.AclAuthorizer(), SystemClock())

    async def set_cluster_id(self, cluster_id: str) -> None:
        await self._session.create(paths.CLUSTER_ID, encode_cluster_id(cluster_id), make_path=True)

    async def set_producer_ids(self, first: int) -> None:
        last = first + PRODUCER_ID_MARGIN
        block = ProducerIdBlock(_USER_OF_MARGIN, first, last)
        await self._session.set(paths.LATEST_PRODUCER_ID_BLOCK, block.encode())

    async def set_broker(self, name: str, settings: Mapping[str, str]) -> None:
        await self._merge(paths.BROKERS_ENTITY, name, settings)

    async def set_topic(self, name: str, settings: Mapping[str, str]) -> None:
        await self._merge(paths.TOPICS, name, settings)

    async def set_quotas(self, entity: Entity, values: Mapping[str, float]) -> None:
        kind, name, _ = entity_path(dict(entity))
        await self._merge(kind, name, {key: quota_text(key, value) for key, value in values.items()})

    async def set_scram(self, user: str, verifiers: Mapping[str, str]) -> None:
        await self._merge(paths.USERS, paths.sanitize(user), verifiers)

    async def _merge(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        held = await self._store.read(kind, name)
        await self._store.write(kind, name, {**held, **settings})

    async def add_acls(self, pattern: ResourcePattern, aces: Iterable[Ace]) -> None:
        await self._session.ensure_paths(paths.ACL_PERSISTENT)
        target = acl.ResourcePattern(pattern.resource_type, pattern.name or "", pattern.pattern_type)
        await self._acls.add(
            target, (acl.Entry(each.principal, each.host, each.operation, each.permission) for each in aces)
        )

    async def create_topic(self, topic: Topic) -> None:
        """Create a topic with its id. If no broker runs, also with its leader epochs and ISRs: a controller that finds these
        elects leaders from them. A running controller creates the states of a new topic itself."""
        if topic.settings:
            await self.set_topic(topic.name, topic.settings)
        replicas = self._replicas(topic)
        assignment = TopicAssignment(
            TopicId(parse_uuid(topic.id)) if topic.id is not None else None,
            {number: ReplicaAssignment(each) for number, each in replicas.items()},
        )
        if self._brokers:
            await self._session.create(paths.topic(topic.name), assignment.encode())
            return
        creates: list[Operation] = [Create(paths.topic(topic.name)), Create(paths.topic_partitions(topic.name))]
        for number, each in enumerate(topic.partitions):
            where = TopicPartition(topic.name, number)
            state = LeaderAndIsr(NO_BROKER, each.isr or each.replicas, each.leader_epoch + LEADER_EPOCH_MARGIN)
            creates += [Create(paths.topic_partition(where)), Create(paths.partition_state(where), state.encode())]
        for operation, result in zip(creates, (await self._session.batch(creates)).results, strict=True):
            if result.code is not ZkCode.NODE_EXISTS:
                checked(operation, result)
        # Last: a topic without data does not exist yet, and the next attempt creates it again.
        await self._session.set(paths.topic(topic.name), assignment.encode())

    def _replicas(self, topic: Topic) -> dict[int, tuple[int, ...]]:
        if not self._spread:
            return {number: each.replicas for number, each in enumerate(topic.partitions)}
        places = [BrokerPlace(broker, rack) for broker, rack in sorted(self._brokers.items())]
        factor = max(len(each.replicas) for each in topic.partitions)
        start = Start(random.randrange(len(places)), random.randrange(len(places)))
        return assign_replicas(places, partitions=len(topic.partitions), replication_factor=factor, start=start)
