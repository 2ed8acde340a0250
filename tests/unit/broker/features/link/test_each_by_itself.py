"""A problem of one partition, topic or group of a link does not affect the others."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.features.link import acls as link_acls
from barnabas.broker.features.link import groups as link_groups
from barnabas.broker.features.link import replica as link_replica
from barnabas.broker.features.link import source as link_source
from barnabas.broker.features.link.acls import AclCopier
from barnabas.broker.features.link.groups import GroupCopier
from barnabas.broker.features.link.manager import Link, LinkManager
from barnabas.broker.features.link.producer_ids import ProducerIdSpace
from barnabas.broker.features.link.source import MirrorSource
from barnabas.broker.features.link.steward import Steward
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.security.acl import Entry, Filter, ResourcePattern
from barnabas.broker.security.acl_store import AclUnreadable, Removed
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec, MirrorPartition, MirrorState, MirrorTopic
from barnabas.client.admin.acls import Ace
from barnabas.client.admin.acls import ResourcePattern as ClientPattern
from barnabas.client.admin.groups import CLASSIC, CommittedOffset, GroupListing
from barnabas.client.admin.partitions import ListedOffset
from barnabas.client.errors import ConnectionLost
from barnabas.client.image import ClusterImage, PartitionInfo, TopicInfo
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.unit.broker.features.link.test_mirror_replica import FOLLOWER, ME, TP, Mirror, batch
from tests.unit.broker.features.link.test_source_recreated import FOUND, source_of

OTHER = TopicPartition("other", 0)
UNUSED: Any = None


class Noted:
    """The recorded state of partitions, as ZooKeeper has it."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, MirrorPartition] = {}

    async def write_partitions(
        self, link: str, partitions: Mapping[TopicPartition, MirrorPartition]
    ) -> set[TopicPartition]:
        await asyncio.sleep(0)
        self.partitions |= partitions
        return set()


def mirrors_of(folder: Path, *tps: TopicPartition) -> tuple[MirrorSource, Noted, dict[TopicPartition, Mirror]]:
    """Mirrors, each with a record of the source's broker 1."""
    source, noted = source_of(FOUND), Noted()
    source._store = cast(Any, noted)
    source.fetchers = cast(Any, SimpleNamespace(remove=lambda tps: None))
    mirrors: dict[TopicPartition, Mirror] = {}
    for tp in tps:
        (folder / tp.topic).mkdir()
        mirror = mirrors[tp] = Mirror(folder / tp.topic)
        mirror.replica.tp = tp
        mirror.receive(batch(0, 2), high_watermark=1)
        mirror.replica.source_leader = 1
        source.replicas[tp] = mirror.replica
    return source, noted, mirrors


def image_with(*, leader: int) -> ClusterImage:
    partition = PartitionInfo(index=0, leader=leader, leader_epoch=2, replicas=(1,), isr=(1,), offline=())
    known: Any = {1: None}
    return ClusterImage(brokers=known, topics={TP.topic: TopicInfo(TP.topic, FOUND, False, (partition,))})


# -- partitions


async def test_mirror_whose_records_are_not_replicated_does_not_keep_other_mirrors_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of this cluster is down, so that its mirror's records are not committed. The other mirrors are promoted."""
    monkeypatch.setattr(link_replica, "_COMMIT_TIMEOUT_S", 0.01)
    source, noted, mirrors = mirrors_of(tmp_path, TP, OTHER)
    stuck = mirrors[TP]
    both = PartitionLeadership(
        leader=ME, leader_epoch=LeaderEpoch(8), isr=(ME, FOLLOWER), partition_epoch=8, replicas=(ME, FOLLOWER)
    )
    stuck.partition.become_leader(both, now_ms=0)
    stuck.receive(batch(1, 2), high_watermark=2)
    watched = SimpleNamespace(count=0)

    def when_replicated(partition: Any, end: int, leadership: int, on_done: Callable[[ErrorCode], None]) -> None:
        verdict = partition.machine.check_replicated(end, leadership)
        watched.count += verdict is None
        if verdict is not None:
            on_done(verdict)

    replicas: Any = SimpleNamespace(appends=SimpleNamespace(when_replicated=when_replicated))
    async with asyncio.timeout(50):
        for _ in range(3):
            await source.finish([TP, OTHER], replicas, is_planned=False)
    assert noted.partitions[OTHER].is_done
    assert not noted.partitions[TP].is_done
    assert "not committed" in (stuck.replica.error or "")
    assert watched.count == 1, "it waits once, however often it is looked at"
    await source.client.close()


async def test_truncated_mirror_does_not_keep_other_mirrors_from_ending(tmp_path: Path) -> None:
    """It waits for the next leader epoch, which is requested after the other mirrors have ended."""
    source, noted, mirrors = mirrors_of(tmp_path, TP, OTHER)
    mirrors[TP].replica._cut_in = LeaderEpoch(7)
    appends = SimpleNamespace(when_replicated=lambda partition, end, leadership, done: done(ErrorCode.NONE))
    replicas: Any = SimpleNamespace(appends=appends)
    await source.finish([TP, OTHER], replicas, is_planned=False)
    assert noted.partitions[OTHER].is_done
    assert "was truncated" in (mirrors[TP].replica.error or "")
    await source.client.close()


async def test_broker_of_the_source_that_is_away_keeps_only_its_own_partitions_from_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _, mirrors = mirrors_of(tmp_path, TP, OTHER)
    mirrors[TP].replica.source_leader = 2

    async def ends(client: Any, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        if TP in wanted:
            raise ConnectionLost("broker 2 is away")
        return {tp: ListedOffset(1, -1, 2) for tp in wanted}

    monkeypatch.setattr(link_source, "list_offsets", ends)
    assert await source.are_complete([TP, OTHER]) == []
    mirrors[OTHER].stored.clock.advance_ms(link_source.QUIET_MS)
    assert await source.are_complete([TP, OTHER]) == [OTHER]
    assert mirrors[TP].replica.error == "broker 2 is away"
    await source.client.close()


@pytest.mark.parametrize("start", ["latest", "1700000000000"])
async def test_source_that_does_not_say_where_a_mirror_begins_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """An error has no offset, just as a time after all records has none: but in that case the mirror begins at the end."""
    source = source_of(FOUND)
    source._start, source._is_adopted = start, lambda topic: False
    (tmp_path / "log").mkdir()
    mirror = Mirror(tmp_path / "log")
    source.replicas[TP] = mirror.replica
    source._beginning.add(TP)
    answers = [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE]

    async def listed(client: Any, wanted: Any) -> dict[TopicPartition, ListedOffset]:
        code = answers.pop(0)
        return {TP: ListedOffset(-1 if code else 40, -1, 2, code)}

    monkeypatch.setattr(link_source, "list_offsets", listed)
    await source._begin_all(image_with(leader=-1))
    assert "no leader" in (mirror.replica.error or ""), "the client would look for one, and all would wait"
    await source._begin_all(image_with(leader=1))
    assert (mirror.partition.log_end, source._beginning) == (0, {TP})
    assert "TOPIC_AUTHORIZATION_FAILED" in (mirror.replica.error or "")
    await source._begin_all(image_with(leader=1))
    assert (mirror.partition.log_end, source._beginning) == (40, set())
    await source.client.close()


# -- topics


def link_with(**topics: MirrorState) -> Link:
    link = Link(
        "link",
        LinkSpec(configs={}, topics=".*", groups=".*"),
        cast(Any, SimpleNamespace(topic_configs=(), partitions_max=100)),
    )
    link.topics = {name: MirrorTopic(state=state) for name, state in topics.items()}
    return link


def steward_of(**parts: Any) -> Steward:
    controller: Any = SimpleNamespace(is_active=True)
    names = ("store", "metadata", "configs", "change_config", "group_turns")
    given = {name: parts.get(name) for name in names}
    return Steward(
        cast(Any, given["store"]),
        controller,
        cast(Any, given["metadata"]),
        cast(Any, given["configs"]),
        cast(Any, given["change_config"]),
        ProducerIdSpace(0),
        group_turns=cast(Any, given["group_turns"]),
    )


async def test_source_cannot_fill_the_cluster_with_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata does not have the topics yet that the same turn has made."""
    counts = {"old": 4}
    metadata = SimpleNamespace(partition_count=lambda name: counts.get(name, 0), topic=counts.get)
    created: list[str] = []

    async def create_topic(link: str, name: str, mirror: MirrorTopic) -> None:
        created.append(name)

    async def no_partitions(name: str) -> int:
        return 0

    steward = steward_of(
        metadata=metadata, store=SimpleNamespace(create_topic=create_topic, partition_count=no_partitions)
    )
    link = link_with(old=MirrorState.MIRRORING)
    link.settings = cast(Any, SimpleNamespace(topic_configs=(), partitions_max=10))
    link.source = cast(Any, SimpleNamespace(client=SimpleNamespace()))

    def partitions(count: int) -> tuple[PartitionInfo, ...]:
        return tuple(PartitionInfo(index, 1, 0, (1,), (1,)) for index in range(count))

    counted = {"a": 3, "b": 3, "huge": 1_000_000, "old": 5}
    topics = {name: TopicInfo(name, bytes(16), False, partitions(min(count, 50))) for name, count in counted.items()}

    async def refresh(names: None) -> ClusterImage:
        return ClusterImage(brokers={}, cluster_id="c", controller_id=1, topics=topics)

    async def nothing(*given: Any) -> Any:
        return {}, []

    followed: list[str] = []

    async def make(link: Link, info: TopicInfo, settings: Any) -> None:
        followed.append(info.name)

    async def grow(info: TopicInfo) -> None:
        followed.append(info.name)

    link.source.client.refresh = refresh  # type: ignore[union-attr, method-assign, assignment]
    monkeypatch.setattr(steward, "_settings_of", nothing)
    monkeypatch.setattr(steward, "_create", make)
    monkeypatch.setattr(steward, "_grow", grow)
    with pytest.raises(
        Refused, match=r"huge: it has 50 partitions at the source.*link\.partitions\.max=10; old: it has 5"
    ):
        await steward.turn(link)
    assert (created, followed) == (["a", "b"], ["a", "b"])


async def test_topic_whose_promotion_is_refused_keeps_no_other_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    steward = steward_of()
    link = link_with(a=MirrorState.PROMOTING, b=MirrorState.PROMOTING)
    promoted: list[str] = []

    async def complete(link: Link, name: str) -> None:
        if name == "a":
            raise Refused(ErrorCode.POLICY_VIOLATION, "not this one")
        promoted.append(name)

    monkeypatch.setattr(steward, "_complete_promotion", complete)
    with pytest.raises(Refused, match="a: not this one"):
        await steward.complete_promotions(link)
    assert promoted == ["b"]


async def test_topic_that_cannot_restart_does_not_keep_other_topics_from_being_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steward = steward_of(metadata=SimpleNamespace(partition_count=lambda name: 1))
    link = link_with(a=MirrorState.MIRRORING)

    async def refresh(topics: None) -> Any:
        info = {"error": ErrorCode.NONE, "partitions": (1,), "internal": False}
        return SimpleNamespace(topics={name: SimpleNamespace(name=name, **info) for name in ("a", "b")})

    async def begin_again(link: Link, info: Any) -> None:
        if info.name == "a":
            raise Refused(ErrorCode.TOPIC_DELETION_DISABLED, "topics cannot be deleted here")

    found: list[str] = []

    async def find(link: Link, info: Any) -> None:
        found.append(info.name)

    async def settings_of(link: Link, names: list[str]) -> Any:
        return {}, []

    async def follow(link: Link, info: Any, settings: Any) -> None:
        raise Refused(ErrorCode.POLICY_VIOLATION, "not followed")

    link.source = cast(Any, SimpleNamespace(client=SimpleNamespace(refresh=refresh)))
    for name, work in (
        ("_begin_again", begin_again),
        ("_find", find),
        ("_settings_of", settings_of),
        ("_follow", follow),
    ):
        monkeypatch.setattr(steward, name, work)
    with pytest.raises(Refused, match="a: topics cannot be deleted here; a: not followed"):
        await steward.turn(link)
    assert found == ["b"]


async def test_broker_that_restarts_in_a_promotion_is_not_waited_for_as_long_as_it_ran_before() -> None:
    turns = {BrokerId(1): 90_000, BrokerId(2): 80_000}

    async def group_turns(link: str) -> Mapping[BrokerId, int]:
        return dict(turns)

    steward = steward_of(group_turns=group_turns)
    link = link_with(a=MirrorState.PROMOTING)
    assert not await steward._have_groups_come(link, "a")
    turns.update({BrokerId(1): 90_002, BrokerId(2): 1})
    assert not await steward._have_groups_come(link, "a"), "it has not begun and ended a turn since"
    turns[BrokerId(2)] = 3
    assert await steward._have_groups_come(link, "a")


async def test_promotion_that_is_refused_keeps_no_mirror_from_being_followed() -> None:
    manager = LinkManager.__new__(LinkManager)

    async def refused(link: Link) -> None:
        raise Refused(ErrorCode.POLICY_VIOLATION, "not this one")

    others: list[str] = []

    async def other(link: Link) -> None:
        others.append(link.name)

    manager.endings = [refused, other]
    refusal = await manager._end_promotions(link_with())
    assert refusal is not None
    assert refusal.code is ErrorCode.POLICY_VIOLATION
    assert others == ["link"]


# -- groups


class Coordinator:
    """Of two groups, one's partition cannot accept a commit."""

    def __init__(self) -> None:
        self.topic = SimpleNamespace(ensure=self._ensure, coordinator_of=lambda group: ME)
        self.here: dict[str, dict[TopicPartition, int]] = {"good": {}, "bad": {}}

    async def _ensure(self) -> bool:
        return True

    async def fetch_offsets(self, request: Any, *, require_stable: bool) -> OffsetFetchResponseGroup:
        if request.group_id == "bad":
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too few replicas")
        topics = [
            OffsetFetchResponseTopics(
                name=tp.topic,
                partitions=[OffsetFetchResponsePartitions(partition_index=tp.partition, committed_offset=offset)],
            )
            for tp, offset in self.here[request.group_id].items()
        ]
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def commit_offsets(self, request: Any, reply: Callable[..., None], *, api_version: int) -> None:
        for topic in request.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                self.here[request.group_id][tp] = part.committed_offset
        reply(SimpleNamespace(topics=[]), None)


class Groups:
    """Two groups of a source, and a copier of their offsets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = ["bad", "good"]
        self.offset = 5
        self.coordinator = Coordinator()

        async def listed(client: Any) -> list[GroupListing]:
            return [GroupListing(name, "consumer", "Empty", CLASSIC) for name in self.names]

        async def committed(client: Any, groups: Any, partitions: Any) -> Any:
            return {group: {TP: CommittedOffset(self.offset)} for group in groups}

        async def ends(link: str) -> Mapping[TopicPartition, int]:
            return {TP: 100}

        monkeypatch.setattr(link_groups, "list_groups", listed)
        monkeypatch.setattr(link_groups, "committed_offsets_of", committed)
        self.copier = GroupCopier(ME, cast(Any, self.coordinator), ends=ends, partition_count=lambda topic: 1)
        self.link = link_with(topic=MirrorState.MIRRORING)
        self.link.source = cast(Any, SimpleNamespace(client=None))

    def here(self) -> int:
        return self.coordinator.here["good"][TP]


async def test_group_whose_coordinator_is_not_available_keeps_no_other_from_being_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = Groups(monkeypatch)
    with pytest.raises(Refused, match="too few replicas"):
        await groups.copier.turn(groups.link)
    assert groups.here() == 5
    assert groups.link.group_turns == 0, "this was no turn: a promotion waits for the next"


async def test_group_that_has_gone_further_here_is_not_set_back_when_its_namesake_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = Groups(monkeypatch)
    groups.names = ["good"]
    await groups.copier.turn(groups.link)
    groups.coordinator.here["good"][TP] = 50
    groups.offset = 20
    await groups.copier.turn(groups.link)
    assert groups.here() == 50, "consumers here have read up to there"
    groups.offset = 10
    await groups.copier.turn(groups.link)
    assert groups.here() == 10, "it was set back at the source"
    groups.offset = 60
    await groups.copier.turn(groups.link)
    assert groups.here() == 60


# -- ACLs


class Acls:
    """The ACLs of this cluster; the list of one resource cannot be read."""

    def __init__(self) -> None:
        self.held: dict[ResourcePattern, frozenset[Entry]] = {}

    async def entries_of(self, pattern: ResourcePattern) -> frozenset[Entry]:
        return self.held.get(pattern, frozenset())

    async def add(self, pattern: ResourcePattern, entries: Iterable[Entry]) -> None:
        if pattern.name == "bad":
            raise AclUnreadable("bad cannot be read")
        self.held[pattern] = self.held.get(pattern, frozenset()) | frozenset(entries)

    async def remove(self, filters: Sequence[Filter]) -> list[Removed]:
        for pattern, entries in self.held.items():
            self.held[pattern] = frozenset(
                each for each in entries if not any(f.covers(pattern) and f.covers_entry(each) for f in filters)
            )
        return [Removed([], []) for _ in filters]


class Added:
    """The entries that links added, as ZooKeeper has them."""

    def __init__(self) -> None:
        self.acls: dict[ResourcePattern, frozenset[Entry]] = {}
        self.dies_after_writing = False

    async def added_acls(self, name: str) -> dict[ResourcePattern, frozenset[Entry]]:
        return dict(self.acls)

    async def write_added_acls(self, name: str, pattern: ResourcePattern, entries: frozenset[Entry]) -> None:
        self.acls[pattern] = entries
        if self.dies_after_writing:
            raise ConnectionLost("the controller dies here")


class AclStory:
    """A source whose ACLs a test changes, and a link that copies them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, topics: str = "topic", groups: str | None = None) -> None:
        self.there: dict[ClientPattern, list[Ace]] = {}
        self.here, self.added = Acls(), Added()
        self.link = link_with(topic=MirrorState.MIRRORING)
        self.link.spec = replace(self.link.spec, acls=True, topics=topics, groups=groups)
        self.link.source = cast(Any, SimpleNamespace(client=None))
        self.is_active = True
        self.take_office()

        async def described(client: Any) -> Any:
            return self.there

        monkeypatch.setattr(link_acls, "describe_acls", described)

    def take_office(self) -> None:
        """Continue as another controller, which has no state."""
        self.copier = AclCopier(cast(Any, lambda: self.here), cast(Any, self.added), is_active=lambda: self.is_active)

    async def turn(self) -> None:
        await self.copier.turn(self.link)

    def at_source(self, name: str, *operations: AclOperation, kind: AclResourceType = AclResourceType.TOPIC) -> None:
        self._at_source(ClientPattern(kind, name, PatternType.LITERAL), operations)

    def prefixed_at_source(self, name: str, *operations: AclOperation, kind: AclResourceType) -> None:
        self._at_source(ClientPattern(kind, name, PatternType.PREFIXED), operations)

    def _at_source(self, pattern: ClientPattern, operations: tuple[AclOperation, ...]) -> None:
        self.there[pattern] = [Ace("User:ann", "*", each, Permission.ALLOW) for each in operations]

    @property
    def operations(self) -> dict[str, set[int]]:
        return {pattern.name: {each.operation for each in held} for pattern, held in self.here.held.items() if held}


TOPIC = ResourcePattern(AclResourceType.TOPIC, "topic", PatternType.LITERAL)
OWN = Entry("User:ann", "*", AclOperation.READ, Permission.ALLOW)


async def test_entry_that_was_here_before_the_link_stays_when_the_source_drops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = AclStory(monkeypatch)
    story.here.held[TOPIC] = frozenset({OWN})
    story.at_source("topic", AclOperation.READ, AclOperation.WRITE)
    await story.turn()
    assert story.operations == {"topic": {AclOperation.READ, AclOperation.WRITE}}
    story.there.clear()
    await story.turn()
    assert story.here.held[TOPIC] == {OWN}


async def test_next_controller_removes_what_the_one_before_it_added(monkeypatch: pytest.MonkeyPatch) -> None:
    story = AclStory(monkeypatch)
    story.here.held[TOPIC] = frozenset({OWN})
    story.at_source("topic", AclOperation.READ, AclOperation.WRITE)
    await story.turn()
    story.take_office()
    story.there.clear()
    await story.turn()
    assert story.here.held[TOPIC] == {OWN}


async def test_controller_that_dies_before_it_adds_leaves_no_entry_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = AclStory(monkeypatch)
    story.at_source("topic", AclOperation.WRITE)
    story.added.dies_after_writing = True
    with pytest.raises(ConnectionLost):
        await story.turn()
    assert story.operations == {}
    story.added.dies_after_writing = False
    story.take_office()
    await story.turn()
    assert story.operations == {"topic": {AclOperation.WRITE}}
    story.there.clear()
    await story.turn()
    assert story.operations == {}


async def test_controller_that_was_out_of_office_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the other controller removed an entry, and then the source created it again."""
    story = AclStory(monkeypatch)
    story.at_source("topic", AclOperation.WRITE)
    await story.turn()
    story.is_active = False
    await story.turn()
    story.here.held.clear()
    story.added.acls.clear()
    story.is_active = True
    await story.turn()
    assert story.operations == {"topic": {AclOperation.WRITE}}


async def test_only_entries_about_mirrored_names_come_over(monkeypatch: pytest.MonkeyPatch) -> None:
    story = AclStory(monkeypatch, topics="topic|m-.*", groups="g-.*")
    operation = AclOperation.READ
    for name in ("topic", "m-unknown", "hidden", "*"):
        story.at_source(name, operation)
        story.prefixed_at_source(name, operation, kind=AclResourceType.TOPIC)
    story.prefixed_at_source("m-a", operation, kind=AclResourceType.TOPIC)
    story.prefixed_at_source("m", operation, kind=AclResourceType.TOPIC)
    for kind, names in ((AclResourceType.GROUP, ("g-1", "other", "*")), (AclResourceType.TRANSACTIONAL_ID, ("t", "*"))):
        for name in names:
            story.at_source(name, operation, kind=kind)
    story.prefixed_at_source("g-", operation, kind=AclResourceType.GROUP)
    story.prefixed_at_source("g", operation, kind=AclResourceType.GROUP)
    story.at_source("kafka-cluster", operation, kind=AclResourceType.CLUSTER)
    await story.turn()
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    assert set(story.here.held) == {
        ResourcePattern(AclResourceType.TOPIC, "topic", literal),
        ResourcePattern(AclResourceType.TOPIC, "m-unknown", prefixed),
        ResourcePattern(AclResourceType.TOPIC, "m-a", prefixed),
        ResourcePattern(AclResourceType.GROUP, "g-1", literal),
        ResourcePattern(AclResourceType.GROUP, "g-", prefixed),
    }


@pytest.mark.parametrize(
    "entry",
    [
        Ace("User:ann", "*", AclOperation.READ, Permission.ANY),
        Ace("User:ann", "*", AclOperation.READ, Permission.UNKNOWN),
        Ace("User:ann", "*", AclOperation.ANY, Permission.ALLOW),
        Ace("User:ann", "*", AclOperation.UNKNOWN, Permission.ALLOW),
        Ace("ann", "*", AclOperation.READ, Permission.ALLOW),
        Ace("", "*", AclOperation.READ, Permission.ALLOW),
    ],
)
async def test_entry_that_would_make_a_list_unreadable_does_not_come_over(
    monkeypatch: pytest.MonkeyPatch, entry: Ace
) -> None:
    """An unreadable list denies access to every client: the source must not be able to write one."""
    story = AclStory(monkeypatch)
    story.at_source("topic", AclOperation.WRITE)
    [entries] = story.there.values()
    entries.append(entry)
    story.at_source("", AclOperation.WRITE)
    await story.turn()
    assert story.operations == {"topic": {AclOperation.WRITE}}


@pytest.mark.parametrize("state", [MirrorState.STOPPED, MirrorState.PROMOTED])
async def test_topic_that_is_this_clusters_own_keeps_its_acls(
    monkeypatch: pytest.MonkeyPatch, state: MirrorState
) -> None:
    story = AclStory(monkeypatch, topics=".*")
    story.at_source("topic", AclOperation.READ)
    await story.turn()
    story.link.topics["topic"] = MirrorTopic(state=state)
    story.at_source("topic", AclOperation.WRITE)
    await story.turn()
    assert story.operations == {"topic": {AclOperation.READ}}


async def test_source_cannot_fill_zookeeper_with_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    story = AclStory(monkeypatch)
    story.at_source("topic", AclOperation.READ)
    [entries] = story.there.values()
    entries += [Ace(f"User:{number}", "*", AclOperation.READ, Permission.ALLOW) for number in range(10_000)]
    with pytest.raises(Refused, match="10001 ACL entries about mirrored names; a link copies at most 10000"):
        await story.turn()
    assert story.here.held == {} and story.added.acls == {}


async def test_resource_whose_acls_cannot_be_read_keeps_no_other_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In particular, entries that were revoked at the source are removed."""
    allow = [Ace("User:ann", "*", operation, Permission.ALLOW) for operation in (AclOperation.READ, AclOperation.WRITE)]
    newer = Ace("User:ann", "*", AclOperation(99), Permission.ALLOW)
    there = {name: [*allow, newer] for name in ("bad", "good")}

    async def described(client: Any) -> Any:
        return {
            ClientPattern(AclResourceType.TOPIC, name, PatternType.LITERAL): entries for name, entries in there.items()
        }

    monkeypatch.setattr(link_acls, "describe_acls", described)
    here, link = Acls(), link_with(bad=MirrorState.MIRRORING, good=MirrorState.MIRRORING)
    link.spec = replace(link.spec, acls=True)
    link.source = cast(Any, SimpleNamespace(client=None))
    copier = AclCopier(cast(Any, lambda: here), cast(Any, Added()), is_active=lambda: True)
    good = ResourcePattern(AclResourceType.TOPIC, "good", PatternType.LITERAL)
    with pytest.raises(Refused, match="bad cannot be read"):
        await copier.turn(link)
    assert {each.operation for each in here.held[good]} == {AclOperation.READ, AclOperation.WRITE}
    there["good"] = allow[:1]
    with pytest.raises(Refused, match="bad cannot be read"):
        await copier.turn(link)
    assert {each.operation for each in here.held[good]} == {AclOperation.READ}
