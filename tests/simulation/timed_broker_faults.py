"""Timed faults: each waits until an operation is half done in a real broker, and strikes then.

Faults that need two or three events within milliseconds hardly ever occur at random. `Faults` arms each of these; it looks
every half millisecond at the state of brokers and ZooKeeper, and takes its next step when the state is right. If its time ends
before that, nothing happens. Owner: the world.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.znodes import (
    ReplicaAssignment,
    TopicAssignment,
    decode_config,
    encode_config,
    encode_config_change,
    encode_preferred_replica_election,
)
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.triggers import NONSENSE, TimedFaults

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

LOGS = "/zookeeper/version-2/log."


class TimedBrokerFaults(TimedFaults):
    def __init__(self, faults: "Faults") -> None:
        super().__init__(faults)
        self._made = 0

    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (
            self.spoil_the_state_of_a_returning_broker,
            self.cut_power_while_asked,
            self.tear_a_large_flush,
            self.damage_a_snapshot,
            self.spoil_a_reassignment,
            self.spoil_the_settings_of_a_dead_broker,
            self.lose_zookeeper_as_it_registers,
            self.hide_a_partition,
            self.hide_what_waits_for_a_marker,
            self.miss_a_deletion,
            self.miss_a_change,
            self.replace_a_plan,
            self.move_from_an_absent_broker,
            self.lose_a_whole_isr,
            self.miss_an_epoch,
        )

    # -- invalid data in ZooKeeper at a certain moment -----------------------------------------------------------------------

    def spoil_the_state_of_a_returning_broker(self) -> None:
        """Restart a leader while no broker can read the partition's state."""
        controller = self._cluster.controller()
        led = [
            (tp, broker)
            for tp, state in self._states().items()
            if (broker := self._cluster.brokers.get(state.leader)) in self._serving(controller)
        ]
        tp, broker = self._choose(led) or (None, None)
        if tp is None or not self._faults._may_kill(broker):
            return
        self._alone(3.0)
        self._spoil(tp, lambda: self._kill(broker, 0.02, 1.0), for_s=2.5)

    def spoil_a_reassignment(self) -> None:
        """Let a controller take over a reassignment whose partition has an unreadable state."""
        controller, states = self._cluster.controller(), self._states()
        tp = self._choose(states)
        if tp is None or controller is None:
            return
        replicas = self._cluster.settled_replicas(tp)
        newcomer = self._choose(each for each in self._serving(controller) if each.id not in replicas)
        if newcomer is None:
            return
        self._alone(3.0)
        # The new replica is alive, and cannot get in sync.
        self._part(newcomer, self._others(newcomer, controller), for_s=2.0)
        self._plan(tp, (*replicas[:2], newcomer.id))
        self._when(
            lambda: newcomer.id in self._assignment(tp).adding,
            lambda: self._spoil(tp, lambda: self._cluster.stranger.remove(paths.CONTROLLER), for_s=2.0),
        )

    def spoil_the_settings_of_a_dead_broker(self) -> None:
        """Kill the whole ISR while the topic's settings, which decide about unclean elections, are unreadable."""
        tp = self._choose(self._states())
        if tp is None or self._faults.damage.has_any():
            return
        self._alone(4.0)
        path = paths.config_entity(paths.TOPICS, tp.topic)

        def kill() -> None:
            state = self._cluster.partition_states().get(tp)
            for broker in () if state is None else state.isr:
                self._kill(self._cluster.brokers[broker], 1.0, 2.0)

        self._cluster.stranger.spoil_now(tp.topic, path, NONSENSE, for_s=2.5)
        self._when(lambda: self._cluster.data_at(path) == NONSENSE, kill)

    def hide_a_partition(self) -> None:
        """Restart all brokers while the state of one partition of a coordinator topic is unreadable: the controller tells them
        of the other partitions.
        """
        tp = self._choose(
            each
            for each in self._cluster.partition_states()
            if each.topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
        )
        if tp is not None and not self._faults.damage.has_any():
            self._alone(4.0)
            self._spoil(tp, self._kill_all, for_s=2.5)

    def hide_what_waits_for_a_marker(self) -> None:
        """The same with a partition that a decided transaction has written to, and whose marker is not written."""
        if self._faults.damage.has_any():
            return
        found: list[TopicPartition] = []

        def is_time() -> bool:
            for broker in self._serving():
                decided = broker.broker.transactions.coordinator.markers._decided  # type: ignore[union-attr]
                found[:] = [tp for each in decided.values() for tp in sorted(each.remaining) if tp in self._states()]
                if found:
                    return True
            return False

        def hide() -> None:
            if self._faults.damage.has_any():
                return
            self._alone(4.0)
            # Kill without power cuts, so that the decision stays.
            self._kill_all()
            self._spoil(found[0], lambda: None, for_s=2.5)

        self._when(is_time, hide)

    def _kill_all(self) -> None:
        for broker in self._cluster.brokers.values():
            self._kill(broker, 0.05, 0.5)

    # -- brokers that miss a change --------------------------------------------------------------------------------------------

    def miss_a_deletion(self) -> None:
        """Delete a topic while one broker, which knows it and has no replica of it, has no session."""
        controller = self._cluster.controller()
        away = self._choose(self._serving(controller))
        hosts = [each.id for each in self._serving(away)][:2]
        if controller is None or away is None or len(hosts) < 2:
            return
        self._alone(4.5)
        self._made += 1
        name = f"gone-{self._made}"
        self._cluster.stranger.write(
            paths.topic(name), TopicAssignment(None, {0: ReplicaAssignment(tuple(hosts))}).encode()
        )

        def delete() -> None:
            self._cluster.stranger.write(f"{paths.DELETE_TOPICS}/{name}", b"")
            self._when(lambda: self._cluster.data_at(paths.topic(name)) is None, mends[0])

        def leave() -> None:
            mends.append(self._send_away(away, for_s=2.5))
            self._when(lambda: not self._cluster.is_registered(away.id), delete)

        mends: list[Callable[[], None]] = []
        self._when(lambda: away.is_serving and name in away.broker.metadata.topics, leave)  # type: ignore[union-attr]

    def miss_a_change(self) -> None:
        """Change the settings of a topic while a broker has no session, for so long that the notification is gone: this fault
        removes it when all other brokers have read it.
        """
        away = self._choose(self._serving(self._cluster.controller()))
        topic = self._choose(self._cluster.topics)
        path = paths.config_entity(paths.TOPICS, topic)
        data = self._cluster.data_at(path)
        if away is None or not data:
            return
        self._alone(4.5)
        self._made += 1
        settings = decode_config(path, data) | {"segment.ms": str(600_000 + self._made)}
        known: set[str] = set()

        def change() -> None:
            known.update(self._cluster.children_of(paths.CONFIG_CHANGES))
            self._cluster.stranger.put(path, encode_config(settings))
            self._cluster.stranger.write(paths.config_change(), encode_config_change(f"{paths.TOPICS}/{topic}"))
            self._when(lambda: bool(fresh()) and all(has_read(each) for each in self._serving(away)), purge)

        def fresh() -> set[str]:
            return self._cluster.children_of(paths.CONFIG_CHANGES) - known

        def has_read(broker: BrokerProcess) -> bool:
            return fresh() <= broker.broker.settings.store._notifications._seen  # type: ignore[union-attr]

        def purge() -> None:
            for name in sorted(fresh()):
                self._cluster.stranger.remove(f"{paths.CONFIG_CHANGES}/{name}")
            self._when(lambda: not fresh(), mend)

        mend = self._send_away(away, for_s=2.5)
        self._when(lambda: not self._cluster.is_registered(away.id), change)

    def move_from_an_absent_broker(self) -> None:
        """Move the replica of a leader to another broker while the leader has no session."""
        tp = self._choose(self._states())
        if tp is None:
            return
        replicas = self._cluster.settled_replicas(tp)
        away = self._cluster.brokers.get(self._cluster.partition_states()[tp].leader)
        newcomer = self._choose(each for each in self._serving() if each.id not in replicas)
        if away not in self._serving(self._cluster.controller()) or newcomer is None:
            return
        self._alone(5.0)
        wanted = (*(each for each in replicas if each != away.id), newcomer.id)

        def move() -> None:
            self._plan(tp, wanted)
            self._when(lambda: self._cluster.settled_replicas(tp) == wanted, mend)

        mend = self._send_away(away, for_s=3.0)
        self._when(lambda: not self._is_led_by(tp, away.id) and not self._is_led_by(tp, -1), move)

    def lose_a_whole_isr(self) -> None:
        """Expire the sessions of the whole ISR at the same moment, while its brokers live on."""
        controller = self._cluster.controller()
        tp = self._choose(
            tp
            for tp, state in self._states().items()
            if controller is not None and controller.id not in state.isr and len(state.isr) > 1
        )
        if tp is None:
            return
        self._alone(2.5)
        for broker in self._cluster.partition_states()[tp].isr:
            process = self._cluster.brokers[broker]
            self._part(process, [self._cluster.zookeeper.name], for_s=self._world.between(0.5, 1.0))
            self._cluster.expire_session(process)

    # -- elections, one after the other ------------------------------------------------------------------------------------

    def replace_a_plan(self) -> None:
        """Replace a reassignment: a replica leads that is only in the first plan, and both plans wait for a third broker."""
        tp = self._choose(self._states())
        controller = self._cluster.controller()
        if tp is None or controller is None:
            return
        replicas = self._cluster.settled_replicas(tp)
        newcomers = [each for each in self._serving(controller) if each.id not in replicas]
        if len(newcomers) < 2:
            return
        first, second = self._world.random.sample(newcomers, 2)
        self._alone(6.5)
        self._part(second, self._others(second, controller), for_s=2.5)

        def elect() -> None:
            self._cluster.stranger.write(paths.PREFERRED_REPLICA_ELECTION, encode_preferred_replica_election((tp,)))
            self._when(lambda: self._is_led_by(tp, first.id), lambda: self._plan(tp, (second.id, *replicas[:2])))

        def is_in_sync() -> bool:
            state = self._cluster.partition_states().get(tp)
            return state is not None and first.id in state.isr

        self._plan(tp, (first.id, second.id, replicas[0]))
        self._when(is_in_sync, elect)

    def miss_an_epoch(self) -> None:
        """A leader misses that the controller leads in its place, and then leads again because the controller dies. A follower
        has followed the controller meanwhile, and cut off what the controller did not have.
        """
        controller = self._cluster.controller()
        tp = self._choose(
            tp
            for tp, state in self._cluster.partition_states().items()
            if tp in self._cluster.partitions
            and controller is not None
            and len(state.isr) == 3
            and state.leader != controller.id
            and len(self._cluster.settled_replicas(tp)) == 3
        )
        if tp is None or controller is None or not self._faults._may_kill(controller):
            return
        leader = self._cluster.brokers[self._cluster.partition_states()[tp].leader]
        third = next(
            self._cluster.brokers[each]
            for each in self._cluster.settled_replicas(tp)
            if each not in (leader.id, controller.id)
        )
        order = (controller.id, leader.id, third.id)
        self._alone(5.0)

        def part() -> None:
            # The controller's requests to the leader arrive when they no longer matter.
            self._part(leader, [controller.name], for_s=4.0)
            self._when(lambda: end_of(third) > end_of(controller), elect, within_s=1.0)

        def end_of(broker: BrokerProcess) -> int:
            log = self._cluster.log_of(broker.id, tp)
            return -1 if log is None else int(log.log_end_offset)

        def elect() -> None:
            self._cluster.stranger.write(paths.PREFERRED_REPLICA_ELECTION, encode_preferred_replica_election((tp,)))
            self._when(has_followed, strike, within_s=1.0)

        def has_followed() -> bool:
            replicas = getattr(third.broker, "replicas", None)
            partition = None if replicas is None else replicas.hosted.get(tp)
            follows = partition is not None and partition.machine.leader == controller.id
            return follows and end_of(third) <= end_of(controller)

        def strike() -> None:
            if third.is_up and not third.is_paused:
                self._faults._pause_for(third, 2.0)
            # The next controller must not see this broker as alive, or it would make the leader a follower.
            self._cluster.expire_session(controller)
            self._kill(controller, 2.0, 3.0)

        def is_in_order() -> bool:
            state = self._cluster.partition_states().get(tp)
            is_moved = self._cluster.settled_replicas(tp) == order
            return is_moved and state is not None and state.leader == leader.id and set(state.isr) == set(order)

        self._plan(tp, order)
        self._when(is_in_order, part)

    # -- processes and their disks ------------------------------------------------------------------------------------------

    def cut_power_while_asked(self) -> None:
        """Cut the power of a broker's host when the broker has accepted a request of another one; the host is back at once."""
        found: list[BrokerProcess] = []

        def is_time() -> bool:
            for asker in self._serving():
                for lane in asker.broker.broker_connections._lanes:  # type: ignore[union-attr]
                    # A lane with one request at a time: no later request on it notices the dead connection.
                    if lane._purpose != "transaction-markers":
                        continue
                    for number, (_, link) in lane._connections.items():
                        broker = self._cluster.brokers[number]
                        line = None if link._transport is None else link._transport._line
                        has_arrived = link.in_flight and line is not None and not line.on_way_bytes
                        if has_arrived and broker.is_serving and self._faults.damage.may_lose(broker):
                            found[:] = [broker]
                            return True
            return False

        def cut() -> None:
            broker = found[0]
            self._alone(3.0)
            self._faults.damage.cut(broker)
            broker.cut_power()
            self._world.after(self._world.between(0.02, 0.3), lambda: None if broker.is_up else broker.start())

        self._when(is_time, cut, within_s=4.0)

    def lose_zookeeper_as_it_registers(self) -> None:
        """Kill a broker, and take its ZooKeeper connection or session away as it registers."""
        broker = self._choose(self._serving())
        if broker is None or not self._faults._may_kill(broker):
            return
        broker.kill()
        broker.start()

        def has_read_its_logs() -> bool:
            return getattr(broker.broker, "registrar", None) is not None

        def lie_in_wait() -> None:
            registrar, session = broker.broker.registrar, broker.broker.session  # type: ignore[union-attr]
            register = registrar.register

            has_expired = broker.lives % 2 == 0

            async def registers() -> Any:
                nonlocal has_expired
                if has_expired:
                    has_expired = False
                    self._note(f"{broker.name} has lost its session")
                    self._cluster.expire_session(broker)
                else:
                    self._note(f"{broker.name} has lost its connection to ZooKeeper")
                    session._connection._client.lose_connection()  # type: ignore[union-attr]
                return await register()

            registrar.register = registers  # type: ignore[method-assign]

        self._faults._as_it_starts(broker, has_read_its_logs, lie_in_wait)

    def tear_a_large_flush(self) -> None:
        """Cut the power while ZooKeeper syncs records of several pages, and short ones between them."""
        zookeeper = self._cluster.zookeeper
        if not zookeeper.is_serving:
            return
        sizes = [700, *(self._world.random.choice([300, 9_000, 9_000]) for _ in range(9)), 9_000]
        self._cluster.stranger.store(sizes)

        def end() -> None:
            if not self._faults._has_ended:
                # All pages of the flush except one in the middle have been written.
                newest = max(zookeeper.storage.files(LOGS), key=lambda path: int(path.removeprefix(LOGS), 16))
                zookeeper.storage.write_back_but_one(newest, self._world.random)
                zookeeper.cut_power()
                self._faults._start_later(zookeeper, 0.05, 0.5)

        # The last records may be left for the next flush.
        zookeeper.die_in_sync(sum(sizes[1:-2]), end)

    def damage_a_snapshot(self) -> None:
        """Kill ZooKeeper and damage a byte of its newest snapshot. There are an older snapshot and the logs since."""
        found = self._newest_of_two_snapshots()
        if found is None:
            return
        path, newest = found
        # If possible damage the text of an ACL.
        locked = newest.find(b"digest")
        at = locked + self._world.random.randrange(30) if locked >= 0 and self._world.chance(0.5) else None
        self._damage(path, self._world.random.randrange(len(newest)) if at is None else at)
