"""Who acts on the cluster: producers, consumers, and misfortune."""

from typing import TYPE_CHECKING

from sim_broker import SimBroker

from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition

if TYPE_CHECKING:
    from sim_cluster import Cluster


class Producer:
    """Sends values that are never the same twice, with acks=all or 1, to whom it believes to lead."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._value = 0
        self._ended = False
        self.acknowledged = 0

    def start(self) -> None:
        self._act()

    def end(self) -> None:
        self._ended = True

    def _act(self) -> None:
        if self._ended:
            return
        cluster, world = self._cluster, self._cluster.world
        tp = world.rng.choice(cluster.partitions)
        known = cluster.metadata(tp)
        if known is not None and known[0] >= 0:
            self._value += 1
            value, acks = self._value, world.rng.choice([-1, -1, 1])
            cluster.client_call(known[0], lambda peer, reply: peer.on_produce(tp, value, acks, reply), self._answered)
        world.after(world.between(2, 40), self._act)

    def _answered(self, code: object) -> None:
        if code is ErrorCode.NONE:
            self.acknowledged += 1


class Consumer:
    """Reads in order from the leader, or (near) from any replica; asks for the end now and then.

    As KIP-320 has it, it never goes back to a leader of an older epoch than it has seen.
    """

    def __init__(self, cluster: "Cluster", name: str, *, near: bool) -> None:
        self._cluster = cluster
        self._name = name
        self._near = near
        self._positions = dict.fromkeys(cluster.partitions, 0)
        self._epochs = dict.fromkeys(cluster.partitions, -1)
        self._request = 0
        self._answered = 0

    def start(self) -> None:
        self._act()

    def _act(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        tp = world.rng.choice(cluster.partitions)
        known = cluster.metadata(tp)
        self._request += 1
        number = self._request
        if known is not None and known[0] >= 0 and known[1] >= self._epochs[tp]:
            leader, epoch = known
            self._epochs[tp] = epoch
            if world.chance(0.3):
                cluster.client_call(
                    leader,
                    lambda peer, reply: reply(peer.on_list_latest(tp, epoch)),
                    lambda answer: self._told_end(number, tp, *answer),
                )
            else:
                target = world.rng.choice(cluster.assignments[tp]) if self._near else leader
                offset = self._positions[tp]
                cluster.client_call(
                    target,
                    lambda peer, reply: reply(peer.on_consume(tp, epoch, offset, from_leader=not self._near)),
                    lambda answer: self._read(number, tp, offset, *answer),
                )
        world.after(world.between(15, 60), self._act)

    def _is_due(self, number: int) -> bool:
        if number != self._request or number == self._answered:
            return False
        self._answered = number
        return True

    def _told_end(self, number: int, tp: TopicPartition, code: ErrorCode, end: int) -> None:
        # Only the first answer to the last question counts: a client's requests are answered in order, and once.
        if self._is_due(number) and code is ErrorCode.NONE:
            self._cluster.oracle.told_end(self._name, tp, end)

    def _read(
        self, number: int, tp: TopicPartition, offset: int, code: ErrorCode, records: list[tuple[int, int]]
    ) -> None:
        if not self._is_due(number) or code is not ErrorCode.NONE:
            return
        for record in records:
            self._cluster.oracle.consumes(self._name, tp, offset, record)
            offset += 1
        self._positions[tp] = max(self._positions[tp], offset)


class Faults:
    """One misfortune after another, several at a time, until it is told to end; then it mends everything."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._ended = False
        #: How many more leaders of a partition are to die as soon as they lead.
        self._prey: dict[TopicPartition, int] = {}
        cluster.on_leader = self.leader_appeared

    def start(self) -> None:
        self._act()

    def end(self) -> None:
        self._ended = True
        cluster = self._cluster
        cluster.world.note("faults", "%s", "end")
        cluster.is_calm = True
        cluster.cuts.clear()
        for broker in cluster.brokers.values():
            if broker.is_paused:
                broker.resume()

    def _act(self) -> None:
        if self._ended:
            return
        world = self._cluster.world
        actions = [
            self._kill,
            self._kill,
            self._cut_power,
            self._pause,
            self._pause,
            self._hunt,
            self._cut,
            self._cut_off,
            self._expire,
        ]
        world.rng.choice(actions)()
        world.after(world.between(100, 700), self._act)

    def _pick(self) -> SimBroker | None:
        up = [broker for broker in self._cluster.brokers.values() if broker.is_up]
        return self._cluster.world.rng.choice(up) if up else None

    def _kill(self) -> None:
        broker = self._pick()
        if broker is not None:
            broker.crash(power=False)
            self._restart_later(broker, must_wait=False)

    def _hunt(self) -> None:
        """Leaders of one partition are killed one after the other, just after they were elected."""
        cluster = self._cluster
        tp = cluster.world.rng.choice(cluster.partitions)
        cluster.world.note("faults", "leaders of %s are hunted", tp)
        self._prey[tp] = 2
        state = cluster.state_of(tp)
        if state is not None and state.leader >= 0:
            self.leader_appeared(tp, cluster.brokers[state.leader])

    def leader_appeared(self, tp: TopicPartition, broker: SimBroker) -> None:
        if self._ended or self._prey.get(tp, 0) == 0:
            return
        self._prey[tp] -= 1
        life = broker.incarnation

        def kill() -> None:
            if broker.is_up and broker.incarnation == life:
                broker.crash(power=False)
                self._restart_later(broker, must_wait=False)

        self._cluster.world.after(self._cluster.world.between(0, 10), kill)

    def _cut_power(self) -> None:
        broker = self._pick()
        if broker is not None:
            broker.crash(power=True)
            self._restart_later(broker, must_wait=self._cluster.settings.slow_boot)

    def _restart_later(self, broker: SimBroker, *, must_wait: bool) -> None:
        cluster = self._cluster

        def restart() -> None:
            if broker.is_up:
                return
            if must_wait and not cluster.may_boot(broker):
                if any(other.is_up for other in cluster.brokers.values()):
                    cluster.world.after(100, restart)
                    return
                # Nobody is left to miss it: it goes on where it was, in the same leader epoch, with less.
                for tp in broker.lost_in_cut:
                    cluster.oracle.excuse(tp, f"broker {broker.id} boots alone after a power cut")
            broker.start()

        cluster.world.after(cluster.world.between(50, 1500), restart)

    def _pause(self) -> None:
        broker = self._pick()
        if broker is not None and not broker.is_paused:
            life = broker.incarnation
            broker.pause()

            def resume() -> None:
                if broker.is_paused and broker.incarnation == life:
                    broker.resume()

            self._cluster.world.after(self._cluster.world.between(50, 1500), resume)

    def _cut(self) -> None:
        """Two brokers do not reach each other."""
        world = self._cluster.world
        self._cut_pairs([frozenset(world.rng.sample(list(self._cluster.brokers), 2))])

    def _cut_off(self) -> None:
        """One broker is cut off, from the others, from ZooKeeper, or from all."""
        world = self._cluster.world
        one = world.rng.choice(list(self._cluster.brokers))
        others: list[object] = [other for other in self._cluster.brokers if other != one]
        targets = world.rng.choice([others, ["zk"], [*others, "zk"]])
        self._cut_pairs([frozenset((one, other)) for other in targets])

    def _cut_pairs(self, pairs: list[frozenset[object]]) -> None:
        cluster = self._cluster
        cluster.cuts.update(pairs)
        cluster.world.note("faults", "cut %s", [sorted(map(str, pair)) for pair in pairs])

        def mend() -> None:
            cluster.cuts.difference_update(pairs)

        cluster.world.after(cluster.world.between(100, 1200), mend)

    def _expire(self) -> None:
        broker = self._pick()
        if broker is not None and broker.session is not None and broker.session.is_alive:
            self._cluster.world.note("zookeeper", "session of broker %s expires early", broker.id)
            self._cluster.zk.expire(broker.session)
