"""Topics whose records must begin with the id of a registered schema (`barnabas.value.schema.validation`).

Other topics have no extra cost. In a checked topic, a batch whose ids are all known is appended at once. Any other batch is
copied and waits while the broker asks the registry; later requests of its connection wait as well, so that the order stays.
Only batches of clients are checked.
Owner: the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.features.schema_checks.ids import SchemaIds, Subjects, Unreachable, id_of
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.storage.log_append import records_max
from barnabas.broker.storage.log_types import RECORD_ERRORS_MAX, RecordError
from barnabas.broker.storage.record_check import invalid_records
from barnabas.wire.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec
from barnabas.wire.record_batch import ATTRIBUTES_AT, HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, BatchHeader
from barnabas.wire.record_prefixes import PREFIX_BYTES, Strange, strange_records
from barnabas.wire.records import records_body

MAGIC: Final = 0
#: Larger batches (compressed, or by their number of records) are checked on a thread instead of the event loop.
LOOP_BYTES_MAX: Final = 256 * 1024
LOOP_RECORDS_MAX: Final = 2_000
#: Batches that threads decompress at the same time, because each may become large.
_INFLATED_MAX: Final = 2
#: Ids of one batch to look up at the same time. One unregistered id is enough to refuse the batch.
_ASKED_TOGETHER: Final = 8
#: With this error clients retry the batch, but do not look for another leader.
UNREACHABLE: Final = ErrorCode.NOT_ENOUGH_REPLICAS


class _Checked(NamedTuple):
    """A topic with schema validation."""

    keys: Subjects | None
    values: Subjects | None
    known_keys: dict[bytes, float] | None
    known_values: dict[bytes, float] | None
    #: `max.message.bytes`
    batch_bytes_max: int

    def subjects(self, is_key: bool) -> Subjects:
        subjects = self.keys if is_key else self.values
        assert subjects is not None
        return subjects

    def header(self, records: memoryview | bytearray) -> BatchHeader | None:
        """Return the header of an intact batch; None if the batch is not valid, which the append reports."""
        if len(records) < HEADER_SIZE:
            return None
        header = BatchHeader._make(HEADER.unpack_from(records))
        size = header.batch_length + LOG_OVERHEAD
        if (
            header.magic != MAGIC_V2
            or not HEADER_SIZE <= size <= min(len(records), self.batch_bytes_max)
            or header.is_control
            or header.codec > max(Codec)
            or not 0 < header.record_count <= records_max(header)
        ):
            return None
        with memoryview(records) as whole, whole[ATTRIBUTES_AT:size] as covered:
            return header if crc32c(covered) == header.crc else None

    def strange(self, batch: memoryview | bytearray, header: BatchHeader, bytes_max: int) -> list[Strange]:
        body = records_body(batch, 0, header, bytes_max)
        return strange_records(body, header, keys=self.known_keys, values=self.known_values)


class SchemaChecks:
    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        *,
        on_thread: OnThread,
        spawn: Spawn,
    ) -> None:
        self._on_thread = on_thread
        self._ids = SchemaIds(config, clock, spawn)
        self._inflating = asyncio.Semaphore(_INFLATED_MAX)
        #: By name. Without entries there is nothing to check.
        self.topics: dict[str, _Checked] = {}

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        before = self.topics.pop(topic, None)
        keys = values = None
        if config.barnabas_key_schema_validation:
            keys = Subjects(topic, True, config.barnabas_key_subject_name_strategy)
        if config.barnabas_value_schema_validation:
            values = Subjects(topic, False, config.barnabas_value_subject_name_strategy)
        for former in (before.keys, before.values) if before is not None else ():
            if former is not None and former not in (keys, values):
                self._ids.drop(former)
        if keys is not None or values is not None:
            self.topics[topic] = _Checked(
                keys,
                values,
                known_keys=None if keys is None else self._ids.known(keys),
                known_values=None if values is None else self._ids.known(values),
                batch_bytes_max=config.max_message_bytes,
            )

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        if before.barnabas_schema_registry_url != after.barnabas_schema_registry_url:
            self._ids.forget()

    def is_clear(self, tp: TopicPartition, records: memoryview | bytearray) -> bool:
        """Whether a batch may be appended without asking the registry. If not, `refusal` decides."""
        checked = self.topics.get(tp.topic)
        if checked is None:
            return True
        header = checked.header(records)
        if header is None:
            return True  # the append reports what is wrong
        if header.record_count > LOOP_RECORDS_MAX or header.size_bytes > LOOP_BYTES_MAX:
            return False
        self._ids.look_again()
        try:
            return not checked.strange(records, header, LOOP_BYTES_MAX)
        except Malformed:
            return False

    async def refusal(self, tp: TopicPartition, records: bytearray) -> Refused | None:
        """Return why a batch may not be appended, or None. Asks the registry if necessary."""
        checked = self.topics.get(tp.topic)
        if checked is None or (header := checked.header(records)) is None:
            return None
        try:
            strange = await self._strange(checked, records, header)
        except Malformed as error:
            return Refused(ErrorCode.INVALID_RECORD, f"{error} in topic partition {tp}")
        try:
            wrong = await self._wrong(checked, strange)
        except Unreachable as error:
            return Refused(UNREACHABLE, f"cannot ask the schema registry about records for {tp}: {error}")
        if not wrong:
            return None
        bad = [each for each in strange if (each.is_key, each.prefix) in wrong]
        return invalid_records(len(bad), [_error(each, checked, tp) for each in bad[:RECORD_ERRORS_MAX]])

    async def _strange(self, checked: _Checked, records: bytearray, header: BatchHeader) -> list[Strange]:
        async with self._inflating:
            strange: list[Strange] = await self._on_thread(
                lambda: checked.strange(records, header, DEFAULT_MAX_DECOMPRESSED_BYTES)
            )
            return strange

    async def _wrong(self, checked: _Checked, strange: Sequence[Strange]) -> set[tuple[bool, bytes]]:
        """Return prefixes that no record may have. If there are many, the result may be incomplete."""
        distinct = dict.fromkeys((each.is_key, each.prefix) for each in strange)
        wrong = {each for each in distinct if _has_no_id(each[1])}
        if wrong:
            return wrong
        pending = list(distinct)
        while pending:
            together, pending = pending[:_ASKED_TOGETHER], pending[_ASKED_TOGETHER:]
            found = await asyncio.gather(
                *(self._ids.is_registered(checked.subjects(is_key), prefix) for is_key, prefix in together)
            )
            wrong = {each for each, is_registered in zip(together, found, strict=True) if not is_registered}
            if wrong:
                return wrong
        return set()


def _error(strange: Strange, checked: _Checked, tp: TopicPartition) -> RecordError:
    what = "key" if strange.is_key else "value"
    if _has_no_id(strange.prefix):
        return RecordError(strange.number, f"The {what} does not begin with a schema id in topic partition {tp}")
    return RecordError(
        strange.number,
        f"Schema id {id_of(strange.prefix)} of the {what} is not registered under {checked.subjects(strange.is_key)} "
        f"in topic partition {tp}",
    )


def _has_no_id(prefix: bytes) -> bool:
    return len(prefix) < PREFIX_BYTES or prefix[0] != MAGIC
