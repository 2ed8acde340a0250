"""`python -m tests.fuzz.siege [--apache] [ATTACK…]`: attacks that once succeeded, one after the other, at our broker or
Apache's.

It prints a row of the table in docs/security.md for each attack: the largest growth of the broker, and the bystander's latency.
Each attack has a broker of its own. It does not judge the results: `tests/scenarios/faults/test_hostile_*.py` do that.
"""

import argparse
import contextlib
import itertools
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from barnabas.wire import frame
from barnabas.wire.compression import Codec, compress
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.record_batch import BASE_TIMESTAMP_AT, CRC_AT, HEADER, TIMESTAMP_TYPE_FLAG, compute_crc
from barnabas.wire.varint import encode_varint
from tests.fuzz.attack import ALONE_S, Bystander, Memory, attack_target, percentile
from tests.fuzz.inputs import TOPIC
from tests.fuzz.target import Target, apache, ask, connect, ours, receive

#: Seconds to wait for the answer to a large request; Apache Kafka is slow for some.
PATIENCE_S = 120.0
CONNECTIONS = 1_500
#: Seconds to watch the bystander after the attack, while the broker still works on its requests.
AFTER_S = 3.0


def claims(target: Target) -> int:
    """Send a batch of 108 bytes that claims 2^31-1 records, each of which the answer would name."""
    count = 2**31 - 1
    header = (0, 49 + 47, 0, 2, 0, TIMESTAMP_TYPE_FLAG, count - 1, 0, 0, -1, -1, -1, count)
    lie = bytearray(HEADER.pack(*header) + b"x" * 47)
    struct.pack_into(">I", lie, CRC_AT, compute_crc(lie, 0, len(lie) - 12))
    return _each(target, [_produce(bytes(lie))] * 500, 9)


def bomb(target: Target) -> int:
    """Send a batch of 200 MB of zeros in some kilobytes, and look up timestamps in it."""
    value = bytes(200_000_000)
    record = b"\0\0\0\1" + encode_varint(len(value)) + value + b"\0"
    body = compress(Codec.ZSTD, encode_varint(len(record)) + record)
    data = bytearray(HEADER.pack(0, 49 + len(body), 0, 2, 0, Codec.ZSTD, 0, 0, 0, -1, -1, -1, 1) + body)
    struct.pack_into(">qq", data, BASE_TIMESTAMP_AT, 1_000, 2_000)
    struct.pack_into(">I", data, CRC_AT, compute_crc(data, 0, len(data) - 12))
    wanted = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=1_500)])
    sent = _each(target, [_produce(bytes(data))] * 3, 9)
    return sent + _each(target, [ListOffsetsRequest(replica_id=-1, topics=[wanted])] * 10, 6)


def many_names(target: Target) -> int:
    """Ask for Metadata of 90,000 topics that do not exist."""
    names = [MetadataRequestTopic(name=f"{number:x}") for number in range(90_000)]
    return _each(target, [MetadataRequest(topics=names, allow_auto_topic_creation=False)] * 3, 9)


def many_resources(target: Target) -> int:
    """Change the settings of 9,900 topics without permission."""
    resources = [AlterConfigsResource(resource_type=2, resource_name=f"{n:x}", configs=[]) for n in range(9_900)]
    return _each(target, [IncrementalAlterConfigsRequest(resources=resources)] * 3, 1)


def nothing_to_add(target: Target) -> int:
    """Begin a transaction to which no partitions are added."""
    with target.login("eve") as peer:
        peer.settimeout(PATIENCE_S)
        made: Any = None
        for _ in range(300):
            ask(peer, FindCoordinatorRequest(key="x", key_type=1), 2)
            made = ask(peer, InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 2)
            if made.error_code == 0:
                break
            time.sleep(0.2)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[],
    )
    return sum(_each(target, [add] * 25, version) for version in range(4))


def versions_flood(target: Target) -> int:
    """Send ApiVersions from 200 strangers as fast as possible, without a login."""
    request = frame.encode_request(ApiVersionsRequest(), 0, 1, "flood")
    sent = 0
    ends_s = time.monotonic() + 10
    with contextlib.ExitStack() as stack:
        peers = [_opened(stack, target.client) for _ in range(200)]
        while time.monotonic() < ends_s:
            for number, peer in enumerate(peers):
                try:
                    peer.sendall(request * 10)
                    sent += 10
                except OSError:
                    peer.close()
                    peers[number] = _opened(stack, target.client)
    return sent


def lying_lengths(target: Target) -> int:
    """Open connections that announce a large frame, send eight bytes of it, and stay."""
    return _connections(target.client, struct.pack(">i", 512 * 1024) + bytes(8))


def half_hellos(target: Target) -> int:
    """Open connections that begin a TLS handshake, and stay."""
    return _connections(target.tls or 0, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


def wrong_passwords(target: Target) -> int:
    """Log in with a wrong password, from one address."""
    sent = 0
    ends_s = time.monotonic() + 10
    while time.monotonic() < ends_s:
        with contextlib.suppress(OSError), connect(target.client) as peer:
            sent += 1
            ask(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1)
            ask(peer, SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 1)
    return sent


def fuzz(target: Target) -> int:
    """Run `make fuzz`, seed 7, for a minute."""
    return sum(attack_target(target, seed=7, count=None, seconds=60, p99_s_max=60).inputs.values())


ATTACKS: tuple[Callable[[Target], int], ...] = (
    claims, bomb, many_names, many_resources, nothing_to_add, versions_flood, lying_lengths, half_hellos, wrong_passwords, fuzz,
)  # fmt: skip


def _each(target: Target, requests: list[Any], version: int) -> int:
    """Send the requests on one connection of eve's, which is opened again when the broker closes it."""
    sent = 0
    queue = iter(requests)
    for request in queue:
        with contextlib.suppress(OSError), target.login("eve") as peer:
            peer.settimeout(PATIENCE_S)
            for each in itertools.chain([request], queue):
                sent += 1
                peer.sendall(frame.encode_request(each, version, 1, "eve"))
                receive(peer)
    return sent


def _produce(batch: bytes) -> ProduceRequest:
    topic = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic])


def _connections(port: int, first: bytes) -> int:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                _opened(stack, port).sendall(first)
        time.sleep(5)
    return CONNECTIONS


def _opened(stack: contextlib.ExitStack, port: int) -> socket.socket:
    return stack.enter_context(contextlib.closing(connect(port)))


@contextlib.contextmanager
def _watching(memory: Memory) -> Iterator[None]:
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(0.05):
            memory.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def row(name: str, attack: Callable[[Target], int], target: Target) -> str:
    memory = Memory(target)
    with Bystander(target) as bystander:
        time.sleep(ALONE_S)
        begins_s = time.monotonic()
        with _watching(memory):
            try:
                sent = str(attack(target))
            except OSError as error:
                sent = f"ended by {error}"
            time.sleep(AFTER_S)
    before_s, took_s = bystander.took_s(until_s=begins_s), bystander.took_s(since_s=begins_s)
    grown = f"{memory.growth_bytes['broker'] / 1e6:.0f} MB"
    served = f"p99 {percentile(took_s, 0.99) * 1000:.0f} ms, slowest {max(took_s, default=0) * 1000:.0f} ms"
    if bystander.failure:
        served = f"hurt: {bystander.failure}"
    if not target.processes["broker"].is_running() or target.processes["broker"].status() == psutil.STATUS_ZOMBIE:
        served += "; the broker ended"
    return f"| {name} | {sent} | {grown} | {served} | p99 {percentile(before_s, 0.99) * 1000:.0f} ms |"


def main() -> int:
    by_name = {each.__name__.replace("_", "-"): each for each in ATTACKS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", choices=[*by_name, []], metavar="ATTACK", help=", ".join(by_name))
    parser.add_argument("--apache", action="store_true", help="Attack Apache Kafka 3.9.1 instead of our own broker.")
    options = parser.parse_args()
    random.seed(1)
    print("| attack | inputs | memory | bystander | bystander alone |\n|---|---|---|---|---|")
    for name in options.attacks or by_name:
        with apache() if options.apache else ours() as target:
            print(row(name, by_name[name], target), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
