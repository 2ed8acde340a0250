"""CPU of the brokers per request, beside an earlier commit of this repository: `python -m bench requests [-- --former COMMIT]`.

`--commit COMMIT` measures that commit instead of this checkout; `--former` also takes a folder with a checkout. Both trees run
in the same run, in turn, round by round. The client is raw sockets with frames that are encoded before the clock starts if
possible. Each shape has one request in flight per connection. `--only produce` measures the shapes with that word.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from barnabas.wire import codec, frame
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from barnabas.wire.records import BatchBuilder
from bench.kafka import cpu_seconds
from bench.report import Row, announce, write_report

CONNECTIONS: Final = 16
ANSWER_TIMEOUT_S: Final = 30.0
#: Version of each request, as today's clients send it.
VERSIONS: Final[dict[str, int]] = {
    "CreateTopics": 5,
    "Fetch": 16,
    "FindCoordinator": 4,
    "Heartbeat": 4,
    "InitProducerId": 4,
    "JoinGroup": 5,
    "Metadata": 12,
    "OffsetCommit": 8,
    "Produce": 11,
    "SyncGroup": 5,
}
#: Runs a cluster of the tree that PYTHONPATH names, until its standard input ends.
_HOST: Final = """
import json, sys
from barnabas.cli.local_cluster import LocalCluster
with LocalCluster(brokers=int(sys.argv[1]), config=json.loads(sys.argv[2])) as cluster:
    print(json.dumps([[cluster.address(each), cluster.pid(each)] for each in cluster.broker_ids]), flush=True)
    sys.stdin.read()
"""


R = TypeVar("R", bound=ApiMessage)


class Wire:
    """One connection with one request in flight."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def receive(self) -> bytes:
        """Return the next answer, without its size."""
        got = self._received
        while len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            chunk = self.sock.recv(1 << 18)
            if not chunk:
                raise ConnectionError("the broker hung up")
            got += chunk
        end = 4 + int.from_bytes(got[:4], "big")
        self._received = got[end:]
        return got[4:end]

    def ask(self, request: ApiMessage, answer: type[R]) -> R:
        self.sock.sendall(encode(request))
        return decode(self.receive(), answer)


def version_of(message: type[ApiMessage]) -> int:
    return VERSIONS[message.__name__.removesuffix("Request").removesuffix("Response")]


def encode(request: ApiMessage) -> bytes:
    return frame.encode_request(request, version_of(type(request)), 1, "bench-client-1")


def decode(answer: bytes, response: type[R]) -> R:
    version = version_of(response)
    _, at = frame.parse_response_header(response.API_KEY, version, answer)
    return codec.decode(response, answer, version, at)


@dataclass
class Target:
    """A running cluster of one tree."""

    addresses: list[str]
    pids: list[int]
    stack: ExitStack
    topics: dict[str, bytes] = field(default_factory=dict)
    #: Topic -> address of the leader of each partition.
    leaders: dict[str, list[str]] = field(default_factory=dict)

    def wire(self, address: str | None = None) -> Wire:
        wire = Wire(address or self.addresses[0])
        self.stack.callback(wire.sock.close)
        return wire

    def create(self, topic: str, partitions: int) -> None:
        new = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=len(self.pids))
        request = CreateTopicsRequest(topics=[new], timeout_ms=30_000)
        answers = [self.wire(each).ask(request, CreateTopicsResponse).topics[0] for each in self.addresses]
        if all(answer.error_code for answer in answers):
            raise RuntimeError(f"no broker created {topic}: {answers}")  # all but the controller refuse
        question = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        wire = self.wire()
        while True:
            found = wire.ask(question, MetadataResponse)
            by_id = {broker.node_id: f"{broker.host}:{broker.port}" for broker in found.brokers}
            ordered = sorted(found.topics[0].partitions, key=lambda each: each.partition_index)
            if len(ordered) == partitions and all(len(each.isr_nodes) == len(self.pids) for each in ordered):
                self.topics[topic] = found.topics[0].topic_id
                self.leaders[topic] = [by_id[each.leader_id] for each in ordered]
                return


#: Makes so many requests; returns the brokers' CPU seconds if it measures only a part of them.
Run = Callable[[int], float | None]


def all_at_once(wires: list[Wire], next_frame: Callable[[int], bytes], count: int) -> None:
    """Send one request on each connection, then receive all answers, and so on."""
    for _ in range(count // len(wires)):
        for number, wire in enumerate(wires):
            wire.sock.sendall(next_frame(number))
        for wire in wires:
            wire.receive()


def each_for_itself(wires: list[Wire], next_frame: Callable[[int], bytes], count: int) -> None:
    """Each connection sends its next request as soon as it has its answer."""
    with selectors.DefaultSelector() as selector:
        for number, wire in enumerate(wires):
            selector.register(wire.sock, selectors.EVENT_READ, number)
            wire.sock.sendall(next_frame(number))
        left = count - len(wires)
        waiting = len(wires)
        while waiting:
            for key, _ in selector.select():
                wires[key.data].receive()
                if left:
                    wires[key.data].sock.sendall(next_frame(key.data))
                    left -= 1
                else:
                    waiting -= 1


def batch(producer_id: int = -1, sequence: int = -1) -> bytes:
    epoch = 0 if producer_id >= 0 else -1
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    builder.append(b"key", bytes(100), timestamp=1_700_000_000_000)
    return builder.build()


def produce(topic: str, partition: int, records: bytes, *, acks: int) -> bytes:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=records)])
    return encode(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data]))


def produces(acks: int, *, idempotent: bool) -> Callable[[Target], Run]:
    def begin(target: Target) -> Run:
        topic = f"produce-{acks}-{idempotent}"
        target.create(topic, CONNECTIONS)
        wires = [target.wire(target.leaders[topic][each]) for each in range(CONNECTIONS)]
        if not idempotent:
            frames = [produce(topic, each, batch(), acks=acks) for each in range(CONNECTIONS)]
            check_produced(wires[0], frames[0])
            return lambda count: all_at_once(wires, frames.__getitem__, count)
        ids = [
            wire.ask(InitProducerIdRequest(transaction_timeout_ms=60_000), InitProducerIdResponse).producer_id
            for wire in wires
        ]
        sequences = [0] * CONNECTIONS

        def next_frame(number: int) -> bytes:
            sequences[number] += 1
            return produce(topic, number, batch(ids[number], sequences[number] - 1), acks=acks)

        check_produced(wires[0], next_frame(0))
        return lambda count: all_at_once(wires, next_frame, count)

    return begin


def check_produced(wire: Wire, request: bytes) -> None:
    wire.sock.sendall(request)
    answer = decode(wire.receive(), ProduceResponse).responses[0].partition_responses[0]
    assert answer.error_code == 0, answer


def fetch(target: Target, topic: str, wanted: dict[int, int], *, session: tuple[int, int], wait_ms: int) -> bytes:
    partitions = [
        FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=1 << 20)
        for each, offset in wanted.items()
    ]
    topics = [FetchTopic(topic_id=target.topics[topic], partitions=partitions)] if partitions else []
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, session_id=session[0], session_epoch=session[1], topics=topics
    )
    return encode(request)


@dataclass
class Consumer:
    """A fetch session with four partitions, of which the first gets records."""

    target: Target
    topic: str
    partition: int
    wire: Wire
    offset: int = 0
    session_id: int = 0
    epoch: int = 0

    def begin(self) -> "Consumer":
        wanted = {self.partition + each: 0 for each in range(4)}
        self.wire.sock.sendall(fetch(self.target, self.topic, wanted, session=(0, 0), wait_ms=0))
        answer = decode(self.wire.receive(), FetchResponse)
        assert answer.error_code == 0 and answer.session_id, answer
        self.session_id = answer.session_id
        got = [each for each in answer.responses[0].partitions if each.partition_index == self.partition]
        self.offset = 1 if got and got[0].records else 0
        return self

    def next_frame(self, wait_ms: int) -> bytes:
        self.epoch += 1
        self.offset += 1
        return fetch(
            self.target,
            self.topic,
            {self.partition: self.offset - 1},
            session=(self.session_id, self.epoch),
            wait_ms=wait_ms,
        )


def fetches(target: Target) -> Run:
    """Every fetch finds the one batch that came since the last one, in one of four partitions of its session."""
    target.create("fetch", 4 * CONNECTIONS)
    wires = [target.wire() for _ in range(CONNECTIONS)]
    frames = [produce("fetch", 4 * each, batch(), acks=1) for each in range(CONNECTIONS)]
    consumers = [Consumer(target, "fetch", 4 * each, wires[each]).begin() for each in range(CONNECTIONS)]

    def run(count: int) -> float:
        cpu_s = 0.0
        for _ in range(count // CONNECTIONS):
            all_at_once(wires, frames.__getitem__, CONNECTIONS)
            before_s = cpu_seconds(target.pids)
            all_at_once(wires, lambda number: consumers[number].next_frame(500), CONNECTIONS)
            cpu_s += cpu_seconds(target.pids) - before_s
        return cpu_s

    return run


def pairs(target: Target) -> Run:
    """A long poll in a session, and the produce that it waits for: a request of the count is the pair."""
    target.create("pair", 4 * CONNECTIONS)
    producers = [target.wire() for _ in range(CONNECTIONS)]
    frames = [produce("pair", 4 * each, batch(), acks=1) for each in range(CONNECTIONS)]
    consumers = [Consumer(target, "pair", 4 * each, target.wire()).begin() for each in range(CONNECTIONS)]

    def run(count: int) -> None:
        for _ in range(count // CONNECTIONS):
            for consumer in consumers:
                consumer.wire.sock.sendall(consumer.next_frame(5_000))
            for producer, request in zip(producers, frames, strict=True):
                producer.sock.sendall(request)
            for wire in (*producers, *(consumer.wire for consumer in consumers)):
                wire.receive()

    return run


def commits(target: Target) -> Run:
    target.create("commit", 1)
    wire = target.wire()
    while (
        wire.ask(FindCoordinatorRequest(coordinator_keys=["group-0"]), FindCoordinatorResponse)
        .coordinators[0]
        .error_code
    ):
        continue
    topic = OffsetCommitRequestTopic(
        name="commit", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=42)]
    )
    wires = [target.wire() for _ in range(CONNECTIONS)]
    requests = [OffsetCommitRequest(group_id=f"group-{each}", topics=[topic]) for each in range(CONNECTIONS)]
    while any(
        wire.ask(request, OffsetCommitResponse).topics[0].partitions[0].error_code
        for wire, request in zip(wires, requests, strict=True)
    ):
        continue
    frames = [encode(request) for request in requests]
    return lambda count: all_at_once(wires, frames.__getitem__, count)


def heartbeats(target: Target) -> Run:
    wires = [target.wire() for _ in range(CONNECTIONS)]
    while (
        wires[0]
        .ask(FindCoordinatorRequest(coordinator_keys=["beat-0"]), FindCoordinatorResponse)
        .coordinators[0]
        .error_code
    ):
        continue
    frames = []
    for number, wire in enumerate(wires):
        join = JoinGroupRequest(
            group_id=f"beat-{number}",
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = wire.ask(join, JoinGroupResponse)
        while joined.error_code:  # MEMBER_ID_REQUIRED, or the coordinator still loads
            join.member_id = joined.member_id
            joined = wire.ask(join, JoinGroupResponse)
        assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
        names: dict[str, Any] = {
            "group_id": join.group_id,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        wire.ask(SyncGroupRequest(**names, assignments=[assignment]), SyncGroupResponse)
        assert not wire.ask(HeartbeatRequest(**names), HeartbeatResponse).error_code
        frames.append(encode(HeartbeatRequest(**names)))
    return lambda count: all_at_once(wires, frames.__getitem__, count)


def metadata(target: Target) -> Run:
    target.create("metadata", 8)
    wires = [target.wire() for _ in range(CONNECTIONS)]
    request = encode(MetadataRequest(topics=[MetadataRequestTopic(name="metadata")], allow_auto_topic_creation=False))
    return lambda count: all_at_once(wires, lambda number: request, count)


def replicated(partitions: int) -> Callable[[Target], Run]:
    def begin(target: Target) -> Run:
        topic = f"replicated-{partitions}"
        target.create(topic, partitions)
        wires = [target.wire(target.leaders[topic][each % partitions]) for each in range(32)]
        frames = [produce(topic, each % partitions, batch(), acks=-1) for each in range(32)]
        check_produced(wires[0], frames[0])
        return lambda count: each_for_itself(wires, frames.__getitem__, count)

    return begin


#: Name -> number of brokers, how the shape begins, and the part of the count that it runs.
SHAPES: Final[dict[str, tuple[int, Callable[[Target], Run], float]]] = {
    "produce, acks=1": (1, produces(1, idempotent=False), 1),
    "produce, acks=all": (1, produces(-1, idempotent=False), 1),
    "produce, acks=1, idempotent": (1, produces(1, idempotent=True), 1),
    "produce, acks=all, idempotent": (1, produces(-1, idempotent=True), 1),
    "fetch of one changed partition": (1, fetches, 1),
    "produce and the long poll it wakes": (1, pairs, 0.5),
    "OffsetCommit": (1, commits, 1),
    "Heartbeat": (1, heartbeats, 1),
    "Metadata": (1, metadata, 1),
    "RF 3, 1 partition, 32 clients": (3, replicated(1), 0.5),
    "RF 3, 32 partitions, 32 clients": (3, replicated(32), 0.5),
}


@contextmanager
def cluster(tree: Path, brokers: int, config: dict[str, str]) -> Iterator[Target]:
    with ExitStack() as stack:
        host = subprocess.Popen(
            [sys.executable, "-c", _HOST, str(brokers), json.dumps(config)],
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert host.stdin is not None and host.stdout is not None
        stack.callback(host.wait, 60)
        stack.callback(host.stdin.close)
        addresses, pids = zip(*json.loads(host.stdout.readline()), strict=True)
        yield Target(list(addresses), list(pids), stack)


@contextmanager
def checkout(tree: str, folder: Path) -> Iterator[Path]:
    """Yield the folder of a checkout, or a new one of a commit."""
    if Path(tree).is_dir():
        yield Path(tree)
        return
    git = ["git", "-C", str(Path(__file__).parent.parent), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), tree], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def measure(target: Target, run: Run, count: int) -> float:
    """Return the brokers' CPU time per request in microseconds."""
    before_s = cpu_seconds(target.pids)
    measured_s = run(count)
    return (cpu_seconds(target.pids) - before_s if measured_s is None else measured_s) / count * 1e6


def main(options: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench requests", description=__doc__)
    parser.add_argument(
        "--commit", default=str(Path(__file__).parent.parent), help="the commit or the checkout to measure"
    )
    parser.add_argument("--former", default="a40f1036", help="the commit or the checkout to compare with")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="shapes whose name has this word")
    given = parser.parse_args(options)
    chosen = {
        name: shape for name, shape in SHAPES.items() if not given.only or any(word in name for word in given.only)
    }
    announce("requests", given.rounds, round_s=4 * len(chosen) * given.count / 20_000, setup_s=20)
    found: dict[str, dict[str, list[float]]] = {name: {"ours": [], "theirs": []} for name in chosen}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        here = stack.enter_context(checkout(given.commit, Path(folder, "commit")))
        former = stack.enter_context(checkout(given.former, Path(folder, "former")))
        for brokers in sorted({shape[0] for shape in chosen.values()}):
            replicas = str(min(brokers, 3))
            config = {"offsets.topic.replication.factor": replicas, "group.initial.rebalance.delay.ms": "0"}
            with cluster(here, brokers, config) as ours, cluster(former, brokers, config) as theirs:
                for name, (needed, begin, part) in chosen.items():
                    if needed != brokers:
                        continue
                    count = int(given.count * part) // 32 * 32
                    runs = {"ours": (ours, begin(ours)), "theirs": (theirs, begin(theirs))}
                    for target, run in runs.values():
                        measure(target, run, 2_000 // 32 * 32)
                    for _ in range(given.rounds):
                        for whose, (target, run) in runs.items():
                            found[name][whose].append(measure(target, run, count))
                    print(f"{name}: {summary(found[name])}", flush=True)
    rows = [
        Row(f"{name}, us", statistics.median(each["ours"]), statistics.median(each["theirs"]))
        for name, each in found.items()
    ]
    title = f"CPU of the brokers per request, load average {os.getloadavg()[0]:.1f}"
    write_report("requests", title, rows, rounds=given.rounds, raw=found, rival=f"commit {given.former}")


def summary(found: dict[str, list[float]]) -> str:
    ours, theirs = found["ours"], found["theirs"]
    return (
        f"{statistics.median(ours):.1f} us, was {statistics.median(theirs):.1f} "
        f"({statistics.median(ours) / statistics.median(theirs):.2f}x); "
        f"min {min(ours):.1f}, was {min(theirs):.1f} ({min(ours) / min(theirs):.2f}x)"
    )
