"""The audit log has an entry for every requested change, whenever its answer is sent."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.host.disk import REAL_DISK
from barnabas.broker.api.log_dirs import LogDirsApi
from barnabas.broker.features.audit.audit_log import AuditLog
from barnabas.broker.server.call import Call
from barnabas.broker.server.later import answer_later
from barnabas.wire.messages.delete_link import DeleteLinkRequest, DeleteLinkResponse
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tests.support.handlers import handler_of
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness


class Clock:
    def now_ms(self) -> int:
        return 5


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


def audit_of(server: Harness, path: Path) -> Callable[[], list[tuple[str, list[str], list[str]]]]:
    """Keep an audit log of the server; return a function that reads its entries."""
    loop = asyncio.get_running_loop()
    server.pipeline.audit = AuditLog(
        str(path),
        disk=REAL_DISK,
        clock=Clock(),  # type: ignore[arg-type]
        on_thread=at_once,
        spawn=lambda work, name: loop.create_task(work, name=name),
        file_bytes_max=1_000_000,
    )

    def entries() -> list[tuple[str, list[str], list[str]]]:
        lines = [json.loads(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []
        return [(each["request"], each["names"], each["errors"]) for each in lines]

    return entries


def deletion() -> DeleteRecordsRequest:
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=5)])
    return DeleteRecordsRequest(topics=[wanted], timeout_ms=1_000)


async def test_deletion_of_records_is_logged_when_the_replicas_have_followed(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []

    def delete_records(entries: Any, *, timeout_ms: int, on_done: Any) -> None:
        waiting.append(lambda: on_done([(ErrorCode.NONE, offset) for _, offset in entries]))

    context: Any = SimpleNamespace(
        allows_topic=lambda *args: True,
        replicas=SimpleNamespace(delete_records=delete_records),
        dynamic=SimpleNamespace(log_config=lambda topic: LogConfig()),
    )
    handler = handler_of(LogDirsApi(context), "DeleteRecords")

    async with Harness(more=[handler]) as server:
        entries = audit_of(server, tmp_path / "audit.log")
        client = await server.client()
        client.send(deletion(), 2, 1)
        await eventually(lambda: bool(waiting))
        assert entries() == []
        waiting.pop()()
        assert await client.correlation_id() == 1
        await eventually(lambda: entries() == [("DeleteRecords", ["t"], [])])
        await client.close()


async def test_delayed_answer_of_a_coordinator_is_logged_once(tmp_path: Path) -> None:
    answers: list[asyncio.Future[OffsetDeleteResponse]] = []

    def delete(call: Call, request: OffsetDeleteRequest) -> Any:
        answers.append(asyncio.get_running_loop().create_future())
        return answer_later(call, request, answers[-1])

    async with Harness({"OffsetDelete": delete}) as server:
        entries = audit_of(server, tmp_path / "audit.log")
        client = await server.client()
        client.send(OffsetDeleteRequest(group_id="g"), 0, 1)
        await eventually(lambda: len(answers) == 1)
        answers.pop().set_result(OffsetDeleteResponse())
        assert await client.correlation_id() == 1
        client.send(OffsetDeleteRequest(group_id="h"), 0, 2)
        await eventually(lambda: len(answers) == 1)
        answers.pop().set_exception(Refused(ErrorCode.GROUP_ID_NOT_FOUND))
        assert await client.correlation_id() == 2
        expected = [("OffsetDelete", ["g"], []), ("OffsetDelete", ["h"], ["GROUP_ID_NOT_FOUND"])]
        await eventually(lambda: entries() == expected)
        await client.close()


async def test_changes_of_links_are_logged(tmp_path: Path) -> None:
    async with Harness({"DeleteLink": lambda call, request: DeleteLinkResponse()}) as server:
        entries = audit_of(server, tmp_path / "audit.log")
        client = await server.client()
        client.send(DeleteLinkRequest(name="old"), 0, 1)
        assert await client.correlation_id() == 1
        await eventually(lambda: entries() == [("DeleteLink", ["old"], [])])
        await client.close()
