"""Well-formed requests that ask for too much, or for what nobody foresaw, against a real broker."""

import resource
import socket
from collections.abc import Iterator

import pytest
from hostile_peer import Victim, ask, batch, produce

from barnabas.cli.local_cluster import LocalCluster
from barnabas.core.errors import ErrorCode
from barnabas.protocol.compression import Codec
from barnabas.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.record_batch import TIMESTAMP_TYPE_FLAG


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


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("attributes", [0, TIMESTAMP_TYPE_FLAG], ids=["create time", "append time"])
def test_claim_of_two_billion_records_is_refused_before_anything_is_built_from_it(
    victim: Victim, codec: Codec, attributes: int
):
    lie = batch(codec, b"x" * 40, 2**31 - 1, attributes)
    with victim.connect() as peer:
        for _ in range(20):
            answer = produce(peer, victim.topic, bytes(lie))
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert "cannot hold" in (answer.error_message or "")
    victim.check()


def test_refusal_of_many_records_names_the_first_hundred(victim: Victim):
    count = 100_000
    stamped = batch(Codec.NONE, b"\x0c\0\0\0\1\1\0" * count, count, TIMESTAMP_TYPE_FLAG)
    with victim.connect() as peer:
        answer = produce(peer, victim.topic, bytes(stamped))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == list(range(100))
    victim.check()
