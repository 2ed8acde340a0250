"""Creates, changes and deletes links for the tools, on any broker. Changes are written to ZooKeeper, which all brokers read.

Owner: the event loop.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.broker.features.link.manager import LINKS_MAX, LinkManager
from barnabas.broker.features.link.settings import checked
from barnabas.broker.security.dynamic_secrets import DynamicSecrets
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec, MirrorState, MirrorTopic, is_link_name

#: Limit for all properties of a link together: a znode holds 1 MB.
_CONFIG_CHARACTERS_MAX: Final = 200_000


class LinkChanges:
    def __init__(
        self,
        manager: LinkManager,
        *,
        config_of: Callable[[str], LogConfig],
        secrets: Callable[[], DynamicSecrets],
        producer_id_floor: int,
    ) -> None:
        self._manager = manager
        self._store = manager.store
        self._config_of = config_of
        self._secrets = secrets
        self._producer_id_floor = producer_id_floor

    async def create(self, name: str, spec: LinkSpec, configs: Mapping[str, str]) -> None:
        """`configs` is plain text. :raises Refused: if the link is not valid."""
        if not is_link_name(name):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{name!r} is not valid as a link's name: use up to 100 letters, digits, dots, hyphens and underscores",
            )
        if not self._manager.is_enabled():
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                "cannot create a link until every broker of this cluster supports links: upgrade the others first",
            )
        if len(self._manager.links) >= LINKS_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"there are already {LINKS_MAX} links, which is the limit")
        if sum(len(key) + len(value) for key, value in configs.items()) > _CONFIG_CHARACTERS_MAX:
            raise Refused(
                ErrorCode.INVALID_CONFIG, f"the properties have more than {_CONFIG_CHARACTERS_MAX} characters"
            )
        try:
            checked(name, spec, configs)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
        protected = self._secrets().protect(configs, per_broker=True)
        await self._store.prepare()
        await self._manager.load()
        await self._store.raise_producer_ids(self._producer_id_floor)
        if not await self._store.create(name, replace(spec, configs=protected)):
            raise Refused(ErrorCode.DUPLICATE_RESOURCE, f"link {name} already exists")
        await self._manager.read(name)

    async def pause(self, name: str, topic: str | None, *, paused: bool) -> None:
        if topic is None:
            if not await self._store.change(name, lambda spec: replace(spec, paused=paused)):
                raise no_such_link(name)
            await self._manager.read(name)
            return
        wanted = MirrorState.PAUSED if paused else MirrorState.MIRRORING
        may_change = MirrorState.MIRRORING if paused else MirrorState.PAUSED

        def changed(mirror: MirrorTopic) -> MirrorTopic | None:
            if mirror.state is wanted:
                return mirror
            if mirror.state is MirrorState.STOPPED:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"{topic} has stopped: {mirror.reason}. If you delete the topic here, the link mirrors it again",
                )
            if mirror.state is not may_change:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{topic} is {mirror.state.value}")
            return replace(mirror, state=wanted, reason="")

        await self._require_topic(name, topic, await self._store.change_topic(name, topic, changed))

    async def promote(self, name: str, topic: str | None, *, now: bool) -> None:
        """Start a promotion: the leaders end their mirrors, then the controller makes the topics ordinary ones."""
        topics = await self._store.topics(name)
        if topic is not None:
            await self._require_topic(name, topic, topics.get(topic))
            names = [topic]
        else:
            if await self._store.spec(name) is None:
                raise no_such_link(name)
            names = [
                each
                for each, mirror in topics.items()
                if mirror.state is not MirrorState.STOPPED or (now and self._config_of(each).barnabas_link_name == name)
            ]
            if not names:
                raise Refused(ErrorCode.INVALID_REQUEST, f"the link {name} mirrors no topic yet")
        # An immediate promotion skips topics that do not exist here yet; a planned one waits for them.
        absent = {each for each in names if now and not await self._store.partition_count(each)}
        if topic in absent:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{topic} does not exist here yet: none of it has been copied")
        for each in (each for each in names if each not in absent):
            await self._store.change_topic(name, each, partial(_promoting, topic=each, now=now))
        if topic is None:
            # Pause after the topics have changed, or their mirrors would end and restart. Topics found later are not mirrored.
            await self._store.change(name, lambda spec: replace(spec, paused=True))
        await self._manager.read(name)

    async def _require_topic(self, name: str, topic: str, found: MirrorTopic | None) -> None:
        if found is None:
            if await self._store.spec(name) is None:
                raise no_such_link(name)
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the link {name} has no topic {topic}")

    async def delete(self, name: str) -> None:
        """:raises Refused: while the link still mirrors a topic."""
        topics = await self._store.topics(name)
        mirrors = sorted(topic for topic in topics if self._config_of(topic).barnabas_link_name == name)
        if mirrors:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{_some(mirrors)} still mirrored by the link {name}: promote or delete them first",
            )
        if not await self._store.delete(name):
            raise no_such_link(name)
        self._manager.forget(name)


def _promoting(mirror: MirrorTopic, *, topic: str, now: bool) -> MirrorTopic | None:
    if mirror.state is MirrorState.PROMOTED:
        return None
    if mirror.state is MirrorState.STOPPED and not now:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{topic} has stopped ({mirror.reason}): only promotion at once is possible"
        )
    if mirror.state is MirrorState.PROMOTING_NOW:
        return mirror
    return replace(mirror, state=MirrorState.PROMOTING_NOW if now else MirrorState.PROMOTING)


def no_such_link(name: str) -> Refused:
    return Refused(ErrorCode.RESOURCE_NOT_FOUND, f"there is no link {name}")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return f"{', '.join(listed[:5])}{more} {'is' if len(listed) == 1 else 'are'}"
