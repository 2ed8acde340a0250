"""`Cluster`: a local cluster with a test's view of it, and a test's ways to break it. Blocking; any one thread at a time."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from barnabas.cli.local_cluster import ClusterFailed, LocalCluster, wait_until
from barnabas.client.admin import topics as topic_admin
from barnabas.client.cluster import Cluster as Client
from barnabas.client.config import client_config

CONTROL_TIMEOUT_S = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionView:
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Cluster(LocalCluster):
    """`LocalCluster` whose brokers take faults. Brokers have the ids 1..N."""

    with_control = True

    # -- async use ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.stop)

    # -- what a test looks at -----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Make a topic, and wait until every partition of it has a leader."""
        new = topic_admin.NewTopic(
            name=name, partitions=partitions, replication_factor=replication_factor, configs=dict(config or {})
        )

        self._ask(lambda client: topic_admin.create_topics(client, [new]))
        wait_until(
            lambda: (
                len(self.partitions(name)) == partitions and all(p.leader > 0 for p in self.partitions(name).values())
            ),
            what=f"leaders for {name}",
        )

    def delete_topic(self, name: str) -> None:
        self._ask(lambda client: topic_admin.delete_topics(client, [name]))

    def partitions(self, topic: str, *, seen_by: int | None = None) -> dict[int, PartitionView]:
        """Leader, replicas and ISR by partition, as a broker (any, if not said) knows them; nothing for an unknown topic."""

        async def look(client: Client) -> dict[int, PartitionView]:
            found = (await client.topics([topic])).get(topic)
            partitions = found.partitions if found is not None else ()
            return {each.index: PartitionView(each.leader, each.replicas, each.isr) for each in partitions}

        return self._ask(look, None if seen_by is None else self.address(seen_by))

    def leader_of(self, topic: str, partition: int = 0) -> int:
        return self.partitions(topic)[partition].leader

    def controller(self) -> int:
        """The controller's id, as a live broker knows it; -1 if there is no controller."""

        async def look(client: Client) -> int:
            await client.topics([])
            return client.image.controller_id

        return self._ask(look)

    def wait_for_isr(self, topic: str, size: int, *, timeout_s: float = 30.0) -> None:
        """Until every partition of the topic has `size` replicas in sync."""
        wait_until(
            lambda: all(len(p.isr) == size for p in self.partitions(topic).values()),
            timeout_s,
            what=f"{size} in-sync replicas of {topic}",
        )

    def _ask(self, question: Callable[[Client], Awaitable[T]], address: str | None = None) -> T:
        """Runs on its own event loop, so that a test may call it from any thread, with or without a loop."""

        async def ask() -> T:
            settings = self.client_settings("admin")
            async with Client(client_config(address or self.bootstrap, settings)) as client:
                return await question(client)

        return asyncio.run(ask())

    # -- faults that a broker itself carries out ----------------------------------------------------------------------

    def fail_api(
        self,
        broker_id: int,
        api: str,
        *,
        error: str | None = None,
        delay_ms: int = 0,
        drop: bool = False,
        after: int = 0,
        times: int | None = None,
        client_id: str = "",
    ) -> None:
        """Requests of an API (`Produce`, or `*`) are refused with a Kafka error, delayed, or cost the connection.

        `after` requests pass first, then `times` are hit (all of them if None), of clients whose id starts with `client_id`.
        """
        self.control(
            broker_id,
            do="fail_api",
            api=api,
            error=error,
            delay_ms=delay_ms,
            drop=drop,
            after=after,
            times=times,
            client_id=client_id,
        )

    def drop_connections(self, broker_id: int, *, client_id: str = "") -> None:
        self.control(broker_id, do="drop_connections", client_id=client_id)

    def cut_off(self, broker_id: int, others: Iterable[int] | None = None) -> None:
        """A network partition between a broker and others (all, if not said). ZooKeeper is still reached from both sides."""
        apart = [other for other in (others or self.broker_ids) if other != broker_id]
        self.control(broker_id, do="cut_off", brokers=apart)
        for other in apart:
            if self.member(other).running and not self.member(other).paused:
                self.control(other, do="cut_off", brokers=[broker_id])

    def be_deaf_to(self, broker_id: int, others: Iterable[int]) -> None:
        """A network that is cut one way: a broker hears nothing from the others, but they hear it."""
        self.control(broker_id, do="be_deaf_to", brokers=list(others))

    def fail_log_dir(self, broker_id: int, directory: Path) -> None:
        """One of the broker's log directories fails, as if its disk had."""
        self.control(broker_id, do="fail_log_dir", path=str(directory))

    def fill_disk(self, broker_id: int) -> None:
        """Writes fail with "No space left on device": the log directory goes offline."""
        self.control(broker_id, do="fill_disk")

    def advance_clock(self, broker_id: int, ms: int) -> None:
        """The broker's clock jumps: retention, lag limits and producer expiry see it; timers under way do not."""
        self.control(broker_id, do="advance_clock", ms=ms)

    def heal(self) -> None:
        """Every fault that was asked for ends, on every broker that runs."""
        for broker_id in self.broker_ids:
            if self.member(broker_id).running and not self.member(broker_id).paused:
                self.control(broker_id, do="clear")

    def control(self, broker_id: int, **command: object) -> None:
        """One command to a broker's control socket."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(CONTROL_TIMEOUT_S)
            sock.connect(str(self.control_path(broker_id)))
            sock.sendall(json.dumps(command).encode() + b"\n")
            answer = json.loads(sock.makefile("rb").readline())
        if not answer["ok"]:
            raise ClusterFailed(f"broker {broker_id} refused {command}: {answer['error']}")
