"""Kinds of integers and names that must not be confused."""

import base64
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)

#: 16 raw bytes, as on the wire; hashable, and cheap to compare.
TopicId = NewType("TopicId", bytes)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_BROKER = BrokerId(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
ZERO_TOPIC_ID = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def format_uuid(raw: bytes) -> str:
    """Format a UUID as Kafka does: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a UUID in Kafka's form (22 characters of URL-safe base64)")
    return raw
