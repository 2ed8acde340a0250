"""The base of timed faults: look at the state of brokers and ZooKeeper, and take the next step when the moment has come.

`timed_broker_faults.py`, `encounters.py` and `descriptor_limits.py` use it. Owner: the world.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from barnabas.base.host.disk import TMP_SUFFIX
from barnabas.base.ids import TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, ReplicaAssignment, encode_reassign_partitions
from barnabas.testing.simulation.process import BrokerProcess

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

#: Seconds between two looks.
STEP_S = 0.0005
NONSENSE = b"no json"
SNAPSHOTS = "/zookeeper/version-2/snapshot."
#: A byte that occurs in no text.
BAD_BYTE = 0xFF


class TimedFaults:
    def __init__(self, faults: "Faults") -> None:
        self._faults = faults
        self._cluster = faults._cluster
        self._world = faults._world
        #: ZooKeeper files with a damaged byte.
        self._damaged: set[str] = set()

    def _when(self, is_time: Callable[[], bool], then: Callable[[], None], *, within_s: float = 2.0) -> None:
        """Call `then` as soon as `is_time` holds; do nothing if that does not come in time."""
        until_s = self._world.now_s + within_s

        def look() -> None:
            if self._faults._has_ended:
                return
            if is_time():
                then()
            elif self._world.now_s < until_s:
                self._world.after(STEP_S, look)

        self._world.after(STEP_S, look)

    def _alone(self, seconds: float) -> None:
        """Let no other fault happen for so long."""
        self._faults._rests_until_s = self._world.now_s + seconds

    def _note(self, what: str) -> None:
        self._world.note("ambush", what)

    def _serving(self, *besides: BrokerProcess | None) -> list[BrokerProcess]:
        return [each for each in self._cluster.brokers.values() if each.is_serving and each not in besides]

    def _choose(self, among: Iterable[Any]) -> Any:
        """Return a random element; None if there is none."""
        found = list(among)
        return self._world.random.choice(found) if found else None

    def _states(self) -> dict[TopicPartition, LeaderAndIsr]:
        """Return the states of partitions that keep every record and are not being moved; empty while ZooKeeper is down."""
        return {
            tp: state
            for tp, state in self._cluster.partition_states().items()
            if tp in self._cluster.partitions and len(self._cluster.settled_replicas(tp)) == 3
        }

    def _kill(self, broker: BrokerProcess, low_s: float, high_s: float) -> None:
        """Kill the broker and start it again later."""
        if broker.is_up and self._faults._may_kill(broker):
            broker.kill()
            self._world.after(self._world.between(low_s, high_s), lambda: None if broker.is_up else broker.start())

    def _part(self, one: BrokerProcess, others: Iterable[str], *, for_s: float) -> Callable[[], None]:
        """Cut one broker off from the others, both ways. Return a function that ends it early."""
        network, is_over = self._cluster.network, False
        pairs = [pair for other in others for pair in ((one.name, other), (other, one.name))]
        for pair in pairs:
            network.cut(*pair)
        self._note(f"{one.name} is cut off from {', '.join(sorted({other for _, other in pairs} - {one.name}))}")

        def mend() -> None:
            nonlocal is_over
            if not is_over and not self._faults._has_ended:
                is_over = True
                self._note(f"{one.name} is back on the network")
                for pair in pairs:
                    network.mend(*pair)

        self._world.after(for_s, mend)
        return mend

    def _others(self, *brokers: BrokerProcess | None) -> list[str]:
        return [each.name for each in self._cluster.brokers.values() if each not in brokers]

    def _send_away(self, broker: BrokerProcess, *, for_s: float) -> Callable[[], None]:
        """Keep the broker from ZooKeeper and other brokers, without a session. Return a function that brings it back early."""
        mend = self._part(broker, [*self._others(broker), self._cluster.zookeeper.name], for_s=for_s)
        self._cluster.expire_session(broker)
        return mend

    def _plan(self, tp: TopicPartition, replicas: Iterable[int]) -> None:
        """Write a reassignment to ZooKeeper, as old tools do. The latest one counts."""
        self._cluster.stranger.remove(paths.REASSIGN_PARTITIONS)
        self._cluster.stranger.write(paths.REASSIGN_PARTITIONS, encode_reassign_partitions({tp: tuple(replicas)}))

    def _assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        return self._cluster.assignment_of(tp) or ReplicaAssignment(())

    def _is_led_by(self, tp: TopicPartition, leader: int) -> bool:
        state = self._cluster.partition_states().get(tp)
        return state is not None and state.leader == leader

    def _spoil(self, tp: TopicPartition, then: Callable[[], None], *, for_s: float) -> None:
        """Make the partition's state unreadable for a while."""
        path = paths.partition_state(tp)
        self._cluster.stranger.spoil_now(tp.topic, path, NONSENSE, for_s=for_s)
        self._when(lambda: self._cluster.data_at(path) == NONSENSE, then)

    def _newest_of_two_snapshots(self) -> tuple[str, bytes] | None:
        """Return the newest snapshot of ZooKeeper, if it and an earlier one are good."""
        zookeeper = self._cluster.zookeeper
        files = {
            path: data for path, data in zookeeper.storage.files(SNAPSHOTS).items() if not path.endswith(TMP_SUFFIX)
        }
        snapshots = sorted(files, key=lambda path: int(path.removeprefix(SNAPSHOTS), 16))
        good = [path for path in snapshots if path not in self._damaged]
        if not zookeeper.is_serving or len(good) < 2 or good[-1] != snapshots[-1]:
            return None
        return snapshots[-1], files[snapshots[-1]]

    def _damage(self, path: str, position: int) -> None:
        """Kill ZooKeeper and damage a byte of this file before it starts again."""
        zookeeper = self._cluster.zookeeper
        zookeeper.kill()
        self._note(f"byte {position} of {path} is bad")
        zookeeper.storage.damage(path, position, BAD_BYTE)
        self._damaged.add(path)
        self._faults._start_later(zookeeper, 0.05, 0.5)
