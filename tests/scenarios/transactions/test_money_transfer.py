"""Money moves between accounts, two records a transaction, while brokers are killed: readers of committed records always see
the same sum, no transfer is half done, and none happens twice.
"""

import os
import random
import struct
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.transactions.txn_clients import create_topic, read_all

#: Set `BARNABAS_SEEDS="1 2 3 4"` to run more seeds.
SEEDS = [int(seed) for seed in os.environ.get("BARNABAS_SEEDS", "1 2").split()]
ACCOUNTS = 6
PARTITIONS = 3
#: (transfer, account, amount)
ENTRY = struct.Struct(">16sii")


class Teller:
    """One producer that transfers until it is stopped, and remembers the confirmed transfers."""

    def __init__(self, bootstrap: str, topic: str, name: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._name = name
        self._chance = random.Random(seed)
        self.done: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.failures: list[KafkaError] = []
        self._producer = self._start()

    def _start(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._name,
                "linger.ms": 0,
                "transaction.timeout.ms": 20_000,
                "socket.timeout.ms": 10_000,
            }
        )
        deadline_s = time.monotonic() + 60
        while True:
            try:
                producer.init_transactions(20)
                return producer
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise

    def transfer(self) -> None:
        transfer = uuid.UUID(int=self._chance.getrandbits(128)).bytes
        giver, taker = self._chance.sample(range(ACCOUNTS), 2)
        amount = self._chance.randint(1, 100)
        wants_abort = self._chance.random() < 0.2
        try:
            self._producer.begin_transaction()
            for account, change in ((giver, -amount), (taker, amount)):
                entry = ENTRY.pack(transfer, account, change)
                self._producer.produce(self._topic, entry, partition=account % PARTITIONS)
            if wants_abort:
                self._producer.flush(20)
                self._end(self._producer.abort_transaction)
                self.aborted.add(transfer)
            else:
                self._end(self._producer.commit_transaction)
                self.done.add(transfer)
        except KafkaException as failure:
            self._recover(failure.args[0], transfer)

    @staticmethod
    def _end(end: Callable[[float], None]) -> None:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                end(20)
                return
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline_s:
                    raise

    def _recover(self, error: KafkaError, transfer: bytes) -> None:
        self.failures.append(error)
        if error.txn_requires_abort():
            try:
                self._end(self._producer.abort_transaction)
                self.aborted.add(transfer)
                return
            except KafkaException as failure:
                self.failures.append(failure.args[0])
        # The transaction may have committed or aborted, but only once and as a whole.
        self.unknown.add(transfer)
        self._producer = self._start()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_sum_never_changes(new_cluster: Callable[..., LocalCluster], topic: str, seed: int) -> None:
    cluster = new_cluster(
        brokers=3,
        config={"transaction.state.log.num.partitions": "5", "zookeeper.session.timeout.ms": "2000"},
        zookeeper_options=("--tick-time", "500"),
    )
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    chance = random.Random(seed)
    stop = threading.Event()
    tellers = [Teller(cluster.bootstrap, topic, f"teller-{number}", seed * 10 + number) for number in range(2)]
    crashes: list[BaseException] = []

    def work(teller: Teller) -> None:
        try:
            while not stop.is_set():
                teller.transfer()
        except BaseException as error:
            crashes.append(error)
            raise

    threads = [threading.Thread(target=work, args=(teller,), name="teller") for teller in tellers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            victim = chance.choice(list(cluster.broker_ids))
            time.sleep(chance.uniform(0.5, 1.5))
            cluster.kill(victim)
            _check(cluster.bootstrap, topic, tellers, is_final=False)
            cluster.start_broker(victim)
            time.sleep(chance.uniform(0.5, 1.5))
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert crashes == []
    done = sum(len(teller.done) for teller in tellers)
    assert done >= 20, [teller.failures for teller in tellers]
    _check(cluster.bootstrap, topic, tellers, is_final=True)
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)


def _check(bootstrap: str, topic: str, tellers: list[Teller], *, is_final: bool) -> None:
    known_done = set().union(*(teller.done for teller in tellers))
    entries: dict[bytes, list[int]] = defaultdict(list)
    for message in read_all(bootstrap, topic):
        transfer, _, amount = ENTRY.unpack(message.value())
        entries[transfer].append(amount)
    aborted = set().union(*(teller.aborted for teller in tellers))
    assert not aborted & set(entries), "a reader of committed records saw an aborted transfer"
    if not is_final:
        return
    # At the end no transaction is open: every transfer is there as a whole, or not at all.
    for transfer, amounts in entries.items():
        assert len(amounts) == 2, (transfer.hex(), amounts)
        assert sum(amounts) == 0
    assert known_done <= set(entries), "a transfer that was confirmed is lost"
