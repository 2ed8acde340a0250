"""The links of a cluster on one broker: their specs, the mirror partitions that this broker leads, and a task for each link.

Owner: the event loop. ZooKeeper stores the links. Every broker reads them, and reads a link again when a notification says that
it changed. A topic is a mirror if its setting `barnabas.link.name` names a link: the setting exists before the topic does, and
every broker reads it before it leads, so that no client ever writes to a mirror. The leaders fetch from the source; the
controller does the work that is needed once per link (`features.link.steward`). Without links there is only one watch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from barnabas.base.backoff import Backoff
from barnabas.base.clock import Clock
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BarnabasError, BrokenInvariant, ConfigError, Malformed, Refused
from barnabas.base.ids import ZERO_TOPIC_ID, LeaderEpoch, TopicId, TopicPartition
from barnabas.broker.features.link.replica import MirrorReplica
from barnabas.broker.features.link.settings import LinkSettings, checked
from barnabas.broker.features.link.source import MirrorSource
from barnabas.broker.features.link.store import LinkStore
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.security.dynamic_secrets import DynamicSecrets
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.notifications import ChangeNotifications, ReloadOnReturn
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost, SessionExpired, ZkError
from barnabas.broker.zookeeper_client.znodes_link import (
    LinkChange,
    LinkSpec,
    MirrorPartition,
    MirrorState,
    MirrorTopic,
)
from barnabas.client.errors import BrokerRefused, ClientError

log = logging.getLogger(__name__)

#: Retry delay after a failure; it doubles up to the maximum below, and is shortened at random by up to a half.
_BACKOFF_S: Final = 0.4
_BACKOFF_MAX_S: Final = 5.0
RECREATED: Final = (
    "the topic was deleted and created again at the source, with other records: delete the topic here, too"
)
#: Limit of links in a cluster: each costs a client on each broker.
LINKS_MAX: Final = 100

#: Work in a link's turn that only some brokers do: the controller, the group coordinators.
Turn = Callable[["Link"], Awaitable[None]]


@dataclass(slots=True)
class Link:
    """One link, as this broker sees it."""

    name: str
    spec: LinkSpec
    #: None if the spec is not valid; `error` has the reason.
    settings: LinkSettings | None
    error: str | None = None
    topics: dict[str, MirrorTopic] = field(default_factory=dict)
    source: MirrorSource | None = None
    task: "asyncio.Task[None] | None" = None
    #: Groups that this broker coordinates and that have the same offsets here as at the source.
    groups_copied: int = 0
    #: How often this broker has looked at the offsets of its groups.
    group_turns: int = 0
    #: When the steward and the groups last had their turn, by the monotonic clock.
    turned_s: float = float("-inf")
    #: The error of the last turn of the steward, or of the groups.
    turn_error: str | None = None

    @property
    def runs(self) -> bool:
        return self.settings is not None and not self.spec.paused

    def trouble(self) -> str | None:
        of_source = self.source.error if self.source is not None else None
        return self.error or of_source or self.turn_error


class LinkManager:
    def __init__(
        self,
        session: ZooKeeperSession,
        replicas: ReplicaManager,
        *,
        config_of: Callable[[str], LogConfig],
        secrets: Callable[[], DynamicSecrets],
        renew_epoch: Callable[[TopicPartition, LeaderEpoch], Awaitable[None]],
        is_enabled: Callable[[], bool],
        producer_id_floor: int,
        skip_producer_ids: Callable[[int], None],
        clock: Clock,
        spawn: Spawn,
        chance: Random,
    ) -> None:
        """`is_enabled`: every broker of the cluster supports links. `producer_id_floor`: where the ids of this cluster begin
        once it has a link, so that they differ from ids in mirrored records; `skip_producer_ids` drops lower ids."""
        self.store = LinkStore(session)
        self._replicas = replicas
        self._config_of = config_of
        self._secrets = secrets
        self._renew_epoch = renew_epoch
        self.is_enabled = is_enabled
        self._clock = clock
        self._spawn = spawn
        self._chance = chance
        self._producer_id_floor = producer_id_floor
        self._skip_producer_ids = skip_producer_ids
        self.links: dict[str, Link] = {}
        self._notifications = ChangeNotifications(
            session, paths.LINK_CHANGES, paths.LINK_CHANGE_PREFIX, self._on_notification, clock
        )
        self._reload = ReloadOnReturn(session, self.load, "links")
        self._loading = asyncio.Lock()
        self._is_listening = False
        #: Work of each turn of a link's task, in order. `endings` come first: they end mirrors and need no source.
        self.endings: list[Turn] = []
        self.turns: list[Turn] = []
        self._is_stopped = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._try_to_load()
        self._spawn(self._reload.run(), "links after an absence")

    async def load(self) -> None:
        """Load all links. Before the first link exists, the only trace is a watch: the tree in ZooKeeper is Kafka's."""
        async with self._loading:
            if not await self.store.is_prepared(self._appeared):
                return
            if not self._is_listening:
                await self._notifications.start()
                self._is_listening = True
                self._spawn(self._notifications.run(), "link changes")
            names = await self.store.names()
            for name in self.links.keys() - set(names):
                self.forget(name)
            for name in names[:LINKS_MAX]:
                await self.read(name)

    def _appeared(self, path: str) -> None:
        if not self._is_listening and not self._is_stopped:
            self._spawn(self._try_to_load(), "first link")

    async def _try_to_load(self) -> None:
        try:
            await self.load()
        except (ConnectionLost, SessionExpired) as error:
            log.info("[links] cannot load the links, will retry with the next ZooKeeper session: %s", error)

    def stop(self) -> None:
        """Stop writing to mirrors before this returns. The broker cancels the tasks."""
        self._is_stopped = True
        for link in self.links.values():
            if link.source is not None:
                link.source.fetchers.stop()

    # -- changes in ZooKeeper -------------------------------------------------------------------------------------------

    async def _on_notification(self, data: bytes) -> None:
        change = LinkChange.decode(paths.LINK_CHANGES, data)
        link = self.links.get(change.link)
        if change.topic is None or link is None:
            await self.read(change.link)
            return
        mirror = await self.store.topic(change.link, change.topic)
        if mirror is None:
            link.topics.pop(change.topic, None)
        else:
            link.topics[change.topic] = mirror
        self._look_at_topic(change.topic)
        self._wake(link)

    async def read(self, name: str) -> None:
        try:
            spec = await self.store.spec(name)
        except Malformed as error:
            log.error("[link %s] its znode is damaged; delete and create the link again: %s", name, error)
            known = self.links.get(name)
            if known is not None:
                known.error = str(error)
            return
        if spec is None:
            self.forget(name)
            return
        topics = await self.store.topics(name)
        self._on_link()
        known = self.links.get(name)
        if known is None or known.spec.configs != spec.configs or known.spec.start != spec.start:
            self.forget(name)
            known = self.links[name] = self._new_link(name, spec)
        known.spec, known.topics = spec, topics
        self._look_at_all(known)
        self._wake(known)

    def _on_link(self) -> None:
        self._skip_producer_ids(self._producer_id_floor)

    def _new_link(self, name: str, spec: LinkSpec) -> Link:
        try:
            configs, ignored = self._secrets().reveal(spec.configs)
            if ignored:
                raise ConfigError("; ".join(ignored))
            settings = checked(name, spec, configs)
        except ConfigError as error:
            log.error("[link %s] not started, correct its properties: %s", name, error)
            return Link(name, spec, None, str(error))
        link = Link(name, spec, settings)
        try:
            link.source = self._new_source(link, settings)
        except BarnabasError as error:  # from the TLS or SASL settings
            log.error("[link %s] not started, correct its properties: %s", name, error)
            link.error, link.settings = str(error), None
        else:
            link.task = self._spawn(self._run(link, link.source), f"link {name}")
        return link

    def _new_source(self, link: Link, settings: LinkSettings) -> MirrorSource:
        def make_replica(tp: TopicPartition, known: MirrorPartition) -> MirrorReplica | None:
            partition = self._replicas.hosted.get(tp)
            if partition is None or not self._is_wanted(link, partition):
                return None
            return MirrorReplica(
                partition, known, self._replicas.hosted, renew_epoch=self._renew_epoch, clock=self._clock
            )

        async def on_recreated(topic: str) -> None:
            if not link.spec.restart_recreated:  # else the steward recreates it here, too
                await self.stop_topic(link.name, topic, RECREATED)

        def source_id(topic: str) -> TopicId:
            mirror = link.topics.get(topic)
            return ZERO_TOPIC_ID if mirror is None else mirror.source_id

        def leadership(tp: TopicPartition) -> int:
            partition = self._replicas.hosted.get(tp)
            return -1 if partition is None else partition.machine.leaderships

        def is_adopted(topic: str) -> bool:
            mirror = link.topics.get(topic)
            return mirror is not None and mirror.adopted

        return MirrorSource(
            link.name,
            settings,
            link.spec.start,
            self.store,
            make_replica=make_replica,
            leadership=leadership,
            source_id=source_id,
            is_adopted=is_adopted,
            on_recreated=on_recreated,
            clock=self._clock,
            spawn=self._spawn,
            chance=self._chance,
        )

    def forget(self, name: str) -> None:
        link = self.links.pop(name, None)
        if link is not None and link.task is not None:
            link.task.cancel()

    async def stop_topic(self, link: str, topic: str, reason: str) -> None:
        """Stop mirroring a topic because of an error that an operator has to look at."""

        def stopped(mirror: MirrorTopic) -> MirrorTopic | None:
            if mirror.state not in (MirrorState.MIRRORING, MirrorState.PROMOTING):
                return None
            log.error("[link %s] no longer mirroring %s: %s", link, topic, reason)
            return replace(mirror, state=MirrorState.STOPPED, reason=reason)

        await self.store.change_topic(link, topic, stopped)

    # -- choice of partitions -------------------------------------------------------------------------------------------

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        if not self.links:
            return
        for partition in (*led, *followed):
            self._look_at(partition)

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        if self.links and topic:
            self._look_at_topic(topic)

    def features_changed(self) -> None:
        for link in self.links.values():
            self._look_at_all(link)

    def _look_at_all(self, link: Link) -> None:
        for partition in list(self._replicas):
            if self._config_of(partition.tp.topic).barnabas_link_name == link.name:
                self._look_at(partition)

    def _look_at_topic(self, topic: str) -> None:
        for partition in list(self._replicas):
            if partition.tp.topic == topic:
                self._look_at(partition)

    def _look_at(self, partition: Partition) -> None:
        """Start or stop fetching a partition, according to the current state."""
        tp = partition.tp
        for link in self.links.values():
            if link.source is None:
                continue
            if self._is_wanted(link, partition):
                link.source.add(tp)
                if (replica := link.source.replicas.get(tp)) is not None:
                    replica.partition_changed.set()
            else:
                link.source.remove(tp)

    def _is_wanted(self, link: Link, partition: Partition) -> bool:
        topic = partition.tp.topic
        if (
            self._is_stopped
            or link.settings is None
            or not partition.is_leader
            or partition.log is None
            or self._config_of(topic).barnabas_link_name != link.name
            or not self.is_enabled()
        ):
            return False
        mirror = link.topics.get(topic)
        if mirror is None:
            return False
        return mirror.state.is_promoting or (mirror.state is MirrorState.MIRRORING and not link.spec.paused)

    def link_of(self, topic: str) -> str | None:
        """The link that mirrors a topic. A broker without a replica of the topic may not know its setting, but knows the links.

        None for a mirror that has stopped: it does not accept records, but it can be deleted.
        """
        for link in self.links.values():
            mirror = link.topics.get(topic)
            if mirror is not None and mirror.state not in (MirrorState.PROMOTED, MirrorState.STOPPED):
                return link.name
        name = self._config_of(topic).barnabas_link_name
        is_stopped = name in self.links and topic in self.links[name].topics
        return None if is_stopped else name or None

    # -- the task of a link ---------------------------------------------------------------------------------------------

    def _wake(self, link: Link) -> None:
        if link.source is not None:
            link.source.link_changed.set()
            link.source.look()

    async def _run(self, link: Link, source: MirrorSource) -> None:
        """Run until the link is forgotten. Errors are retried, and do not affect other links."""
        is_changed = True
        backoff = Backoff(_BACKOFF_S, _BACKOFF_MAX_S, lambda: 1 - self._chance.random() / 2)
        try:
            while True:
                pause_s = 0.0
                is_changed = is_changed or source.link_changed.is_set()
                source.link_changed.clear()
                try:
                    await self._end_mirrors(link, source)
                    refusal = await self._end_promotions(link)
                    await source.assign()
                    await self._take_turns(link, source, is_changed=is_changed)
                    if refusal is not None:
                        raise refusal
                    backoff.succeeded()
                    is_changed = False
                except (ClientError, ZkError, Refused, OSError) as error:
                    pause_s = backoff.failed()
                    source.error = str(error)
                    source.errors += 1
                    if backoff.failures == 1:
                        log.warning("[link %s] will retry: %s", link.name, error)
                except BrokenInvariant:
                    raise
                except Exception as error:
                    pause_s = backoff.failed()
                    source.error = repr(error)
                    log.exception("[link %s] failed, will retry", link.name)
                if pause_s:
                    await source.back_off(pause_s)
                else:
                    await source.wait(is_urgent=any(each.state.is_promoting for each in link.topics.values()))
        finally:
            await source.close()

    async def _end_mirrors(self, link: Link, source: MirrorSource) -> None:
        """End mirrors that are being promoted: immediately (without the source), or when they have all of the source's
        records."""
        promoting = {name: each.state for name, each in link.topics.items() if each.state.is_promoting}
        if not promoting:
            return
        await source.load()
        at_once: list[TopicPartition] = []
        planned: list[TopicPartition] = []
        waiting: list[TopicPartition] = []
        for tp, replica in source.replicas.items():
            if replica is None or tp.topic not in promoting or not replica.leads:
                continue
            if promoting[tp.topic] is not MirrorState.PROMOTING:
                at_once.append(tp)
            else:
                (waiting if replica.recorded.final_offset is None else planned).append(tp)
        await source.finish(at_once, self._replicas, is_planned=False)
        await source.finish([*planned, *await source.are_complete(waiting)], self._replicas, is_planned=True)

    async def _end_promotions(self, link: Link) -> Refused | None:
        """Return a refusal, if there was one; it does not stop the other mirrors."""
        refusal: Refused | None = None
        for ending in self.endings:
            try:
                await ending(link)
            except Refused as error:
                refusal = error
        return refusal

    async def _take_turns(self, link: Link, source: MirrorSource, *, is_changed: bool) -> None:
        """Take turns at an interval, when the link changes, and during promotions. Leadership changes at the source do not
        trigger a turn, because a turn asks the source for everything."""
        now_s = self._clock.monotonic_s()
        is_due = now_s - link.turned_s >= source.settings.refresh_interval_ms / 1000
        is_promoting = any(each.state.is_promoting for each in link.topics.values())
        if not (is_due or is_promoting or is_changed):
            return
        link.turned_s = now_s
        if not self.is_enabled():
            link.turn_error = "mirrors nothing until every broker of the cluster supports links: upgrade the others"
            return
        link.turn_error = None
        for turn in self.turns:
            try:
                await turn(link)
            except Refused as error:
                link.turn_error = error.message or error.code.name
            except BrokerRefused as error:
                # The source refused. Other work of the link continues.
                link.turn_error = f"the source refuses: {error}"
