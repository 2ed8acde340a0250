"""Every API, version and direction: our bytes equal kio's bytes, and decode to the same values."""

import random
from typing import Any

import pytest

pytest.importorskip("kio", reason="kio, a development dependency, is the oracle here")

from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType
from scripts.generate_messages import NEWER

from barnabas.wire.codec import decode, encode
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.base import Versioned
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.default_principal_data import DefaultPrincipalData
from barnabas.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from barnabas.wire.messages.end_txn_marker import EndTxnMarker
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from barnabas.wire.versions import API
from tests.unit.wire.messages.kio_oracle import kio_bytes, random_entity, to_ours

INSTANCES_PER_VERSION = 5

DATA: dict[str, type[Versioned]] = {
    "consumer_protocol_assignment": ConsumerProtocolAssignment,
    "consumer_protocol_subscription": ConsumerProtocolSubscription,
    "default_principal_data": DefaultPrincipalData,
    "end_txn_marker": EndTxnMarker,
}


def agree(schema: str, kind: EntityType, ours: type[Versioned]) -> None:
    versions = sorted(schema_name_map[schema])
    newer = NEWER.get((schema, kind))
    last = versions[-1] if newer is None else newer.version
    assert (versions[0], last) == (ours.MIN_VERSION, ours.MAX_VERSION)
    for version in versions:
        theirs: type[Any] = load_entity_schema(schema, version, kind)  # type: ignore[arg-type]
        assert theirs.__flexible__ == (version >= ours.FLEXIBLE_FROM)
        chance = random.Random(f"{schema} {kind} {version}")
        for _ in range(INSTANCES_PER_VERSION):
            entity = random_entity(chance, theirs)
            message = to_ours(entity, ours)
            assert isinstance(message, Versioned)
            expected = kio_bytes(entity)
            assert encode(message, version) == expected, (ours, version)
            assert decode(ours, expected, version) == message
            assert decode(ours, memoryview(b"***" + expected)[3:], version) == message


@pytest.mark.parametrize("key", sorted(api_key_map), ids=lambda key: api_key_map[key])
def test_requests_and_responses_are_the_bytes_that_kio_writes(key: int) -> None:
    agree(api_key_map[key], EntityType.request, API[key].request_class)
    agree(api_key_map[key], EntityType.response, API[key].response_class)


@pytest.mark.parametrize("schema", sorted(DATA))
def test_data_schemas_are_the_bytes_that_kio_writes(schema: str) -> None:
    agree(schema, EntityType.data, DATA[schema])


#: Versions that kio lacks, field by field as Kafka 4.4's schemas have them. In the flexible format a text is preceded by its
#: length plus one, and each struct ends with the number of its tagged fields.
NEWER_BYTES = [
    (
        ApiVersionsRequest(client_software_name="s", client_software_version="1", cluster_id="c", node_id=2),
        5,
        "0273 0231 0263 00000002 00",
    ),
    (ApiVersionsRequest(client_software_name="s", client_software_version="1"), 5, "0273 0231 00 ffffffff 00"),
    (DeleteGroupsRequest(groups_names=["g"]), 3, "02 0267 00"),
    (
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=69, error_message="m")]),
        3,
        "00000000 02 0267 0045 026d 00 00",
    ),
    (
        TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    topic_id=b"i" * 16,
                    partitions=[TxnOffsetCommitResponsePartition(partition_index=1, error_code=100)],
                )
            ]
        ),
        6,
        "00000000 02" + "69" * 16 + "02 00000001 0064 00 00 00",
    ),
]


@pytest.mark.parametrize(("message", "version", "expected"), NEWER_BYTES)
def test_versions_that_kio_lacks_have_these_bytes(message: Versioned, version: int, expected: str) -> None:
    assert encode(message, version) == bytes.fromhex(expected)
    assert decode(type(message), bytes.fromhex(expected), version) == message
