"""The options of the sink, named like those of Spark's own `kafka` sink where it has one, and checked once, before a row is
read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.base.errors import ConfigError
from barnabas.client.blocking_producer import BlockingProducerConfig
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.sending import ACKS_ALL
from barnabas.client.settings import producer_config
from barnabas.spark.checkpoint import COPIED, MOVED, NOTHING
from barnabas.spark.decision import SKIP as SKIP_BATCH
from barnabas.spark.decision import WRITE as WRITE_BATCH
from barnabas.spark.encode_settings import HEADERS, KEY, PARTITION, TIMESTAMP, TOPIC, VALUE, EncoderSettings
from barnabas.spark.options import check_names
from barnabas.wire.compression import LEVELS, Codec, check_level

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
#: What to do with a decided batch if a broker has aborted some of its transactions.
FAIL, REWRITE, SKIP = "fail", "rewrite", "skip"

DEFAULT_DECISIONS_TOPIC: Final = "__barnabas_spark_decisions"
DEFAULT_TRANSACTIONAL_ID_PREFIX: Final = "barnabas-spark"
#: Far larger than the Java producer's 16 KB: a task has its rows at hand and does not wait for more.
DEFAULT_BATCH_BYTES: Final = 512 * 1024
DEFAULT_REQUEST_BYTES: Final = 1024 * 1024
#: Kafka's default of `transaction.max.timeout.ms`: an open transaction has to outlive the slowest task of its batch.
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 15 * 60 * 1000
DEFAULT_DECISION_RETENTION_MS: Final = 30 * 24 * 3600 * 1000

#: Every option but `kafka.*`, by the name that users write.
OPTIONS: Final = (
    "topic",
    "deliveryGuarantee",
    "decisionsTopic",
    "decisionRetentionMs",
    "transactionalIdPrefix",
    "onLostTransactions",
    "acceptReplannedBatch",
    "acceptCheckpoint",
)
#: Not for users: `sinks.topic` with output mode update sets them.
BATCH_ID, RUN_ID = "__batchId", "__runId"
#: Not for users either: a write with `once=` names its checkpoint with them (`checkpoint.planned_once`).
ONCE, ONCE_CHECKPOINT = "__once", "__onceCheckpoint"
_KAFKA: Final = "kafka."
_REFUSED: Final = {
    "key.serializer": "keys are written as they are: cast the column",
    "value.serializer": "values are written as they are: cast the column",
    "transactional.id": "the sink makes its own; see the option transactionalIdPrefix",
    "partitioner.class": "rows go where the Java producer's default partitioner sends them, or where the column partition says",
    "interceptor.classes": "there is no Java class to load",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Travels to executors: plain values only."""

    client: ClientConfig
    producer: BlockingProducerConfig
    encoder: EncoderSettings
    idempotent: bool = True
    exactly_once: bool = True
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    transactional_id_prefix: str = DEFAULT_TRANSACTIONAL_ID_PREFIX
    decisions_topic: str = DEFAULT_DECISIONS_TOPIC
    decision_retention_ms: int = DEFAULT_DECISION_RETENTION_MS
    on_lost: str = FAIL
    #: The number of a batch that may be another one than was written before, and what to do with it: WRITE or SKIP.
    accepted_batch: tuple[int, str] | None = None
    #: The option `acceptCheckpoint`, for a folder that lies elsewhere than it was created: NOTHING, MOVED or COPIED.
    accepted_checkpoint: str = NOTHING
    #: Identity of a query that Spark gives no id: where its checkpoint is, and its name.
    checkpoint_location: str = ""
    query_name: str = ""
    #: Number of a micro-batch that is written within `foreachBatch`, where Spark does not give it to tasks.
    batch_id: str = ""
    run_id: str = ""
    #: The origin of a write with `once=`: BY_CALLER, BY_CHECKPOINT or NOT_KNOWN; "" for other writes.
    once: str = ""
    once_checkpoint: str = ""

    def accepted(self, batch: int) -> str:
        """WRITE or SKIP if the user has accepted the batch of this number as it is planned now, else ""."""
        return self.accepted_batch[1] if self.accepted_batch is not None and self.accepted_batch[0] == batch else ""


def parse(options: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options; names may have any case, as in Spark. Raises `ConfigError`."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given, OPTIONS, what="sink")
    kafka = {name.removeprefix(_KAFKA): value for name, value in given.items() if name.startswith(_KAFKA)}
    if not kafka.get("bootstrap.servers"):
        raise ConfigError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer")
    for name, why in _REFUSED.items():
        if name in kafka:
            raise ConfigError(f"Kafka option 'kafka.{name}' is not supported: {why}")
    guarantee = _one_of(given, "deliveryGuarantee", EXACTLY_ONCE, (EXACTLY_ONCE, AT_LEAST_ONCE))
    producer = producer_config(kafka)
    if guarantee == EXACTLY_ONCE and producer.acks != ACKS_ALL:
        raise ConfigError(f"deliveryGuarantee={EXACTLY_ONCE} needs kafka.acks=all")
    request_bytes = _positive(kafka, "max.request.size", DEFAULT_REQUEST_BYTES)
    batch_bytes = min(_positive(kafka, "batch.size", DEFAULT_BATCH_BYTES), request_bytes)
    return SinkOptions(
        client=client_config(settings=kafka, client_id="barnabas-spark"),
        producer=BlockingProducerConfig(
            acks=producer.acks,
            request_bytes=request_bytes,
            max_in_flight=_positive(kafka, "max.in.flight.requests.per.connection", 5),
            request_timeout_ms=producer.request_timeout_ms,
            delivery_timeout_ms=producer.delivery_timeout_ms,
            max_block_ms=_positive(kafka, "max.block.ms", 60_000),
            retry_backoff_ms=producer.retry_backoff_ms,
        ),
        encoder=EncoderSettings(
            topic=given["topic"].strip() if "topic" in given else None,
            batch_bytes=batch_bytes,
            record_bytes_max=request_bytes,
            codec=producer.codec,
            level=_level(kafka, producer.codec),
        ),
        idempotent=producer.idempotent,
        exactly_once=guarantee == EXACTLY_ONCE,
        transaction_timeout_ms=_positive(kafka, "transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS),
        transactional_id_prefix=given.get("transactionalidprefix", DEFAULT_TRANSACTIONAL_ID_PREFIX),
        decisions_topic=given.get("decisionstopic", DEFAULT_DECISIONS_TOPIC),
        decision_retention_ms=_positive(given, "decisionretentionms", DEFAULT_DECISION_RETENTION_MS),
        on_lost=_one_of(given, "onLostTransactions", FAIL, (FAIL, REWRITE, SKIP)),
        accepted_batch=accepted_batch(given.get("acceptreplannedbatch")),
        accepted_checkpoint=_one_of(given, "acceptCheckpoint", NOTHING, (NOTHING, MOVED, COPIED)),
        checkpoint_location=given.get("checkpointlocation", ""),
        query_name=given.get("queryname", ""),
        batch_id=given.get(BATCH_ID.lower(), ""),
        run_id=given.get(RUN_ID.lower(), ""),
        once=given.get(ONCE.lower(), ""),
        once_checkpoint=given.get(ONCE_CHECKPOINT.lower(), ""),
    )


def accepted_batch(text: str | None) -> tuple[int, str] | None:
    """The option `acceptReplannedBatch`: a batch's number and what to do with it, such as `7:write`."""
    if not text:
        return None
    number, _, what = text.strip().partition(":")
    if not number.isdigit() or what not in (WRITE_BATCH, SKIP_BATCH):
        raise ConfigError(
            f"acceptReplannedBatch={text!r} is not valid: use the number of the batch with :{WRITE_BATCH} or :{SKIP_BATCH}, "
            f"such as 7:{WRITE_BATCH}"
        )
    return int(number), what


def _one_of(given: Mapping[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    value = given.get(name.lower(), default)
    if value.lower() not in known:
        raise ConfigError(f"{name}={value!r} is not valid: use {' or '.join(each for each in known if each)}")
    return value.lower()


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) == 0:
        raise ConfigError(f"{name}={text!r} is not a positive number")
    return int(text)


def _level(kafka: Mapping[str, str], codec: Codec) -> int | None:
    text = kafka.get(f"compression.{codec.label}.level")
    if text is None or codec not in LEVELS:
        return None
    try:
        level = int(text)
        check_level(codec, level)
    except ValueError as error:
        raise ConfigError(f"kafka.compression.{codec.label}.level={text!r}: {error}") from None
    return level


# -- the rows ---------------------------------------------------------------------------------------------------------


def check_schema(schema: StructType, topic: str | None) -> None:
    """The columns of Spark's `kafka` sink, with its rules; others are ignored, as there."""
    columns = {field.name.lower(): field.dataType for field in schema.fields}
    if VALUE not in columns:
        raise ConfigError("Required attribute 'value' not found")
    if topic is None and TOPIC not in columns:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    _require(columns, VALUE, (StringType, BinaryType))
    _require(columns, KEY, (StringType, BinaryType))
    _require(columns, TOPIC, (StringType,))
    _require(columns, PARTITION, (IntegerType,))
    _require(columns, TIMESTAMP, (TimestampType, TimestampNTZType))
    headers = columns.get(HEADERS)
    if headers is not None and not _are_headers(headers):
        raise ConfigError(
            f"headers attribute type must be an ARRAY<STRUCT<key: STRING, value: BINARY>>, not {headers.simpleString()}"
        )


def _require(columns: Mapping[str, DataType], name: str, allowed: tuple[type[DataType], ...]) -> None:
    found = columns.get(name)
    if found is not None and not isinstance(found, allowed):
        words = " or ".join(kind.typeName() for kind in allowed)
        raise ConfigError(f"{name} attribute type must be a {words}, not {found.simpleString()}")


def _are_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    kinds = [type(field.dataType) for field in found.elementType.fields]
    return kinds == [StringType, BinaryType]
