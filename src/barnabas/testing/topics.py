"""Topics as a test makes and sees them, and what it waits for. Blocking."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.cli.faults.asking import Question, T
from barnabas.cli.faults.names import check_topic_settings, no_such_topic
from barnabas.cli.local_cluster import wait_until
from barnabas.cli.local_settings import SettingValue, setting_texts
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.testing.records import TIMEOUT_S, RecordHelpers


@dataclass(frozen=True, slots=True)
class PartitionView:
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicHelpers(RecordHelpers):
    """What clusters of processes and brokers in the test's process have in common."""

    @property
    @abstractmethod
    def broker_ids(self) -> range: ...

    @abstractmethod
    def ask(self, question: Question[T], *, of: int | None = None) -> T:
        """Carry out something with a client of the cluster, as an administrator; `of` asks one broker first."""

    @abstractmethod
    def _can_obey(self, broker_id: int) -> bool: ...

    # -- topics -----------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, SettingValue] | None = None,
    ) -> None:
        """Make a topic, and wait until every broker knows that every partition of it has a leader."""
        check_topic_settings(config or {})
        new = topic_admin.NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=setting_texts(config or {}),
        )
        self.ask(lambda client: topic_admin.create_topics(client, [new]))
        self.wait_until_led(name)

    def delete_topic(self, name: str) -> None:
        self.ask(lambda client: topic_admin.delete_topics(client, [name]))

    def partitions(self, topic: str, *, seen_by: int | None = None) -> dict[int, PartitionView]:
        """Leader, replicas and ISR by partition, as a broker (any, if not said) knows them; nothing for an unknown topic."""

        async def look(client: AsyncClient) -> dict[int, PartitionView]:
            found = (await client.topics([topic])).get(topic)
            partitions = found.partitions if found is not None else ()
            return {each.index: PartitionView(each.leader, each.replicas, each.isr) for each in partitions}

        return self.ask(look, of=seen_by)

    def topics(self) -> list[str]:
        """By name, without Kafka's own."""

        async def look(client: AsyncClient) -> list[str]:
            return sorted(name for name in await client.all_topics() if not name.startswith("__"))

        return self.ask(look)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """-1 while there is none."""
        known = self.partitions(topic)
        if not known:
            raise no_such_topic(topic, self.topics())
        if partition not in known:
            raise ValueError(f"{topic} has no partition {partition}: it has 0 to {max(known)}")
        return known[partition].leader

    # -- waiting ----------------------------------------------------------------------------------------------------------

    def wait_until_led(self, topic: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Until every broker that runs knows a running leader of every partition: no client is sent anywhere else then."""
        running = [each for each in self.broker_ids if self._can_obey(each)]

        def led(seen_by: int) -> bool:
            known = self.partitions(topic, seen_by=seen_by)
            return bool(known) and all(each.leader in running for each in known.values())

        wait_until(
            lambda: all(led(each) for each in running), timeout_s, what=f"leaders of {topic}, known to all brokers,"
        )

    def wait_for_isr(self, topic: str, size: int, *, timeout_s: float = TIMEOUT_S) -> None:
        """Until every partition of the topic has `size` replicas in sync."""

        def in_sync() -> bool:
            known = self.partitions(topic)
            return bool(known) and all(len(each.isr) == size for each in known.values())

        wait_until(in_sync, timeout_s, what=f"{size} in-sync replicas of {topic}")
