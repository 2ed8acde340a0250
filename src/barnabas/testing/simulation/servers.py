"""The brokers and the ZooKeeper of a user's world, with what faults and waiting need to know of them."""

from collections.abc import Mapping
from typing import Any

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.zookeeper_client.paths import broker_id, partition_state
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr
from barnabas.testing.settings import DEFAULTS
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import BrokerProcess, Process, ZooKeeperProcess
from barnabas.testing.simulation.world import World

#: A broker that stops by itself, because ZooKeeper or its disk is away, is started again after so long.
SUPERVISOR_S = 1.0
PORT = 9092


def settings_of(number: int, brokers: int, config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker: Kafka's, with times that suit worlds of a minute."""
    factor = str(min(3, brokers))
    return {
        "broker.id": str(number),
        "listeners": f"PLAINTEXT://b{number}:{PORT}",
        "zookeeper.connect": "zk:2181",
        "zookeeper.session.timeout.ms": "6000",
        "zookeeper.connection.timeout.ms": "60000",
        "log.dirs": "/data",
        **DEFAULTS,
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": "2" if brokers >= 3 else "1",
        "min.insync.replicas": "2" if brokers >= 3 else "1",
        "replica.lag.time.max.ms": "10000",
        "log.index.size.max.bytes": "65536",
        "group.initial.rebalance.delay.ms": "0",
        "controlled.shutdown.max.retries": "1",
        "auto.create.topics.enable": "false",
        **config,
    }


class Servers:
    """Owner: the world."""

    def __init__(self, world: World, network: Network, *, brokers: int, config: Mapping[str, str]) -> None:
        self.world = world
        self.network = network
        self.zookeeper = ZooKeeperProcess(world, network)
        self.brokers = {
            number: BrokerProcess(world, network, number, settings_of(number, brokers, config))
            for number in range(1, brokers + 1)
        }
        for process in self.all:
            process.on_end = self._ended
        for broker in self.brokers.values():
            broker.on_stopped = self._stopped
        #: Processes that a fault holds down.
        self.held_down: set[str] = set()

    @property
    def all(self) -> list[Process]:
        return [self.zookeeper, *self.brokers.values()]

    def start(self) -> None:
        for process in self.all:
            process.start()

    def _ended(self, process: Process, error: BaseException | None) -> None:
        self.world.note(process.name, f"stopped by itself: {error!r}")
        self._start_later(process)

    def _stopped(self, process: Process, error: BaseException | None) -> None:
        self.world.note(process.name, "has stopped")
        self._start_later(process)

    def _start_later(self, process: Process) -> None:
        self.world.after(SUPERVISOR_S, lambda: self.start_if_free(process))

    def start_if_free(self, process: Process) -> None:
        """Start it, unless it runs or a fault holds it down."""
        if not process.is_up and process.name not in self.held_down:
            process.start()

    # -- what is known of them ----------------------------------------------------------------------------------------

    def _nodes(self) -> Mapping[str, Any] | None:
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return None
        nodes: Mapping[str, Any] = self.zookeeper.server.service.machine.tree.nodes
        return nodes

    def topics(self) -> dict[str, int]:
        """Return the topics with the number of their partitions, as ZooKeeper has them; none while it is away."""
        nodes = self._nodes()
        if nodes is None:
            return {}
        root = nodes.get("/brokers/topics")
        found: dict[str, int] = {}
        for name in sorted(root.children or ()) if root is not None else ():
            parts = nodes.get(f"/brokers/topics/{name}/partitions")
            found[name] = len(parts.children or ()) if parts is not None else 0
        return found

    def states(self) -> dict[TopicPartition, LeaderAndIsr]:
        nodes = self._nodes()
        if nodes is None:
            return {}
        found = {}
        for name, count in self.topics().items():
            for index in range(count):
                where = TopicPartition(name, index)
                node = nodes.get(partition_state(where))
                if node is None:
                    continue
                try:
                    found[where] = LeaderAndIsr.decode(where, node.data, node.version)
                except Malformed:
                    continue
        return found

    def leaders(self, *topics: str) -> list[BrokerProcess]:
        """Return the brokers that lead partitions of these topics, in their order, without repetition."""
        led = {state.leader for where, state in self.states().items() if where.topic in topics}
        return [self.brokers[each] for each in sorted(led) if each in self.brokers and self.brokers[each].is_up]

    def coordinators(self) -> list[BrokerProcess]:
        return self.leaders(GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)

    def controller(self) -> BrokerProcess | None:
        for process in self.brokers.values():
            controller = getattr(process.broker, "controller", None)
            if process.is_up and controller is not None and controller.is_active:
                return process
        return None

    def led_partitions(self, broker: int) -> list[TopicPartition]:
        return [where for where, state in self.states().items() if state.leader == broker]

    def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of the application's logs at their leaders."""
        found = {}
        for where, state in self.states().items():
            if where.topic.startswith("__"):
                continue
            process = self.brokers.get(state.leader)
            replicas = getattr(getattr(process, "broker", None), "replicas", None)
            partition = replicas.hosted.get(where) if replicas is not None else None
            if partition is not None and partition.log is not None:
                found[where] = partition.log.high_watermark
        return found

    def trouble(self) -> str:
        """Say what is not healthy yet; empty if all is."""
        nodes = self._nodes()
        if nodes is None:
            return "ZooKeeper does not serve"
        for number, process in self.brokers.items():
            if not process.is_serving:
                return f"{process.name} does not serve"
            if broker_id(number) not in nodes:
                return f"{process.name} is not registered"
        if self.controller() is None:
            return "no broker is controller"
        for where, state in self.states().items():
            if state.leader < 0:
                return f"{where} has no leader"
            if len(state.isr) < min(3, len(self.brokers)) and len(state.isr) < self._replicas(where):
                return f"a replica of {where} is not in sync"
        return ""

    def _replicas(self, where: TopicPartition) -> int:
        """Return how many brokers have a log of it."""
        return sum(
            1
            for process in self.brokers.values()
            if (replicas := getattr(process.broker, "replicas", None)) is not None
            and replicas.hosted.get(where) is not None
        )

    def heal(self) -> None:
        """End all faults, and start the processes that are down."""
        self.held_down.clear()
        for process in self.all:
            if process.is_paused:
                process.resume()
            process.spare()
            process.disk_slowness = 1
            process.clock.skew_ms = 0
            if process.storage.faults:
                process.storage.heal()
                if isinstance(process, BrokerProcess) and process.is_up:
                    process.kill()
            if not process.is_up:
                process.start()
