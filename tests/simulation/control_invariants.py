"""What must hold of controllers, coordinators and ZooKeeper at every moment; `invariants.py` looks at the logs.

Owner: the world. Reads what processes hold in memory; changes nothing.
"""

from typing import TYPE_CHECKING, Any

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.java_hash import partition_of
from barnabas.base.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.groups.classic import HEARTBEAT
from barnabas.broker.groups.classic_group import STABLE, ClassicGroup
from barnabas.broker.replication.state import NO_BROKER_EPOCH, Role
from barnabas.broker.runtime.shard import ShardState
from barnabas.broker.zookeeper_client.paths import CONTROLLER_EPOCH, broker_id, delete_topic, partition_state
from barnabas.broker.zookeeper_client.paths import topic as topic_path
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr
from tests.simulation.load import RECKLESS
from tests.simulation.process import BrokerProcess

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: `min.insync.replicas` of a topic at most: with fewer, nothing is written.
MIN_ISR = 3
#: Partitions of each coordinator's topic.
COORDINATORS = 2
#: A group, and a transactional id, that lives in the last partition.
WHOSE = "group"
#: How long a cluster whose network is whole may need for a new leader or controller, once it can know that one is gone.
REPLACED_S = 3.0
#: How long until there is another controller, where the process of the last one is dead: its session, which would last for
#: two seconds more at least, need not end for that.
DEPOSED_S = 2.0
#: How long a request may outlive the news that whom it was sent to is gone.
GONE_S = 0.5
#: How long a broker may need to know what its controller or ZooKeeper knows, where both can tell it.
TOLD_S = 2.0
#: How long until all brokers have heard from ZooKeeper that one has registered.
RETURNED_S = 1.5
#: How long a broker may take to start after it was killed.
STARTED_S = 2.5
#: A few looks: between two of them, nothing can be forgotten and remembered.
FORGOTTEN_S = 0.15
#: How long what is asked of another broker may stay undone: requests time out after 3 s, and are repeated.
SETTLED_S = 6.0


class ControlWatch:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        #: Controller epoch -> (broker, life).
        self._controllers: dict[int, tuple[int, int]] = {}
        #: What should not last -> (what must not change for it to count, since when).
        self._since: dict[object, tuple[object, float]] = {}
        self._still: dict[object, tuple[object, float]] = {}
        #: (broker, life, coordinator's partition) -> the leader epoch at the last look, and its shard then.
        self._shards: dict[tuple[int, int, TopicPartition], tuple[int, object]] = {}
        #: Partitions that may be led by whoever is alive -> its state at the last look, and when its ISR had registered.
        self._reckless: dict[TopicPartition, tuple[LeaderAndIsr, dict[int, tuple[int, float]]]] = {}
        #: Lives of brokers whom ZooKeeper did not answer when they counted the partitions of a coordinator's topic.
        self._cannot_count: set[tuple[str, int]] = set()
        #: Lives of brokers whose disk has been slow.
        self._slow: set[tuple[int, int]] = set()
        #: (broker, life, coordinator's partition) -> the epoch at the last look, and what had been decided by then.
        self._decided: dict[tuple[int, int, int], tuple[int, list[object]]] = {}
        #: Shards that were loaded in this epoch and no other.
        self._loaded_in: dict[int, tuple[object, int]] = {}
        #: (partition, leader epoch) -> who was elected in it, as far as was seen.
        self._elected: dict[tuple[TopicPartition, int], int] = {}
        #: The states of partitions before the last change, in which life of ZooKeeper.
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._states_of_life = 0
        #: Where replicas were before that.
        self._replicas: dict[TopicPartition, tuple[int, ...]] = {}
        cluster.zookeeper.on_change = self._changed

    def look(self, states: dict[TopicPartition, LeaderAndIsr]) -> None:
        self._still = {}
        for process in self._cluster.brokers.values():
            if process.is_up:
                self._look_at_coordinators(process)
                self._look_at_start(process)
                self._look_at_links(process)
                self._look_at_directories(process)
                self._look_at_places(process)
                self._look_for_the_uncounted(process)
                if (told := self._told_by(process)) is not None:
                    self._look_for_the_forgotten(process, told)
                    self._look_for_strays(process, told)
                    self._look_at_settings(process, told)
                    self._look_at_what_has_failed(process, told, states)
        self._look_at_controllers()
        self._look_at_ephemerals()
        self._look_for_the_dead(states)
        self._look_for_the_living()
        self._look_at_the_reckless(states)
        self._since = self._still

    def _broken(self, name: str, detail: str) -> None:
        self._world.violate(name, detail)

    def _lasts(self, what: object, same: object, limit_s: float) -> bool:
        """Whether it has lasted for too long, with nothing that counts changed."""
        known, since_s = self._since.get(what, (None, 0.0))
        if known != same:
            since_s = self._world.now_s
        self._still[what] = (same, since_s)
        return self._world.now_s - since_s > limit_s

    # -- coordinators -----------------------------------------------------------------------------------------------------

    def _look_at_coordinators(self, process: BrokerProcess) -> None:
        for topic, parts in ((GROUP_METADATA_TOPIC, "groups"), (TRANSACTION_STATE_TOPIC, "transactions")):
            assembled = getattr(process.broker, parts, None)
            if assembled is None:
                return
            shards = assembled.coordinator._runtime._shards
            for index in range(COORDINATORS):
                self._look_at_shard(process, TopicPartition(topic, index), shards.get(index))
        markers = assembled.coordinator.markers
        self._look_at_decided(process, assembled.coordinator)
        if markers._decided:
            self._look_for_forgotten(process, markers)
            if process.is_serving and self._cluster.network.is_calm:
                self._look_at_markers(process, markers)

    def _look_at_shard(self, process: BrokerProcess, tp: TopicPartition, shard: Any) -> None:
        """Nobody is served from what the leader before may not have committed."""
        partition = process.broker.replicas.hosted.get(tp) if process.broker is not None else None
        if partition is None:
            return
        key, machine = (process.id, process.lives, tp), partition.machine
        epoch, known = self._shards.get(key, (-1, None))
        self._shards[key] = (machine.leader_epoch, shard)
        if known is not None and known is not shard and known._alarms._alarms:
            self._broken("a coordinator that has moved has no timers", f"{tp} on {process.name} in epoch {known.epoch}")
        if shard is None:
            return
        is_kept = shard is known and shard.state is ShardState.ACTIVE
        if is_kept and self._missed(process, tp, epoch, shard.epoch):
            self._broken(
                "a coordinator that was replaced loads again",
                f"{tp} on {process.name} goes on in {shard.epoch}, after {epoch}",
            )
        if known is not shard and shard.epoch == machine.leader_epoch == epoch + 1:
            self._loaded_in[id(shard)] = (shard, shard.epoch)
        _, loaded_in = self._loaded_in.get(id(shard), (None, -2))
        if loaded_in == machine.leader_epoch and shard.state is ShardState.ACTIVE and machine.high_watermark_lags:
            self._broken(
                "a coordinator serves what is committed",
                f"{tp} on {process.name} in epoch {loaded_in}: loaded to {machine.leader_epoch_start}, "
                f"committed up to {machine.high_watermark}",
            )

        self._look_at_failed(process, partition, shard)
        if shard.state is ShardState.ACTIVE and tp.topic == GROUP_METADATA_TOPIC:
            self._look_at_members(process, tp, shard)
            groups = shard.machine.groups
            lost = [group for group in shard.machine.store._committed.by_group if group not in groups]
            if lost:
                self._broken(
                    "a group that has offsets is there", f"{tp} on {process.name} in epoch {shard.epoch}: {lost}"
                )

    def _missed(self, process: BrokerProcess, tp: TopicPartition, before: int, epoch: int) -> bool:
        """Whether another one led in between."""
        return any(self._elected.get((tp, each), process.id) != process.id for each in range(before + 1, epoch))

    def _look_at_decided(self, process: BrokerProcess, coordinator: Any) -> None:
        """What was decided before another one coordinated is looked up in the log: that one may have ended it."""
        for place in range(COORDINATORS):
            epoch = coordinator._epochs.get(place, -1)
            key = (process.id, process.lives, place)
            decided: list[object] = [each for (at, _), each in coordinator.markers._decided.items() if at == place]
            before, known = self._decided.get(key, (-1, []))
            self._decided[key] = (epoch, decided)
            tp = TopicPartition(TRANSACTION_STATE_TOPIC, place)
            is_kept = any(each is other for each in decided for other in known)
            if is_kept and before >= 0 and self._missed(process, tp, before, epoch):
                self._broken(
                    "a coordinator that was replaced loads again",
                    f"{tp} on {process.name} in {epoch}, after {before}",
                )

    def _look_at_failed(self, process: BrokerProcess, partition: Any, shard: Any) -> None:
        """Who leads a partition of a coordinator's topic serves what is in it, unless it cannot be read."""
        log, machine = partition.log, partition.machine
        if shard.state is not ShardState.FAILED or process.storage.faults or log is None or log.is_closed:
            return
        what = ("failed", process.id, partition.tp)
        if machine.is_leader and machine.leader_epoch == shard.epoch and self._lasts(what, shard, GONE_S):
            self._broken("who leads coordinates", f"{partition.tp} on {process.name} is not loaded in {shard.epoch}")

    def _look_at_members(self, process: BrokerProcess, tp: TopicPartition, shard: Any) -> None:
        """Somebody would notice if a member of a stable group went away without a word."""
        for group in shard.machine.groups.values():
            if not isinstance(group, ClassicGroup) or group.state is not STABLE:
                continue
            for member in group.members.values():
                is_watched = (HEARTBEAT, group.group_id, member.member_id) in shard._alarms._alarms
                what = ("member", process.id, tp, member.member_id)
                if not (is_watched or member.satisfies_heartbeat()) and self._lasts(what, shard, FORGOTTEN_S):
                    self._broken(
                        "who stays away is no member for ever",
                        f"{member.member_id} of {group.group_id} on {process.name}",
                    )

    def _look_at_places(self, process: BrokerProcess) -> None:
        """Every broker looks for a group or a transaction in the same place, or says that it does not know yet."""
        for parts in ("groups", "transactions"):
            assembled = getattr(process.broker, parts, None)
            place = None if assembled is None else assembled.coordinator.topic.place_of(WHOSE)
            if place is not None and place != partition_of(WHOSE, COORDINATORS):
                self._broken("a key lives in one partition", f"{WHOSE} of {parts} is in {place}, says {process.name}")

    def _look_for_the_uncounted(self, process: BrokerProcess) -> None:
        """Who has heard of the topic of its coordinators counts its partitions: before that, it serves no group of it."""
        if (process.name, process.lives) in self._cannot_count or not self._cluster.zookeeper.is_serving:
            return
        for parts in ("groups", "transactions"):
            assembled = getattr(process.broker, parts, None)
            topic = None if assembled is None else assembled.coordinator.topic
            if topic is None or topic._is_asking or topic.place_of(WHOSE) is not None or not self._belongs(process):
                continue
            self._broken("who coordinates knows where keys live", f"{process.name} has not counted {topic.name}")

    def _look_at_directories(self, process: BrokerProcess) -> None:
        """No disk fails but by a fault, and no log directory but with its disk."""
        logs = getattr(process.broker, "logs", None)
        if logs is None or process.storage.faults:
            return
        for each in logs.dirs:
            if not each.is_online and process.is_serving:
                self._broken("no directory fails without its disk", f"{each.path} of {process.name}")

    def _look_at_what_has_failed(
        self, process: BrokerProcess, told: object, states: dict[TopicPartition, LeaderAndIsr]
    ) -> None:
        """Whose log directory has failed leads nothing of what was there, while another one is in sync."""
        nodes = self._nodes()
        for tp, state in states.items():
            if state.leader != process.id or self._cluster.is_ignored(tp) or delete_topic(tp.topic) in nodes:
                continue
            if not self._has_failed(process, tp):
                continue
            others = tuple((each, self._serves(each)) for each in state.isr if each != process.id)
            are_well = [life and not self._has_failed(self._cluster.brokers[each], tp) for each, life in others]
            same = (told, state.leader_epoch, others)
            if any(are_well) and self._lasts(("failed", process.id, tp), same, REPLACED_S):
                self._broken(
                    "whose directory has failed leads nothing",
                    f"{tp}: broker {process.id} has had no log for {REPLACED_S:.0f} s, and {others} are in sync",
                )

    def _has_failed(self, process: BrokerProcess, tp: TopicPartition) -> bool:
        replicas = getattr(process.broker, "replicas", None)
        partition = None if replicas is None else replicas.hosted.get(tp)
        return partition is not None and partition.machine.role is Role.OFFLINE

    def _look_at_markers(self, process: BrokerProcess, markers: Any) -> None:
        states = self._cluster.partition_states()
        for decided in markers._decided.values():
            # All who have to write it, or to copy it: while one of them is away, a marker may have to wait.
            involved = tuple(
                (tp, states[tp], *(self._serves(each) for each in states[tp].isr))
                for tp in sorted(decided.remaining)
                if tp in states
            )
            if not involved or not all(all(lives) and len(lives) >= MIN_ISR for _, _, *lives in involved):
                continue
            key = (process.id, process.lives, decided.coordinator, decided.transactional_id, decided.identity)
            if self._lasts(("markers", key), involved, SETTLED_S):
                self._broken(
                    "what is decided is told",
                    f"{process.name} has no markers of {decided.transactional_id} written to {sorted(decided.remaining)}",
                )

    def _look_for_forgotten(self, process: BrokerProcess, markers: Any) -> None:
        """A marker that is not written is under way, or waits for its turn: whatever has become of whom it was sent to."""
        assert process.loop is not None
        waiting = [*markers._parked, *(marker for queue in markers._queues.values() for marker in queue)]
        looked_for: set[str] = set()
        for task in process.loop.tasks:
            if task.done():
                continue
            kind, _, whose = task.get_name().partition(" of ")
            if kind == "partitions":
                looked_for.add(whose)
            elif kind.startswith("transaction markers to "):
                waiting += task.get_coro().cr_frame.f_locals.get("markers", ())  # type: ignore[union-attr]
        for decided in markers._decided.values():
            known = {tp for marker in waiting if marker.decided is decided for tp in marker.partitions}
            forgotten = decided.remaining - known
            if not forgotten or decided.transactional_id in looked_for:
                continue
            key = (process.id, process.lives, decided.coordinator, decided.transactional_id, decided.identity)
            if self._lasts(("forgotten", key), forgotten, FORGOTTEN_S):
                self._broken(
                    "what is decided is told",
                    f"{process.name} has forgotten the markers of {decided.transactional_id} for {sorted(forgotten)}",
                )

    def heard(self, who: str, message: str) -> None:
        if message.startswith("how many partitions "):
            self._cannot_count |= {
                (each.name, each.lives) for each in self._cluster.brokers.values() if each.name == who
            }
        name, found, _ = message.partition(" does not exist any more and needs no marker")
        if not found or not self._cluster.zookeeper.is_serving:
            return
        topic, _, index = name.rpartition("] ")[2].rpartition("-")
        tp = TopicPartition(topic, int(index))
        if not self._cluster.is_ignored(tp) and partition_state(tp) in self._nodes():
            self._broken("what exists gets its marker", f"{who} takes {tp} for gone")

    def _serves(self, broker: int) -> int:
        """Which life of a broker serves everybody; 0 if none does."""
        process = self._cluster.brokers.get(broker)
        if process is None or not process.is_serving or process.host.refuses:
            return 0
        return process.lives

    def _look_at_start(self, process: BrokerProcess) -> None:
        """A broker that was only killed does not wait for the end of its former session."""
        cluster = self._cluster
        registrar, session = getattr(process.broker, "registrar", None), getattr(process.broker, "session", None)
        is_registered = registrar is not None and registrar.epoch != NO_BROKER_EPOCH
        is_quick = not (is_registered or process.is_paused or process.has_lost_power or process.storage.faults)
        life = (process.id, process.lives)
        if process.disk_slowness > 1:
            # What was asked of the disk meanwhile takes as long as it takes, also when others are served quickly again.
            self._slow.add(life)
        if not is_quick or life in self._slow or cluster.scenario.session_timeout_ms <= STARTED_S * 1000:
            return
        # A connection to a host without power takes long to fail: it counts from when ZooKeeper has answered.
        is_connected = session is not None and session.session_id != 0
        if is_connected and cluster.zookeeper.is_serving and cluster.network.is_calm:
            same = (process.lives, cluster.zookeeper.lives)
            if self._lasts(("start", process.id), same, STARTED_S):
                self._broken("a broker that was killed is back soon", f"{process.name} starts for {STARTED_S:.0f} s")

    def _look_at_links(self, process: BrokerProcess) -> None:
        """Nobody waits for an answer of a broker that the controller has said is gone."""
        links = getattr(process.broker, "broker_connections", None)
        if links is None or not process.is_serving:
            return
        alive = process.broker.metadata.brokers  # type: ignore[union-attr]
        for lane in links._lanes:
            asked = [*lane._opening, *(each for each, (_, link) in lane._connections.items() if link.in_flight)]
            for broker in asked:
                if broker not in alive and self._lasts(("link", process.id, id(lane), broker), process.lives, GONE_S):
                    self._broken("nobody waits for a broker that is gone", f"{process.name} waits for {broker}")
            for broker, (_, link) in lane._connections.items():
                if link.in_flight and _is_to_former_life(link) and self._can_be_heard_of(process, broker):
                    same = (process.lives, _czxid(self._nodes(), broker), self._cluster.zookeeper.lives)
                    if self._lasts(("former life", process.id, id(lane), broker), same, RETURNED_S):
                        self._broken(
                            "nobody waits for the former life of a broker", f"{process.name} waits for {broker}"
                        )

    def _can_be_heard_of(self, process: BrokerProcess, broker: int) -> bool:
        """Whether one broker can know that another has registered."""
        cluster = self._cluster
        if not cluster.zookeeper.is_serving or not cluster.network.is_calm or not self._belongs(process):
            return False
        return bool(self._serves(broker)) and self._belongs(cluster.brokers[broker])

    def _belongs(self, process: BrokerProcess) -> bool:
        """Whether ZooKeeper has the registration of this life of a broker, in the session that it has now."""
        registrar = getattr(process.broker, "registrar", None)
        if registrar is None or not process.is_serving or not process.broker.session.is_connected:  # type: ignore[union-attr]
            return False
        return registrar.is_of_this_session and registrar.epoch == _czxid(self._nodes(), process.id)

    def _told_by(self, process: BrokerProcess) -> object:
        """Who can tell a broker what has become of the cluster; None if nobody can. It has time as long as that is the same."""
        cluster = self._cluster
        controller = cluster.controller()
        if controller is None or not self._serves(controller.id):
            return None
        if not self._serves(process.id) or process.disk_slowness > 1:
            return None
        if not cluster.zookeeper.is_serving or not cluster.network.is_calm or not self._belongs(process):
            return None
        known = controller.broker.controller.machine.context.broker_epochs.get(process.id)  # type: ignore[union-attr]
        if known != _czxid(self._nodes(), process.id):
            return None
        return (process.lives, known, controller.id, controller.broker.controller.epoch, cluster.zookeeper.lives)  # type: ignore[union-attr]

    def _look_for_the_forgotten(self, process: BrokerProcess, told: object) -> None:
        """No broker knows a topic for long that ZooKeeper has no more."""
        nodes = self._nodes()
        for name in process.broker.metadata.topics:  # type: ignore[union-attr]
            if topic_path(name) not in nodes and self._lasts(("deleted", process.id, name), told, TOLD_S):
                self._broken("what is deleted is forgotten", f"{process.name} still knows {name}")

    def _look_for_strays(self, process: BrokerProcess, told: object) -> None:
        """Nobody leads for long what it is no replica of."""
        for partition in process.broker.replicas:  # type: ignore[union-attr]
            replicas = self._cluster.settled_replicas(partition.tp)
            if not partition.machine.is_leader or not replicas or process.id in replicas:
                continue
            key = ("stray", process.id, partition.tp)
            if self._lasts(key, (told, partition.machine.leader_epoch, replicas), TOLD_S):
                self._broken(
                    "who has no replica leads nothing", f"{process.name} leads {partition.tp}, which is on {replicas}"
                )

    def _look_at_settings(self, process: BrokerProcess, told: object) -> None:
        """Whoever hosts a topic has its settings as ZooKeeper has them. For worlds where nobody takes notifications away that
        others have not read, and no clock is wrong: who is an hour ahead does so."""
        if not self._cluster.keeps_notifications:
            return
        hosted = {partition.tp.topic for partition in process.broker.replicas}  # type: ignore[union-attr]
        for name in self._cluster.topics_with_settings:
            try:
                wanted = self._cluster.settings_of(name)
            except Malformed:
                continue  # a stranger has been there
            found = process.broker.dynamic._overrides.get(name, {})  # type: ignore[union-attr]
            if name not in hosted or wanted is None or dict(found) == wanted:
                continue
            if self._lasts(("settings", process.id, name), (told, str(wanted)), TOLD_S):
                self._broken(
                    "settings are those of ZooKeeper", f"{name} on {process.name}: {dict(found)}, where it has {wanted}"
                )

    def _changed(self) -> None:
        """Something is other than before in ZooKeeper."""
        life = self._cluster.zookeeper.lives
        if life != self._states_of_life:
            # What was not synced may be gone.
            self._states, self._replicas, self._states_of_life = {}, {}, life
        states = self._cluster.partition_states()
        replicas: dict[TopicPartition, tuple[int, ...]] = {}
        for tp, state in states.items():
            before = self._states.get(tp)
            if before != state:
                self._elected[tp, state.leader_epoch] = state.leader
                if before is not None:
                    self._look_at_election(tp, before, state)
            assignment = self._cluster.assignment_of(tp)
            replicas[tp] = () if assignment is None else assignment.replicas
            for broker in set(self._replicas.get(tp, ())) - set(replicas[tp]) if replicas[tp] else ():
                self._look_at_removal(tp, broker)
        self._states, self._replicas = states, replicas

    def _look_at_election(self, tp: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr) -> None:
        """Who goes at once with all others in sync stays in the ISR: each of them has everything, and any may return first."""
        is_shorter = set(after.isr) < set(before.isr) and after.partition_epoch == before.partition_epoch + 1
        if after.leader < 0 and is_shorter and self._cluster.settled_replicas(tp):
            self._broken("who goes with all others stays in sync", f"{tp}: {before.isr} became {after.isr}")

    def _look_at_removal(self, tp: TopicPartition, broker: int) -> None:
        """Who is no replica any more has been told so, or is being told: the next controller would not know."""
        process, controller = self._cluster.brokers.get(broker), self._cluster.controller()
        if process is None or controller is None or not self._serves(broker):
            return
        partition, driver = process.broker.replicas.hosted.get(tp), controller.broker.controller  # type: ignore[union-attr]
        if str(driver.epoch).encode() != self._cluster.data_at(CONTROLLER_EPOCH):
            return  # of the past, and it does not know
        channel, _ = driver._channels.get(broker, (None, None))
        is_left_alone = channel is not None and channel.is_quiet and not channel.is_suspect
        if is_left_alone and partition is not None and partition.machine.role in (Role.LEADER, Role.FOLLOWER):
            self._broken("who is removed is told before", f"{process.name} has {tp}, and {controller.name} is silent")

    # -- controllers and ZooKeeper ----------------------------------------------------------------------------------------

    def _look_at_controllers(self) -> None:
        cluster = self._cluster
        is_there = False
        for process in cluster.brokers.values():
            controller = getattr(process.broker, "controller", None)
            if not process.is_up or controller is None or not controller.is_active:
                continue
            is_there = True
            me = (process.id, process.lives)
            known = self._controllers.setdefault(controller.epoch, me)
            if known != me:
                self._broken(
                    "one broker is controller in an epoch",
                    f"epoch {controller.epoch}: broker {known[0]} in life {known[1]}, and {me[0]} in life {me[1]}",
                )
        if is_there or not cluster.zookeeper.is_serving or not cluster.network.is_calm:
            return
        if all(self._serves(each.id) or _is_seen_dead(each) for each in cluster.brokers.values()):
            lives = tuple(each.lives for each in cluster.brokers.values() if each.is_up)
            if lives and self._lasts("controller", (lives, cluster.zookeeper.lives), DEPOSED_S):
                self._broken("a dead controller is replaced", f"there has been none for {DEPOSED_S:.0f} s")

    def _look_at_ephemerals(self) -> None:
        zookeeper = self._cluster.zookeeper
        if zookeeper.server is None or not zookeeper.is_serving:
            return
        machine = zookeeper.server.service.machine
        for session, paths in machine.tree.ephemerals.items():
            if paths and session not in machine.sessions.by_id:
                self._broken("ephemeral znodes go with their session", f"0x{session:x} has left {sorted(paths)}")

    def _nodes(self) -> Any:
        server = self._cluster.zookeeper.server
        assert server is not None
        return server.service.machine.tree.nodes

    def _look_for_the_dead(self, states: dict[TopicPartition, LeaderAndIsr]) -> None:
        """Who is dead leads nothing, once the controller can know."""
        cluster = self._cluster
        controller = cluster.controller()
        if not states or controller is None or not controller.is_serving or not cluster.network.is_calm:
            return
        nodes = self._nodes()
        gone = {
            process.id
            for process in cluster.brokers.values()
            if broker_id(process.id) not in nodes or _is_seen_dead(process)
        }
        for tp, state in states.items():
            if (state.leader >= 0 and state.leader not in gone) or cluster.is_ignored(tp):
                continue
            if delete_topic(tp.topic) in nodes:
                continue
            others = tuple(
                (each, self._serves(each))
                for each in state.isr
                if each not in gone and (state.leader >= 0 or self._could_lead(each))
            )
            if not any(life for _, life in others):
                continue
            lives = cluster.brokers[state.leader].lives if state.leader >= 0 else 0
            same = (state.leader_epoch, controller.id, controller.lives, others, lives)
            if self._lasts(("leader", tp), same, REPLACED_S):
                self._broken(
                    "who is dead leads nothing",
                    f"{tp}: broker {state.leader} has been gone for {REPLACED_S:.0f} s, and {others} are in sync",
                )

    def _look_for_the_living(self) -> None:
        """Who is registered and answers belongs to the cluster: a controller may be wrong about it, but not for long."""
        cluster = self._cluster
        controller = cluster.controller()
        if controller is None or not self._serves(controller.id) or not cluster.network.is_calm:
            return
        if not cluster.zookeeper.is_serving:
            return
        nodes = self._nodes()
        known = controller.broker.controller.machine.context.brokers  # type: ignore[union-attr]
        for process in cluster.brokers.values():
            node = nodes.get(broker_id(process.id))
            if node is None or not self._serves(process.id) or process.id in known:
                continue
            same = (process.lives, node.czxid, controller.id, controller.lives, cluster.zookeeper.lives)
            if self._lasts(("alive", process.id), same, REPLACED_S):
                self._broken(
                    "who answers belongs to the cluster",
                    f"{process.name} has served for {REPLACED_S:.0f} s, and {controller.name} counts it as gone",
                )

    def _could_lead(self, broker: int) -> bool:
        """Not one whose directory has failed, nor one that has said that it goes: another is elected, as in Kafka."""
        process = self._cluster.brokers.get(broker)
        return process is not None and not process.is_stopping and not process.storage.faults

    def _look_at_the_reckless(self, states: dict[TopicPartition, LeaderAndIsr]) -> None:
        """Also where records may be lost, nobody is replaced by a worse one while its session lives: it may only look dead."""
        if not self._cluster.scenario.has_reckless or not self._cluster.zookeeper.is_serving:
            return
        nodes = self._nodes()
        for tp in [each for each in states if each.topic == RECKLESS]:
            state = states[tp]
            before, registered = self._reckless.get(tp, (state, {}))
            # The controller may be about to act on the end of its former session: what it registered just now does not count,
            # nor what the controller has not seen yet.
            alive = [
                each
                for each, (czxid, since_s) in registered.items()
                if _czxid(nodes, each) == czxid and self._world.now_s - since_s > GONE_S and self._could_lead(each)
            ]
            is_worse = state.leader >= 0 and state.leader not in before.isr
            # By one write: with more, the next leader may have joined the ISR in between.
            if is_worse and alive and state.partition_epoch == before.partition_epoch + 1:
                self._broken(
                    "nobody is replaced by a worse one while its session lives",
                    f"{tp}: {state.leader} leads instead of {before.isr}, of whom {alive} have their session",
                )
            controller = self._cluster.controller()
            seen = {} if controller is None else controller.broker.controller.machine.context.broker_epochs  # type: ignore[union-attr]
            now = {
                each: (czxid, self._world.now_s)
                for each in state.isr
                if (czxid := _czxid(nodes, each)) and seen.get(each) == czxid
            }
            same = {
                each: known
                for each, known in registered.items()
                if each in state.isr and known[0] == _czxid(nodes, each) and self._could_lead(each)
            }
            self._reckless[tp] = (state, {**now, **same})


def _is_seen_dead(process: BrokerProcess) -> bool:
    """Its kernel has closed its connections. A host without power says nothing, nor when it is back: its session has to end."""
    return not process.is_up and process.host.is_up and not process.has_lost_power


def _is_to_former_life(link: Any) -> bool:
    """Whether the host on the other side of a connection has lost its power since, and knows nothing of it."""
    return link._transport is not None and bool(link._transport._line.other.is_gone)


def _czxid(nodes: Any, broker: int) -> int:
    """When a broker registered; 0 if it has not."""
    node = nodes.get(broker_id(broker))
    return 0 if node is None else int(node.czxid)
