"""Export the records that a search finds to a file: JSON lines, or Parquet."""

import asyncio
import base64
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.responses import StreamingResponse

from barnabas.services.console.decoding import Shown, ShownRecord
from barnabas.services.console.errors import Refusal
from barnabas.services.console.messages import WHERE, Reading, reading_of
from barnabas.services.console.web import NUMBER, TEXT, Call, Endpoint, encode
from barnabas.services.registry.values import json_values

FORMATS: Final = ("jsonl", "parquet")
_TYPES: Final = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
_CHUNK_BYTES: Final = 64 * 1024


async def export(call: Call) -> StreamingResponse:
    kind = call.choice("format", FORMATS)
    reading = await reading_of(call, count=100_000, count_max=10_000_000)
    lines = _lines(reading, _json_line if kind == "jsonl" else _parquet_line)
    body = lines if kind == "jsonl" else _through_parquet(lines)

    async def guarded() -> AsyncIterator[bytes]:
        with call.services.guard.searching(call.user):
            async for each in body:
                yield each

    name = file_name(reading.source.topic, kind)
    return StreamingResponse(
        guarded(),
        media_type=_TYPES[kind],
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"},
    )


def file_name(topic: str, kind: str) -> str:
    """Return a valid file name: the topic may not exist, and its name may contain any characters."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', topic)}.{kind}"


async def _lines(reading: Reading, line: Callable[[str, ShownRecord], bytes]) -> AsyncIterator[bytes]:
    async for shown in reading.found():
        yield b"".join(line(reading.source.topic, each) + b"\n" for each in shown)


def _json_line(topic: str, shown: ShownRecord) -> bytes:
    return encode(
        {
            "topic": topic,
            "partition": shown.partition,
            "offset": shown.record.offset,
            "timestamp": shown.record.timestamp,
            "key": _plain(shown.key),
            "keyFormat": shown.key.format,
            "value": _plain(shown.value),
            "valueFormat": shown.value.format,
            "headers": [{"name": name, "value": _plain(value)} for name, value in shown.headers],
        }
    )


def _plain(shown: Shown) -> Any:
    """Return data that JSON can represent, else the text."""
    try:
        json_values.write(shown.data)
    except (TypeError, ValueError):
        return shown.text
    return shown.data


def _parquet_line(topic: str, shown: ShownRecord) -> bytes:
    return encode(
        {
            "topic": topic,
            "partition": shown.partition,
            "offset": shown.record.offset,
            "timestamp": shown.record.timestamp,
            "key": _base64(shown.record.key),
            "value": _base64(shown.record.value),
            "key_text": None if shown.record.key is None else shown.key.text,
            "value_text": None if shown.record.value is None else shown.value.text,
            "headers": [(name, _base64(value)) for name, value in shown.record.headers],
        }
    )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


async def _through_parquet(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Convert the lines in a separate process, which ends with the request."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "barnabas.services.console.parquet",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.TaskGroup() as tasks:
            feeding = tasks.create_task(_feed(process.stdin, lines), name="records for Parquet")
            complaints = tasks.create_task(process.stderr.read(), name="complaints of Parquet")
            while data := await process.stdout.read(_CHUNK_BYTES):
                yield data
            await feeding
        if await process.wait():
            words = complaints.result().decode(errors="replace").strip().rpartition("\n")[2]
            raise Refusal(500, "PARQUET", words or "the file could not be written")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _feed(stdin: asyncio.StreamWriter, lines: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its error output says why it ended
        async for line in lines:
            stdin.write(line)
            await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/topics/{topic}/export",
        handler=export,
        summary="Records that a search with the same query finds, as JSON lines or Parquet.",
        query={
            **WHERE,
            "format": {"enum": list(FORMATS)},
            "text": TEXT,
            "filter": TEXT,
            "count": NUMBER,
            "records": NUMBER,
            "bytes": NUMBER,
            "seconds": NUMBER,
        },
        content_type="application/octet-stream",
    )
]
