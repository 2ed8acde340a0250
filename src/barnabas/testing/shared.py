"""Clusters that tests share. Each test gets its own names and topics, and a cluster without faults."""

import inspect
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from barnabas.base.names import did_you_mean
from barnabas.base.recent import Recent
from barnabas.cli.faults.asking import Question, T
from barnabas.cli.faults.journal import Watch
from barnabas.cli.local_settings import SettingValue
from barnabas.client.admin.topics import delete_topics
from barnabas.testing.cluster import Cluster
from barnabas.testing.records import RecordHelpers

#: How many clusters with different options are kept running; the least recently used one is stopped first.
KEPT_MAX = 3
_OPTIONS = tuple(inspect.signature(Cluster).parameters)


def check_options(options: Mapping[str, object], *, of: str) -> None:
    """:raises ValueError: if `Cluster` has no such option."""
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(
                f"{of} has no option {name!r}{did_you_mean(name, _OPTIONS) or ': it has ' + ', '.join(_OPTIONS)}"
            )


def _shape(options: Mapping[str, object]) -> str:
    return json.dumps(options, sort_keys=True, default=str)


class SharedClusters:
    """One cluster for each set of options. Owner: one process; each process of pytest-xdist has its own clusters."""

    def __init__(self) -> None:
        self._clusters: Recent[str, Cluster] = Recent(KEPT_MAX, may_drop=lambda shape, _: shape not in self._held)
        #: Options of clusters that are never stopped for others.
        self._held: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, **options: Any) -> Cluster:
        """Return the cluster with these options; start it at the first use."""
        shape = _shape(options)
        cluster = self._clusters.use(shape)
        if cluster is None:
            cluster = Cluster(**options).__enter__()
            for _, idle in self._clusters.put(shape, cluster):
                idle.stop()
        return cluster

    def hold(self, **options: Any) -> Cluster:
        """Return the cluster and keep it running to the end, for fixtures that hold it."""
        self._held.add(_shape(options))
        return self.get(**options)

    def discard(self, cluster: Cluster) -> None:
        """Stop a cluster that cannot be repaired; the next `get` starts another one."""
        for shape in [shape for shape, each in self._clusters.items() if each is cluster]:
            self._clusters.pop(shape)
        cluster.stop()

    def close(self) -> None:
        for cluster in reversed(list(self._clusters.values())):
            cluster.stop()
        self._clusters.clear()


class Kafka(RecordHelpers):
    """A shared cluster for one test. When the test ends, faults end, stopped brokers start, and its topics are deleted."""

    def __init__(self, clusters: SharedClusters, cluster: Cluster) -> None:
        self.cluster = cluster
        self.watch: Watch = cluster.watch()
        self._clusters = clusters
        self._topics: list[str] = []
        self._prefix = f"test-{uuid.uuid4().hex[:8]}"

    if not TYPE_CHECKING:  # type checkers see the real attributes

        def __getattr__(self, name: str) -> object:
            where = f"; write kafka.cluster.{name}" if hasattr(Cluster, name) else ""
            topics = ", or kafka.topic(), whose topics go when the test ends" if name == "create_topic" else ""
            raise AttributeError(f"the fixture kafka has no {name}{where}{topics}", name=name, obj=self)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def client_settings(self, user: str = "client") -> dict[str, str]:
        """Return the settings for the Java client and barnabas's: the address, and what a secure cluster needs."""
        return self.cluster.client_settings(user)

    def librdkafka_settings(self, user: str = "client") -> dict[str, str]:
        """Return the same for confluent-kafka."""
        return self.cluster.librdkafka_settings(user)

    def topic(
        self, name: str = "topic", *, partitions: int = 1, config: Mapping[str, SettingValue] | None = None
    ) -> str:
        """Create a topic whose name no other test has."""
        full = self.name(name)
        self.cluster.create_topic(full, partitions=partitions, config=config)
        self._topics.append(full)
        return full

    def name(self, name: str) -> str:
        """Return a name for a topic, a group or a transactional id that no other test has."""
        return f"{self._prefix}-{name}"

    def ask(self, question: Question[T]) -> T:
        return self.cluster.ask(question)

    def close(self) -> None:
        """Clean up at the end of the test."""
        try:
            self.cluster.repair()
            if self._topics:
                self.ask(lambda client: delete_topics(client, self._topics))
        except BaseException:
            self._clusters.discard(self.cluster)
            raise
