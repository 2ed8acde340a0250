"""Encodes the partitions of a topic for Metadata responses, and caches them until they change.

A topic may have thousands of partitions, and many clients ask for it at once when one of its leaders fails: just when the
broker is busiest. So partitions are encoded without a message object for each, and once for all clients of the same listener
and version.
"""

from struct import Struct
from typing import Final

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

_HEAD: Final = Struct(">hii")
_HEAD_AND_EPOCH: Final = Struct(">hiii")


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
