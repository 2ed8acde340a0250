"""What an administrator does to a mixed cluster, and what can be seen of it: controllers, leaders, replicas, bytes."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, TopicMetadata
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.admin import partitions as admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.testing import wait_until
from tests.interop.kinds import MixedCluster

T = TypeVar("T")
_SILENT = logging.getLogger("steering.kazoo")
_SILENT.setLevel(logging.CRITICAL)


class Steering:
    """One administrator of one mixed cluster."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        # librdkafka waits for ever for a controller that the broker's first answer does not name yet.
        for broker_id in cluster.kinds:
            wait_until(lambda b=broker_id: self._knows_all(b), what=f"broker {broker_id} knows the cluster")
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.zk = KazooClient(cluster.zookeeper, logger=_SILENT)
        self.zk.start()

    def _knows_all(self, broker_id: int) -> bool:
        admin = AdminClient({"bootstrap.servers": self.cluster.address(broker_id), "log_level": 0})
        try:
            seen = admin.list_topics(timeout=5)
        except KafkaException:
            return False
        return seen.controller_id != -1 and set(seen.brokers) == set(self.cluster.kinds)

    def close(self) -> None:
        self.zk.stop()
        self.zk.close()

    # -- controller ---------------------------------------------------------------------------------------------------

    def controller(self) -> int:
        try:
            return int(json.loads(self.zk.get("/controller")[0])["brokerid"])
        except NoNodeError:
            return -1

    def make_controller(self, broker_id: int) -> None:
        """Deleting the znode makes brokers race; again until the one that we want has won."""
        for _ in range(60):
            wait_until(lambda: self.controller() != -1, what="a controller")
            if self.controller() == broker_id:
                wait_until(lambda: self._seen_controller() == broker_id, what=f"everybody sees controller {broker_id}")
                return
            self.zk.delete("/controller")
        raise AssertionError(f"broker {broker_id} never became controller")

    def _seen_controller(self) -> int:
        return int(self.admin.list_topics(timeout=10).controller_id)

    # -- topics -------------------------------------------------------------------------------------------------------

    def describe(self, topic: str) -> TopicMetadata:
        return self.admin.list_topics(topic, timeout=20).topics[topic]

    def leaders(self, topic: str) -> dict[int, int]:
        return {number: part.leader for number, part in self.describe(topic).partitions.items()}

    def wait_for(
        self, topic: str, condition: Callable[[TopicMetadata], bool], *, what: str, timeout_s: float = 60
    ) -> None:
        def holds() -> bool:
            try:
                return condition(self.describe(topic))
            except KafkaException:
                return False

        try:
            wait_until(holds, timeout_s, what=what)
        except TimeoutError as late:
            parts = self.describe(topic).partitions.values()
            state = [(part.id, part.leader, part.replicas, part.isrs) for part in parts]
            raise TimeoutError(f"{late}: {state}") from None

    def wait_full_isr(self, *topics: str) -> None:
        for topic in topics:
            self.wait_for(
                topic,
                lambda meta: (
                    bool(meta.partitions)
                    and all(set(p.isrs) == set(p.replicas) and p.leader != -1 for p in meta.partitions.values())
                ),
                what=f"every replica of {topic} in sync",
            )

    def elect_preferred(self, topic: str) -> None:
        parts = [TopicPartition(topic, number) for number in self.describe(topic).partitions]
        done = self.ask(lambda cluster: admin.elect_leaders(cluster, admin.PREFERRED, parts))
        allowed = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        assert all(code in allowed for code, _ in done.values()), done
        self.wait_for(
            topic,
            lambda meta: all(p.leader == p.replicas[0] for p in meta.partitions.values()),
            what=f"preferred leaders of {topic}",
        )

    def reassign(self, topic: str, targets: Mapping[int, Sequence[int]]) -> None:
        moves = {TopicPartition(topic, number): list(replicas) for number, replicas in targets.items()}
        done = self.ask(lambda cluster: admin.alter_reassignments(cluster, moves))
        assert all(code == ErrorCode.NONE for code, _ in done.values()), done
        wait_until(
            lambda: not self.ask(lambda cluster: admin.list_reassignments(cluster)),
            what=f"reassignment of {topic} ends",
        )
        self.wait_for(
            topic,
            lambda meta: all(list(meta.partitions[n].replicas) == list(r) for n, r in targets.items()),
            what=f"new replicas of {topic}",
        )

    def ask(self, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """One question with our own client."""

        async def run() -> T:
            hosts = tuple(("127.0.0.1", port) for port in self.cluster.ports.values())
            client = AsyncClient(ClientConfig(bootstrap=hosts))
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(run())

    # -- bytes --------------------------------------------------------------------------------------------------------

    def wait_replicas_equal(self, *topics: str, timeout_s: float = 30) -> None:
        """Every replica of every partition holds the same bytes. Nobody may be writing."""
        for topic in topics:
            for number, part in self.describe(topic).partitions.items():
                folders = [self.cluster.log_dir(broker_id) / f"{topic}-{number}" for broker_id in part.replicas]
                wait_until(
                    lambda folders=folders: len({_log_bytes(folder) for folder in folders}) == 1,
                    timeout_s,
                    what=f"replicas of {topic}-{number} on {part.replicas} are the same bytes",
                )


def _log_bytes(folder: Path) -> bytes:
    return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))
