"""The exactly-once chain, topic to topic, over brokers that differ in their settings, and get other settings after each kill.

Source and sink are what ships; what Spark does between them is done here, so that a driver dies and starts in no time.

The long one, with Spark itself, is `tests.soak.spark_chain --differ`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from barnabas.base.words import TRANSACTION_VERSION
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from barnabas.client.transactions import NO_TIMEOUT_MS, Transactions
from barnabas.spark.offsets import OffsetJson
from barnabas.spark.options import source_options
from barnabas.spark.reader import BarnabasStreamReader
from barnabas.spark.sink import Written
from barnabas.spark.sink_connection import close_connections
from barnabas.spark.transactions import ALL_ENDED, DECIDED, HALF_ENDED, READY
from barnabas.testing import wait_until
from barnabas.testing.cluster import Cluster
from tests.soak.differing_brokers import announce_nothing, settings_of
from tests.unit.spark.spark_sink_query import Died, Query, Run

PARTITIONS, RECORDS = 6, 60
WRITING = "writing"


@dataclass
class Chain:
    cluster: Cluster
    query: Query
    #: As in a checkpoint: where the stream was after each batch that was planned, the first one being its beginning.
    offsets: list[OffsetJson] = field(default_factory=list)
    committed: int = 0
    sent: int = 0
    restarts: dict[int, int] = field(default_factory=dict)
    #: States of open transactions just before their decision.
    timeouts_ms: set[int] = field(default_factory=set)
    raises_epochs: set[bool] = field(default_factory=set)
    lacks_features: bool = False

    def __post_init__(self) -> None:
        self.topic = f"{self.query.name}-in"
        self.cluster.create_topic(self.topic, partitions=PARTITIONS)
        self._producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True})

    def produce(self) -> None:
        for number in range(self.sent, self.sent + RECORDS):
            self._producer.produce(self.topic, value=str(number), partition=number % PARTITIONS)
        assert self._producer.flush(60) == 0
        self.sent += RECORDS

    def kill_broker_and_die(self) -> None:
        """Kill the brokers in turn; each comes back as another kind."""
        broker_id = 1 + sum(self.restarts.values()) % self.cluster.brokers
        self.restarts[broker_id] = self.restarts.get(broker_id, 0) + 1
        self.cluster.kill(broker_id)
        self.cluster.start_broker(broker_id, config=settings_of(broker_id, restarts=self.restarts[broker_id]))
        wait_until(lambda: self.transaction_versions() == {0 if self.lacks_features else 2}, timeout_s=60)
        raise Died

    def transaction_versions(self) -> set[int]:
        """Return the transaction version that each broker has for a new client."""
        with BlockingClient(client_config(self.cluster.bootstrap)) as client:
            client.refresh(())
            versions = [client.connection(broker_id).versions for broker_id in client.image.brokers]
        return {each.finalized_features.get(TRANSACTION_VERSION, (0, 0))[1] for each in versions}

    def start(self) -> Run:
        """Start the query as if in another process: it opens new connections."""
        close_connections()
        return self.query.start()

    def batch(self, run: Run, *, at: str = "", act: Callable[[], None] = lambda: None) -> None:
        """Run the next micro-batch, or the last one again if its driver died. `act` is called once, at that point."""
        acts = [act]

        def reached(point: str) -> None:
            if point == READY:
                self._look()
            if point == at and acts:
                acts.pop()()

        options = {
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "driverReadMaxRecords": "0",
        }
        reader = BarnabasStreamReader(source_options(options, streaming=True), ("value",))
        try:
            if not self.offsets:
                self.offsets.append(reader.initialOffset())
            if len(self.offsets) == self.committed + 1:
                self.offsets.append(reader.latestOffset(self.offsets[-1], ReadAllAvailable()))
            number = self.committed
            messages: list[Written | None] = []
            for index, task in enumerate(reader.partitions(*self.offsets[number : number + 2])):
                if index == PARTITIONS // 2:
                    reached(WRITING)
                rows = [value.decode() for rows in reader.read(task) for value in rows.column(0).to_pylist()]
                messages.append(run.write(number, index, rows))
            writer = run.writer()
            writer.reached = reached  # type: ignore[method-assign]
            writer.commit(messages, number)
            self.committed += 1
        finally:
            reader.stop()

    def _look(self) -> None:
        transactions = self.query.connection().transactions
        names = self.query.open_transactions()
        for state in transactions.describe_all(names).values():
            self.timeouts_ms.add(state.transaction_timeout_ms)  # type: ignore[union-attr]
        client = self.query.connection().client
        self.raises_epochs.add(client.run(Transactions(client.core).raises_epochs(names[0])))


def test_each_record_goes_once_from_topic_to_topic_over_brokers_that_differ_and_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {broker_id: settings_of(broker_id) for broker_id in (1, 2, 3)}
    with Cluster(brokers=3, short_sessions=True, broker_config=kinds) as cluster:
        try:
            chain = Chain(cluster, Query(cluster.bootstrap, monkeypatch, "mixed", replicas=3))
            for point in (WRITING, READY, DECIDED, HALF_ENDED, ALL_ENDED):
                # With the kill of broker 3 the cluster goes without transaction.version 2, until it is broker 2's turn again.
                chain.lacks_features = point in (DECIDED, HALF_ENDED)
                if point == DECIDED:
                    announce_nothing(cluster, 2)
                chain.produce()
                with pytest.raises(Died):
                    chain.batch(chain.start(), at=point, act=chain.kill_broker_and_die)
                chain.batch(chain.start())
            assert chain.query.seen() == sorted(map(str, range(chain.sent)))
            assert chain.query.open_transactions() == []
        finally:
            close_connections()
    assert chain.timeouts_ms == {60000, NO_TIMEOUT_MS}, "coordinators did not differ in two-phase commit"
    assert chain.raises_epochs == {True, False}, "the cluster did not go without transaction.version 2 for a while"
    assert set(chain.restarts) == {1, 2, 3}
