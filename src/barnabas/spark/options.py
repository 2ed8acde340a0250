"""The options of format `barnabas` as a source: names, defaults, rules and refusals of Spark's own `kafka` source.

Spark passes names in lower case. A name that is not known is refused with the nearest known name: a misspelt
`startingOffset` would otherwise read from the wrong place without an error.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, TypeAlias

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.base.names import nearest
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.settings import consumer_config
from barnabas.spark.durations import parse_duration_ms
from barnabas.spark.offsets import Offsets

#: Every option of the source but `kafka.*`, by the name that users write.
OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "driverReadMaxRecords",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "filterPushdown",
    "tierReads",
    "tierUrl",
    "asOf",
)
#: Settings of the object store, by the names that it has for them: `store.aws_endpoint`.
STORE_PREFIX: Final = "store."
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "asOf")
_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")

#: Consumer settings that would mean something else here than in a consumer, and what to use instead.
FORBIDDEN_KAFKA: Final = {
    "auto.offset.reset": "set the source option 'startingOffsets' to 'earliest' or 'latest' to say where to start",
    "key.deserializer": "keys are byte arrays; use DataFrame operations to deserialize them",
    "value.deserializer": "values are byte arrays; use DataFrame operations to deserialize them",
    "enable.auto.commit": "the offsets read are kept in the query's checkpoint, and in the group that 'kafka.group.id' names",
    "interceptor.classes": "there is no Java class to call here",
}
#: Options that pyspark itself may add.
_IGNORED: Final = ("path", "checkpointlocation", "queryname")

DEFAULT_FETCH_BYTES: Final = 8 * 1024 * 1024
#: Most records of a task of a batch query if no option says how to divide: half a second's work, so that one large
#: topic partition keeps every core busy and a small one is not cut up. By size alone: Spark plans the reads of a Python source
#: in a process that does not know the cluster's cores. Streams are not divided: their sinks may depend on the order.
DEFAULT_TASK_RECORDS: Final = 1_000_000
#: Most records of a micro-batch that the driver reads. Half a second's records at 10,000 a second, which one task also
#: processes; a stream that falls behind has larger micro-batches soon, and more tasks.
DEFAULT_DRIVER_RECORDS: Final = 5000
_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":123456789,"1":123456789},"topicB":{"0":123456789}}'
_ASSIGN_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[2,4]}'


class NoMatch(Enum):
    """`startingOffsetsByTimestampStrategy`: what to do if every record is older."""

    ERROR = "error"
    LATEST = "latest"


class TierReads(Enum):
    """`tierReads`: whether the executors read tiered records straight from object storage."""

    #: From the store if it can be read, else through the brokers.
    AUTO = "auto"
    #: The query fails if the store cannot be read.
    DIRECT = "direct"
    #: Always through the brokers.
    NEVER = "never"


# -- where to read ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...]

    def takes(self, topic: str) -> bool:
        return topic in self.topics


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """A pattern for topic names. It must match the whole name, like Java's `matches`."""

    pattern: str

    def takes(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None


Strategy: TypeAlias = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True, slots=True)
class Everywhere:
    """`earliest` or `latest` in every partition: EARLIEST or LATEST of ListOffsets."""

    at: int


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for every partition; -1 is latest, -2 earliest."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record that is not older; per partition, or one time for all."""

    timestamps: Offsets | int
    no_match: NoMatch = NoMatch.ERROR


Limit: TypeAlias = Everywhere | Specific | AtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options. Travels to the executors as it is."""

    #: The options `kafka.*` without this prefix.
    kafka: Mapping[str, str]
    strategy: Strategy
    starting: Limit
    ending: Limit
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    driver_read_max_records: int = DEFAULT_DRIVER_RECORDS
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    group_id_prefix: str | None = None
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 1000
    poll_timeout_ms: int = 120_000
    filter_pushdown: bool = False
    tier_reads: TierReads = TierReads.AUTO
    #: None: the brokers name the URL.
    tier_url: str | None = None
    store: Mapping[str, str] = field(default_factory=dict)
    #: For `asOf`: the end is fixed even if transactions below it are open. The query waits for them.
    is_as_of: bool = False
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)

    @property
    def records_per_task(self) -> int | None:
        """Return the most records of a task of a batch query; None if they are not limited by number."""
        return self.max_records_per_partition if self.is_divided else DEFAULT_TASK_RECORDS

    @property
    def is_divided(self) -> bool:
        """Whether an option says how to divide the work."""
        return self.min_partitions is not None or self.max_records_per_partition is not None

    @property
    def read_committed(self) -> bool:
        return self.consumer.isolation_level == READ_COMMITTED

    def client(self) -> ClientConfig:
        return client_config(settings=self.kafka, client_id="barnabas-spark-source")


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check `options`. Raises `ConfigError`."""
    given = {name.lower(): value for name, value in options.items()}
    kafka = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
    check_names(given, OPTIONS, what="source", prefixes=("kafka.", STORE_PREFIX))
    _check_kafka(kafka)
    _check_mode(given, streaming=streaming)
    read = _Reader(given)
    consumer = consumer_config(
        {"max.partition.fetch.bytes": str(DEFAULT_FETCH_BYTES), **_without(kafka, "auto.offset.reset")}
    )
    parsed = SourceOptions(
        kafka=kafka,
        strategy=_strategy(given),
        starting=_limit(given, "starting", default=LATEST if streaming else EARLIEST),
        ending=_as_of(given) or _limit(given, "ending", default=LATEST),
        is_as_of="asof" in given,
        tier_reads=_tier_reads(given),
        tier_url=given.get("tierurl"),
        store=store_settings(given),
        fail_on_data_loss=read.flag("failOnDataLoss", default=True),
        min_partitions=read.positive("minPartitions"),
        max_records_per_partition=read.positive("maxRecordsPerPartition"),
        driver_read_max_records=read.whole("driverReadMaxRecords", default=DEFAULT_DRIVER_RECORDS),
        max_offsets_per_trigger=read.positive("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=read.positive("minOffsetsPerTrigger"),
        max_trigger_delay_ms=read.duration_ms("maxTriggerDelay", default_ms=15 * 60_000),
        group_id_prefix=given.get("groupidprefix"),
        fetch_offset_retries=read.whole("fetchOffset.numRetries", default=3),
        fetch_offset_retry_interval_ms=read.whole("fetchOffset.retryIntervalMs", default=1000),
        poll_timeout_ms=read.whole("kafkaConsumer.pollTimeoutMs", default=120_000),
        filter_pushdown=read.flag("filterPushdown", default=False),
        consumer=consumer,
    )
    _check_limits(parsed, streaming=streaming)
    parsed.client()
    return parsed


def wants_headers(options: Mapping[str, str]) -> bool:
    """Return the option `includeHeaders` without checking the others: the schema depends on nothing else."""
    return _Reader({name.lower(): value for name, value in options.items()}).flag("includeHeaders", default=False)


def check_names(
    given: Iterable[str], known: tuple[str, ...], *, what: str, prefixes: tuple[str, ...] = ("kafka.",)
) -> None:
    """Refuse names that are not known and have none of the prefixes. Names may have any case, as in Spark."""
    names = {name.lower(): name for name in known}
    for name in map(str.lower, given):
        if name.startswith((*prefixes, "__")) or name in names or name in _IGNORED:
            continue
        near = nearest(name, names)
        listed = ", ".join([*(f"{prefix}*" for prefix in prefixes), *known])
        hint = f"; did you mean '{names[near]}'?" if near else f"; the options are {listed}"
        raise ConfigError(f"Option '{name}' is not supported by the {what}{hint}")


def _check_kafka(kafka: Mapping[str, str]) -> None:
    if not kafka.get("bootstrap.servers", "").strip():
        raise ConfigError(
            "Option 'kafka.bootstrap.servers' must be specified for configuring the Kafka consumer, "
            "for example kafka.bootstrap.servers=localhost:9092"
        )
    for name, instead in FORBIDDEN_KAFKA.items():
        if name in kafka:
            raise ConfigError(f"Kafka option '{name}' is not supported: {instead}")


def _check_mode(given: Mapping[str, str], *, streaming: bool) -> None:
    for name in _BATCH_ONLY if streaming else ():
        if name.lower() in given:
            kind = "ending timestamp" if "Timestamp" in name else "ending offset"
            raise ConfigError(f"{kind} not valid in streaming queries: remove '{name}'")


def _check_limits(options: SourceOptions, *, streaming: bool) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
    if streaming:
        return
    starting, ending = options.starting, options.ending
    if starting == Everywhere(LATEST):
        raise ConfigError("starting offset can't be latest for batch queries on Kafka")
    if ending == Everywhere(EARLIEST):
        raise ConfigError("ending offset can't be earliest for batch queries on Kafka")
    for limit, forbidden, side, word in (
        (starting, LATEST, "startingOffsets", "latest"),
        (ending, EARLIEST, "ending offset", "earliest"),
    ):
        if isinstance(limit, Specific):
            for partition, offset in limit.offsets.items():
                if offset == forbidden:
                    raise ConfigError(f"{side} for {partition} can't be {word} for batch queries on Kafka")


def _strategy(given: Mapping[str, str]) -> Strategy:
    chosen = [name for name in _STRATEGIES if name.lower() in given]
    if len(chosen) != 1:
        which = "Only one" if chosen else "One"
        rule = "can be specified" if chosen else "must be specified"
        raise ConfigError(f"{which} of the following options {rule} for the source: {', '.join(_STRATEGIES)}")
    (name,) = chosen
    text = given[name.lower()].strip()
    if name == "assign":
        return Assign(parse_assignment(text))
    if name == "subscribePattern":
        if not text:
            raise ConfigError(
                f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'"
            )
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern '{text}' is not a regular expression: {error}") from None
        return SubscribePattern(text)
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ConfigError(f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'")
    return Subscribe(topics)


def _limit(given: Mapping[str, str], side: str, *, default: int) -> Limit:
    """Parse a limit. A global timestamp wins over timestamps per partition, and those over offsets, as in Spark's own
    source."""
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy is '{strategy}': use 'error' or 'latest'")
    # If every record is older than the ending time, the end is the end of the log, whatever the strategy.
    no_match = NoMatch(strategy) if side == "starting" else NoMatch.LATEST
    if (text := given.get(f"{side}timestamp")) is not None:
        try:
            return AtTimestamp(int(text), no_match)
        except ValueError:
            raise ConfigError(f"{side}Timestamp is '{text}': not a time in milliseconds since 1970") from None
    if (text := given.get(f"{side}offsetsbytimestamp")) is not None:
        return AtTimestamp(parse_offsets(text, f"{side}OffsetsByTimestamp", _TIMESTAMPS_EXAMPLE), no_match)
    text = given.get(f"{side}offsets")
    if text is None:
        return Everywhere(default)
    text = text.strip()
    if text.lower() in ("earliest", "latest"):
        return Everywhere(EARLIEST if text.lower() == "earliest" else LATEST)
    return Specific(parse_offsets(text, f"{side}Offsets", _OFFSETS_EXAMPLE))


def _as_of(given: Mapping[str, str]) -> Limit | None:
    """Parse `asOf`: the log as it was at a time, or at offsets, whatever was written since."""
    text = given.get("asof", "").strip()
    if not text:
        return None
    if also := [name for name in _BATCH_ONLY if name != "asOf" and name.lower() in given]:
        raise ConfigError(f"asOf says where to end, and so does {also[0]}: give one of them")
    if text.startswith("{"):
        offsets = parse_offsets(text, "asOf", _OFFSETS_EXAMPLE)
        if moving := [str(partition) for partition, offset in offsets.items() if offset < 0]:
            raise ConfigError(f"asOf needs an offset for {moving[0]}: the ends of the log move")
        return Specific(offsets)
    return AtTimestamp(_time_ms(text), NoMatch.LATEST)


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"asOf is '{text}': use a time such as 2026-11-01T00:00Z, milliseconds since 1970, or offsets, e.g. "
            f"{_OFFSETS_EXAMPLE}"
        ) from None
    if at.tzinfo is None:
        raise ConfigError(f"asOf is '{text}', without a time zone: write {text}Z for UTC")
    return int(at.timestamp() * 1000)


def _tier_reads(given: Mapping[str, str]) -> TierReads:
    text = given.get("tierreads", TierReads.AUTO.value).lower()
    try:
        return TierReads(text)
    except ValueError:
        raise ConfigError(f"tierReads is '{text}': use auto, direct or never") from None


def store_settings(given: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(STORE_PREFIX): value for name, value in given.items() if name.startswith(STORE_PREFIX)}


# -- values -------------------------------------------------------------------------------------------------------------


def parse_offsets(text: str, option: str = "offsets", example: str = _OFFSETS_EXAMPLE) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":23}}`, the form of offsets in options, checkpoints and progress reports."""
    found: dict[TopicPartition, int] = {}
    topics = _json_object(text, option, example)
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise _not_json(option, example, text)
        for index, offset in partitions.items():
            if not str(index).isdecimal() or not isinstance(offset, int) or isinstance(offset, bool):
                raise _not_json(option, example, text)
            found[TopicPartition(topic, int(index))] = offset
    return found


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    topics = _json_object(text, "assign", _ASSIGN_EXAMPLE)
    found: dict[TopicPartition, None] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, list):
            raise _not_json("assign", _ASSIGN_EXAMPLE, text)
        for index in partitions:
            if not isinstance(index, int) or isinstance(index, bool) or index < 0:
                raise _not_json("assign", _ASSIGN_EXAMPLE, text)
            found[TopicPartition(topic, index)] = None
    if not found:
        raise ConfigError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return tuple(found)


def _json_object(text: str, option: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _not_json(option, example, text) from None
    if not isinstance(value, dict):
        raise _not_json(option, example, text)
    return value


def _not_json(option: str, example: str, text: str) -> ConfigError:
    words = "" if option == "assign" else "'earliest', 'latest' or " if option.endswith("Offsets") else ""
    return ConfigError(f"{option}: expected {words}e.g. {example}, got {text}")


def _without(settings: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key != name}


@dataclass(frozen=True, slots=True)
class _Reader:
    given: Mapping[str, str]

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.given.get(name.lower())
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is '{text}': use true or false")
        return text.lower() == "true"

    def positive(self, name: str) -> int | None:
        text = self.given.get(name.lower())
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) == 0:
            raise ConfigError(f"{name} must be positive, not '{text}'")
        return int(text)

    def whole(self, name: str, *, default: int) -> int:
        text = self.given.get(name.lower(), str(default)).strip()
        if not text.isdecimal():
            raise ConfigError(f"{name} must be a whole number, not '{text}'")
        return int(text)

    def duration_ms(self, name: str, *, default_ms: int) -> int:
        text = self.given.get(name.lower())
        return default_ms if text is None else parse_duration_ms(text, name)
