"""Producer and consumer settings with Kafka's names, as in the files of `--producer.config` and `--consumer.config`."""

from collections.abc import Mapping

from barnabas.base.errors import ConfigError
from barnabas.base.words import ISOLATION_LEVELS
from barnabas.client.config import whole_number
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.membership import GroupConfig
from barnabas.client.producer import ProducerConfig
from barnabas.client.sending import ACKS_ALL
from barnabas.client.share_session import AcknowledgementMode, AcquireMode, ShareConfig
from barnabas.wire.compression import Codec


def producer_config(properties: Mapping[str, str]) -> ProducerConfig:
    """Unknown names are ignored: they may belong to the connection."""
    acks = _acks(properties.get("acks", "all"))
    # As in Kafka: idempotence is the default; an `acks` that excludes it switches it off unless it was set explicitly.
    wanted = properties.get("enable.idempotence")
    idempotent = _flag("enable.idempotence", wanted) if wanted is not None else acks == ACKS_ALL
    transactional_id = properties.get("transactional.id") or None
    if (idempotent or transactional_id) and acks != ACKS_ALL:
        raise ConfigError(
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence."
        )
    default = ProducerConfig()
    return ProducerConfig(
        acks=acks,
        codec=codec(properties.get("compression.type", "none")),
        batch_bytes=whole_number(properties, "batch.size", default.batch_bytes),
        linger_ms=whole_number(properties, "linger.ms", default.linger_ms),
        buffer_memory_bytes=whole_number(properties, "buffer.memory", default.buffer_memory_bytes),
        max_in_flight=whole_number(properties, "max.in.flight.requests.per.connection", default.max_in_flight),
        request_timeout_ms=whole_number(properties, "request.timeout.ms", default.request_timeout_ms),
        delivery_timeout_ms=whole_number(properties, "delivery.timeout.ms", default.delivery_timeout_ms),
        retry_backoff_ms=whole_number(properties, "retry.backoff.ms", default.retry_backoff_ms),
        idempotent=idempotent or transactional_id is not None,
        transactional_id=transactional_id,
        transaction_timeout_ms=whole_number(properties, "transaction.timeout.ms", default.transaction_timeout_ms),
        request_bytes=whole_number(properties, "max.request.size", default.request_bytes),
        round_robin=_is_round_robin(properties.get("partitioner.class", "")),
        ignore_keys=_flag("partitioner.ignore.keys", properties.get("partitioner.ignore.keys", "false")),
    )


def consumer_config(properties: Mapping[str, str]) -> ConsumerConfig:
    isolation = properties.get("isolation.level", "read_uncommitted")
    if isolation not in ISOLATION_LEVELS:
        raise ConfigError(f"isolation.level={isolation!r} is not valid: use read_committed or read_uncommitted")
    reset = properties.get("auto.offset.reset", "latest")
    if reset not in ("earliest", "latest", "none"):
        raise ConfigError(f"auto.offset.reset={reset!r} is not valid: use earliest, latest or none")
    default = ConsumerConfig()
    return ConsumerConfig(
        isolation_level=ISOLATION_LEVELS[isolation],
        fetch_min_bytes=whole_number(properties, "fetch.min.bytes", default.fetch_min_bytes),
        fetch_max_bytes=whole_number(properties, "fetch.max.bytes", default.fetch_max_bytes),
        partition_max_bytes=whole_number(properties, "max.partition.fetch.bytes", default.partition_max_bytes),
        fetch_max_wait_ms=whole_number(properties, "fetch.max.wait.ms", default.fetch_max_wait_ms),
        auto_offset_reset=reset,
        check_crcs=_flag("check.crcs", properties.get("check.crcs", "true")),
        client_rack=properties.get("client.rack", ""),
        retry_backoff_ms=whole_number(properties, "retry.backoff.ms", default.retry_backoff_ms),
    )


def share_config(group_id: str, properties: Mapping[str, str]) -> ShareConfig:
    default = ShareConfig(group_id=group_id)
    mode = properties.get("share.acknowledgement.mode", default.acknowledgement_mode.value)
    acquire = properties.get("share.acquire.mode", default.acquire_mode.name)
    if mode.lower() not in {each.value for each in AcknowledgementMode}:
        raise ConfigError(f"share.acknowledgement.mode={mode!r} is not valid: use implicit or explicit")
    if acquire.upper() not in AcquireMode.__members__:
        raise ConfigError(f"share.acquire.mode={acquire!r} is not valid: use batch_optimized or record_limit")
    return ShareConfig(
        group_id=group_id,
        acknowledgement_mode=AcknowledgementMode(mode.lower()),
        acquire_mode=AcquireMode[acquire.upper()],
        max_poll_records=whole_number(properties, "max.poll.records", default.max_poll_records),
        fetch_min_bytes=whole_number(properties, "fetch.min.bytes", default.fetch_min_bytes),
        fetch_max_bytes=whole_number(properties, "fetch.max.bytes", default.fetch_max_bytes),
        fetch_max_wait_ms=whole_number(properties, "fetch.max.wait.ms", default.fetch_max_wait_ms),
        check_crcs=_flag("check.crcs", properties.get("check.crcs", "true")),
        client_rack=properties.get("client.rack", ""),
        retry_backoff_ms=whole_number(properties, "retry.backoff.ms", default.retry_backoff_ms),
    )


def group_config(group_id: str, properties: Mapping[str, str]) -> GroupConfig:
    default = GroupConfig(group_id=group_id)
    return GroupConfig(
        group_id=group_id,
        session_timeout_ms=whole_number(properties, "session.timeout.ms", default.session_timeout_ms),
        rebalance_timeout_ms=whole_number(properties, "max.poll.interval.ms", default.rebalance_timeout_ms),
        heartbeat_interval_ms=whole_number(properties, "heartbeat.interval.ms", default.heartbeat_interval_ms),
        auto_commit_interval_ms=whole_number(properties, "auto.commit.interval.ms", default.auto_commit_interval_ms),
        enable_auto_commit=_flag("enable.auto.commit", properties.get("enable.auto.commit", "true")),
        group_instance_id=properties.get("group.instance.id"),
    )


def _is_round_robin(class_name: str) -> bool:
    """Recognise Kafka's class name, with or without its package."""
    simple = class_name.rpartition(".")[2]
    if simple not in ("", "DefaultPartitioner", "UniformStickyPartitioner", "RoundRobinPartitioner"):
        raise ConfigError(
            f"partitioner.class={class_name} is a Java class and cannot be loaded: use RoundRobinPartitioner, "
            "or leave the setting out to choose partitions by key"
        )
    return simple == "RoundRobinPartitioner"


def codec(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        raise ConfigError(f"compression {name!r} is not valid: use none, gzip, snappy, lz4 or zstd") from None


def _acks(text: str) -> int:
    if text in ("all", "-1"):
        return ACKS_ALL
    if text in ("0", "1"):
        return int(text)
    raise ConfigError(f"acks={text!r} is not valid: use all, -1, 0 or 1")


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={text!r} is not valid: use true or false")
    return text.lower() == "true"
