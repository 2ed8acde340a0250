"""Faults: one after the other, several at a time, until `end` is called.

A power cut loses writes that were not synced, so it hits only a broker whose partitions each have another undamaged in-sync
replica that is up: Kafka promises no more. `Damage` keeps account of that, and excuses a partition if the cluster was left with
nothing better than a damaged replica.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from barnabas.base.ids import TopicPartition
from barnabas.broker.zookeeper_client.paths import TOPICS, config_entity, partition_state, topic
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr
from barnabas.testing.simulation.process import BrokerProcess, Process
from tests.simulation.descriptor_limits import Scarcity
from tests.simulation.encounters import Encounters
from tests.simulation.ensemble import EnsembleFaults
from tests.simulation.load import RECKLESS
from tests.simulation.timed_broker_faults import TimedBrokerFaults

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: Paths in ZooKeeper where a foreign tool may write, and the data that it writes.
FOREIGN_PATHS = (
    "/config/changes/config_change_",
    "/config/changes/foreign",
    "/isr_change_notification/isr_change_",
    "/log_dir_event_notification/log_dir_event_",
    "/admin/preferred_replica_election",
    "/admin/reassign_partitions",
    "/admin/delete_topics/no-such-topic",
    "/config/topics/no-such-topic",
)
FOREIGN_DATA = (
    b"",
    b"not json",
    b"\xff\xfe",
    b"{}",
    b"[]",
    b'{"version":1}',
    b'{"version":99,"entity_path":"topics/x"}',
)

#: Parts of log lines that brokers write when an operation has begun or is half done.
HALF_DONE_LINES = (
    "the ISR",
    "proposing to",
    "leading ",
    "is controller",
    "took over in epoch",
    "truncating",
    "loaded in epoch",
    "rolled",
    "registered with epoch",
    "bounced",
    "deleting",
    "settings of",
    "stopping",
)
#: The line of a broker whose cleaner begins with a log.
COMPACTION_LINE = "[log cleaner] cleaning "
#: How often a starting broker is looked at.
STEP_S = 0.0005
#: How often partition states and logs are looked at.
WATCH_S = 0.05


class Damage:
    """The replicas that lost acknowledged records to a power cut and have not fetched them again."""

    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        #: (broker, partition) -> (log end before the cut, leader epoch of the last record).
        self._before: dict[tuple[int, TopicPartition], tuple[int, int | None]] = {}
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        #: (broker, partition) -> zxid of the partition's state at the last look at the damage.
        self._written_at: dict[tuple[int, TopicPartition], int] = {}
        #: Damaged replicas -> the last life in which they were looked at.
        self._judged: dict[tuple[int, TopicPartition], int] = {}

    def start(self) -> None:
        self._watch()

    def is_damaged(self, broker: int, tp: TopicPartition) -> bool:
        return (broker, tp) in self._before

    @property
    def states(self) -> dict[TopicPartition, LeaderAndIsr]:
        return self._states

    def cut(self, process: BrokerProcess) -> None:
        """Remember the logs of `process`, whose power is about to be cut."""
        if process.is_up:
            self._cluster.watch.note_ends(process)
        # Include logs that the process does not have open: their directory may be dead, or the process may be starting.
        watch = self._cluster.watch
        for (broker, tp), log_end in watch.ends.items():
            if broker == process.id and tp.topic != RECKLESS:
                self._before.setdefault((broker, tp), (log_end, watch.last_epochs[broker, tp]))
                self._written_at.pop((broker, tp), None)

    def may_lose(self, process: BrokerProcess) -> bool:
        """Whether each partition has an undamaged in-sync replica that is up beside this broker."""
        self._states = self._cluster.partition_states() or self._states
        for tp, state in self._states.items():
            if process.id not in state.isr or tp.topic == RECKLESS:
                continue
            others = [self._cluster.brokers[each] for each in state.isr if each != process.id]
            if not any(other.is_serving and not self.is_damaged(other.id, tp) for other in others):
                return False
        return True

    def has_any(self) -> bool:
        return bool(self._before)

    def _watch(self) -> None:
        self._cluster.world.after(WATCH_S, self._watch)
        before = self._states
        self._states = self._cluster.partition_states() or before
        for (broker, tp), (log_end, last_epoch) in list(self._before.items()):
            self._look(broker, tp, log_end, last_epoch, before.get(tp))

    def _look(
        self, broker: int, tp: TopicPartition, log_end: int, last_epoch: int | None, before: LeaderAndIsr | None
    ) -> None:
        process = self._cluster.brokers[broker]
        log = self._cluster.log_of(broker, tp)
        if process.is_up and log is not None and self._judged.get((broker, tp)) != process.lives:
            self._judged[broker, tp] = process.lives
            # If a truncation was lost as well, the truncated records are back in place of later ones.
            if log.log_end_offset >= log_end and log.epochs.epoch_at(log_end - 1) == last_epoch:
                del self._before[broker, tp]  # the kernel had written the records out
                return
        state = self._states.get(tp)
        if state is None:
            return
        # The controller elected the leader by the state before this one, which it wrote.
        now = self._cluster.written_at(tp)
        written_at = self._written_at.get((broker, tp), now)
        if now >= 0:
            self._written_at[broker, tp] = now
        if state.leader == broker:
            # The controller did not choose among replicas that joined the ISR after the election.
            is_new = before is not None and before.leader_epoch < state.leader_epoch
            isr = set(before.isr if before is not None and is_new else state.isr)
            if not any(
                other != broker and not self.is_damaged(other, tp) and self._cluster.was_there(other, written_at)
                for other in isr
            ):
                self._cluster.oracle.excuse(
                    tp, f"broker {broker}, which lost power, leads it, and no other was there all the time"
                )
            if tp in self._cluster.oracle.excused:
                del self._before[broker, tp]
        elif broker in state.isr and log is not None and process.is_ready:
            leader = self._cluster.log_of(state.leader, tp)
            caught_up = leader is not None and log.log_end_offset >= max(log_end, leader.high_watermark)
            if caught_up and not self.is_damaged(state.leader, tp):
                del self._before[broker, tp]


class Faults:
    def __init__(
        self,
        cluster: "SimCluster",
        *,
        every_s: tuple[float, float] = (0.3, 2.5),
        weights: Mapping[str, int] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """`weights`: how often each kind happens; without it the seed chooses, and kinds that are left out do not happen.
        `without`: names of kinds that do not happen, so that a story can be shortened.
        """
        self._cluster = cluster
        self._world = cluster.world
        self._every_s = every_s
        self._has_ended = False
        self._awaited: str | None = None
        self._awaits_compaction = False
        #: No other fault happens before this time.
        self._rests_until_s = 0.0
        self.damage = Damage(cluster)
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._kill, 4),
            (self._kill_leader, 3),
            (self._ambush, 6),
            (self._kill_controller, 2),
            (self._kill_all, 1),
            (self._restart, 2),
            (self._cut_power, 4),
            (self._cut_power_of_two, 2),
            (self._lose_host, 1),
            (self._pause, 4),
            (self._cut_link, 3),
            (self._isolate, 3),
            (self._depose, 1),
            (self._expire, 3),
            (self._reset_connections, 3),
            (self._slow_network, 2),
            (self._look_dead, 2),
            (self._kill_zookeeper, 2),
            (self._pause_zookeeper, 1),
            (self._tear_a_flush, 1),
            (self._jump_clock, 1),
            (self._die_in_the_middle, 3),
            (self._break_directory, 2),
            (self._unplug_directory, 1),
            (self._lose_directory, 2),
            (self._fill_directory, 1),
            (self._write_foreign_znode, 2),
            (self._die_in_compaction, 2),
            (self._slow_disk, 2),
            (self._shorten_writes, 1),
        ]
        #: Each seed has its own mix: some defects only show when other faults are absent.
        if weights:
            rare = (
                self._lose_controller,
                self._kill_as_it_registers,
                self._lose_zookeeper_as_it_starts,
                self._cut_all_power,
                self._kill_then_cut_all_power,
                self._spoil_a_topic,
                self._delete_a_root,
                *TimedBrokerFaults(self).kinds,
                *Encounters(self).kinds,
                *EnsembleFaults(self).kinds,
                *Scarcity(self).kinds,
            )
            kinds += [(each, 0) for each in rare]
            chosen = [(each, weights.get(each.__name__.strip("_"), 0)) for each, _ in kinds]
        else:
            chosen = [pair for pair in kinds if self._world.chance(0.6)] or kinds
        self.names = sorted({action.__name__.strip("_") for action, weight in chosen if weight} - without)
        self._kinds = [
            action for action, weight in chosen for _ in range(weight) if action.__name__.strip("_") not in without
        ]

    def begin(self) -> None:
        self.damage.start()
        self._world.after(self._world.between(1.0, 3.0), self._act)

    def end(self) -> None:
        self._has_ended = True
        self._cluster.network.usual_s = 0.001
        self._cluster.network.calm()

    def _act(self) -> None:
        if self._has_ended:
            return
        if self._kinds and self._world.now_s >= self._rests_until_s:
            self._world.random.choice(self._kinds)()
        self._world.after(self._world.between(*self._every_s), self._act)

    # -- who --------------------------------------------------------------------------------------------------------------

    def _pick(self) -> BrokerProcess | None:
        up = [broker for broker in self._cluster.brokers.values() if broker.is_up]
        return self._world.random.choice(up) if up else None

    def _start_later(self, process: Process, low_s: float = 0.02, high_s: float = 5.0) -> None:
        def start() -> None:
            if not process.is_up:
                process.start()

        # Often at once, before any other process notices; now and then so late that all have noticed.
        luck = self._world.random.random()
        longest_s = 0.5 if luck < 0.5 else high_s if luck < 0.9 else 3 * high_s
        self._world.after(self._world.between(low_s, longest_s), start)

    def _may_kill(self, broker: BrokerProcess) -> bool:
        return not self.damage.has_any() or self.damage.may_lose(broker)

    # -- for trouble that a world has on purpose ----------------------------------------------------------------------------

    def may_kill(self, broker: BrokerProcess) -> bool:
        return not self._has_ended and self._may_kill(broker)

    def cut_power_of(self, broker: BrokerProcess) -> bool:
        """Cut the broker's power; return False if other brokers need it."""
        return not self._has_ended and self._cut_power(broker)

    def kill_everybody(self) -> None:
        if not self._has_ended:
            self._kill_all()

    # -- processes --------------------------------------------------------------------------------------------------------

    def _kill(self, broker: BrokerProcess | None = None) -> None:
        broker = broker or self._pick()
        if broker is not None and broker.is_up and self._may_kill(broker):
            broker.kill()
            self._start_later(broker)

    def kill(self, broker: BrokerProcess) -> None:
        """Kill a broker for a client that waited for this moment."""
        if not self._has_ended:
            self._kill(broker)

    def _kill_leader(self) -> None:
        states = self.damage.states
        if states:
            leader = self._world.random.choice(list(states.values())).leader
            if leader in self._cluster.brokers:
                self._kill(self._cluster.brokers[leader])

    def _ambush(self) -> None:
        """Hit the next broker that logs a certain line: defects are where an operation has begun and not ended."""
        self._awaited = self._world.random.choice(HALF_DONE_LINES)
        self._world.note("faults", f"wait for a broker to log {self._awaited!r}")

    def heard(self, name: str, message: str) -> None:
        """Look at a broker's log line."""
        is_awaited = self._awaited is not None and self._awaited in message
        is_compaction = self._awaits_compaction and message.startswith(COMPACTION_LINE)
        if self._has_ended or not (is_awaited or is_compaction):
            return
        broker = next((each for each in self._cluster.brokers.values() if each.name == name), None)
        if broker is None:
            return
        if is_compaction:
            self._compacts(broker)
            return
        self._awaited = None
        hit = self._world.random.choice([self._kill, self._kill, self._cut_power, self._pause_now, self._isolate_now])
        self._world.after(self._world.random.choice([0.0, 0.0005, 0.003, 0.02]), lambda: hit(broker))

    def _die_in_compaction(self) -> None:
        """End the next broker that compacts a log, in the middle of it."""
        self._awaits_compaction = True

    def _compacts(self, broker: BrokerProcess) -> None:
        self._awaits_compaction = False
        number = self._world.random.randint(1, 40)
        self._world.note(broker.name, f"is to end at its disk operation {number} from now, in mid-compaction")

        def end() -> None:
            if self._has_ended or not self._may_kill(broker):
                return
            if self._world.chance(0.5) and self._cut_power(broker):
                return
            broker.kill()
            self._start_later(broker)

        broker.die_at_disk_operation(number, end)

    def _pause_now(self, broker: BrokerProcess) -> None:
        if broker.is_up and not broker.is_paused:
            self._pause_for(broker, self._world.between(0.05, 8.0))

    def _isolate_now(self, broker: BrokerProcess) -> None:
        """Isolate a broker: it runs on, and reaches only its clients."""
        others = [*(each for each in self._hosts() if each != broker.name), *self._cluster.zookeeper_hosts]
        self._cut(
            [pair for other in others for pair in ((broker.name, other), (other, broker.name))],
            self._world.between(0.5, 8.0),
        )

    def _kill_controller(self) -> None:
        broker = self._cluster.controller()
        if broker is not None:
            self._kill(broker)

    def _lose_controller(self) -> None:
        """Kill the controller and keep it down; no other fault happens until another broker must have taken over."""
        broker = self._cluster.controller()
        if broker is not None and self._may_kill(broker):
            broker.kill()
            self._world.after(4.5, lambda: None if broker.is_up else broker.start())
            self._rests_until_s = self._world.now_s + 3.5

    def _kill_all(self) -> None:
        """Kill every broker at once. The first to return leads what it can, and hears of all other partitions later."""
        if not self.damage.has_any():
            for broker in self._cluster.brokers.values():
                if broker.is_up:
                    broker.kill()
                    self._start_later(broker, 0.02, 2.0)

    def _kill_as_it_registers(self) -> None:
        """Kill a broker, and once more when ZooKeeper has its new registration and the broker has no answer yet."""
        broker = self._pick()
        if broker is None or not self._may_kill(broker):
            return

        def registered() -> bool:
            return self._cluster.is_registered(broker.id) and self._cluster.session_of(broker) == owner()

        def owner() -> int:
            return self._cluster.registered_by(broker.id)

        def kill() -> None:
            broker.kill()
            self._world.after(0.001, lambda: None if broker.is_up else broker.start())

        broker.kill()
        broker.start()
        self._as_it_starts(broker, registered, kill)

    def _lose_zookeeper_as_it_starts(self) -> None:
        """Kill a broker. In its next life, close its ZooKeeper connection after it has loaded its logs and before it
        registers.
        """
        broker = self._pick()
        if broker is None or not self._may_kill(broker):
            return

        def lose() -> None:
            self._world.note(broker.name, "loses its connections")
            for line in sorted(broker.host.connections, key=hash):
                line.reset_later()
                line.other.reset_later()

        broker.kill()
        broker.start()
        delay_s = self._world.random.choice([0.0, 0.0005, 0.002, 0.005])
        self._as_it_starts(
            broker,
            lambda: getattr(broker.broker, "registrar", None) is not None,
            lambda: self._world.after(delay_s, lambda: lose() if broker.is_up else None),
        )

    def _as_it_starts(self, broker: BrokerProcess, is_time: Callable[[], bool], hit: Callable[[], None]) -> None:
        """Hit a broker in the life that has just begun as soon as `is_time`, unless it is ready before."""
        life, until_s = broker.lives, self._world.now_s + 3.0

        def look() -> None:
            if self._has_ended or broker.lives != life or not broker.is_up or broker.is_ready:
                return
            if is_time():
                hit()
            elif self._world.now_s < until_s:
                self._world.after(STEP_S, look)

        self._world.after(STEP_S, look)

    def _cut_all_power(self) -> None:
        """Cut the power of every broker at once. For worlds in which every acknowledged record is on disk: nothing is
        excused.
        """
        for broker in self._cluster.brokers.values():
            broker.cut_power()
            self._start_later(broker, 0.02, 2.0)

    def _kill_then_cut_all_power(self) -> None:
        """Kill every broker while one of them waits for its disk. They restart with the contents of their page caches, and soon
        after that the power of all is cut.
        """
        brokers = self._cluster.brokers.values()
        until_s = self._world.now_s + 3.0

        def waits_for_its_disk() -> bool:
            logs = [self._cluster.log_of(broker.id, tp) for broker in brokers for tp in self.damage.states]
            return any(log is not None and log.flusher.recovery_point < log.flusher.due_up_to for log in logs)

        def look() -> None:
            if self._has_ended or self._world.now_s > until_s:
                return
            if not waits_for_its_disk():
                self._world.after(STEP_S, look)
                return
            for broker in brokers:
                if broker.is_up:
                    broker.kill()
                if not broker.is_up:
                    broker.start()
            self._rests_until_s = self._world.now_s + 2.0
            self._world.after(self._world.between(0.2, 1.5), lambda: None if self._has_ended else self._cut_all_power())

        look()

    def _restart(self) -> None:
        """Stop a broker cleanly, and start it with settings that the seed may change."""
        broker = self._pick()
        if broker is None or not broker.is_ready or broker.is_paused or not self._may_kill(broker):
            return
        broker.stop()
        broker.is_stopping = True

        def ended(process: Process, error: BaseException | None) -> None:
            self._cluster.vary_settings(broker)
            self._start_later(broker)

        broker.on_stopped = ended

    def _cut_power(self, broker: BrokerProcess | None = None) -> bool:
        broker = broker or self._pick()
        if broker is None or not broker.is_up or not self.damage.may_lose(broker):
            return False
        self.damage.cut(broker)
        broker.cut_power()
        self._start_later(broker)
        return True

    def _cut_power_of_two(self) -> None:
        """Cut the power of the controller and another broker, at once or while the first still counts as alive."""
        controller = self._cluster.controller()
        if controller is not None and self._cut_power(controller):
            if self._world.chance(0.3):
                self._cut_power()
            else:
                timeout_s = self._cluster.scenario.session_timeout_ms / 1000
                self._world.after(self._world.between(0.0, timeout_s), self._cut_power_unless_ended)

    def _lose_host(self) -> None:
        """Cut the power of a host until all brokers have noticed it and acted on it."""
        broker = self._pick()
        if broker is None or not self.damage.may_lose(broker):
            return
        self.damage.cut(broker)
        broker.cut_power()
        timeout_s = self._cluster.scenario.session_timeout_ms / 1000

        def start() -> None:
            if not self._has_ended and not broker.is_up:
                broker.start()

        self._world.after(timeout_s + self._world.between(4.0, 8.0), start)

    def _cut_power_unless_ended(self) -> None:
        if not self._has_ended:
            self._cut_power()

    def _pause(self) -> None:
        broker = self._pick()
        if broker is not None and not broker.is_paused:
            self._pause_for(broker, self._world.between(0.05, 5.0))

    def _pause_for(self, process: Process, seconds: float) -> None:
        life = process.lives
        process.pause()

        def resume() -> None:
            if process.is_up and process.lives == life and process.is_paused:
                process.resume()

        self._world.after(seconds, resume)

    def _kill_zookeeper(self) -> None:
        zookeeper = self._cluster.zookeeper
        if zookeeper.is_up:
            if self._world.chance(0.5):
                zookeeper.kill()
            else:
                zookeeper.cut_power()
            self._start_later(zookeeper, 0.05, 2.5)

    def _tear_a_flush(self) -> None:
        """Cut the power while ZooKeeper writes several records at once."""
        zookeeper = self._cluster.zookeeper
        if not zookeeper.is_serving:
            return
        sizes = [self._world.random.choice([700, 3_000, 9_000]) for _ in range(self._world.random.randint(2, 6))]
        self._cluster.stranger.store(sizes)

        def end() -> None:
            if not self._has_ended:
                zookeeper.cut_power()
                self._start_later(zookeeper, 0.05, 2.5)

        # ZooKeeper writes the first record alone, and the others together while it syncs the first.
        zookeeper.die_in_sync(sum(sizes[1:]), end)

    def _pause_zookeeper(self) -> None:
        zookeeper = self._cluster.zookeeper
        if zookeeper.is_up and not zookeeper.is_paused:
            self._pause_for(zookeeper, self._world.between(0.1, 3.0))

    def _die_in_the_middle(self) -> None:
        broker = self._pick()
        if broker is None or not self._may_kill(broker) or broker.is_paused:
            return
        number = int(self._world.random.choice([1, 3, 10, 40]) * self._world.between(1, 4))
        self._world.note(broker.name, f"is to die at its disk operation {number} from now")
        broker.die_at_disk_operation(number)

        def look() -> None:
            if not self._has_ended and not broker.is_up:
                broker.start()

        self._world.after(self._world.between(0.5, 4.0), look)

    # -- disks ------------------------------------------------------------------------------------------------------------

    def _healthy_pair(self) -> tuple[BrokerProcess, str] | None:
        """Choose a broker whose directories all work and that the cluster can do without, and one of its directories."""
        broker = self._pick()
        if broker is None or broker.storage.faults or not broker.is_serving or not self.damage.may_lose(broker):
            return None
        return broker, self._world.random.choice(["/one", "/two"])

    def _break_directory(self) -> None:
        """Let writes fail from now on: the broker takes the directory offline. A later restart mends it."""
        pair = self._healthy_pair()
        if pair is not None:
            broker, folder = pair
            self._world.note(broker.name, f"{folder} fails")
            broker.storage.fail_writes(folder)
            self._repair_later(broker)

    def _unplug_directory(self) -> None:
        """Let every operation, or every read, of a directory fail under a running broker."""
        pair = self._healthy_pair()
        if pair is not None:
            broker, folder = pair
            has_bad_sectors = self._world.chance(0.6)
            self._world.note(broker.name, f"{folder} {'cannot be read' if has_bad_sectors else 'is unplugged'}")
            (broker.storage.fail_reads if has_bad_sectors else broker.storage.fail)(folder)
            self._repair_later(broker)

    def _fill_directory(self) -> None:
        pair = self._healthy_pair()
        if pair is not None:
            broker, folder = pair
            self._world.note(broker.name, f"{folder} is nearly full")
            broker.storage.fill(folder, after_bytes=self._world.random.choice([0, 1_000, 10_000]))
            self._repair_later(broker)

    def _slow_disk(self) -> None:
        """Let syncs take up to half a second, as if another process of the machine wrote or the disk were about to fail."""
        broker = self._pick()
        if broker is None:
            return
        broker.disk_slowness = self._world.random.choice([10, 50, 250])
        self._world.note(broker.name, f"its disk takes {broker.disk_slowness} times as long")

        def again() -> None:
            broker.disk_slowness = 1

        self._world.after(self._world.between(0.5, 5.0), again)

    def _shorten_writes(self) -> None:
        """Let the kernel write less than it was given, as it may."""
        broker = self._pick()
        if broker is None or broker.storage.faults:
            return
        self._world.note(broker.name, "its disk accepts writes in pieces")
        broker.storage.shorten_writes("/", to_bytes=self._world.random.choice([60, 500]))

        self._world.after(self._world.between(0.2, 2.0), lambda: broker.storage.heal("/"))

    def _lose_directory(self) -> None:
        """Restart a broker with a dead directory, which comes back later."""
        pair = self._healthy_pair()
        if pair is not None:
            broker, folder = pair
            self._world.note(broker.name, f"{folder} is dead")
            broker.storage.fail(folder)
            broker.kill()
            self._start_later(broker, 0.02, 1.0)
            self._repair_later(broker)

    def _repair_later(self, broker: BrokerProcess) -> None:
        def repair() -> None:
            if self._has_ended:
                return
            if broker.is_up and not self._may_kill(broker):
                self._world.after(1.0, repair)
                return
            self._world.note(broker.name, "its directories are repaired")
            was_up = broker.is_up
            broker.mend_directories()
            if was_up:
                self._start_later(broker, 0.02, 1.0)

        self._world.after(self._world.between(2.0, 8.0), repair)

    # -- network ----------------------------------------------------------------------------------------------------------

    def _hosts(self) -> list[str]:
        return [broker.name for broker in self._cluster.brokers.values()]

    def _cut(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        network = self._cluster.network
        for pair in pairs:
            network.cut(*pair)
        self._world.note("network", f"cut {', '.join(f'{a}->{b}' for a, b in pairs)} for {seconds:.2f} s")

        def mend() -> None:
            if not self._has_ended:
                for pair in pairs:
                    network.mend(*pair)

        self._world.after(seconds, mend)

    def _cut_link(self) -> None:
        """Cut a link one way or both ways."""
        one, other = self._world.random.sample([*self._hosts(), *self._cluster.zookeeper_hosts], 2)
        pairs = [(one, other)] if self._world.chance(0.5) else [(one, other), (other, one)]
        self._cut(pairs, self._world.between(0.1, 6.0))

    def _isolate(self) -> None:
        one = self._world.random.choice(self._hosts())
        others = [each for each in self._hosts() if each != one]
        clients = [client.name for client in self._cluster.clients]
        zk = self._cluster.zookeeper_hosts
        targets = self._world.random.choice([others, zk, [*others, *zk], [*others, *zk, *clients], clients])
        pairs = [pair for other in targets for pair in ((one, other), (other, one))]
        self._cut(pairs, self._world.between(0.1, 6.0))

    def _depose(self) -> None:
        """Hold back the controller's requests to one broker, kill it, and deliver them after another broker has taken over."""
        controller = self._cluster.controller()
        others = [broker for broker in self._cluster.brokers.values() if broker is not controller and broker.is_serving]
        if controller is None or len(others) < 2:
            return
        deaf, victim = self._world.random.sample(others, 2)
        timeout_s = self._cluster.scenario.session_timeout_ms / 1000
        self._cut([(controller.name, deaf.name)], 2 * timeout_s + 1.0)
        self._kill(victim)
        self._world.after(timeout_s * self._world.between(0.8, 1.2), lambda: self._kill_unless_ended(controller))

    def _kill_unless_ended(self, broker: BrokerProcess) -> None:
        if not self._has_ended:
            self._kill(broker)

    def _reset_connections(self) -> None:
        host = self._cluster.network.hosts[self._world.random.choice([*self._hosts(), *self._cluster.zookeeper_hosts])]
        lines = sorted(host.connections, key=hash)
        self._world.note("network", f"connections of {host.name} are reset")
        for line in lines:
            if self._world.chance(0.5):
                line.reset_later()
                line.other.reset_later()

    def _look_dead(self) -> None:
        """Let a broker refuse connections: it lives and has its session, but looks dead to new connections."""
        # Preferably the only broker of an ISR: any replacement would lack committed records.
        brokers = self._cluster.brokers
        alone = [brokers[state.leader].name for state in self.damage.states.values() if state.isr == (state.leader,)]
        host = self._cluster.network.hosts[
            self._world.random.choice(alone if alone and self._world.chance(0.5) else self._hosts())
        ]
        if host.refuses:
            return
        self._world.note("network", f"{host.name} refuses connections")
        host.refuses = True
        for line in sorted(host.connections, key=hash):
            line.reset_later()
            line.other.reset_later()

        def accept() -> None:
            host.refuses = False
            self._world.note("network", f"{host.name} accepts connections again")

        self._world.after(self._world.between(0.2, 6.0), accept)

    def _slow_network(self) -> None:
        network = self._cluster.network
        most_s = self._world.random.choice([0.01, 0.05, 0.2])
        network.delay_s, network.loss = (0.0001, most_s), self._world.random.choice([0.0, 0.02, 0.1])
        self._world.note("network", f"is slow: up to {most_s} s, loss {network.loss}")

        self._world.after(self._world.between(0.5, 5.0), network.calm)

    # -- ZooKeeper and time -----------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        broker = self._pick()
        if broker is not None and self._cluster.expire_session(broker):
            self._world.note(self._cluster.zookeeper.name, f"session of {broker.name} expires early")

    def _write_foreign_znode(self) -> None:
        """Write data to ZooKeeper that no broker can parse, as a foreign tool might."""
        path = self._world.random.choice(FOREIGN_PATHS)
        data = self._world.random.choice(FOREIGN_DATA)
        if self._cluster.zookeeper.is_serving:
            self._cluster.stranger.write(path, data)

    def _spoil_a_topic(self) -> None:
        """Overwrite a topic's data in ZooKeeper with nonsense, and restore it later."""
        topics = sorted({tp.topic for tp in self._cluster.partition_states()})
        if not topics:
            return
        name = self._world.random.choice(topics)
        kind = self._world.random.choice(["comes", "twice", "goes"])
        path, make = self._world.random.choice(
            [
                (partition_state(TopicPartition(name, 0)), lambda data: b"no json"),
                (config_entity(TOPICS, name), lambda data: b"no json"),
                (topic(name), lambda data: self._without_sense(data, kind)),
            ]
        )
        self._cluster.stranger.spoil(name, path, make)

    def _without_sense(self, data: bytes, kind: str) -> bytes:
        """Return an invalid assignment: with an unknown broker, with a broker twice, or without any broker."""
        assignment = json.loads(data)
        replicas = assignment["partitions"]["0"]
        if kind == "comes":
            assignment["adding_replicas"] = {"0": [max(self._cluster.brokers) + 1]}
        elif kind == "twice":
            assignment["partitions"]["0"] = [*replicas, replicas[0]]
        else:
            assignment["removing_replicas"] = {"0": replicas}
        return json.dumps(assignment).encode()

    def _delete_a_root(self) -> None:
        """Delete the parent znode of notifications."""
        self._cluster.stranger.delete(
            self._world.random.choice(["/config/changes", "/kafka-acl-changes", "/log_dir_event_notification"])
        )

    def _jump_clock(self) -> None:
        broker = self._pick()
        if broker is not None:
            broker.clock.skew_ms = self._world.random.choice([0, -3_600_000, 60_000, 3_600_000, -5_000])
            self._world.note(broker.name, f"clock is off by {broker.clock.skew_ms} ms")
