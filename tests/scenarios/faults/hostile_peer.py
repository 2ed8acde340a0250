"""A broker under attack, as its operator and an honest client see it; and a peer that sends any bytes."""

import contextlib
import socket
import struct
import threading
import time

import psutil
from confluent_kafka import Producer

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire import frame
from barnabas.wire.codec import decode
from barnabas.wire.compression import Codec
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.record_batch import HEADER, TIMESTAMP_TYPE_FLAG, compute_crc
from barnabas.wire.versions import api_of
from tests.computed import computed_s
from tests.scenarios.faults.conftest import Admin  # type: ignore[attr-defined]
from tests.soak.workload import QUIET

#: The most by which a broker may grow during an attack.
GROWTH_BYTES_MAX = 80_000_000
#: The most that the broker's loop may compute between an honest client's record and its acknowledgement during an attack.
LATENCY_S_MAX = 1.0


class Victim:
    """The broker as an honest client and its operator see it."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.admin = Admin(cluster)
        self.admin.create(topic, replicas=1)
        self.topic = topic
        self.peers: list[socket.socket] = []
        self.address = ("127.0.0.1", int(cluster.address(1).rpartition(":")[2]))
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **QUIET})
        self.write()
        self._process = psutil.Process(cluster.pid(1))
        self._rss = self._process.memory_info().rss
        self._log_size = len(cluster.log(1))

    def connect(self) -> socket.socket:
        peer = socket.create_connection(self.address, timeout=60)
        self.peers.append(peer)
        return peer

    def write(self) -> float:
        """Write a record on an open connection; return the seconds that the broker's loop computes until it is acknowledged."""
        began_s = self.computed_s()
        errors: list[object] = []
        self._producer.produce(self.topic, b"honest", on_delivery=lambda error, message: errors.append(error))
        assert self._producer.flush(60) == 0
        assert errors == [None]
        return self.computed_s() - began_s

    def computed_s(self) -> float:
        return computed_s(self.cluster.pid(1))

    def check(self) -> None:
        took = self.write()
        assert took < LATENCY_S_MAX, f"the broker computed for {took:.2f} s before it acknowledged an honest record"
        growth = self._process.memory_info().rss - self._rss
        assert growth < GROWTH_BYTES_MAX, f"the broker grew by {growth:,} bytes"
        assert "Traceback" not in self.cluster.log(1)[self._log_size :]

    def set_cluster(self, name: str, value: str) -> None:
        """Change a setting of all brokers while they run."""
        change = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
        with self.connect() as peer:
            answer = ask(peer, IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert isinstance(answer, IncrementalAlterConfigsResponse) and answer.responses[0].error_code == 0

    def logged(self, *words: str) -> bool:
        new = self.cluster.log(1)[self._log_size :]
        return any(all(word in line for word in words) for line in new.splitlines())


class Bystander:
    """`with Bystander(victim) as other: …; other.worst_s`: the most that the broker's loop computed between an honest client's
    request and its answer.
    """

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self._peer = victim.connect()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.worst_s = 0.0
        self.count = 0

    def __enter__(self) -> "Bystander":
        ask(self._peer, MetadataRequest(topics=[]), 9)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ends.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ends.is_set():
            began_s = self._victim.computed_s()
            ask(self._peer, MetadataRequest(topics=[]), 9)
            self.worst_s = max(self.worst_s, self._victim.computed_s() - began_s)
            self.count += 1
            time.sleep(0.002)


def receive(peer: socket.socket) -> bytes:
    """Return one frame, without its size."""
    return _exactly(peer, struct.unpack(">i", _exactly(peer, 4))[0])


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = peer.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the broker closed the connection")
        data += piece
    return bytes(data)


def ask(peer: socket.socket, request: ApiMessage, version: int, client_id: str = "hostile") -> ApiMessage:
    """Send one request and return its answer."""
    peer.sendall(frame.encode_request(request, version, 1, client_id))
    answer = receive(peer)
    _, at = frame.parse_response_header(request.API_KEY, version, answer)
    return decode(api_of(request.API_KEY).response_class, answer, version, at)


def is_closed(peer: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        return peer.recv(1) == b""
    return True


def batch(codec: Codec, records: bytes, count: int, attributes: int = 0) -> bytearray:
    """Return a batch with a right checksum around any bytes."""
    max_timestamp = -1 if attributes & TIMESTAMP_TYPE_FLAG else 0
    head = HEADER.pack(
        *(0, 49 + len(records), 0, 2, 0, codec.value | attributes, count - 1, 0, max_timestamp, -1, -1, -1, count)
    )
    data = bytearray(head + records)
    struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data) - 12))
    return data


def send(victim: Victim, topic: str, records: bytes) -> bytes:
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
    with victim.connect() as peer:
        peer.sendall(frame.encode_request(request, 9, 1, "hostile"))
        return receive(peer)


def produce(peer: socket.socket, topic: str, records: bytes, acks: int = 1) -> PartitionProduceResponse:
    """Send one batch to partition 0 and return the broker's answer."""
    data = PartitionProduceData(index=0, records=records)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    answer = ask(peer, ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics), 9)
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0]
