"""Requests that carry many elements: decoded within a budget, on a thread where the loop's is used up, and answered in slices.

One request with hundreds of thousands of names would hold everybody for seconds. A request with thousands of elements is
decoded on a thread. If it has more than `barnabas.request.max.elements`, then what asks about each element alone is answered
slice by slice; what brokers send each other is carried out whole; everything else is refused, by the name of the limit.

A small request may have a long answer: whoever builds one does it `in_turns`, and a thread encodes it. The lists of an
answer are its own: they are emptied when it has been sent.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.wire import codec
from barnabas.wire.codec import Reader
from barnabas.wire.messages.base import ApiMessage, EncodedItems, Message
from barnabas.wire.versions import api_named

#: A smaller frame has not room for enough elements to matter.
LARGE_FRAME_BYTES = 8 * 1024
#: What the loop decodes itself at most.
LOOP_ELEMENTS_MAX = 4_000
#: An answer with more elements is encoded by a thread.
LONG_ANSWER_ELEMENTS = 1_000
#: What a thread decodes at most, as a multiple of what the loop does.
THREAD_FACTOR = 10
#: The same for requests of brokers, which may be about every partition that there is.
BROKERS_ELEMENTS_MAX = 2_000_000


class Shape(NamedTuple):
    """Where a request has its elements, and where the answer has what is said of them; `inner` is a list in each of them."""

    wanted: str
    inner: str | None
    answered: str
    inner_answered: str | None = None
    #: What an element of the answer is about.
    named: str = "name"


#: Requests whose elements have nothing to do with each other.
SLICED: dict[int, Shape] = {
    api_named("Metadata").key: Shape("topics", None, "topics"),
    api_named("ListOffsets").key: Shape("topics", "partitions", "topics", "partitions"),
    api_named("OffsetForLeaderEpoch").key: Shape("topics", "partitions", "topics", "partitions", "topic"),
    api_named("DescribeConfigs").key: Shape("resources", None, "results"),
    api_named("DescribeProducers").key: Shape("topics", "partition_indexes", "topics", "partitions"),
    api_named("FindCoordinator").key: Shape("coordinator_keys", None, "coordinators"),
    api_named("DescribeGroups").key: Shape("groups", None, "groups"),
    api_named("ConsumerGroupDescribe").key: Shape("group_ids", None, "groups"),
    api_named("DescribeTransactions").key: Shape("transactional_ids", None, "transaction_states"),
    api_named("DeleteGroups").key: Shape("groups_names", None, "results"),
}
#: What brokers ask and tell each other. A follower fetches all that it follows.
WHOLE = frozenset(
    api_named(name).key
    for name in ("Fetch", "LeaderAndIsr", "UpdateMetadata", "StopReplica", "AlterPartition", "WriteTxnMarkers")
)

#: How many elements may still be read: one for the loop, one for the thread, which decodes one request at a time.
_loop_left = [0]
_thread_left = [0]


def loop_reader(request_class: type[ApiMessage], version: int, limit: int) -> Reader[ApiMessage]:
    """Raises `TooManyElements`. `elements_read` says afterwards how many there were."""
    _loop_left[0] = limit
    return codec.bounded_reader(request_class, version, _loop_left)


def elements_read(limit: int) -> int:
    return limit - _loop_left[0]


def decode_on_thread(
    request_class: type[ApiMessage], version: int, data: bytearray, at: int, limit: int
) -> tuple[ApiMessage, int]:
    """The request and how many elements it has. One call at a time."""
    _thread_left[0] = limit
    request, _ = codec.bounded_reader(request_class, version, _thread_left)(data, at, len(data))
    return request, limit - _thread_left[0]


def is_long(answer: ApiMessage) -> bool:
    """Whether it takes long to encode."""
    elements = 0
    for name in _array_names(type(answer)):
        items = getattr(answer, name) or ()
        elements += len(items)
        if elements > LONG_ANSWER_ELEMENTS:
            return True
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, Message):
                break
            elements += sum(_length(getattr(item, inner)) for inner in _array_names(type(item)))
            if elements > LONG_ANSWER_ELEMENTS:
                return True
    return False


async def let_go(answer: ApiMessage) -> None:
    """Forget an answer that has been sent, in turns: to free a million small objects at once takes long, too."""
    for name in _array_names(type(answer)):
        items = getattr(answer, name)
        while isinstance(items, list) and len(items) > SLICE_ELEMENTS:
            del items[-SLICE_ELEMENTS:]
            await asyncio.sleep(0)


def _length(items: Sequence[object] | EncodedItems[Any] | None) -> int:
    return 0 if items is None or isinstance(items, EncodedItems) else len(items)


@cache
def _array_names(kind: type[Message]) -> tuple[str, ...]:
    return tuple(name for name, spec in kind.__wire__.items() if spec.is_array)


def thread_limit(api_key: int, limit: int) -> int:
    return BROKERS_ELEMENTS_MAX if api_key in WHOLE else limit * THREAD_FACTOR


def slices(request: Any, shape: Shape) -> Iterator[Any]:
    """The request again and again, each time with the next of its elements."""
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
    """The element whole, or in pieces where its own list is long."""
    parts = getattr(element, inner) if inner is not None else ()
    if len(parts) <= SLICE_ELEMENTS:
        yield element, 1 + len(parts)
        return
    assert inner is not None
    for at in range(0, len(parts), SLICE_ELEMENTS):
        piece = parts[at : at + SLICE_ELEMENTS]
        yield element.replace(**{inner: piece}), 1 + len(piece)


def merge(whole: Any, part: Any, shape: Shape) -> None:
    """Add a slice's answers. What was cut inside of an element is put together again."""
    said, more = getattr(whole, shape.answered), getattr(part, shape.answered)
    inner = shape.inner_answered
    if inner is not None and said and more and getattr(said[-1], shape.named) == getattr(more[0], shape.named):
        getattr(said[-1], inner).extend(getattr(more[0], inner))
        more = more[1:]
    said.extend(more)
