"""Requests with many elements: decoded within a limit, on a thread if they exceed the loop's limit, and answered in slices.

One request with hundreds of thousands of names would block all clients for seconds. A request with thousands of elements is
decoded on a thread. If it has more than `barnabas.request.max.elements`, then a request whose elements are independent is
answered slice by slice; a request between brokers is executed whole; any other request is refused, and the error names the
limit.

A small request may have a long answer: its handler builds it `in_turns`, and a thread encodes it. The lists of an answer are
its own: they are emptied when it has been sent.
"""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.wire import codec
from barnabas.wire.codec import Reader
from barnabas.wire.messages.base import ApiMessage, EncodedItems, Message
from barnabas.wire.versions import api_named

#: A smaller frame does not have enough elements to matter.
LARGE_FRAME_BYTES = 8 * 1024
#: Largest number of elements that the loop decodes itself.
LOOP_ELEMENTS_MAX = 4_000
#: An answer with more elements is encoded by a thread.
LONG_ANSWER_ELEMENTS = 1_000
#: Largest number of elements that a thread decodes, as a multiple of the loop's limit.
THREAD_FACTOR = 10
#: Limit for requests of brokers, which may concern every partition of the cluster.
BROKERS_ELEMENTS_MAX = 2_000_000


class Shape(NamedTuple):
    """Names of the lists of a request and its response; `inner` is a list in each element."""

    wanted: str
    inner: str | None
    answered: str
    inner_answered: str | None = None
    #: The field that identifies an element of the response.
    named: str = "name"


#: Requests whose elements are independent of each other.
SLICED: dict[int, Shape] = {
    api_named("Metadata").key: Shape("topics", None, "topics"),
    api_named("ListOffsets").key: Shape("topics", "partitions", "topics", "partitions"),
    api_named("OffsetForLeaderEpoch").key: Shape("topics", "partitions", "topics", "partitions", "topic"),
    api_named("DescribeConfigs").key: Shape("resources", None, "results"),
    api_named("DescribeProducers").key: Shape("topics", "partition_indexes", "topics", "partitions"),
    api_named("FindCoordinator").key: Shape("coordinator_keys", None, "coordinators"),
    api_named("DescribeGroups").key: Shape("groups", None, "groups"),
    api_named("ConsumerGroupDescribe").key: Shape("group_ids", None, "groups"),
    api_named("ShareGroupDescribe").key: Shape("group_ids", None, "groups"),
    api_named("StreamsGroupDescribe").key: Shape("group_ids", None, "groups"),
    api_named("DescribeTransactions").key: Shape("transactional_ids", None, "transaction_states"),
    api_named("DeleteGroups").key: Shape("groups_names", None, "results"),
}
#: Requests between brokers. A follower fetches all its partitions in one request.
WHOLE = frozenset(
    api_named(name).key
    for name in (
        *("Fetch", "LeaderAndIsr", "UpdateMetadata", "StopReplica", "AlterPartition", "WriteTxnMarkers"),
        *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState"),
        "ReadShareGroupStateSummary",
    )
)

#: Remaining elements: one counter for the loop, one for the thread, which decodes one request at a time.
_loop_left = [0]
_thread_left = [0]


def loop_reader(request_class: type[ApiMessage], version: int, limit: int) -> Reader[ApiMessage]:
    """Return a reader that raises `TooManyElements`. `elements_read` then returns the number of elements."""
    _loop_left[0] = limit
    return codec.bounded_reader(request_class, version, _loop_left)


def elements_read(limit: int) -> int:
    return limit - _loop_left[0]


def decode_on_thread(
    request_class: type[ApiMessage], version: int, data: bytearray, at: int, limit: int
) -> tuple[ApiMessage, int]:
    """Return the request and its number of elements. One call at a time."""
    _thread_left[0] = limit
    request, _ = codec.bounded_reader(request_class, version, _thread_left)(data, at, len(data))
    return request, limit - _thread_left[0]


def is_long(answer: ApiMessage) -> bool:
    """Whether the answer takes long to encode."""
    elements = 0
    for name, inner_names in _arrays(type(answer)):
        items = getattr(answer, name)
        if not items:
            continue
        elements += len(items)
        if inner_names and elements <= LONG_ANSWER_ELEMENTS:
            for item in items:
                for inner in inner_names:
                    inner_items = getattr(item, inner)
                    if inner_items and inner_items.__class__ is not EncodedItems:
                        elements += len(inner_items)
                if elements > LONG_ANSWER_ELEMENTS:
                    return True
        if elements > LONG_ANSWER_ELEMENTS:
            return True
    return False


async def let_go(answer: ApiMessage) -> None:
    """Free an answer that has been sent, in turns: freeing a million small objects at once takes long, too."""
    for name, _ in _arrays(type(answer)):
        items = getattr(answer, name)
        while isinstance(items, list) and len(items) > SLICE_ELEMENTS:
            del items[-SLICE_ELEMENTS:]
            await asyncio.sleep(0)


@cache
def _arrays(kind: type[Message]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the arrays of a message, each with the arrays in its elements."""
    return tuple(
        (name, tuple(inner for inner, _ in _arrays(spec.type)) if isinstance(spec.type, type) else ())
        for name, spec in kind.__wire__.items()
        if spec.is_array
    )


def thread_limit(api_key: int, limit: int) -> int:
    return BROKERS_ELEMENTS_MAX if api_key in WHOLE else limit * THREAD_FACTOR


def slices(request: Any, shape: Shape) -> Iterator[Any]:
    """Yield copies of the request, each with the next slice of its elements."""
    everything = getattr(request, shape.wanted)
    held: list[Any] = []
    weight = 0
    for element in everything or ():
        for piece, size in _pieces(element, shape.inner):
            if held and weight + size > SLICE_ELEMENTS:
                yield request.replace(**{shape.wanted: held})
                held, weight = [], 0
            held.append(piece)
            weight += size
    yield request.replace(**{shape.wanted: held if everything is not None else None})


def _pieces(element: Any, inner: str | None) -> Iterator[tuple[Any, int]]:
    """Yield the element whole, or in pieces if its own list is long."""
    parts = getattr(element, inner) if inner is not None else ()
    if len(parts) <= SLICE_ELEMENTS:
        yield element, 1 + len(parts)
        return
    assert inner is not None
    for at in range(0, len(parts), SLICE_ELEMENTS):
        piece = parts[at : at + SLICE_ELEMENTS]
        yield element.replace(**{inner: piece}), 1 + len(piece)


def merge(whole: Any, part: Any, shape: Shape) -> None:
    """Add a slice's answers to the whole. An element that was split across slices is joined again."""
    present, more = getattr(whole, shape.answered), getattr(part, shape.answered)
    inner = shape.inner_answered
    if inner is not None and present and more and getattr(present[-1], shape.named) == getattr(more[0], shape.named):
        getattr(present[-1], inner).extend(getattr(more[0], inner))
        more = more[1:]
    present.extend(more)
