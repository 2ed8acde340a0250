"""The work that is needed once per link, on the controller: find and create topics, copy their settings.

Owner: the event loop. Each turn starts from the current state of the source, ZooKeeper and this cluster, so that after a
failure the next controller can continue.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from barnabas.base.config.catalog import TOPIC_SETTINGS
from barnabas.base.config.topic import LINK_NAME
from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import BrokerId, TopicId
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC, is_internal
from barnabas.base.words import ConfigResourceType, ConfigSource
from barnabas.broker.controller.driver import Controller
from barnabas.broker.controller.topics import MorePartitions, NewTopic
from barnabas.broker.features.link.manager import Link
from barnabas.broker.features.link.producer_ids import ProducerIdSpace
from barnabas.broker.features.link.settings import PARTITIONS_MAX, matching
from barnabas.broker.features.link.store import LinkStore
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ChangeConfig, ConfigStore
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.znodes_link import MirrorState, MirrorTopic
from barnabas.client.admin.configs import Resource, describe_configs
from barnabas.client.errors import BrokerRefused
from barnabas.client.image import TopicInfo

log = logging.getLogger(__name__)

#: Topics in one request for settings.
_CONFIGS_AT_ONCE: Final = 200
_TIMEOUT_MS: Final = 30_000


@dataclass(slots=True)
class _Room:
    """The partitions that a turn may still give to the mirrors of a link."""

    left: int
    #: The partitions of topics that this turn has begun to make.
    taken: dict[str, int] = field(default_factory=dict)


class Steward:
    def __init__(
        self,
        store: LinkStore,
        controller: Controller,
        metadata: MetadataCache,
        configs: ConfigStore,
        change_config: ChangeConfig,
        producer_ids: ProducerIdSpace,
        *,
        group_turns: Callable[[str], Awaitable[Mapping[BrokerId, int]]],
    ) -> None:
        """`group_turns`: returns how often each live broker has looked at the offsets of a link's groups."""
        self._store = store
        self._controller = controller
        self._metadata = metadata
        self._configs = configs
        self._change_config = change_config
        self._producer_ids = producer_ids
        self._group_turns = group_turns
        #: For topics whose mirrors have ended: the group turns of each broker at that time.
        self._turns_at_end: dict[tuple[str, str], Mapping[BrokerId, int]] = {}
        #: Topics that had every partition of the source at some time since their promotion began.
        self._whole: set[tuple[str, str]] = set()
        self._rooms: dict[str, _Room] = {}

    async def turn(self, link: Link) -> None:
        if not self._controller.is_active or link.source is None or link.settings is None:
            return
        # Planned promotions too: otherwise a topic that does not exist yet, or lacks a partition, would end incomplete.
        ending = [name for name, mirror in link.topics.items() if mirror.state is MirrorState.PROMOTING]
        self._whole = {each for each in self._whole if each[0] != link.name or each[1] in ending}
        if not link.runs and not ending:
            return
        image = await link.source.client.refresh(None)
        readable = {
            name: info for name, info in image.topics.items() if info.error is ErrorCode.NONE and info.partitions
        }
        names = matching(link.spec.topics, sorted(n for n, info in readable.items() if not _is_kafkas_own(info)))
        problems: list[str] = []
        mirrors = [name for name, each in link.topics.items() if each.state is not MirrorState.STOPPED]
        self._rooms[link.name] = _Room(link.settings.partitions_max - sum(map(self._metadata.partition_count, mirrors)))
        for name in names if link.runs else ():
            with _what_is_wrong(name, problems):
                await self._begin_again(link, readable[name])
                if name not in link.topics:
                    self._require_room(link, readable[name])
                    await self._find(link, readable[name])
        mirrored = [name for name in names if link.topics.get(name, _NONE).state is MirrorState.MIRRORING]
        mirrored = [*(mirrored if link.runs else ()), *(name for name in ending if name in readable)]
        settings, refused_names = await self._settings_of(link, mirrored)
        problems += refused_names
        for name in mirrored:
            with _what_is_wrong(name, problems):
                await self._follow(link, readable[name], settings.get(name))
                if self._metadata.partition_count(name) >= len(readable[name].partitions):
                    self._whole.add((link.name, name))
        if problems:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(problems[:5]))

    def _require_room(self, link: Link, info: TopicInfo) -> None:
        """Check that the mirrors do not get too many partitions: a source must not fill this cluster."""
        assert link.settings is not None
        room = self._rooms[link.name]
        has = max(self._metadata.partition_count(info.name), room.taken.get(info.name, 0))
        more = len(info.partitions) - has
        if more > room.left:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"it has {len(info.partitions)} partitions at the source: with them the link's mirrors would have more than "
                f"{PARTITIONS_MAX}={link.settings.partitions_max}",
            )
        room.left -= more
        room.taken[info.name] = len(info.partitions)

    async def _partition_count(self, name: str) -> int:
        """Return the number of partitions; 0 if this cluster has no such topic. A broker's metadata may be empty after its
        start."""
        return self._metadata.partition_count(name) or await self._store.partition_count(name)

    async def _begin_again(self, link: Link, info: TopicInfo) -> None:
        """Mirror a topic again from the beginning: if it had stopped and an operator deleted it here, or if it was recreated at
        the source and the link's settings allow it; in that case this deletes it here, too."""
        mirror = link.topics.get(info.name)
        if mirror is None:
            return
        is_there = await self._partition_count(info.name) > 0
        is_another = bytes(16) not in (mirror.source_id, info.topic_id) and mirror.source_id != info.topic_id
        if is_another and link.spec.restart_recreated and mirror.state is MirrorState.MIRRORING and is_there:
            log.warning("[link %s] %s was recreated at the source; deleting it here", link.name, info.name)
            failure = (await self._controller.delete_topics([info.name], timeout_ms=_TIMEOUT_MS))[info.name]
            if failure is not None:
                raise Refused(failure.code, failure.message)
        elif not is_there and (mirror.state is MirrorState.STOPPED or is_another):
            await self._store.forget_topic(link.name, info.name)
            link.topics.pop(info.name, None)

    async def _find(self, link: Link, info: TopicInfo) -> None:
        """Add a matching topic that is new to the link. Its znode is written before the topic is created."""
        mirror = MirrorTopic(source_id=TopicId(info.topic_id))
        if await self._partition_count(info.name):
            own = await self._configs.read(paths.TOPICS, info.name)
            if link.spec.adopt and own.get(LINK_NAME) in (None, link.name):
                mirror = replace(mirror, adopted=True)
            elif own.get(LINK_NAME) != link.name:
                reason = "this cluster already has a topic of that name, which is not a mirror"
                mirror = MirrorTopic(state=MirrorState.STOPPED, reason=reason, source_id=mirror.source_id)
        log.info("[link %s] found %s at the source: %s", link.name, info.name, mirror.reason or "mirroring it")
        await self._store.create_topic(link.name, info.name, mirror)
        link.topics[info.name] = mirror

    async def _follow(self, link: Link, info: TopicInfo, settings: Mapping[str, str] | None) -> None:
        """Follow changes of a topic. `settings` is None if the source refuses to show them: the mirror's settings stay."""
        if link.topics[info.name].source_id not in (bytes(16), info.topic_id):
            return  # a recreated topic; the leaders report it
        if self._metadata.partition_count(info.name) < len(info.partitions):
            self._require_room(link, info)
        if self._metadata.topic(info.name) is None:
            await self._create(link, info, settings or {})
            return
        if link.topics[info.name].adopted:
            await self._adopt(link, info.name)
        if self._metadata.partition_count(info.name) < len(info.partitions):
            await self._grow(info)
        if settings is not None:
            await self._set(link, info.name, settings)

    async def _adopt(self, link: Link, name: str) -> None:
        """Make an ordinary topic a mirror. From now on clients cannot write to it: then its leaders truncate it."""

        def adopted(settings: Mapping[str, str]) -> Mapping[str, str] | None:
            if LINK_NAME in settings:
                return None
            log.warning(
                "[link %s] %s becomes a mirror of its former mirror: clients can no longer write", link.name, name
            )
            return {**settings, LINK_NAME: link.name}

        await self._change_config(paths.TOPICS, name, adopted)

    async def _create(self, link: Link, info: TopicInfo, settings: Mapping[str, str]) -> None:
        assert link.settings is not None
        new = NewTopic(
            info.name,
            len(info.partitions),
            link.settings.replication_factor,
            configs={**settings, LINK_NAME: link.name},
        )
        created = (await self._controller.create_topics([new], timeout_ms=_TIMEOUT_MS))[info.name]
        if created.failure is not None and created.failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise Refused(created.failure.code, created.failure.message)

    async def _grow(self, info: TopicInfo) -> None:
        wanted = MorePartitions(info.name, len(info.partitions))
        failure = (await self._controller.create_partitions([wanted], timeout_ms=_TIMEOUT_MS))[info.name]
        if failure is not None:
            raise Refused(failure.code, failure.message)
        log.info("[link] %s now has %d partitions, as at the source", info.name, len(info.partitions))

    # -- promotion ----------------------------------------------------------------------------------------------------

    async def complete_promotions(self, link: Link) -> None:
        if not self._controller.is_active:
            return
        problems: list[str] = []
        for name, mirror in list(link.topics.items()):
            if mirror.state.is_promoting:
                with _what_is_wrong(name, problems):
                    await self._complete_promotion(link, name)
        if problems:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(problems[:5]))

    async def _complete_promotion(self, link: Link, name: str) -> None:
        """Make the topic an ordinary one when every partition has ended."""
        count = await self._store.partition_count(name)
        is_planned = link.topics[name].state is MirrorState.PROMOTING
        if count == 0 or (is_planned and (link.name, name) not in self._whole):
            return
        settings = await self._configs.read(paths.TOPICS, name)
        if settings.get(LINK_NAME) == link.name:
            ended = await self._store.partitions(link.name, name, count)
            if not all(each.is_done for each in ended):
                return
            if link.spec.groups is not None and is_planned and not await self._have_groups_come(link, name):
                return
            seen = max((each.producer_id_max for each in ended), default=-1)
            await self._store.raise_producer_ids(self._producer_ids.first_free(seen))
            await self._change_config(
                paths.TOPICS, name, lambda found: {key: found[key] for key in found if key != LINK_NAME}
            )
        log.info("[link %s] %s is promoted: clients may write to it", link.name, name)
        changed = await self._store.change_topic(
            link.name, name, lambda mirror: replace(mirror, state=MirrorState.PROMOTED, reason="")
        )
        if changed is not None:
            link.topics[name] = changed

    async def _have_groups_come(self, link: Link, name: str) -> bool:
        """Whether every broker has completed a whole turn of copying groups since the topic's mirrors ended."""
        now = await self._group_turns(link.name)
        then = self._turns_at_end.get((link.name, name), now)
        # A broker with a lower count than then has restarted.
        then = self._turns_at_end[link.name, name] = {
            broker: min(turns, then.get(broker, 0)) for broker, turns in now.items()
        }
        if any(turns < then[broker] + 2 for broker, turns in now.items()):
            return False
        del self._turns_at_end[link.name, name]
        return True

    # -- settings -----------------------------------------------------------------------------------------------------

    async def _settings_of(self, link: Link, names: list[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
        """Return the settings of the source's topics that mirrors copy, and errors for topics whose settings the source refuses
        to show: that needs the right DESCRIBE_CONFIGS, but mirroring records does not."""
        assert link.settings is not None
        assert link.source is not None
        wanted = frozenset(link.settings.topic_configs) & TOPIC_SETTINGS.keys()
        found: dict[str, dict[str, str]] = {}
        refused: dict[Resource, BrokerRefused] = {}
        for some in _slices(names, _CONFIGS_AT_ONCE):
            resources = [(ConfigResourceType.TOPIC, name) for name in some]
            described = await describe_configs(link.source.client, resources, refused=refused)
            for (_, name), entries in described.items():
                found[name] = {
                    entry.name: entry.value
                    for entry in entries
                    if entry.name in wanted
                    and entry.value is not None
                    and entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
                }
        refused_names = [
            f"{name}: the source refuses to show its settings: {error}" for (_, name), error in refused.items()
        ]
        return found, refused_names

    async def _set(self, link: Link, name: str, settings: Mapping[str, str]) -> None:
        """Set the copied settings to the source's; the others stay this cluster's own."""
        assert link.settings is not None
        followed = frozenset(link.settings.topic_configs)

        def followed_by(before: Mapping[str, str]) -> Mapping[str, str] | None:
            after = {key: value for key, value in before.items() if key not in followed} | dict(settings)
            if before.get(LINK_NAME) != link.name or after == before:
                return None
            log.info("[link %s] settings of %s changed at the source", link.name, name)
            return after

        await self._change_config(paths.TOPICS, name, followed_by)


@contextmanager
def _what_is_wrong(topic: str, problems: list[str]) -> Iterator[None]:
    """Collect an error of one topic, so that it does not affect the others."""
    try:
        yield
    except Refused as error:
        problems.append(f"{topic}: {error.message or error.code.name}")
    except Malformed as error:
        problems.append(f"{topic}: {error}")


_NONE: Final = MirrorTopic(state=MirrorState.STOPPED)


def _is_kafkas_own(info: TopicInfo) -> bool:
    """Whether the topic is internal, or describes the source's own files, such as its tier."""
    return info.internal or is_internal(info.name) or info.name == REMOTE_LOG_METADATA_TOPIC


def _slices(names: list[str], size: int) -> Iterable[list[str]]:
    return (names[at : at + size] for at in range(0, len(names), size))
