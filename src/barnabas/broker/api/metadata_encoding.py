"""Encodes the partitions of a topic for Metadata responses, and caches them until they change.

A topic may have thousands of partitions, and many clients ask for it at once when one of its leaders fails: just when the
broker is busiest. So partitions are encoded without a message object for each, and once for all clients of the same listener
and version.
"""

from struct import Struct
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerId
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, TopicImage
from barnabas.wire.messages.base import EncodedItems
from barnabas.wire.messages.metadata import MetadataResponse, MetadataResponsePartition
from barnabas.wire.varint import append_uvarint

#: Before this version clients do not know LISTENER_NOT_FOUND.
LISTENER_NOT_FOUND_FROM_VERSION: Final = 6
_OFFLINE_FROM_VERSION: Final = 5
_LEADER_EPOCH_FROM_VERSION: Final = 7

#: Limit for all answers that are kept.
KNOWN_BYTES_MAX: Final = 4 * 1024 * 1024
#: An answer is kept with its question.
KNOWN_OVERHEAD_BYTES: Final = 1024
_HEAD: Final = Struct(">hii")
_HEAD_AND_EPOCH: Final = Struct(">hiii")


class Question(NamedTuple):
    """The parts of a request and of its connection that decide about the answer, besides what the sender may see."""

    version: int
    listener: str
    topics: tuple[str | None, ...]


class KnownAnswers:
    """Whole answers about topics that are named, encoded, until the metadata change. Owner: the event loop.

    Clients ask for the same topics again and again.
    """

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        #: The metadata's state in which the answers are valid.
        self._changes = -1
        #: Frames without their size and correlation id.
        self._answers: dict[Question, bytearray] = {}
        self._bytes = 0

    def get(self, question: Question) -> bytearray | None:
        if self._changes != self._metadata.changes:
            self._answers.clear()
            self._bytes = 0
            self._changes = self._metadata.changes
        return self._answers.get(question)

    def keep(self, question: Question, answer: bytearray) -> None:
        """Keep an answer that was built in the present state of the metadata."""
        if self.get(question) is None and self._bytes + len(answer) <= KNOWN_BYTES_MAX:
            self._answers[question] = answer
            self._bytes += len(answer) + KNOWN_OVERHEAD_BYTES


def encoded_partitions(
    metadata: MetadataCache, image: TopicImage, listener: str, version: int
) -> EncodedItems[MetadataResponsePartition]:
    """Return the partitions of a topic, encoded for clients of `listener`."""
    known = image.encoded.get((listener, version))
    if known is None:
        known = EncodedItems(len(image.partitions), _encode(metadata, image, listener, version))
        image.encoded[listener, version] = known
    return known


def _encode(metadata: MetadataCache, image: TopicImage, listener: str, version: int) -> bytes:
    is_flexible = version >= MetadataResponse.FLEXIBLE_FROM
    with_offline = version >= _OFFLINE_FROM_VERSION
    with_epoch = version >= _LEADER_EPOCH_FROM_VERSION
    brokers = metadata.brokers
    # Thousands of partitions have few different leaders and lists of replicas: each is looked up and encoded once.
    errors: dict[int, int] = {}
    lists: dict[tuple[int, ...], bytes] = {}

    def error_of(leader: int) -> int:
        found = metadata.leader_error(leader, listener)
        if found is ErrorCode.LISTENER_NOT_FOUND and version < LISTENER_NOT_FOUND_FROM_VERSION:
            found = ErrorCode.LEADER_NOT_AVAILABLE
        errors[leader] = int(found)
        return errors[leader]

    def ids(numbers: list[int]) -> bytes:
        key = tuple(numbers)
        encoded = lists.get(key)
        if encoded is None:
            encoded = lists[key] = _encode_ids(key, is_flexible=is_flexible)
        return encoded

    out = bytearray()
    for number, state in image.partitions.items():
        leader = state.leader
        error = errors.get(leader)
        if error is None:
            error = error_of(leader)
        if error:
            leader = -1
        if with_epoch:
            out += _HEAD_AND_EPOCH.pack(error, number, leader, state.leader_epoch)
        else:
            out += _HEAD.pack(error, number, leader)
        out += ids(state.replicas)
        out += ids(state.isr)
        if with_offline:
            failed = state.offline_replicas
            out += ids([each for each in state.replicas if each in failed or BrokerId(each) not in brokers])
        if is_flexible:
            out.append(0)
    return bytes(out)


def _encode_ids(numbers: tuple[int, ...], *, is_flexible: bool) -> bytes:
    out = bytearray()
    if is_flexible:
        append_uvarint(out, len(numbers) + 1)
    else:
        out += len(numbers).to_bytes(4, "big")
    out += Struct(f">{len(numbers)}i").pack(*numbers)
    return bytes(out)
