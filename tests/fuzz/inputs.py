"""The inputs: messages of every API and version, batches, sequences, ZooKeeper frames, beginnings of TLS handshakes.

Everything comes from one seeded generator, so that a finding can be reproduced.
"""

import random
import struct
from collections.abc import Callable
from typing import Any

from barnabas.wire import frame
from barnabas.wire.codec import Unwritable
from barnabas.wire.codec_source import in_range
from barnabas.wire.compression import Codec, compress
from barnabas.wire.messages.base import Message, Wire
from barnabas.wire.messages.index import INDEX
from barnabas.wire.record_batch import HEADER, compute_crc
from barnabas.wire.records import BatchBuilder
from barnabas.wire.versions import api_of
from barnabas.zookeeper import wire as zk
from barnabas.zookeeper.acl import OPEN_ACL
from barnabas.zookeeper.wire import Op

TOPIC = "fuzzed"
NAMES = (
    TOPIC,
    "fuzzed-too",
    "",
    "nothing",
    "x" * 300,
    "__consumer_offsets",
    "é\n",
    "group",
    "member",
    "range",
    "consumer",
)
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 127, 255, 1_000, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
SIZES = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "int64": 64}
_COORDINATED = frozenset(
    {
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "DeleteGroups",
        "DescribeGroups",
        "DescribeTransactions",
        "EndTxn",
        "Heartbeat",
        "InitProducerId",
        "JoinGroup",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetDelete",
        "OffsetFetch",
        "SyncGroup",
        "TxnOffsetCommit",
    }
)


class Inputs:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.kinds: dict[str, Callable[[], bytes]] = {
            "message": self.message,
            "mutated message": lambda: self.mutated(self.message()),
            "group or transaction": self.group_or_transaction,
            "batch": self.produce,
            "noise": self.noise,
        }

    # -- Kafka --------------------------------------------------------------------------------------------------------

    def message(self) -> bytes:
        return self._request(self.chance.choice(list(INDEX)))

    def group_or_transaction(self) -> bytes:
        named = [key for key, entry in INDEX.items() if entry.name in _COORDINATED]
        return self._request(self.chance.choice(named))

    def _request(self, key: int) -> bytes:
        api = api_of(key)
        version = self.chance.randint(api.min_version, api.max_version)
        for _ in range(5):
            try:
                request = self._filled(api.request_class, version)
                return frame.encode_request(request, version, self.chance.randrange(2**31), self._client_id())  # type: ignore[arg-type]
            except (Unwritable, struct.error, ValueError, OverflowError):
                continue
        return self.noise()

    def _client_id(self) -> str | None:
        return self.chance.choice(("fuzz", "", None, "x" * 1000, "\x1b[2J\n[fake] CRITICAL"))

    def _filled(self, cls: type[Message], version: int) -> Message:
        values = {
            name: self._value(spec, version) for name, spec in cls.__wire__.items() if in_range(spec.versions, version)
        }
        return cls(**values)

    def _value(self, spec: Wire, version: int) -> Any:
        chance = self.chance
        if spec.nullable is not None and in_range(spec.nullable, version) and chance.random() < 0.15:
            return None
        if spec.is_array:
            count = chance.choice((0, 1, 1, 1, 2, 3, 30))
            return [self._single(spec, version) for _ in range(count)]
        return self._single(spec, version)

    def _single(self, spec: Wire, version: int) -> Any:
        chance, kind = self.chance, spec.type
        if isinstance(kind, type):
            return self._filled(kind, version)
        if kind in SIZES:
            low, high = (0, 2**16 - 1) if kind == "uint16" else (-(2 ** (SIZES[kind] - 1)), 2 ** (SIZES[kind] - 1) - 1)
            fitting = [number for number in NUMBERS if low <= number <= high]
            return chance.choice(fitting) if chance.random() < 0.8 else chance.randint(0, 5)
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "string":
            return chance.choice(NAMES) if chance.random() < 0.9 else f"n{chance.randrange(1000)}"
        if kind == "uuid":
            return chance.randbytes(16) if chance.random() < 0.5 else bytes(16)
        if kind == "float64":
            return chance.choice((0.0, -1.0, float("nan"), float("inf"), 1e308))
        if kind == "bytes":
            return chance.randbytes(chance.choice((0, 1, 8, 200)))
        return self.batch()  # records

    def mutated(self, data: bytes) -> bytes:
        """Flip, cut or insert bytes, or change lengths. The frame's own size mostly stays right: otherwise nothing is
        parsed.
        """
        chance, body = self.chance, bytearray(data[4:])
        for _ in range(chance.randrange(1, 6)):
            if not body:
                break
            at = chance.randrange(len(body))
            match chance.randrange(5):
                case 0:
                    body[at] = chance.randrange(256)
                case 1:
                    del body[at : at + chance.randrange(1, 9)]
                case 2:
                    body[at:at] = chance.randbytes(chance.randrange(1, 9))
                case 3:
                    body[at : at + 4] = struct.pack(">i", chance.choice((2**31 - 1, -1, 0x7FFFFF, 65_536)))
                case _:
                    body[at:at] = b"\xff\xff\xff\xff\x0f"  # the largest varint
        size = len(body) if chance.random() < 0.97 else chance.choice((0, -1, 2**31 - 1, len(body) + 5))
        return struct.pack(">i", size) + bytes(body)

    def noise(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((1, 4, 10, 100, 3000)))

    def produce(self) -> bytes:
        from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

        data = PartitionProduceData(index=self.chance.choice((0, 0, 0, 1, -1)), records=self.batch())
        topic = TopicProduceData(name=self.chance.choice((TOPIC, TOPIC, "fuzzed-too")), partition_data=[data])
        acks = self.chance.choice((1, 1, -1, 0, 5))
        return frame.encode_request(ProduceRequest(acks=acks, timeout_ms=100, topic_data=[topic]), 9, 1, "fuzz")

    def batch(self) -> bytes:
        """Return a batch, from valid to absurd, nearly always with a right checksum: otherwise nothing else is checked."""
        chance = self.chance
        codec = chance.choice(list(Codec))
        honest = BatchBuilder(
            codec=codec, producer_id=chance.choice((-1, -1, 0, 1, 5)), base_sequence=chance.choice((-1, 0, 3))
        )
        for _ in range(chance.choice((1, 1, 5, 50))):
            honest.append(
                chance.choice((None, b"k")), chance.choice((None, b"v" * 50)), timestamp=chance.choice((-1, 0, 2**62))
            )
        data = bytearray(honest.build())
        if chance.random() < 0.3:
            body = (
                chance.randbytes(60)
                if chance.random() < 0.5
                else compress(codec, bytes(chance.choice((10, 5_000_000))))
            )
            count = chance.choice((1, 3, 1000, 2**31 - 1, 0, -1))
            data = bytearray(
                HEADER.pack(
                    0,
                    49 + len(body),
                    0,
                    2,
                    0,
                    codec | chance.choice((0, 8, 16, 32)),
                    count - 1,
                    0,
                    2**62,
                    1,
                    0,
                    0,
                    max(count, -(2**31)),
                )
                + body
            )
        for _ in range(chance.choice((0, 0, 1, 2))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if len(data) > 61 and chance.random() < 0.95:
            struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data) - 12))
        return bytes(data)

    # -- ZooKeeper ----------------------------------------------------------------------------------------------------

    def zookeeper(self) -> bytes:
        chance = self.chance
        path = chance.choice(("/", "/fuzz", "/fuzz/a", "/zookeeper", "//", "", "/fuzz/" + "x" * 200, "/\0", "/é"))
        bodies = (
            zk.text(path) + b"\1",
            zk.text(path)
            + zk.buffer(chance.randbytes(20))
            + zk.acl_bytes(OPEN_ACL)
            + struct.pack(">i", chance.randrange(-1, 8)),
            zk.text(path) + zk.buffer(b"x") + struct.pack(">i", -1),
            zk.text(path) + struct.pack(">i", chance.choice((-1, 0, 1, 2))),
            struct.pack(">i", 0)
            + zk.text(chance.choice(("digest", "ip", "x509", "sasl", "")))
            + zk.buffer(chance.randbytes(9)),
            zk.MULTI_HEADER.pack(chance.choice((1, 2, 4, 5, 8, 13)), False, -1) + zk.text(path) + b"\1" + zk.MULTI_END,
            chance.randbytes(chance.randrange(60)),
        )
        body = bytearray(
            struct.pack(">ii", chance.randrange(-5, 100), chance.choice([int(op) for op in Op] + [-11, 999]))
        )
        body += chance.choice(bodies)
        if chance.random() < 0.3 and len(body) > 8:
            body[chance.randrange(8, len(body))] = chance.randrange(256)
        return struct.pack(">i", len(body)) + bytes(body)

    def tls(self) -> bytes:
        """Return bytes that look like the beginning of a handshake."""
        chance = self.chance
        hello = b"\x01\x00\x00\x40\x03\x03" + chance.randbytes(chance.randrange(70))
        record = (
            b"\x16\x03" + bytes([chance.randrange(5)]) + struct.pack(">H", chance.choice((len(hello), 0, 65_535, 5)))
        )
        return record + hello
