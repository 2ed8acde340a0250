"""The links of a cluster on one broker: what they are, which mirror partitions are led here, and one task for each link.

Owner: the event loop. A link is in ZooKeeper. Every broker reads it, and again when a notification says that it changed. A
topic is a mirror if its setting `barnabas.link.name` says so: the setting is there before the topic is, and every broker reads
it before it leads, so that nobody else ever writes to a mirror. Its leaders fetch from the source, the controller does what is
done once for the whole link (`features.link.steward`). Without links there is one watch, and nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

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

#: After a failure, until it is tried again; it doubles up to the second, and each is shortened at random by up to a half.
_BACKOFF_S: Final = 0.2
_BACKOFF_MAX_S: Final = 5.0
RECREATED: Final = "the topic was deleted and created again at the source; its records are others now"
#: Links of a cluster: each costs a client on each broker.
LINKS_MAX: Final = 100

#: A turn of the part that only some brokers have: the controller's, the group coordinators'.
Turn = Callable[["Link"], Awaitable[None]]


@dataclass(slots=True)
class Link:
    """One link, as this broker knows it."""

    name: str
    spec: LinkSpec
    #: None: `error` says what is wrong with the spec.
    settings: LinkSettings | None
    error: str | None = None
    topics: dict[str, MirrorTopic] = field(default_factory=dict)
    source: MirrorSource | None = None
    task: "asyncio.Task[None] | None" = None
    #: Groups that stand here where they stand at the source, of those that this broker coordinates.
    groups_copied: int = 0
    #: How often their offsets have been looked at.
    group_turns: int = 0
    #: When the steward and the groups last had their turn, by a clock that does not go back.
    turned_s: float = float("-inf")
    #: What the last turn of the steward, or of the groups, met.
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
        """`is_enabled`: every broker of the cluster knows links. `producer_id_floor`: where the ids of this cluster begin once
        it has a link, so that they are not those of records from elsewhere; `skip_producer_ids` drops those that are lower."""
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
        #: What is done in each turn of a link's task, in order. First what ends mirrors, which needs no source.
        self.endings: list[Turn] = []
        self.turns: list[Turn] = []
        self._is_stopped = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._try_to_load()
        self._spawn(self._reload.run(), "links after an absence")

    async def load(self) -> None:
        """Everything. Before there is a first link, all that there is is a watch: the tree in ZooKeeper is Kafka's."""
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
            log.info("links wait for ZooKeeper: %s", error)  # they are loaded with the next session

    def stop(self) -> None:
        """No mirror is written to any more once this returns. The tasks are the broker's."""
        self._is_stopped = True
        for link in self.links.values():
            if link.source is not None:
                link.source.fetchers.stop()

    # -- what ZooKeeper says --------------------------------------------------------------------------------------------

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
            log.error("the link %s cannot be read: %s", name, error)
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
            log.error("the link %s does nothing: %s", name, error)
            return Link(name, spec, None, str(error))
        link = Link(name, spec, settings)
        try:
            link.source = self._new_source(link, settings)
        except BarnabasError as error:  # of its TLS or SASL settings
            log.error("the link %s does nothing: %s", name, error)
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
            if not link.spec.restart_recreated:  # else the steward makes it anew here, too
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
        """By itself, while it is being mirrored. Somebody has to look."""

        def stopped(mirror: MirrorTopic) -> MirrorTopic | None:
            if mirror.state not in (MirrorState.MIRRORING, MirrorState.PROMOTING):
                return None
            log.error("link %s: no longer mirroring %s: %s", link, topic, reason)
            return replace(mirror, state=MirrorState.STOPPED, reason=reason)

        await self.store.change_topic(link, topic, stopped)

    # -- which partitions -----------------------------------------------------------------------------------------------

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
        """Begin or end to fetch a partition, by what is known of it now."""
        tp = partition.tp
        for link in self.links.values():
            if link.source is None:
                continue
            if self._is_wanted(link, partition):
                link.source.add(tp)
                if (replica := link.source.replicas.get(tp)) is not None:
                    replica.was_told.set()
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
        """The link that mirrors a topic. Brokers without a replica of it may not know its setting: they know the links.

        None for a mirror that has stopped: nothing can be written to it, but it can be deleted.
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
            link.source.was_told.set()
            link.source.look()

    async def _run(self, link: Link, source: MirrorSource) -> None:
        """Until it is forgotten. What goes wrong is tried again, and hurts nobody else."""
        failures, is_told = 0, True
        try:
            while True:
                is_told = is_told or source.was_told.is_set()
                source.was_told.clear()
                try:
                    await self._end_mirrors(link, source)
                    refusal = await self._end_promotions(link)
                    await source.assign()
                    await self._take_turns(link, source, is_told=is_told)
                    if refusal is not None:
                        raise refusal
                    failures, is_told = 0, False
                except (ClientError, ZkError, Refused, OSError) as error:
                    failures += 1
                    source.error = str(error)
                    source.errors += 1
                    if failures == 1:
                        log.warning("link %s: %s; trying again", link.name, error)
                except BrokenInvariant:
                    raise
                except Exception as error:
                    failures += 1
                    source.error = repr(error)
                    log.exception("link %s failed; trying again", link.name)
                if failures:
                    pause_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** min(failures, 10))
                    await source.back_off(pause_s * (1 - self._chance.random() / 2))
                else:
                    await source.wait(is_urgent=any(each.state.is_promoting for each in link.topics.values()))
        finally:
            await source.close()

    async def _end_mirrors(self, link: Link, source: MirrorSource) -> None:
        """Of topics that are being promoted: at once, or when they have all that the source has. At once needs no source."""
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
                (waiting if replica.noted.final_offset is None else planned).append(tp)
        await source.finish(at_once, self._replicas, is_planned=False)
        await source.finish([*planned, *await source.are_complete(waiting)], self._replicas, is_planned=True)

    async def _end_promotions(self, link: Link) -> Refused | None:
        """What was refused: other mirrors go on all the same."""
        refusal: Refused | None = None
        for ending in self.endings:
            try:
                await ending(link)
            except Refused as error:
                refusal = error
        return refusal

    async def _take_turns(self, link: Link, source: MirrorSource, *, is_told: bool) -> None:
        """Now and then, when the link has changed, and as long as something is being promoted: leaders that come and go at the
        source are no reason to ask it for everything."""
        now_s = self._clock.monotonic_s()
        is_due = now_s - link.turned_s >= source.settings.refresh_interval_ms / 1000
        is_promoting = any(each.state.is_promoting for each in link.topics.values())
        if not (is_due or is_promoting or is_told):
            return
        link.turned_s = now_s
        if not self.is_enabled():
            link.turn_error = "not every broker of the cluster knows links: nothing is mirrored"
            return
        link.turn_error = None
        for turn in self.turns:
            try:
                await turn(link)
            except Refused as error:
                link.turn_error = error.message or error.code.name
            except BrokerRefused as error:
                # By the source. What it does not let the link do keeps it from nothing else.
                link.turn_error = f"the source refuses: {error}"
