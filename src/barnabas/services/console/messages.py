"""Messages of a topic: a page, a search, the tail, one record, producing one."""

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from barnabas.base.ids import TopicPartition
from barnabas.base.words import ISOLATION_LEVELS
from barnabas.client.producer import Producer
from barnabas.services.console.decoding import FORMATS, ShownRecord, show_record
from barnabas.services.console.errors import bad_request, not_found
from barnabas.services.console.events import EVENT_HEADERS
from barnabas.services.console.filters import Filter
from barnabas.services.console.reading import Page, Progress, Read, Source, newest_first, oldest_first, search
from barnabas.services.console.web import NUMBER, TEXT, Call, Endpoint, encode, error_document, refusal_for, whole

PAGE_MAX: Final = 500
#: Limit of a key or value in a list, which is lower than for a single record.
_LISTED_CHARS: Final = 2_000
_SEARCH_S_MAX: Final = 600
#: Limits of records, and of their bytes, between two checks of the clock and of the viewer. Decoded, a byte takes up to a
#: hundred.
_SLICE: Final = 200
_SLICE_BYTES: Final = 1024 * 1024
_TAIL_SILENCE_S: Final = 10.0
#: How long the filter of a tail may take for the records that came together; the rest of them is skipped.
_TAIL_MATCH_S: Final = 10.0

#: Threads of their own: those that decode records must not wait behind expressions, which may take seconds for each record.
_COMPILER: Final = ThreadPoolExecutor(1, thread_name_prefix="console-filter")
_MATCHERS: Final = ThreadPoolExecutor(16, thread_name_prefix="console-match")

_FORMAT: Final = {"enum": list(FORMATS)}
WHERE: Final = {
    "from": {"enum": ["newest", "oldest", "offset", "time"]},
    "offset": NUMBER,
    "time": NUMBER,
    "partition": NUMBER,
    "key": _FORMAT,
    "value": _FORMAT,
    "isolation": {"enum": list(ISOLATION_LEVELS)},
}


async def _source(call: Call) -> Source:
    info = await call.cluster.topic(call.path["topic"])
    partitions = [TopicPartition(info.name, each.index) for each in info.partitions]
    if call.text("partition"):
        wanted = call.number("partition", 0)
        if all(each.partition != wanted for each in partitions):
            raise not_found(f"{info.name} has no partition {wanted}; it has {len(partitions)}")
        partitions = [TopicPartition(info.name, wanted)]
    isolation = ISOLATION_LEVELS[call.choice("isolation", list(ISOLATION_LEVELS))]
    return Source(call.cluster, info.name, partitions, isolation)


def _shower(call: Call, topic: str) -> Callable[[Sequence[Read]], Awaitable[list[ShownRecord]]]:
    """Return a function that converts records to their readable form, and requests the schemas that they need first."""
    key, value = call.choice("key", FORMATS), call.choice("value", FORMATS)
    registered = call.user.registered if {key, value} & {"auto", "registry"} else None

    async def show(records: Sequence[Read]) -> list[ShownRecord]:
        if registered is not None:
            await registered.prepare(record for _, record in records)
        decode = registered.decode if registered is not None else None
        return await asyncio.to_thread(
            lambda: [show_record(topic, p, record, key=key, value=value, by_registry=decode) for p, record in records]
        )

    return show


async def messages(call: Call) -> dict[str, Any]:
    source = await _source(call)
    count = call.number("count", 50, low=1, high=PAGE_MAX)
    page = await _page(call, source, count)
    shown = await _shower(call, source.topic)(page.records)
    return {
        "records": [each.document(_LISTED_CHARS) for each in shown],
        "next": ",".join(f"{partition}:{offset}" for partition, offset in page.cursor.items()) or None,
        "partitions": [
            {"partition": each.partition, "start": bound.start, "end": bound.end} for each, bound in page.bounds.items()
        ],
        "withoutLeader": [each.partition for each in source.partitions if each not in page.bounds],
    }


async def _page(call: Call, source: Source, count: int) -> Page:
    start = call.choice("from", ("newest", "oldest", "offset", "time"))
    cursor = _cursor(call.text("next"))
    if start == "newest":
        return await newest_first(source, count, cursor)
    if cursor is not None:
        return await oldest_first(source, count, cursor)
    positions = await _positions(call, source, start)
    return await oldest_first(
        source, count, {each.partition: offset for each, offset in positions.items()} if positions else None
    )


def _cursor(text: str) -> dict[int, int] | None:
    if not text:
        return None
    try:
        return {int(p): int(o) for p, _, o in (part.partition(":") for part in text.split(","))}
    except ValueError:
        raise bad_request("next must be the value of next in an earlier answer") from None


async def _positions(call: Call, source: Source, start: str) -> dict[TopicPartition, int]:
    """Return the positions to start from; empty for the start of the log."""
    if start == "offset":
        return dict.fromkeys(source.partitions, call.number("offset", 0))
    if start == "time":
        return await source.at_time(call.number("time", 0), await source.bounds())
    return {}


async def message(call: Call) -> dict[str, Any]:
    """Return one record, whole."""
    call.query = {**call.query, "partition": call.path["partition"]}
    source = await _source(call)
    offset = whole(call.path["offset"], "offset")
    record = await _record(source, offset)
    (shown,) = await _shower(call, source.topic)([record])
    document: dict[str, Any] = shown.document(chars_max=8 * 1024 * 1024)
    return document


async def _record(source: Source, offset: int) -> Read:
    (partition,) = source.partitions
    records, _ = await source.read({partition: (offset, offset + 1)}, 1)
    if not records:
        raise not_found(f"{partition} has no record at offset {offset}")
    return records[0]


async def raw(call: Call) -> Response:
    """Return the bytes of a key or a value as a file."""
    call.query = {**call.query, "partition": call.path["partition"]}
    source = await _source(call)
    part = call.choice("part", ("value", "key"))
    partition, record = await _record(source, whole(call.path["offset"], "offset"))
    data = record.value if part == "value" else record.key
    if data is None:
        raise not_found(f"the {part} is null")
    name = f"{source.topic}-{partition}-{record.offset}.{part}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return Response(bytes(data), media_type="application/octet-stream", headers=headers)


# -- searching and the tail -----------------------------------------------------------------------------------------------


def event(name: str, document: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(document) + b"\n\n"


def _streamed(events: AsyncIterator[bytes], what: str) -> StreamingResponse:
    async def safely() -> AsyncIterator[bytes]:
        try:
            async for each in events:
                yield each
        except Exception as error:
            yield event("failed", error_document(refusal_for(error, what)))

    return StreamingResponse(safely(), media_type="text/event-stream", headers=EVENT_HEADERS)


@dataclass(slots=True)
class Reading:
    """Reads the records of a topic that match a filter, within limits: for searches and exports."""

    source: Source
    positions: dict[TopicPartition, int] | None
    wanted: Filter
    show: Callable[[Sequence[Read]], Awaitable[list[ShownRecord]]]
    limits: dict[str, int]
    progress: Progress = field(default_factory=Progress)
    matched: int = 0
    #: Why it ended.
    reason: str = "all"

    async def found(self) -> AsyncIterator[list[ShownRecord]]:
        """Yield matches, a few at a time, and also empty lists, so that a search can report its progress."""
        try:
            async for hits in self._found():
                yield hits
        finally:
            self.wanted.is_over = True  # ends an expression that is still being evaluated on its thread

    async def _found(self) -> AsyncIterator[list[ShownRecord]]:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self.limits["seconds"]
        async for records in search(self.source, self.positions, self.progress):
            for slice_ in _slices(records):
                shown = await self.show(slice_)
                hits, _ = await _matching(self.wanted, shown, ends_s=ends_s)
                hits = hits[: self.limits["matches"] - self.matched]
                self.matched += len(hits)
                yield hits
                if self.matched >= self.limits["matches"]:
                    self.reason = "enough"
                    return
                if loop.time() > ends_s:
                    self.reason = "time"
                    return
            for name, reached in (("records", self.progress.records), ("bytes", self.progress.bytes)):
                if reached >= self.limits[name]:
                    self.reason = name
                    return


def _slices(records: Sequence[Read]) -> Iterator[list[Read]]:
    """Each record is in one of them: the last of a slice may be large."""
    slice_: list[Read] = []
    size = 0
    for read in records:
        slice_.append(read)
        size += len(read[1].key or b"") + len(read[1].value or b"")
        if len(slice_) >= _SLICE or size >= _SLICE_BYTES:
            yield slice_
            slice_, size = [], 0
    if slice_:
        yield slice_


async def _filter(call: Call, topic: str) -> Filter:
    """Compiling an expression may take a second. One is compiled at a time, as a search of its user, and not on the loop."""
    text, expression = call.text("text"), call.text("filter")
    if not expression:
        return Filter(topic, text, "")
    with call.services.guard.searching(call.user):
        return await asyncio.get_running_loop().run_in_executor(_COMPILER, Filter, topic, text, expression)


async def reading_of(call: Call, *, count: int, count_max: int) -> Reading:
    source = await _source(call)
    start = call.choice("from", ("newest", "oldest", "offset", "time"))
    return Reading(
        source=source,
        wanted=await _filter(call, source.topic),
        show=_shower(call, source.topic),
        limits={
            "matches": call.number("count", count, low=1, high=count_max),
            "records": call.number("records", max(1_000_000, count), low=1),
            "bytes": call.number("bytes", 2**30, low=1),
            "seconds": call.number("seconds", 60, low=1, high=_SEARCH_S_MAX),
        },
        positions=None if start == "newest" else await _positions(call, source, start),
    )


async def find(call: Call) -> StreamingResponse:
    """Send events: `records`, `progress`, and `end` with the reason. Closing the stream stops the search."""
    reading = await reading_of(call, count=50, count_max=10_000)

    async def guarded() -> AsyncIterator[bytes]:
        with call.services.guard.searching(call.user):
            async for each in _search_events(reading):
                yield each

    return _streamed(guarded(), f"search {reading.source.topic}")


async def _search_events(reading: Reading) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    began_s = reported_s = loop.time()
    progress = reading.progress

    def state() -> dict[str, Any]:
        return {
            "records": progress.records,
            "bytes": progress.bytes,
            "matches": reading.matched,
            "share": round(progress.done / progress.total, 4) if progress.total else 1,
            "ms": round((loop.time() - began_s) * 1000),
            "failed": reading.wanted.failed,
            "failure": reading.wanted.failure,
        }

    yield event("progress", state())
    async for hits in reading.found():
        if hits:
            yield event("records", [each.document(_LISTED_CHARS) for each in hits])
        if loop.time() - reported_s > 0.3:
            reported_s = loop.time()
            yield event("progress", state())
    yield event("end", state() | {"reason": reading.reason})


async def _matching(wanted: Filter, shown: Sequence[ShownRecord], *, ends_s: float) -> tuple[list[ShownRecord], int]:
    """Return the matches, and the number of records that were checked until the time was over."""
    if wanted.is_open:
        return list(shown), len(shown)
    return await asyncio.get_running_loop().run_in_executor(_MATCHERS, partial(_matches, wanted, shown, ends_s=ends_s))


def _matches(wanted: Filter, shown: Sequence[ShownRecord], *, ends_s: float) -> tuple[list[ShownRecord], int]:
    """Filter on a thread, which cannot be stopped: it checks the time and `is_over` itself."""
    hits: list[ShownRecord] = []
    for checked, each in enumerate(shown):
        if wanted.is_over or time.monotonic() > ends_s:
            return hits, checked
        if wanted.matches(each):
            hits.append(each)
    return hits, len(shown)


async def tail(call: Call) -> StreamingResponse:
    """Send events: `records` as they arrive, `skipped` with the number of dropped records, `quiet` at intervals."""
    source = await _source(call)
    wanted = await _filter(call, source.topic)
    return _streamed(_tail_events(call, source, wanted), f"tail {source.topic}")


async def _tail_events(call: Call, source: Source, wanted: Filter) -> AsyncIterator[bytes]:
    show, tails = _shower(call, source.topic), call.cluster.tails
    reader = tails.join(source)
    try:
        yield event("quiet", {})
        while call.user.is_present():
            found = await reader.next(_TAIL_SILENCE_S)
            shown = await show(found)
            ends_s = asyncio.get_running_loop().time() + _TAIL_MATCH_S
            hits, checked = await _matching(wanted, shown, ends_s=ends_s)
            reader.skipped += len(shown) - checked
            if reader.skipped:
                skipped, reader.skipped = reader.skipped, 0
                yield event("skipped", {"records": skipped})
            yield event("records", [each.document(_LISTED_CHARS) for each in hits]) if hits else event("quiet", {})
    finally:
        wanted.is_over = True
        tails.leave(reader)


# -- producing ------------------------------------------------------------------------------------------------------------

_PIECE: Final = {
    "type": ["object", "null"],
    "properties": {"text": TEXT, "base64": TEXT},
    "description": "null, or one of text and base64",
}


async def produce(call: Call) -> dict[str, Any]:
    info = await call.cluster.topic(call.path["topic"])
    partition = call.body.get("partition")
    if partition is not None:
        partition = whole(partition, "partition", high=len(info.partitions) - 1)
    timestamp = call.body.get("timestamp")
    headers = call.body.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(each, dict) and "name" in each for each in headers):
        raise bad_request("headers is a list of objects with name, and text or base64")
    for each in headers:
        _encoded(str(each["name"]), "the name of a header")
    async with Producer(call.cluster.client) as producer:
        delivery = await producer.send(
            info.name,
            _bytes_of(call.body.get("value"), "value"),
            key=_bytes_of(call.body.get("key"), "key"),
            headers=[(str(each["name"]), _bytes_of(each, "header")) for each in headers],
            partition=partition,
            timestamp_ms=None if timestamp is None else whole(timestamp, "timestamp"),
        )
        offset = await delivery.offset()
    return {"partition": delivery.batch.partition.partition, "offset": offset}


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{what} has half of a surrogate pair, which UTF-8 cannot encode") from None


def _bytes_of(piece: Any, name: str) -> bytes | None:
    if piece is None:
        return None
    if isinstance(piece, dict) and isinstance(piece.get("text"), str):
        return _encoded(piece["text"], name)
    if isinstance(piece, dict) and isinstance(piece.get("base64"), str):
        try:
            return base64.b64decode(piece["base64"], validate=True)
        except binascii.Error as error:
            raise bad_request(f"{name}: not base64: {error}") from None
    if isinstance(piece, dict) and "name" in piece:
        return None  # a header without a value
    raise bad_request(f"{name} is null, or an object with text or base64")


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/topics/{topic}/messages",
        handler=messages,
        summary="A page of records. next of an answer asks for the page after it.",
        query={**WHERE, "count": NUMBER, "next": TEXT},
    ),
    Endpoint(
        method="GET",
        path="/topics/{topic}/messages/{partition}/{offset}",
        handler=message,
        summary="One record, whole.",
        query={"key": _FORMAT, "value": _FORMAT},
    ),
    Endpoint(
        method="GET",
        path="/topics/{topic}/messages/{partition}/{offset}/raw",
        handler=raw,
        summary="The bytes of one record's value or key.",
        query={"part": {"enum": ["value", "key"]}},
        content_type="application/octet-stream",
    ),
    Endpoint(
        method="GET",
        path="/topics/{topic}/search",
        handler=find,
        summary="Search on the server, within bounds, as an event stream: records, progress, end. Closing it stops the search.",
        query={
            **WHERE,
            "text": TEXT,
            "filter": {"type": "string", "description": 'CEL, such as value.amount > 100 && key.startsWith("42")'},
            "count": NUMBER,
            "records": NUMBER,
            "bytes": NUMBER,
            "seconds": NUMBER,
        },
        content_type="text/event-stream",
    ),
    Endpoint(
        method="GET",
        path="/topics/{topic}/tail",
        handler=tail,
        summary="Records as they come in, as an event stream.",
        query={
            "partition": NUMBER,
            "key": _FORMAT,
            "value": _FORMAT,
            "isolation": WHERE["isolation"],
            "text": TEXT,
            "filter": TEXT,
        },
        content_type="text/event-stream",
    ),
    Endpoint(
        method="POST",
        path="/topics/{topic}/messages",
        handler=produce,
        summary="Produce one record.",
        body={
            "type": "object",
            "properties": {
                "key": _PIECE,
                "value": _PIECE,
                "headers": {"type": "array", "items": {"type": "object"}},
                "partition": NUMBER,
                "timestamp": NUMBER,
            },
        },
    ),
]
