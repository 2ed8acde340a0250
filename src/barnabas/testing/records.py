"""Records and groups in tests: write records, read them all, compare them, wait until a group has read them.

Faults do not hit the requests of these helpers (`runtime.faults.TEST_CLIENT_ID`).
"""

import difflib
import pprint
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, ISOLATION_LEVELS, LATEST
from barnabas.cli.faults.asking import Question, T
from barnabas.cli.faults.names import no_such_topic
from barnabas.client.admin.groups import committed_offsets, describe_group
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import check
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.producer import Producer

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
Data: TypeAlias = str | bytes | None
Decode: TypeAlias = Callable[[bytes], object]

TIMEOUT_S = 60.0
_POLL_S = 0.02
#: A lag up to this size is counted by reading, because the end of a transaction takes an offset but is no record.
_COUNTED_MAX = 1_000
_SHOWN_CHARACTERS_MAX = 200
_SHOWN_LINES_MAX = 60


@dataclass(frozen=True, slots=True)
class Record:
    """A record. Two records are equal if their values, keys and headers are, wherever they are stored."""

    value: Data
    key: Data = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = field(default=-1, compare=False)
    offset: int = field(default=-1, compare=False)
    timestamp_ms: int = field(default=-1, compare=False)


Given: TypeAlias = Record | tuple[Data, Data] | Data


class RecordHelpers(ABC):
    """Shared by clusters and the fixture `kafka`."""

    @abstractmethod
    def ask(self, question: Question[T]) -> T:
        """Run an operation with a client of the cluster, as an administrator."""

    def produce(self, topic: str, records: Iterable[Given], *, partition: int | None = None) -> list[Record]:
        """Write records, each a value, a pair of key and value, or a `Record`; return them with their places.

        They are sent with acks=all, and with their `timestamp_ms` if set. Kafka's partitioner places records with a key, unless
        `partition` is given.
        """
        if isinstance(records, str | bytes):
            raise TypeError(f"produce takes a list of records: [{records!r}]")
        given = [as_record(each) for each in records]

        async def write(client: AsyncClient) -> list[Record]:
            await _partitions_of(client, topic, partition)
            async with Producer(client) as producer:
                sent = [
                    await producer.send(
                        topic,
                        data_bytes(each.value),
                        key=data_bytes(each.key),
                        headers=each.headers,
                        partition=partition,
                        timestamp_ms=each.timestamp_ms if each.timestamp_ms >= 0 else None,
                    )
                    for each in given
                ]
                await producer.flush()
                return [
                    Record(each.value, each.key, each.headers, to.batch.partition.partition, await to.offset())
                    for each, to in zip(given, sent, strict=True)
                ]

        return self.ask(write)

    def records(
        self, topic: str, *, partition: int | None = None, isolation: Isolation = "read_committed"
    ) -> list[Record]:
        """Return all current records of the topic by partition and offset. `read_committed` leaves out aborted records, and all
        that follow an open transaction."""

        return self.ask(lambda client: read_topic(client, topic, partition=partition, isolation=isolation))

    def assert_records(
        self,
        topic: str,
        expected: Sequence[Any],
        *,
        partition: int | None = None,
        in_order: bool | None = None,
        decode: Decode | None = None,
        isolation: Isolation = "read_committed",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wait until the topic has as many records as expected, and compare. The error lists missing, extra and repeated
        records.

        `expected` are values, pairs of key and value, or `Record`s. `decode=json.loads` compares decoded values instead of
        their bytes. The order matters if only one partition is compared (`in_order=False`: never).
        """
        comparison = _Comparison(topic, expected, decode)
        if in_order is None:
            in_order = partition is not None or self.ask(lambda client: _count(client, topic)) == 1
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = self.records(topic, partition=partition, isolation=isolation)
            if comparison.is_decided(found, in_order=in_order) or time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
        difference = comparison.difference(found, in_order=in_order)
        if difference:
            raise AssertionError(difference)

    def lag(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the number of uncommitted records by partition, of one topic or of all that the group reads."""
        return self.ask(lambda client: _lag(client, group, topic))

    def wait_for_lag(self, group: str, lag: int = 0, *, topic: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the group has committed all records but `lag`, or first until it reads anything. With `topic`, partitions
        without a committed offset count from their beginning."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            behind = self.lag(group, topic)
            if behind and sum(behind.values()) <= lag:
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"group {group!r} {_lag_sentence(behind)}, after {timeout_s:g} s")
            time.sleep(_POLL_S)

    def wait_for_members(self, group: str, count: int, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the group is stable with this many members."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            described = self.ask(lambda client: describe_group(client, group))
            if len(described.members) == count and described.state in ("Stable", "Empty", "Dead"):
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"group {group!r} is {described.state} with {len(described.members)} members, not {count},"
                    f" after {timeout_s:g} s"
                )
            time.sleep(_POLL_S)


# -- asking ---------------------------------------------------------------------------------------------------------------


async def _count(client: AsyncClient, topic: str) -> int:
    return len(await _partitions_of(client, topic, None))


async def _partitions_of(client: AsyncClient, topic: str, partition: int | None) -> list[TopicPartition]:
    found = (await client.topics([topic])).get(topic)
    if found is None or not found.partitions:
        raise no_such_topic(topic, await client.all_topics())
    known = sorted(each.index for each in found.partitions)
    if partition is not None and partition not in known:
        raise ValueError(f"{topic} has no partition {partition}: it has 0 to {known[-1]}")
    return [TopicPartition(topic, index) for index in known if partition in (None, index)]


async def read_topic(
    client: AsyncClient, topic: str, *, partition: int | None = None, isolation: Isolation = "read_committed"
) -> list[Record]:
    """Return all current records of the topic by partition and offset."""
    wanted = await _partitions_of(client, topic, partition)
    level = ISOLATION_LEVELS[isolation]
    begins = await _offsets(client, wanted, EARLIEST, level)
    return await _read(client, begins, await _offsets(client, wanted, LATEST, level), level)


async def _offsets(
    client: AsyncClient, partitions: Iterable[TopicPartition], at: int, isolation_level: int
) -> dict[TopicPartition, int]:
    listed = await list_offsets(client, dict.fromkeys(partitions, at), isolation_level=isolation_level)
    for where, offset in listed.items():
        check(offset.error, str(where))
    return {where: offset.offset for where, offset in listed.items()}


async def _read(
    client: AsyncClient, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], isolation_level: int
) -> list[Record]:
    """Return the records that applications see between two offsets of each partition."""
    config = ConsumerConfig(isolation_level=isolation_level, fetch_max_wait_ms=100, auto_offset_reset="earliest")
    found: list[Record] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    async with Consumer(client, config) as consumer:
        consumer.assign({where: begin for where, begin in begins.items() if begin < ends[where]})
        while any(consumer.position(where) < ends[where] for where in consumer.assignment):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{', '.join(map(str, consumer.assignment))}: not read within {TIMEOUT_S:g} s")
            for fetched in await consumer.poll(1_000):
                where = fetched.partition
                found += [
                    Record(
                        _kept(each.value),
                        _kept(each.key),
                        tuple((name, _kept(value)) for name, value in each.headers),
                        where.partition,
                        each.offset,
                        each.timestamp,
                    )
                    for each in fetched.records(isolation_level=isolation_level)
                    if each.offset < ends[where]
                ]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _kept(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


async def _lag(client: AsyncClient, group: str, topic: str | None) -> dict[TopicPartition, int]:
    committed = {where: entry.offset for where, entry in (await committed_offsets(client, group)).items()}
    if topic is not None:
        wanted = await _partitions_of(client, topic, None)
    else:
        assigned = [where for member in (await describe_group(client, group)).members for where in member.assignment]
        wanted = sorted({*committed, *assigned})
    if not wanted:
        return {}
    level = ISOLATION_LEVELS["read_committed"]
    begins = await _offsets(client, wanted, EARLIEST, level)
    ends = await _offsets(client, wanted, LATEST, level)
    behind: dict[TopicPartition, int] = {}
    for where in wanted:
        at = max(committed.get(where, begins[where]), begins[where])
        behind[where] = max(ends[where] - at, 0)
        if 0 < behind[where] <= _COUNTED_MAX:
            behind[where] = len(await _read(client, {where: at}, ends, level))
    return behind


def _lag_sentence(behind: Mapping[TopicPartition, int]) -> str:
    if not behind:
        return "has committed nothing and reads no topic"
    return "lags: " + ", ".join(f"{where} by {count}" for where, count in behind.items() if count)


# -- comparing ------------------------------------------------------------------------------------------------------------


def data_bytes(data: Data) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is neither a string nor bytes: encode it, for example with json.dumps")
    return data.encode()


def as_record(given: Given) -> Record:
    if isinstance(given, Record):
        return given
    if isinstance(given, tuple):
        key, value = given
        return Record(value, key)
    return Record(given)


class _Comparison:
    """Compares expected records with those found, in the same form."""

    def __init__(self, topic: str, expected: Sequence[Any], decode: Decode | None) -> None:
        if isinstance(expected, str | bytes):
            raise TypeError(f"assert_records takes a list of records: [{expected!r}]")
        self._topic = topic
        self._decode = decode
        kinds: set[type] = {type(each) if isinstance(each, Record | tuple) else object for each in expected}
        if len(kinds) > 1:
            raise TypeError("expected records are all values, all pairs of key and value, or all Records")
        self._with_key = tuple in kinds
        self._whole = Record in kinds
        self._expected = [_shown(self._wanted(each)) for each in expected]

    def _wanted(self, given: Any) -> object:
        if self._whole:
            return (data_bytes(given.key), self._plain(given.value), given.headers)
        if self._with_key:
            return (data_bytes(given[0]), self._plain(given[1]))
        return self._plain(given)

    def _plain(self, value: Any) -> object:
        """Return an expected value in the form of decoded ones."""
        return value if self._decode is not None else data_bytes(value)

    def _form(self, record: Record) -> str:
        value: object = record.value
        if self._decode is not None and isinstance(record.value, bytes):
            value = self._decode(record.value)
        if self._whole:
            return _shown((record.key, value, record.headers))
        return _shown((record.key, value) if self._with_key else value)

    def is_decided(self, found: Sequence[Record], *, in_order: bool) -> bool:
        """Return whether more records would not change the result."""
        forms = [self._form(record) for record in found]
        if len(forms) >= len(self._expected):
            return True
        if in_order:
            return forms != self._expected[: len(forms)]
        return bool(Counter(forms) - Counter(self._expected))

    def difference(self, found: Sequence[Record], *, in_order: bool) -> str:
        """Describe the difference; empty if there is none."""
        expected, forms = self._expected, [self._form(record) for record in found]
        if (forms == expected) if in_order else (Counter(forms) == Counter(expected)):
            return ""
        places = [f"   (partition {record.partition}, offset {record.offset})" for record in found]
        if not in_order:
            expected = sorted(expected)
            order = sorted(range(len(forms)), key=lambda index: forms[index])
            forms, places = [forms[index] for index in order], [places[index] for index in order]
        missing, extra = Counter(expected) - Counter(forms), Counter(forms) - Counter(expected)
        differences = [
            _counted("missing", missing),
            _counted("not expected", Counter({form: count for form, count in extra.items() if form not in expected})),
            _counted("too often", Counter({form: count for form, count in extra.items() if form in expected})),
            "" if missing or extra else "the same records in another order",
        ]
        head = f"{self._topic} has {len(forms)} records, {len(expected)} were expected: {'; '.join(filter(None, differences))}"
        lines = _diff(expected, forms, places)
        if len(lines) > _SHOWN_LINES_MAX:
            lines = [*lines[:_SHOWN_LINES_MAX], f"… {len(lines) - _SHOWN_LINES_MAX} more lines"]
        return "\n".join([head, *lines])


def _counted(what: str, forms: "Counter[str]") -> str:
    return f"{forms.total()} {what}" if forms else ""


def _diff(expected: list[str], forms: list[str], places: list[str]) -> list[str]:
    lines: list[str] = []
    matcher = difflib.SequenceMatcher(None, expected, forms, autojunk=False)
    for what, first, last, begin, end in matcher.get_opcodes():
        if what == "equal":
            lines += [f"    {form}" for form in forms[begin:end]]
        else:
            lines += [f"  - {form}" for form in expected[first:last]]
            lines += [f"  + {form}{place}" for form, place in zip(forms[begin:end], places[begin:end], strict=True)]
    return lines


def _shown(value: object) -> str:
    """Format for a person; equal only for equal values."""
    if isinstance(value, tuple):
        return " | ".join(_shown(each) for each in value)
    if isinstance(value, bytes):
        try:
            text = repr(value.decode())
        except UnicodeDecodeError:
            text = repr(value)
    else:
        text = pprint.pformat(value, width=1_000_000)  # sorts dictionaries by key
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[:_SHOWN_CHARACTERS_MAX]}… ({len(text)} characters, hash {hash(text) & 0xFFFFFFFF:08x})"
