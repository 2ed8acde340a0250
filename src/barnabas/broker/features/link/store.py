"""Reads and writes the znodes of links. Owner: the event loop. A damaged znode does not affect the others."""

import logging
from collections.abc import Callable, Mapping

from barnabas.base.errors import Malformed
from barnabas.base.ids import NO_EPOCH, LeaderEpoch, TopicPartition
from barnabas.base.words import AclResourceType, PatternType
from barnabas.broker.security.acl import Entry, ResourcePattern
from barnabas.broker.security.acl_store import from_stored, to_stored
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Get, Operation, SetData, ZkCode
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import BadVersion, NodeExists, NoNode, NotEmpty, checked
from barnabas.broker.zookeeper_client.znodes import ProducerIdBlock, TopicAssignment
from barnabas.broker.zookeeper_client.znodes_link import (
    LinkChange,
    LinkSpec,
    MirrorPartition,
    MirrorTopic,
    is_link_name,
)
from barnabas.broker.zookeeper_client.znodes_security import decode_acls, encode_acls

log = logging.getLogger(__name__)


#: ACL entries by their resource.
Bindings = dict[ResourcePattern, frozenset[Entry]]


class LinkStore:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    async def is_prepared(self, watch: Callable[[str], None]) -> bool:
        """Whether a link ever existed. `watch` is called when the first one is about to be created."""
        return await self._session.exists(paths.LINK_CHANGES, watch) is not None

    async def prepare(self) -> None:
        """Create the parent znodes. The order matters: a broker that sees the second finds the first."""
        await self._session.ensure_path(paths.LINKS)
        await self._session.ensure_path(paths.LINK_CHANGES)

    # -- links --------------------------------------------------------------------------------------------------------

    async def names(self) -> list[str]:
        try:
            children = await self._session.children(paths.LINKS)
        except NoNode:
            return []  # deleted meanwhile, or never created
        return sorted(name for name in children if is_link_name(name))

    async def spec(self, name: str) -> LinkSpec | None:
        """None if the link does not exist. :raises Malformed: if its znode is damaged."""
        path = paths.link(name)
        try:
            data, _ = await self._session.get(path)
        except NoNode:
            return None
        return LinkSpec.decode(path, data or b"")

    async def create(self, name: str, spec: LinkSpec) -> bool:
        """Return False if the link exists. It may be our own, whose answer was lost, or of a broker that died before it
        notified the others: so the others are notified in any case."""
        is_new = True
        try:
            await self._session.create(paths.link(name), spec.encode(), make_path=True)
        except NodeExists:
            is_new = False
        await self._session.ensure_path(paths.link_topics(name))
        await self.tell(LinkChange(name))
        return is_new

    async def change(self, name: str, change: Callable[[LinkSpec], LinkSpec]) -> bool:
        """False if the link does not exist."""
        path = paths.link(name)
        while True:
            try:
                data, stat = await self._session.get(path)
                await self._session.set(path, change(LinkSpec.decode(path, data or b"")).encode(), stat.version)
            except NoNode:
                return False
            except BadVersion:
                continue
            await self.tell(LinkChange(name))
            return True

    async def delete(self, name: str) -> bool:
        """False if the link does not exist (any more)."""
        path = paths.link(name)
        is_there = True
        while True:
            try:
                for topic in await self._topic_names(name):
                    await self._delete_below(paths.link_topic(name, topic))
                await self._delete(paths.link_topics(name))
                await self._delete_below(paths.link_acls(name))
                await self._session.delete(path)
            except NoNode:
                is_there = False
            except NotEmpty:
                continue  # a leader has written meanwhile
            await self.tell(LinkChange(name))
            return is_there

    async def _delete_below(self, path: str) -> None:
        try:
            for child in await self._session.children(path):
                await self._delete(f"{path}/{child}")
        except NoNode:
            return
        await self._delete(path)

    async def _delete(self, path: str) -> None:
        try:
            await self._session.delete(path)
        except NoNode:
            return

    # -- topics -------------------------------------------------------------------------------------------------------

    async def _topic_names(self, name: str) -> tuple[str, ...]:
        try:
            return await self._session.children(paths.link_topics(name))
        except NoNode:
            return ()

    async def topics(self, name: str) -> dict[str, MirrorTopic]:
        names = sorted(await self._topic_names(name))
        reads: list[Operation] = [Get(paths.link_topic(name, topic)) for topic in names]
        found: dict[str, MirrorTopic] = {}
        for topic, result in zip(names, (await self._session.batch(reads)).results, strict=True):
            if result.ok and (mirror := _topic(paths.link_topic(name, topic), result.data)) is not None:
                found[topic] = mirror
        return found

    async def topic(self, name: str, topic: str) -> MirrorTopic | None:
        path = paths.link_topic(name, topic)
        try:
            data, _ = await self._session.get(path)
        except NoNode:
            return None
        return _topic(path, data)

    async def create_topic(self, name: str, topic: str, mirror: MirrorTopic) -> None:
        """Create the znode unless it exists."""
        try:
            await self._session.create(paths.link_topic(name, topic), mirror.encode())
        except NodeExists:
            # Created by us, but the answer was lost, or by a controller that died before it notified the others.
            log.info("%s already exists", paths.link_topic(name, topic))
        await self.tell(LinkChange(name, topic))

    async def change_topic(
        self, name: str, topic: str, change: Callable[[MirrorTopic], MirrorTopic | None]
    ) -> MirrorTopic | None:
        """Change a topic and return its new state; None if it does not exist. `change` may return None: leave it as it is.

        The others are notified even if nothing changes: an earlier writer may have died before it notified them.
        """
        path = paths.link_topic(name, topic)
        may_be_ours = False
        while True:
            try:
                data, stat = await self._session.get(path)
                before = MirrorTopic.decode(path, data or b"")
                after = change(before)
                if after is None and not may_be_ours:
                    return before
                if after is not None and after != before:
                    await self._session.set(path, after.encode(), stat.version)
            except NoNode:
                return None
            except BadVersion:
                may_be_ours = True  # a lost connection may have hidden the answer
                continue
            await self.tell(LinkChange(name, topic))
            return after or before

    async def forget_topic(self, name: str, topic: str) -> None:
        await self._delete_below(paths.link_topic(name, topic))
        await self.tell(LinkChange(name, topic))

    # -- ACLs ---------------------------------------------------------------------------------------------------------

    async def added_acls(self, name: str) -> Bindings:
        """Return the entries that the link added to this cluster's ACLs, by resource. A damaged record is left out: its entries
        stay until an operator removes them."""
        try:
            children = await self._session.children(paths.link_acls(name))
        except NoNode:
            return {}
        listed = [f"{paths.link_acls(name)}/{child}" for child in children]
        reads: list[Operation] = [Get(path) for path in listed]
        found: Bindings = {}
        for path, result in zip(listed, (await self._session.batch(reads)).results, strict=True):
            try:
                if result.ok:
                    found[_pattern(path)] = frozenset(
                        from_stored(path, each) for each in decode_acls(path, result.data)
                    )
            except Malformed as error:
                log.error(
                    "[link %s] ignored a damaged record of added ACLs; remove its entries by hand: %s", name, error
                )
        return found

    async def write_added_acls(self, name: str, pattern: ResourcePattern, entries: frozenset[Entry]) -> None:
        """:raises NoNode: if the link no longer exists."""
        path = paths.link_acl(name, pattern.resource_type.name, pattern.pattern_type.name, pattern.name)
        if not entries:
            await self._delete(path)
            return
        data = encode_acls(to_stored(each) for each in entries)
        try:
            await self._session.create(paths.link_acls(name))
        except NodeExists:
            log.debug("%s already exists", paths.link_acls(name))
        try:
            await self._session.create(path, data)
        except NodeExists:
            await self._session.set(path, data)

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic of this cluster; 0 if it does not exist."""
        try:
            data, _ = await self._session.get(paths.topic(topic))
        except NoNode:
            return 0
        return len(TopicAssignment.decode(topic, data or b"").partitions)

    # -- partitions ---------------------------------------------------------------------------------------------------

    async def partition(self, name: str, partition: TopicPartition) -> MirrorPartition:
        """Return the recorded state; an empty one if the znode is damaged: the next new epoch overwrites it."""
        path = paths.link_partition(name, partition)
        try:
            data, _ = await self._session.get(path)
            return MirrorPartition.decode(path, data or b"")
        except NoNode:
            return MirrorPartition()
        except Malformed as error:
            log.error("[mirror %s] ignored its damaged znode, the next new epoch overwrites it: %s", partition, error)
            return MirrorPartition()

    async def partitions(self, name: str, topic: str, count: int) -> list[MirrorPartition]:
        """Return the state of the first `count` partitions, in order."""
        tps = [TopicPartition(topic, index) for index in range(count)]
        reads: list[Operation] = [Get(paths.link_partition(name, tp)) for tp in tps]
        found: list[MirrorPartition] = []
        for tp, result in zip(tps, (await self._session.batch(reads)).results, strict=True):
            try:
                known = (
                    MirrorPartition.decode(paths.link_partition(name, tp), result.data or b"") if result.ok else None
                )
            except Malformed as error:
                log.error("[mirror %s] ignored its damaged znode: %s", tp, error)
                known = None
            found.append(known or MirrorPartition())
        return found

    async def raise_producer_ids(self, floor: int) -> None:
        """Raise the start of the next block of producer ids to `floor`."""
        path = paths.LATEST_PRODUCER_ID_BLOCK
        while True:
            data, stat = await self._session.get(path)
            if data and ProducerIdBlock.decode(data).last >= floor - 1:
                return
            try:
                await self._session.set(path, ProducerIdBlock(-1, floor - 1, floor - 1).encode(), stat.version)
            except BadVersion:
                continue
            return

    async def write_partitions(
        self, name: str, partitions: Mapping[TopicPartition, MirrorPartition]
    ) -> set[TopicPartition]:
        """Write states; return the partitions that a leader of a later epoch has written, which are not changed."""
        fenced: set[TopicPartition] = set()
        left = dict(partitions)
        while left:
            reads: list[Operation] = [Get(paths.link_partition(name, tp)) for tp in left]
            writes: dict[TopicPartition, Operation] = {}
            for (tp, each), read in zip(left.items(), (await self._session.batch(reads)).results, strict=True):
                path = paths.link_partition(name, tp)
                if read.code is ZkCode.NO_NODE:
                    writes[tp] = Create(path, each.encode())
                elif _leader_epoch(path, checked(Get(path), read).data) > each.leader_epoch:
                    fenced.add(tp)
                else:
                    assert read.stat is not None
                    writes[tp] = SetData(path, each.encode(), read.stat.version)
            results = (await self._session.batch(list(writes.values()))).results
            left = {}
            for (tp, operation), result in zip(writes.items(), results, strict=True):
                if result.code in (ZkCode.NODE_EXISTS, ZkCode.BAD_VERSION):
                    left[tp] = partitions[tp]  # written meanwhile: read its leader epoch again
                else:
                    checked(operation, result)
        return fenced

    async def tell(self, change: LinkChange) -> None:
        """Notify every broker of a change."""
        try:
            await self._session.create(paths.link_change(), change.encode(), sequence=True)
        except NoNode:
            return  # no link was ever created, so that no broker listens


def _leader_epoch(path: str, data: bytes | None) -> LeaderEpoch:
    """Return the leader epoch of the last writer. A damaged znode is overwritten."""
    try:
        return MirrorPartition.decode(path, data or b"").leader_epoch
    except Malformed:
        return NO_EPOCH


def _pattern(path: str) -> ResourcePattern:
    try:
        kind, pattern_type, name = paths.link_acl_resource(path)
        return ResourcePattern(AclResourceType[kind], name, PatternType[pattern_type])
    except (KeyError, ValueError):
        raise Malformed(f"{path} does not name a resource") from None


def _topic(path: str, data: bytes | None) -> MirrorTopic | None:
    try:
        return MirrorTopic.decode(path, data or b"")
    except Malformed as error:
        log.error("ignored a mirror with a damaged znode: %s", error)
        return None
