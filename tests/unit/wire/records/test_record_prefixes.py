"""The first bytes of keys and values: the scanner for schema ids, compared with the full decoder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.wire.record_batch import read_header
from barnabas.wire.record_prefixes import PREFIX_BYTES, Strange, strange_records
from barnabas.wire.records import BatchBuilder, decode_body, records_body

CONTENT = st.none() | st.sampled_from([b"\0\0\0\0\1", b"\0\0\0\0\2tail"]) | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(
        CONTENT, CONTENT, st.integers(0, 2**40), st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary()))
    ),
    min_size=1,
    max_size=200,
)
KNOWN = {b"\0\0\0\0\1"}


def body_of(records: list) -> tuple[bytes, object]:
    builder = BatchBuilder()
    for key, value, timestamp, headers in records:
        builder.append(key, value, timestamp=timestamp, headers=headers)
    batch = builder.build()
    header = read_header(batch)
    return records_body(batch, 0, header), header


@given(RECORDS, st.booleans(), st.booleans())
def test_same_beginnings_are_seen_as_by_the_decoder(records: list, keys: bool, values: bool) -> None:
    body, header = body_of(records)
    expected = []
    for number, record in enumerate(decode_body(body, header)):
        for is_key, content, looks in ((True, record.key, keys), (False, record.value, values)):
            if looks and content is not None and content[:PREFIX_BYTES] not in KNOWN:
                expected.append(Strange(number, is_key, content[:PREFIX_BYTES]))
    found = strange_records(body, header, keys=KNOWN if keys else None, values=KNOWN if values else None)
    assert found == expected


@given(RECORDS, st.data())
def test_damaged_records_are_malformed_or_read_within_their_bounds(records: list, data: st.DataObject) -> None:
    body, header = body_of(records)
    damaged = bytearray(body)
    damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(body)))])
    try:
        found = strange_records(cut, header, keys=(), values=())
    except Malformed:
        return
    assert all(len(each.prefix) <= PREFIX_BYTES for each in found)


@pytest.mark.parametrize(
    "body", [b"", b"\x0c", b"\x02\0", b"\x0c\0\0\0\x05\1\0", b"\x0c\0\0\0\1\x05\0", b"\x0c\0\0\0\1\x01\0\0"]
)
def test_nonsense_is_malformed(body: bytes) -> None:
    _, header = body_of([(None, b"x", 0, [])])
    with pytest.raises(Malformed):
        strange_records(body, header, keys=KNOWN, values=KNOWN)
