"""Keys of objects, and the object of indexes."""

import pytest

from barnabas.base.errors import Malformed
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.layout import Part
from tests.unit.broker.features.tiered.segments import segment

PARTS = {Part.OFFSET_INDEX: b"offsets" * 3, Part.TIME_INDEX: b"", Part.LEADER_EPOCHS: b"0\n1\n0 0\n"}


def test_keys_say_topic_partition_offset_and_segment() -> None:
    one = segment(7, 1234, 1300)
    key = layout.log_key(one)
    assert key == "orders-AAECAwQFBgcICQoLDA0ODw/0/00000000000000001234-AAAAAAAAAAAAAAAAAAAABw.log"
    parsed = layout.parse_key(key)
    assert parsed == (one.id, 1234, ".log")
    assert layout.parse_key(layout.indexes_key(one)) == (one.id, 1234, ".indexes")
    assert key.startswith(layout.partition_prefix(one.id.of))


@pytest.mark.parametrize("key", ["", "orders/0/x.log", "orders-AAECAwQFBgcICQoLDA0ODw/0/12-x.log", "_delta_log/0.json"])
def test_objects_of_others_are_not_taken_for_ours(key: str) -> None:
    assert layout.parse_key(key) is None


def test_indexes_come_back_as_they_were_packed() -> None:
    assert layout.unpack_indexes(layout.pack_indexes(PARTS)) == PARTS
    assert layout.unpack_indexes(layout.pack_indexes({})) == {}


def test_every_damaged_byte_of_the_indexes_is_noticed() -> None:
    packed = layout.pack_indexes(PARTS)
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= 0x40
        with pytest.raises(Malformed):
            layout.unpack_indexes(bytes(damaged))
        with pytest.raises(Malformed):
            layout.unpack_indexes(packed[:at])
