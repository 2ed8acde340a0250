"""Invariants of controllers, coordinators and ZooKeeper that hold at every moment; `invariants.py` checks the logs.

Owner: the world. Reads the memory of the processes and changes nothing.
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
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.load import RECKLESS

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: Largest `min.insync.replicas` of any topic: with fewer replicas in sync, no record is acknowledged.
MIN_ISR = 3
#: Partitions of each coordinator topic.
COORDINATORS = 2
#: A group id, and a transactional id, that belongs to the last partition.
LAST_PARTITION_KEY = "group"
#: How long a cluster with a whole network may need to elect a new leader or controller, once the failure can be known.
REPLACED_S = 3.0
#: How long until there is another controller after the controller's process died. The process's connection is closed, so the
#: cluster must not wait for the end of its session, which lasts at least two seconds longer.
DEPOSED_S = 2.0
#: How long a request may continue after its sender has heard that the receiver is gone.
GONE_S = 0.5
#: How long a broker may need to learn what its controller or ZooKeeper knows, while both can reach it.
INFORMED_S = 2.0
#: How long until all brokers have heard from ZooKeeper that a broker has registered.
RETURNED_S = 1.5
#: How long a broker may take to start after a kill.
STARTED_S = 2.5
#: A few looks: an entry cannot be removed and added again between two of them.
FORGOTTEN_S = 0.15
#: How long a request to another broker may stay unfinished: requests time out after 3 s, and are repeated.
SETTLED_S = 6.0
#: The log line of a broker that cannot count the partitions of an internal topic.
CANNOT_COUNT_LINE = " cannot read its number of partitions"
#: The log line of a coordinator whose transaction has a deleted partition.
NO_MARKER_LINE = " does not exist any more and needs no marker"


class ControlInvariants:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        #: Controller epoch -> (broker, life) of the controller.
        self._controllers: dict[int, tuple[int, int]] = {}
        #: A condition that must not last -> (a value whose change restarts the time, since when).
        self._since: dict[object, tuple[object, float]] = {}
        self._still: dict[object, tuple[object, float]] = {}
        #: (broker, life, coordinator partition) -> (leader epoch at the last look, its shard then).
        self._shards: dict[tuple[int, int, TopicPartition], tuple[int, object]] = {}
        #: Partition with unclean elections -> (its state at the last look, when each member of its ISR had registered).
        self._reckless: dict[TopicPartition, tuple[LeaderAndIsr, dict[int, tuple[int, float]]]] = {}
        #: Lives of brokers that got no answer from ZooKeeper when they counted the partitions of a coordinator topic.
        self._cannot_count: set[tuple[str, int]] = set()
        #: Lives of brokers whose disk has been slow.
        self._slow: set[tuple[int, int]] = set()
        #: (broker, life, coordinator partition) -> (epoch at the last look, transactions decided by then).
        self._decided: dict[tuple[int, int, int], tuple[int, list[object]]] = {}
        #: Shards that were loaded in exactly this epoch.
        self._loaded_in: dict[int, tuple[object, int]] = {}
        #: (partition, leader epoch) -> the leader elected in it, if a look saw it.
        self._elected: dict[tuple[TopicPartition, int], int] = {}
        #: Partition states before the last change, and the life of ZooKeeper that they belong to.
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._states_of_life = 0
        #: Replicas of the partitions before the last change.
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
                self._look_for_uncounted_topics(process)
                if (informant := self._informant_of(process)) is not None:
                    self._look_for_deleted_topics(process, informant)
                    self._look_for_strays(process, informant)
                    self._look_at_settings(process, informant)
                    self._look_at_failed_replicas(process, informant, states)
        self._look_at_controllers()
        self._look_at_ephemerals()
        self._look_for_dead_leaders(states)
        self._look_for_living_brokers()
        self._look_at_unclean_elections(states)
        self._since = self._still

    def _broken(self, name: str, detail: str) -> None:
        self._world.violate(name, detail)

    def _lasts(self, what: object, same: object, limit_s: float) -> bool:
        """Whether the condition has lasted longer than the limit while `same` did not change."""
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
            self._look_for_lost_markers(process, markers)
            if process.is_serving and self._cluster.network.is_calm:
                self._look_at_markers(process, markers)

    def _look_at_shard(self, process: BrokerProcess, tp: TopicPartition, shard: Any) -> None:
        """Check that a coordinator serves only what is committed, and not records that the former leader may not have
        committed.
        """
        partition = process.broker.replicas.hosted.get(tp) if process.broker is not None else None
        if partition is None:
            return
        key, machine = (process.id, process.lives, tp), partition.machine
        epoch, known = self._shards.get(key, (-1, None))
        self._shards[key] = (machine.leader_epoch, shard)
        if known is not None and known is not shard and known._alarms._alarms:
            self._broken("a former coordinator has no timers", f"{tp} on {process.name} in epoch {known.epoch}")
        if shard is None:
            return
        is_kept = shard is known and shard.state is ShardState.ACTIVE
        if is_kept and self._missed(process, tp, epoch, shard.epoch):
            self._broken(
                "a coordinator loads its partition again after another one had it",
                f"{tp} on {process.name} goes on in {shard.epoch}, after {epoch}",
            )
        if known is not shard and shard.epoch == machine.leader_epoch == epoch + 1:
            self._loaded_in[id(shard)] = (shard, shard.epoch)
        _, loaded_in = self._loaded_in.get(id(shard), (None, -2))
        if loaded_in == machine.leader_epoch and shard.state is ShardState.ACTIVE and machine.high_watermark_lags:
            self._broken(
                "a coordinator serves only committed records",
                f"{tp} on {process.name} in epoch {loaded_in}: loaded to {machine.leader_epoch_start}, "
                f"committed up to {machine.high_watermark}",
            )

        self._look_at_failed(process, partition, shard)
        if shard.state is ShardState.ACTIVE and tp.topic == GROUP_METADATA_TOPIC:
            self._look_at_members(process, tp, shard)
            groups = shard.machine.groups
            lost = [group for group in shard.machine.store._committed.by_group if group not in groups]
            if lost:
                self._broken("a group with offsets exists", f"{tp} on {process.name} in epoch {shard.epoch}: {lost}")

    def _missed(self, process: BrokerProcess, tp: TopicPartition, before: int, epoch: int) -> bool:
        """Whether another broker led the partition in between."""
        return any(self._elected.get((tp, each), process.id) != process.id for each in range(before + 1, epoch))

    def _look_at_decided(self, process: BrokerProcess, coordinator: Any) -> None:
        """Check that a coordinator looks up in the log what was decided before another broker coordinated: that one may have
        ended the transaction.
        """
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
                    "a coordinator loads its partition again after another one had it",
                    f"{tp} on {process.name} in {epoch}, after {before}",
                )

    def _look_at_failed(self, process: BrokerProcess, partition: Any, shard: Any) -> None:
        """Check that the leader of a coordinator partition serves it, unless its log cannot be read."""
        log, machine = partition.log, partition.machine
        if shard.state is not ShardState.FAILED or process.storage.faults or log is None or log.is_closed:
            return
        what = ("failed", process.id, partition.tp)
        if machine.is_leader and machine.leader_epoch == shard.epoch and self._lasts(what, shard, GONE_S):
            self._broken(
                "the leader of a coordinator partition coordinates",
                f"{partition.tp} on {process.name} is not loaded in {shard.epoch}",
            )

    def _look_at_members(self, process: BrokerProcess, tp: TopicPartition, shard: Any) -> None:
        """Check that a coordinator notices when a member of a stable group disappears without leaving."""
        for group in shard.machine.groups.values():
            if not isinstance(group, ClassicGroup) or group.state is not STABLE:
                continue
            for member in group.members.values():
                is_watched = (HEARTBEAT, group.group_id, member.member_id) in shard._alarms._alarms
                what = ("member", process.id, tp, member.member_id)
                if not (is_watched or member.satisfies_heartbeat()) and self._lasts(what, shard, FORGOTTEN_S):
                    self._broken(
                        "an absent member does not stay a member",
                        f"{member.member_id} of {group.group_id} on {process.name}",
                    )

    def _look_at_places(self, process: BrokerProcess) -> None:
        """Check that every broker maps a group or transaction to the same partition, or answers that it does not know yet."""
        for parts in ("groups", "transactions"):
            assembled = getattr(process.broker, parts, None)
            place = None if assembled is None else assembled.coordinator.topic.place_of(LAST_PARTITION_KEY)
            if place is not None and place != partition_of(LAST_PARTITION_KEY, COORDINATORS):
                self._broken(
                    "all brokers map a key to the same partition",
                    f"{LAST_PARTITION_KEY} of {parts} is in {place}, says {process.name}",
                )

    def _look_for_uncounted_topics(self, process: BrokerProcess) -> None:
        """Check that a broker that knows a coordinator topic counts its partitions: before that, it serves no group of it."""
        if (process.name, process.lives) in self._cannot_count or not self._cluster.zookeeper.is_serving:
            return
        for parts in ("groups", "transactions"):
            assembled = getattr(process.broker, parts, None)
            topic = None if assembled is None else assembled.coordinator.topic
            if (
                topic is None
                or topic._is_asking
                or topic.place_of(LAST_PARTITION_KEY) is not None
                or not self._belongs(process)
            ):
                continue
            self._broken(
                "a coordinator knows the partition of every key", f"{process.name} has not counted {topic.name}"
            )

    def _look_at_directories(self, process: BrokerProcess) -> None:
        """Check that a log directory goes offline only if a fault has hit its disk."""
        logs = getattr(process.broker, "logs", None)
        if logs is None or process.storage.faults:
            return
        for each in logs.dirs:
            if not each.is_online and process.is_serving:
                self._broken("a directory goes offline only if its disk fails", f"{each.path} of {process.name}")

    def _look_at_failed_replicas(
        self, process: BrokerProcess, informant: object, states: dict[TopicPartition, LeaderAndIsr]
    ) -> None:
        """Check that a broker whose log directory has failed leads none of its partitions while another replica is in sync."""
        nodes = self._nodes()
        for tp, state in states.items():
            if state.leader != process.id or self._cluster.is_ignored(tp) or delete_topic(tp.topic) in nodes:
                continue
            if not self._has_failed(process, tp):
                continue
            others = tuple((each, self._serves(each)) for each in state.isr if each != process.id)
            are_well = [life and not self._has_failed(self._cluster.brokers[each], tp) for each, life in others]
            same = (informant, state.leader_epoch, others)
            if any(are_well) and self._lasts(("failed", process.id, tp), same, REPLACED_S):
                self._broken(
                    "a broker with a failed directory does not lead its partitions",
                    f"{tp}: broker {process.id} has had no log for {REPLACED_S:.0f} s, and {others} are in sync",
                )

    def _has_failed(self, process: BrokerProcess, tp: TopicPartition) -> bool:
        replicas = getattr(process.broker, "replicas", None)
        partition = None if replicas is None else replicas.hosted.get(tp)
        return partition is not None and partition.machine.role is Role.OFFLINE

    def _look_at_markers(self, process: BrokerProcess, markers: Any) -> None:
        states = self._cluster.partition_states()
        for decided in markers._decided.values():
            # All brokers that must write or copy the marker: while one of them is down, the marker may have to wait.
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
                    "transaction markers of a decision are sent",
                    f"{process.name} has no markers of {decided.transactional_id} written to {sorted(decided.remaining)}",
                )

    def _look_for_lost_markers(self, process: BrokerProcess, markers: Any) -> None:
        """Check that an unwritten marker is being sent or queued, whatever has happened to its broker."""
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
                    "transaction markers of a decision are sent",
                    f"{process.name} has forgotten the markers of {decided.transactional_id} for {sorted(forgotten)}",
                )

    def heard(self, broker: str, message: str) -> None:
        if CANNOT_COUNT_LINE in message:
            self._cannot_count |= {
                (each.name, each.lives) for each in self._cluster.brokers.values() if each.name == broker
            }
        name, found, _ = message.partition(NO_MARKER_LINE)
        if not found or not self._cluster.zookeeper.is_serving:
            return
        topic, _, index = name.rpartition("] ")[2].rpartition("-")
        tp = TopicPartition(topic, int(index))
        if not self._cluster.is_ignored(tp) and partition_state(tp) in self._nodes():
            self._broken("an existing partition gets its transaction marker", f"{broker} takes {tp} for gone")

    def _serves(self, broker: int) -> int:
        """Return the life of the broker that all others reach; 0 if there is none."""
        process = self._cluster.brokers.get(broker)
        if process is None or not process.is_serving or process.host.refuses:
            return 0
        return process.lives

    def _look_at_start(self, process: BrokerProcess) -> None:
        """Check that a killed broker does not wait for the end of its former session."""
        cluster = self._cluster
        registrar, session = getattr(process.broker, "registrar", None), getattr(process.broker, "session", None)
        is_registered = registrar is not None and registrar.epoch != NO_BROKER_EPOCH
        is_quick = not (is_registered or process.is_paused or process.has_lost_power or process.storage.faults)
        life = (process.id, process.lives)
        if process.disk_slowness > 1:
            # The disk operations of that time stay slow, also when the disk serves others quickly again.
            self._slow.add(life)
        if not is_quick or life in self._slow or cluster.scenario.session_timeout_ms <= STARTED_S * 1000:
            return
        # Connecting to a host without power takes long to fail: the time counts from ZooKeeper's first answer.
        is_connected = session is not None and session.session_id != 0
        if is_connected and cluster.zookeeper.is_serving and cluster.network.is_calm:
            same = (process.lives, cluster.zookeeper.lives)
            if self._lasts(("start", process.id), same, STARTED_S):
                self._broken("a killed broker starts in time", f"{process.name} starts for {STARTED_S:.0f} s")

    def _look_at_links(self, process: BrokerProcess) -> None:
        """Check that no broker waits for an answer of a broker that the controller has announced as gone."""
        links = getattr(process.broker, "broker_connections", None)
        if links is None or not process.is_serving:
            return
        alive = process.broker.metadata.brokers  # type: ignore[union-attr]
        for lane in links._lanes:
            asked = [*lane._opening, *(each for each, (_, link) in lane._connections.items() if link.in_flight)]
            for broker in asked:
                if broker not in alive and self._lasts(("link", process.id, id(lane), broker), process.lives, GONE_S):
                    self._broken("no broker waits for a broker that is gone", f"{process.name} waits for {broker}")
            for broker, (_, link) in lane._connections.items():
                if link.in_flight and _is_to_former_life(link) and self._can_be_heard_of(process, broker):
                    same = (process.lives, _czxid(self._nodes(), broker), self._cluster.zookeeper.lives)
                    if self._lasts(("former life", process.id, id(lane), broker), same, RETURNED_S):
                        self._broken(
                            "no broker waits for the former life of a broker", f"{process.name} waits for {broker}"
                        )

    def _can_be_heard_of(self, process: BrokerProcess, broker: int) -> bool:
        """Whether `process` can know that `broker` has registered."""
        cluster = self._cluster
        if not cluster.zookeeper.is_serving or not cluster.network.is_calm or not self._belongs(process):
            return False
        return bool(self._serves(broker)) and self._belongs(cluster.brokers[broker])

    def _belongs(self, process: BrokerProcess) -> bool:
        """Whether the broker's registration in ZooKeeper is of this life and this session."""
        registrar = getattr(process.broker, "registrar", None)
        if registrar is None or not process.is_serving or not process.broker.session.is_connected:  # type: ignore[union-attr]
            return False
        return registrar.is_of_this_session and registrar.epoch == _czxid(self._nodes(), process.id)

    def _informant_of(self, process: BrokerProcess) -> object:
        """Return a value that stands for the controller that can inform the broker, or None. A changed value restarts the
        time.
        """
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

    def _look_for_deleted_topics(self, process: BrokerProcess, informant: object) -> None:
        """Check that no broker keeps a topic in its metadata long after ZooKeeper has deleted it."""
        nodes = self._nodes()
        for name in process.broker.metadata.topics:  # type: ignore[union-attr]
            if topic_path(name) not in nodes and self._lasts(("deleted", process.id, name), informant, INFORMED_S):
                self._broken("brokers forget a deleted topic", f"{process.name} still knows {name}")

    def _look_for_strays(self, process: BrokerProcess, informant: object) -> None:
        """Check that no broker leads a partition for long of which it is not a replica."""
        for partition in process.broker.replicas:  # type: ignore[union-attr]
            replicas = self._cluster.settled_replicas(partition.tp)
            if not partition.machine.is_leader or not replicas or process.id in replicas:
                continue
            key = ("stray", process.id, partition.tp)
            if self._lasts(key, (informant, partition.machine.leader_epoch, replicas), INFORMED_S):
                self._broken(
                    "a broker without a replica does not lead",
                    f"{process.name} leads {partition.tp}, which is on {replicas}",
                )

    def _look_at_settings(self, process: BrokerProcess, informant: object) -> None:
        """Check that brokers have the settings in ZooKeeper of the topics that they host. Only for worlds where notifications
        stay until every broker has read them and clocks are right: a broker whose clock is an hour ahead removes notifications
        early.
        """
        if not self._cluster.keeps_notifications:
            return
        hosted = {partition.tp.topic for partition in process.broker.replicas}  # type: ignore[union-attr]
        for name in self._cluster.topics_with_settings:
            try:
                wanted = self._cluster.settings_of(name)
            except Malformed:
                continue  # the stranger has overwritten these settings
            found = process.broker.dynamic._overrides.get(name, {})  # type: ignore[union-attr]
            if name not in hosted or wanted is None or dict(found) == wanted:
                continue
            if self._lasts(("settings", process.id, name), (informant, str(wanted)), INFORMED_S):
                self._broken(
                    "brokers have the settings in ZooKeeper",
                    f"{name} on {process.name}: {dict(found)}, where it has {wanted}",
                )

    def _changed(self) -> None:
        """Look at a change that ZooKeeper has just made."""
        life = self._cluster.zookeeper.lives
        if life != self._states_of_life:
            # Writes that were not synced may be gone.
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
        """Check that replicas that go down at the same time as all others stay in the ISR: each has everything, any may return
        first.
        """
        is_shorter = set(after.isr) < set(before.isr) and after.partition_epoch == before.partition_epoch + 1
        if after.leader < 0 and is_shorter and self._cluster.settled_replicas(tp):
            self._broken(
                "a replica that goes down with all others stays in the ISR", f"{tp}: {before.isr} became {after.isr}"
            )

    def _look_at_removal(self, tp: TopicPartition, broker: int) -> None:
        """Check that a removed replica got StopReplica, or that the controller is sending it: its successor would not
        know.
        """
        process, controller = self._cluster.brokers.get(broker), self._cluster.controller()
        if process is None or controller is None or not self._serves(broker):
            return
        partition, driver = process.broker.replicas.hosted.get(tp), controller.broker.controller  # type: ignore[union-attr]
        if str(driver.epoch).encode() != self._cluster.data_at(CONTROLLER_EPOCH):
            return  # a controller that has been replaced and does not know it yet
        channel, _ = driver._channels.get(broker, (None, None))
        is_left_alone = channel is not None and channel.is_quiet and not channel.is_suspect
        if is_left_alone and partition is not None and partition.machine.role in (Role.LEADER, Role.FOLLOWER):
            self._broken(
                "a removed replica is told to stop",
                f"{process.name} has {tp}, and {controller.name} sends it no StopReplica",
            )

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

    def _look_for_dead_leaders(self, states: dict[TopicPartition, LeaderAndIsr]) -> None:
        """Check that a dead broker leads nothing, once the controller can know."""
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
                    "a dead broker leads nothing",
                    f"{tp}: broker {state.leader} has been gone for {REPLACED_S:.0f} s, and {others} are in sync",
                )

    def _look_for_living_brokers(self) -> None:
        """Check that the controller's cluster has every registered broker that answers: it may be wrong, but not for long."""
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
                    "a broker that answers belongs to the cluster",
                    f"{process.name} has served for {REPLACED_S:.0f} s, and {controller.name} counts it as gone",
                )

    def _could_lead(self, broker: int) -> bool:
        """Whether the broker may be elected: not with a failed directory, and not during its controlled shutdown, as in
        Kafka.
        """
        process = self._cluster.brokers.get(broker)
        return process is not None and not process.is_stopping and not process.storage.faults

    def _look_at_unclean_elections(self, states: dict[TopicPartition, LeaderAndIsr]) -> None:
        """Check unclean elections: no replica replaces a better one whose session lives. That one may only look dead."""
        if not self._cluster.scenario.has_reckless or not self._cluster.zookeeper.is_serving:
            return
        nodes = self._nodes()
        for tp in [each for each in states if each.topic == RECKLESS]:
            state = states[tp]
            before, registered = self._reckless.get(tp, (state, {}))
            # The controller may be about to act on the end of the replica's former session: a registration of just now does not
            # count, nor one that the controller has not seen yet.
            alive = [
                each
                for each, (czxid, since_s) in registered.items()
                if _czxid(nodes, each) == czxid and self._world.now_s - since_s > GONE_S and self._could_lead(each)
            ]
            is_worse = state.leader >= 0 and state.leader not in before.isr
            # Only a change by one write counts: with more, the next leader may have joined the ISR in between.
            if is_worse and alive and state.partition_epoch == before.partition_epoch + 1:
                self._broken(
                    "no replica replaces a better one whose session lives",
                    f"{tp}: {state.leader} leads instead of {before.isr}, of which {alive} have their session",
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
    """Whether the broker's kernel has closed its connections. A host without power does not, so its session has to end."""
    return not process.is_up and process.host.is_up and not process.has_lost_power


def _is_to_former_life(link: Any) -> bool:
    """Whether the peer's host has lost its power since this connection began, and does not know the connection."""
    return link._transport is not None and bool(link._transport._line.other.is_gone)


def _czxid(nodes: Any, broker: int) -> int:
    """Return the zxid of the broker's registration; 0 if it is not registered."""
    node = nodes.get(broker_id(broker))
    return 0 if node is None else int(node.czxid)
