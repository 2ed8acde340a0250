"""Consumer groups beside Apache Kafka 3.9.1: a rebalance of 50 members, and commits per second.

The members are raw sockets in one thread, with frames that are encoded before the clock starts if possible, so the client costs
little, and the same for both systems. Rounds are interleaved; the table shows medians. One broker each.
"""

import argparse
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, TypeVar

from confluent_kafka import Consumer, TopicPartition

from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire import codec, frame
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from bench.broker import Target, create_topic
from bench.kafka import ApacheKafka, cpu_seconds
from bench.limits import machine_limits
from bench.report import Row, announce, write_report

MEMBERS: Final = 50
PARTITIONS: Final = 100
TOPIC: Final = "groups-bench"
#: Versions that both Apache Kafka 3.9 and this broker serve.
VERSIONS: Final[dict[type[ApiMessage], int]] = {
    FindCoordinatorRequest: 4,
    JoinGroupRequest: 9,
    SyncGroupRequest: 5,
    OffsetCommitRequest: 8,
}
#: A new group waits this long for all its members; the rebalance of an existing group does not.
CONFIG: Final = {"group.initial.rebalance.delay.ms": "500"}
ANSWER_TIMEOUT_S: Final = 60.0
NO_ERROR: Final = int(ErrorCode.NONE)

R = TypeVar("R", bound=ApiMessage)


class Member:
    """One connection, one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, ANSWER_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.member_id = ""
        self._received = bytearray()

    def send(self, request: ApiMessage) -> None:
        self.sock.sendall(encode(request))

    def receive(self) -> bytes | None:
        """Return a response if it is complete. Call it when the socket is readable."""
        chunk = self.sock.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the broker hung up")
        self._received += chunk
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            return None
        answer, self._received = bytes(self._received[4:]), bytearray()
        return answer

    def call(self, request: ApiMessage, response_type: type[R]) -> R:
        self.send(request)
        while (answer := self.receive()) is None:
            continue
        return decode(answer, response_type)


def encode(request: ApiMessage) -> bytes:
    return frame.encode_request(request, VERSIONS[type(request)], 1, "bench")


def decode(answer: bytes, response_type: type[R]) -> R:
    version = next(v for request, v in VERSIONS.items() if request.API_KEY == response_type.API_KEY)
    _, at = frame.parse_response_header(response_type.API_KEY, version, answer)
    return codec.decode(response_type, answer, version, at)


@dataclass
class Group:
    """50 members of one group, driven by one thread."""

    group_id: str
    members: list[Member] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    generation: int = -1
    #: Part of the members' metadata: a member with new metadata requests a rebalance.
    rebalances: int = 0

    @classmethod
    def open(cls, target: Target, group_id: str, stack: ExitStack) -> "Group":
        address = coordinator_of(target, group_id)
        group = cls(group_id)
        stack.callback(group.selector.close)
        for _ in range(MEMBERS):
            member = Member(address)
            stack.callback(member.sock.close)
            group.selector.register(member.sock, selectors.EVENT_READ, member)
            group.members.append(member)
        joins = [group._join(member) for member in group.members]
        for member, join in zip(group.members, joins, strict=True):
            # A new member first gets an id, and must join again with it.
            given = member.call(join, JoinGroupResponse)
            assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED, ErrorCode(given.error_code)
            member.member_id = given.member_id
        return group

    def rebalance(self) -> float:
        """Return the seconds from the last JoinGroup to the last member's SyncGroup, when the group is stable."""
        self.rebalances += 1
        joins = [encode(self._join(member)) for member in self.members]
        for member, join in zip(self.members, joins, strict=True):
            member.sock.sendall(join)
        began = time.monotonic()
        syncing: set[Member] = set()
        left = len(self.members)
        for member, answer in self._answers():
            if member in syncing:
                assert decode(answer, SyncGroupResponse).error_code == NO_ERROR
                left -= 1
                if not left:
                    break
            else:
                response = decode(answer, JoinGroupResponse)
                assert response.error_code == NO_ERROR, ErrorCode(response.error_code)
                self.generation = response.generation_id
                member.send(self._sync(member, response))
                syncing.add(member)
        return time.monotonic() - began

    def _answers(self) -> Iterator[tuple[Member, bytes]]:
        while True:
            ready = self.selector.select(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"group {self.group_id}: no answer in {ANSWER_TIMEOUT_S} s")
            for key, _ in ready:
                answer = key.data.receive()
                if answer is not None:
                    yield key.data, answer

    def _join(self, member: Member) -> JoinGroupRequest:
        subscription = ConsumerProtocolSubscription(topics=[TOPIC], user_data=b"%d" % self.rebalances)
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=member.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=codec.encode_versioned(subscription, 1))],
        )

    def _sync(self, member: Member, joined: JoinGroupResponse) -> SyncGroupRequest:
        assignment = codec.encode_versioned(ConsumerProtocolAssignment(), 1)
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=member.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=each.member_id, assignment=assignment) for each in joined.members
            ],
        )

    def commits(self, count: int) -> float:
        """Return commits per second: every member commits its two partitions, and again as soon as it gets a response."""
        frames = {
            member: encode(commit_of(self.group_id, self.generation, member.member_id, number))
            for number, member in enumerate(self.members)
        }
        return self.saturate(lambda member, _: frames[member], count)

    def saturate(self, next_frame: Callable[[Member, int], bytes], count: int) -> float:
        began = time.monotonic()
        sent = 0
        for member in self.members:
            member.sock.sendall(next_frame(member, sent))
            sent += 1
        for done, (member, answer) in enumerate(self._answers(), start=1):
            if done % 1000 == 1:
                check_commit(answer)
            if sent < count:
                member.sock.sendall(next_frame(member, sent))
                sent += 1
            if done == count:
                break
        return count / (time.monotonic() - began)


def commit_of(group_id: str, generation: int, member_id: str, number: int) -> OffsetCommitRequest:
    mine = (number * 2 % PARTITIONS, (number * 2 + 1) % PARTITIONS)
    partitions = [OffsetCommitRequestPartition(partition_index=p, committed_offset=1000 + number) for p in mine]
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
    )


def check_commit(answer: bytes) -> None:
    response = decode(answer, OffsetCommitResponse)
    codes = [each.error_code for topic in response.topics for each in topic.partitions]
    assert codes == [NO_ERROR, NO_ERROR], codes


def coordinator_of(target: Target, group_id: str) -> tuple[str, int]:
    """Ask until there is a coordinator: the topic of groups may just be in creation."""
    host, _, port = target.bootstrap.partition(",")[0].rpartition(":")
    member = Member((host, int(port)))
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
            [found] = member.call(request, FindCoordinatorResponse).coordinators
            if found.error_code == NO_ERROR and found.host:
                return found.host, found.port
            time.sleep(0.1)
    finally:
        member.sock.close()
    raise TimeoutError(f"no coordinator for {group_id}")


def commits_of_many_groups(target: Target, name: str, count: int) -> float:
    """200 groups without members; an administrator commits their offsets over 50 connections."""
    group_ids = [f"{name}-{number}" for number in range(200)]
    with ExitStack() as stack:
        pool = Group(name)
        stack.callback(pool.selector.close)
        for _ in range(MEMBERS):
            member = Member(coordinator_of(target, name))
            stack.callback(member.sock.close)
            pool.selector.register(member.sock, selectors.EVENT_READ, member)
            pool.members.append(member)
        frames = [encode(commit_of(group_id, -1, "", number)) for number, group_id in enumerate(group_ids)]
        return pool.saturate(lambda _, number: frames[number % len(frames)], count)


def commit_latency_ms(target: Target, group_id: str, count: int) -> float:
    """Measure librdkafka's synchronous commit, as an application sees it."""
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group_id, "enable.auto.commit": False})
    took: list[float] = []
    try:
        for offset in range(count):
            began = time.monotonic()
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
            took.append(time.monotonic() - began)
    finally:
        consumer.close()
    return statistics.median(took[count // 10 :]) * 1000


@dataclass(frozen=True)
class Size:
    """How many operations of each kind are in one round."""

    rebalances: int = 20
    commits: int = 20_000
    latencies: int = 500


def one_round(target: Target, number: int, size: Size) -> Iterator[tuple[str, float]]:
    with ExitStack() as stack:
        group = Group.open(target, f"bench-{number}", stack)
        group.rebalance()
        cpu = cpu_seconds(target.pids)
        took = [group.rebalance() for _ in range(size.rebalances)]
        yield "rebalance of 50 members, ms", statistics.median(took) * 1000
        yield "rebalance of 50 members, CPU ms", (cpu_seconds(target.pids) - cpu) / size.rebalances * 1000
        cpu = cpu_seconds(target.pids)
        yield "commits/s, one group of 50", group.commits(size.commits)
        yield "commits, one group of 50, CPU us", (cpu_seconds(target.pids) - cpu) / size.commits * 1e6
    cpu = cpu_seconds(target.pids)
    yield "commits/s, 200 groups", commits_of_many_groups(target, f"many-{number}", size.commits)
    yield "commits, 200 groups, CPU us", (cpu_seconds(target.pids) - cpu) / size.commits * 1e6
    yield "librdkafka commit p50 ms", commit_latency_ms(target, f"latency-{number}", size.latencies)


def run(rounds: int, size: Size) -> None:
    announce("groups", rounds, round_s=8, setup_s=20)
    limits = machine_limits()
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(LocalCluster(brokers=1, config=CONFIG))
        kafka = stack.enter_context(ApacheKafka(brokers=1, config=CONFIG))
        targets = (
            Target("barnabas", ours.bootstrap, [ours.pid(1)]),
            Target("Apache Kafka", kafka.bootstrap, [kafka.pid(1)]),
        )
        for target in targets:
            create_topic(target, TOPIC, partitions=PARTITIONS)
        for name, _ in one_round(targets[1], -1, size):
            print(f"warm-up {name}" + " " * 20, end="\r", flush=True)
        for number in range(rounds):
            for target in targets:
                for name, value in one_round(target, number, size):
                    results.setdefault(name, {}).setdefault(target.name, []).append(value)
                print(f"round {number + 1} of {rounds}: {target.name} done" + " " * 30)
    rows = [
        Row(name, statistics.median(by_target["barnabas"]), statistics.median(by_target["Apache Kafka"]))
        for name, by_target in results.items()
    ]
    write_report("groups", "Consumer groups, one broker", rows, rounds=rounds, raw=results, limits=limits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits", type=int, default=Size.commits, help="in each row and round")
    options = parser.parse_args(arguments)
    run(options.rounds, Size(commits=options.commits))


if __name__ == "__main__":
    main()
