"""Well-formed requests that ask for too much, or for what nobody foresaw, against a real broker."""

import resource
import socket
from collections.abc import Iterator

import pytest
from hostile_peer import Victim, ask

from barnabas.cli.local_cluster import LocalCluster
from barnabas.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))  # the broker inherits it
    with LocalCluster(brokers=1, config={"auto.create.topics.enable": "false"}) as one:
        yield one


@pytest.fixture
def victim(cluster: LocalCluster, topic: str) -> Iterator[Victim]:
    attacked = Victim(cluster, topic)
    yield attacked
    for peer in attacked.peers:
        peer.close()


def new_producer(victim: Victim, peer: socket.socket, transactional_id: str) -> InitProducerIdResponse:
    """A transactional producer, when the coordinator is there."""

    def made() -> InitProducerIdResponse:
        found = ask(peer, FindCoordinatorRequest(key=transactional_id, key_type=1), 2)
        assert isinstance(found, FindCoordinatorResponse)
        answer = ask(peer, InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 2)
        assert isinstance(answer, InitProducerIdResponse)
        return answer

    answers: list[InitProducerIdResponse] = []
    victim.admin.wait(lambda: answers.append(made()) or answers[-1].error_code == 0, "a producer id")
    return answers[-1]


def test_adding_no_partitions_to_a_transaction_does_not_stop_the_broker(victim: Victim):
    peer = victim.connect()
    producer = new_producer(victim, peer, "x")
    for version in range(4):
        empty = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[],
        )
        ask(peer, empty, version)
    victim.write()
