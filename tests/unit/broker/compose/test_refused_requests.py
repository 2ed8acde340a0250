"""What every API answers when its request is refused as a whole: an error that the client can see, in every version."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.base.errors import ErrorCode
from barnabas.client.errors import ConnectionLost
from barnabas.wire import codec
from barnabas.wire.messages.base import Message
from barnabas.wire.versions import INTER_BROKER, PRODUCE
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

#: Kafka has no place for it there either.
SILENT = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
LIMITS: dict[Any, tuple[int, int]] = {
    f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}
ELEMENTS: dict[str, Any] = {"string": "x", "uuid": b"u" * 16, "bytes": b""}


def filled(kind: type[Message]) -> Message:
    """A message whose lists have one element each, also those that may be null."""
    return kind(
        **{
            name: [ELEMENTS.get(spec.type, 0) if isinstance(spec.type, str) else filled(spec.type)]
            for name, spec in kind.__wire__.items()
            if spec.is_array
        }
    )


def extreme(kind: type[Message], pick: int) -> Any:
    """The same, with the smallest or the largest number in every field."""
    values: dict[str, Any] = {}
    for name, spec in kind.__wire__.items():
        value: Any = (
            LIMITS.get(spec.type, (None, None))[pick] if isinstance(spec.type, str) else extreme(spec.type, pick)
        )
        if isinstance(spec.type, str) and value is None:
            value = ELEMENTS.get(spec.type)
        if spec.is_array:
            values[name] = [value]
        elif spec.type in LIMITS:
            values[name] = value
    return kind(**values)


def error_codes(message: Message) -> Iterator[int]:
    for name in message.__wire__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                yield from error_codes(each)


async def test_refused_request_gets_its_error_in_every_version(tmp_path: Path) -> None:
    """A client that sees nothing takes it for an answer: that there is no committed offset, or nothing to fetch."""
    silent = set()
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        for handler in broker.pipeline.handlers.values():
            api = handler.api
            for version in range(handler.min_version, handler.max_version + 1):
                sent = codec.encode(filled(api.request_class), version)
                request = codec.decode(api.request_class, sent, version)
                refusal = handler.refuse(request, ErrorCode.INVALID_REQUEST, "no")
                response = codec.decode(api.response_class, codec.encode(refusal, version), version)
                if ErrorCode.INVALID_REQUEST not in error_codes(response):
                    silent.add((api.name, version))
    assert silent == SILENT


async def test_numbers_that_mean_nothing_are_refused_and_no_bug(tmp_path: Path) -> None:
    """The smallest and the largest, in every field of every request that clients may send."""

    bugs = []
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        for handler in broker.pipeline.handlers.values():
            api = handler.api
            if api.key in INTER_BROKER or api.key == PRODUCE:
                continue  # the controller's; and acks=0 has no answer
            for version in sorted({handler.min_version, handler.max_version}):
                for pick in (0, 1):
                    before = broker.pipeline.bugs.count.value
                    with contextlib.suppress(ConnectionLost):  # it is malformed
                        await ask(broker, extreme(api.request_class, pick), api.response_class, version=version)
                    if broker.pipeline.bugs.count.value > before:
                        bugs.append((api.name, version))
    assert bugs == []
