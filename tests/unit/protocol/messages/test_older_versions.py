"""Versions that Kafka 4 has no more and Kafka 3.9 serves (KIP-896): which fields they have, in which order."""

import pytest

from barnabas.protocol.messages.base import Message
from barnabas.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from barnabas.protocol.messages.describe_configs import DescribeConfigsResourceResult
from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from barnabas.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsPartitionResponse
from barnabas.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition
from barnabas.protocol.messages.offset_for_leader_epoch import EpochEndOffset, OffsetForLeaderPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse


def on_the_wire(struct: type[Message], version: int) -> str:
    """The names of the fields that a version has, in order."""
    names = []
    for name, spec in struct.__wire__.items():
        low, _, high = spec.versions.removesuffix("+").partition("-")
        last = 99 if spec.versions.endswith("+") else int(high or low)
        if int(low) <= version <= last and spec.tag is None:
            names.append(name)
    return " ".join(names)


@pytest.mark.parametrize(
    ("struct", "version", "fields"),
    [
        (ProduceRequest, 2, "acks timeout_ms topic_data"),
        (ProduceResponse, 0, "responses"),
        (ProduceResponse, 1, "responses throttle_time_ms"),
        (PartitionProduceResponse, 1, "index error_code base_offset"),
        (PartitionProduceResponse, 2, "index error_code base_offset log_append_time_ms"),
        (FetchRequest, 2, "replica_id max_wait_ms min_bytes topics"),
        (FetchRequest, 3, "replica_id max_wait_ms min_bytes max_bytes topics"),
        (FetchResponse, 0, "responses"),
        (FetchResponse, 1, "throttle_time_ms responses"),
        (PartitionData, 3, "partition_index error_code high_watermark records"),
        (ListOffsetsPartition, 0, "partition_index timestamp max_num_offsets"),
        (ListOffsetsPartitionResponse, 0, "partition_index error_code old_style_offsets"),
        (ListOffsetsPartitionResponse, 1, "partition_index error_code timestamp offset"),
        (OffsetCommitRequest, 1, "group_id generation_id_or_member_epoch member_id topics"),
        (OffsetCommitRequestPartition, 1, "partition_index committed_offset commit_timestamp committed_metadata"),
        (CreateTopicsRequest, 0, "topics timeout_ms"),
        (CreateTopicsResponse, 1, "topics"),
        (CreatableTopicResult, 0, "name error_code"),
        (OffsetForLeaderPartition, 1, "partition leader_epoch"),
        (EpochEndOffset, 0, "error_code partition end_offset"),
        (DescribeConfigsResourceResult, 0, "name value read_only is_default is_sensitive"),
    ],
)
def test_older_version_has_these_fields(struct: type[Message], version: int, fields: str) -> None:
    assert on_the_wire(struct, version) == fields
