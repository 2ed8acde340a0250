"""DeleteRecords as its handler sees it."""

from types import SimpleNamespace
from typing import Any

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode
from barnabas.broker.api.log_dirs import LogDirsApi
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)


def test_leader_deletes_records_of_a_topic_whose_metadata_has_not_come_yet() -> None:
    def delete_records(entries: Any, *, timeout_ms: int, on_done: Any) -> None:
        on_done([(ErrorCode.NONE, offset) for _, offset in entries])

    context: Any = SimpleNamespace(
        allows_topic=lambda *args: True,
        replicas=SimpleNamespace(delete_records=delete_records),
        metadata=SimpleNamespace(topic=lambda name: None),
        dynamic=SimpleNamespace(log_config=lambda topic: LogConfig()),
    )
    answers: list[Any] = []
    call: Any = SimpleNamespace(api_version=2, reply=answers.append)
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=5)])
    LogDirsApi(context).delete_records(call, DeleteRecordsRequest(topics=[wanted], timeout_ms=1_000))
    [response] = answers
    [answer] = response.topics[0].partitions
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 5)
