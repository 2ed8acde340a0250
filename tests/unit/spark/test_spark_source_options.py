"""Options of the source, and the table of them in the documentation. No Spark, no cluster."""

import itertools
import json
from pathlib import Path

import pytest

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED
from barnabas.spark import segments, sink_options
from barnabas.spark.durations import parse_duration_ms
from barnabas.spark.options import (
    FORBIDDEN_KAFKA,
    OPTIONS,
    STORE_PREFIX,
    Assign,
    AtTimestamp,
    Everywhere,
    NoMatch,
    SourceOptions,
    Specific,
    Subscribe,
    SubscribePattern,
    source_options,
    wants_headers,
)

SERVERS = {"kafka.bootstrap.servers": "one:9092,two:9093"}
TABLE = Path(__file__).parents[3] / "docs" / "spark-options.md"


def options(given: dict[str, str] | None = None, *, streaming: bool = False, **more: str) -> SourceOptions:
    strategy = {} if given and {"assign", "subscribepattern"} & {name.lower() for name in given} else {"subscribe": "t"}
    return source_options({**SERVERS, **strategy, **(given or {}), **more}, streaming=streaming)


def refused(given: dict[str, str], message: str, *, streaming: bool = False) -> None:
    with pytest.raises(ConfigError, match=message):
        source_options(given, streaming=streaming)


def test_defaults_are_those_of_the_official_source():
    batch, stream = options(), options(streaming=True)
    assert (batch.starting, batch.ending) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert stream.starting == Everywhere(LATEST)
    assert batch.fail_on_data_loss
    assert (batch.fetch_offset_retries, batch.fetch_offset_retry_interval_ms) == (3, 1000)
    assert batch.max_trigger_delay_ms == 900_000
    assert batch.min_partitions is batch.max_records_per_partition is batch.max_offsets_per_trigger is None
    assert not batch.read_committed


def test_every_option_is_read_whatever_its_case():
    made = options(
        {
            "FAILONDATALOSS": "FALSE",
            "minPartitions": "4",
            "maxRecordsPerPartition": "100",
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "2m",
            "groupIdPrefix": "mine",
            "fetchOffset.numRetries": "7",
            "fetchOffset.retryIntervalMs": "8",
            "kafkaConsumer.pollTimeoutMs": "9",
            "filterPushdown": "true",
            "Kafka.Isolation.Level": "read_committed",
            "kafka.max.partition.fetch.bytes": "1000",
            "kafka.check.crcs": "false",
        },
        streaming=True,
    )
    assert (made.fail_on_data_loss, made.filter_pushdown) == (False, True)
    assert (made.min_partitions, made.max_records_per_partition) == (4, 100)
    assert (made.max_offsets_per_trigger, made.min_offsets_per_trigger, made.max_trigger_delay_ms) == (10, 5, 120_000)
    assert (made.group_id_prefix, made.fetch_offset_retries) == ("mine", 7)
    assert (made.fetch_offset_retry_interval_ms, made.poll_timeout_ms) == (8, 9)
    assert made.consumer.isolation_level == READ_COMMITTED
    assert made.read_committed
    assert (made.consumer.partition_max_bytes, made.consumer.check_crcs) == (1000, False)
    assert wants_headers({"IncludeHeaders": "true"})


def test_connection_settings_reach_the_client():
    made = options(
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": "…",
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.request.timeout.ms": "1234",
            "kafka.client.id": "me",
        }
    ).client()
    assert made.bootstrap == (("one", 9092), ("two", 9093))
    assert (made.security_protocol, made.request_timeout_ms, made.client_id) == ("SASL_SSL", 1234, "me")
    assert made.security == {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "…",
        "ssl.truststore.location": "/ca.pem",
    }


def test_strategies():
    assert options({"subscribe": "a, b ,a"}).strategy == Subscribe(("a", "b"))
    assert options({"subscribePattern": "a.*"}).strategy == SubscribePattern("a.*")
    assert not SubscribePattern("a").takes("ab")
    assert options({"assign": '{"a":[0,2]}'}).strategy == Assign((TopicPartition("a", 0), TopicPartition("a", 2)))
    refused(SERVERS, "One of the following options must be specified")
    refused({**SERVERS, "subscribe": "a", "assign": '{"a":[0]}'}, "Only one of the following options can be specified")
    refused({**SERVERS, "subscribe": " , "}, "No topics to subscribe to")
    refused({**SERVERS, "subscribePattern": ""}, "Pattern to subscribe is empty")
    refused({**SERVERS, "subscribePattern": "("}, "is not a regular expression")
    refused({**SERVERS, "assign": "{}"}, "No topicpartitions to assign")
    for text in ("a-0", "[]", '{"a":0}', '{"a":[-1]}', '{"a":["0"]}'):
        refused({**SERVERS, "assign": text}, r"assign: expected e\.g\. ")


def test_limits_and_their_order_of_precedence():
    offsets = '{"a":{"0":23,"1":-1},"b":{"0":-2}}'
    parsed = {TopicPartition("a", 0): 23, TopicPartition("a", 1): -1, TopicPartition("b", 0): -2}
    assert options({"startingOffsets": offsets}, streaming=True).starting == Specific(parsed)
    by_time = options({"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":5}}'})
    assert by_time.starting == AtTimestamp({TopicPartition("a", 0): 5}, NoMatch.ERROR)
    all_given = options(
        {
            "startingTimestamp": "7",
            "startingOffsetsByTimestamp": '{"a":{"0":5}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "endingTimestamp": "9",
        }
    )
    assert (all_given.starting, all_given.ending) == (AtTimestamp(7, NoMatch.LATEST), AtTimestamp(9, NoMatch.LATEST))
    base = {**SERVERS, "subscribe": "a"}
    refused({**base, "startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka")
    refused({**base, "endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka")
    refused({**base, "startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest for batch")
    refused({**base, "endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest for batch")
    refused({**base, "startingOffsets": "newest"}, r"startingOffsets: expected 'earliest', 'latest' or e\.g\.")
    refused({**base, "startingOffsets": '{"a":[1]}'}, "startingOffsets: expected")
    refused({**base, "startingOffsetsByTimestamp": '{"a":{"0":"x"}}'}, "startingOffsetsByTimestamp: expected e")
    refused({**base, "startingTimestamp": "noon"}, "not a time in milliseconds")
    refused({**base, "startingOffsetsByTimestampStrategy": "guess"}, "use 'error' or 'latest'")
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        refused({**base, name: "1"}, f"not valid in streaming queries: remove '{name}'", streaming=True)


def test_invalid_options_are_refused_by_name():
    base = {**SERVERS, "subscribe": "a"}
    refused({"subscribe": "a"}, "Option 'kafka.bootstrap.servers' must be specified")
    refused({**base, "kafka.bootstrap.servers": "nowhere"}, "is not host:port")
    for name in FORBIDDEN_KAFKA:
        refused({**base, f"kafka.{name}": "x"}, f"Kafka option '{name}' is not supported")
    refused({**base, "startingOffset": "earliest"}, "did you mean 'startingOffsets'")
    refused({**base, "qqq": "1"}, r"Option 'qqq' is not supported by the source; the options are kafka\.\*, ")
    refused({**base, "kafka.isolation.level": "dirty"}, "use read_committed or read_uncommitted")
    for name in ("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        for text in ("0", "-1", "many"):
            refused({**base, name: text}, f"{name} must be positive")
    crossed = {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}
    refused({**base, **crossed}, r"minOffsetsPerTrigger \(11\) is higher than maxOffsetsPerTrigger \(10\)")
    refused({**base, "failOnDataLoss": "maybe"}, "use true or false")
    refused({**base, "fetchOffset.numRetries": "-1"}, "must be a whole number")
    refused({**base, "maxTriggerDelay": "soon"}, "not a time such as 15m")


def test_durations():
    cases = {
        "250": 250,
        "250ms": 250,
        "30s": 30_000,
        "15m": 900_000,
        "15 min": 900_000,
        "1H": 3_600_000,
        "2d": 172_800_000,
    }
    assert {text: parse_duration_ms(text, "x") for text in cases} == cases


def test_the_documentation_has_every_option_and_no_other():
    source = {line.split("`")[1] for line in _section("## Source") if line.startswith("| `")}
    assert {name for name in source if not name.startswith("kafka.")} == {*OPTIONS, f"{STORE_PREFIX}*"}
    assert source >= {f"kafka.{name}" for name in ("bootstrap.servers", *FORBIDDEN_KAFKA)}
    reader = {line.split("`")[1] for line in _section("## Segment reader") if line.startswith("| `")}
    assert reader == {*segments.OPTIONS, f"{STORE_PREFIX}*"}
    lines = (TABLE.parent / "spark.md").read_text().splitlines()
    rows = lines[next(at for at, line in enumerate(lines) if line.startswith("| Option |")) + 2 :]
    sink = {line.split("`")[1] for line in itertools.takewhile(lambda line: line.startswith("|"), rows)}
    assert {name for name in sink if not name.startswith("kafka.")} == set(sink_options.OPTIONS)


def _section(title: str) -> list[str]:
    lines = TABLE.read_text().splitlines()
    start = lines.index(title)
    rest = lines[start + 1 :]
    return rest[: next((at for at, line in enumerate(rest) if line.startswith("## ")), len(rest))]


def test_offsets_in_options_are_json_that_a_checkpoint_could_hold():
    text = json.dumps({"t": {"0": 5}})
    assert options({"startingOffsets": text}).starting == Specific({TopicPartition("t", 0): 5})
