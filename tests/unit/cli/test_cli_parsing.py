"""How tools parse their arguments and files."""

import pytest

from barnabas.base.ids import TopicPartition, format_uuid
from barnabas.cli import _reset_offsets as reset
from barnabas.cli._command import UsageError
from barnabas.cli._parsing import matches
from barnabas.cli.configs import choose_entity, parse_additions, parse_scram
from barnabas.cli.consumer_perf_test import java_date
from barnabas.cli.delete_records import parse as parse_delete_records
from barnabas.cli.get_offsets import rules_filter, topic_filter
from barnabas.cli.leader_election import parse as parse_election
from barnabas.cli.producer_perf_test import Stats
from barnabas.cli.topics import parse_assignment, parse_topic_id


def tp(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


# -- topics -----------------------------------------------------------------------------------------------------------


def test_replica_assignment_is_by_partition() -> None:
    assert parse_assignment("1:2, 2:3,3 :1") == {0: [1, 2], 1: [2, 3], 2: [3, 1]}


@pytest.mark.parametrize("text", ["1:1", "1:2,3", "a:b", "1:2,"])
def test_bad_replica_assignment_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_assignment(text)


def test_topic_id_is_read_as_kafka_prints_it() -> None:
    raw = bytes(range(16))
    assert parse_topic_id(format_uuid(raw)) == raw
    with pytest.raises(UsageError):
        parse_topic_id("short")


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("or.*", "orders", True),
        ("a,b", "b", True),
        ("'a'", "a", True),
        ("a.b", "axb", True),
        (r"a\.b", "axb", False),
    ],
)
def test_include_list_matches_whole_names(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_bad_expression_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid regex"):
        matches("a(", "a")


# -- configs ----------------------------------------------------------------------------------------------------------


def test_brackets_keep_commas_and_equal_signs_in_a_value() -> None:
    assert parse_additions("a=1,b=[x,y],SCRAM-SHA-256=[iterations=8192,password=p=q],c=") == {
        "a": "1",
        "b": "x,y",
        "SCRAM-SHA-256": "iterations=8192,password=p=q",
        "c": "",
    }


@pytest.mark.parametrize("text", ["a", "a=1,b", "a=1=2"])
def test_addition_that_is_not_a_pair_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="key=val"):
        parse_additions(text)


def test_user_and_client_may_be_named_together_in_the_order_given() -> None:
    entity = choose_entity(["users", "clients"], ["", "c"], [], alter=True)
    assert (entity.types, entity.names) == (("users", "clients"), ("", "c"))


@pytest.mark.parametrize(
    ("types", "names", "flags"),
    [
        (["topics", "topics"], ["a", "b"], []),
        (["topics", "users"], ["a", "b"], []),
        (["topics"], [], []),
        (["topics"], [""], []),
        (["brokers"], ["x"], []),
        (["ips"], ["not an address"], []),
        (["topics"], ["a"], [("brokers", "1")]),
    ],
)
def test_entity_that_cannot_be_altered_is_refused(
    types: list[str], names: list[str], flags: list[tuple[str, str | None]]
) -> None:
    with pytest.raises(UsageError):
        choose_entity(types, names, flags, alter=True)


def test_scram_credentials_have_iterations_and_a_password() -> None:
    upsert = parse_scram("SCRAM-SHA-512", "iterations=8192,password=a,b=c")
    assert (upsert.iterations, upsert.password) == (8192, "a,b=c")
    assert parse_scram("SCRAM-SHA-256", "password=x").iterations == 4096
    for bad in ("x", "iterations=10,password=x"):
        with pytest.raises(UsageError):
            parse_scram("SCRAM-SHA-256", bad)


# -- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1S", 1_000),
        ("P1D", 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt30m", 1_800_000),
        ("-PT1S", -1_000),
        ("PT-1S", -1_000),
    ],
)
def test_duration_is_javas(text: str, milliseconds: int) -> None:
    assert reset.parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1H", "PT1D", "P1M"])
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        reset.parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-02T00:00:00.000", 86_400_000),
        ("1970-01-02T00:00:00.250Z", 86_400_250),
        ("1970-01-02T02:00:00.000+02:00", 86_400_000),
        ("1970-01-02T00:00:00", 86_400_000),
    ],
)
def test_datetime_is_utc_unless_it_says_otherwise(text: str, milliseconds: int) -> None:
    assert reset.parse_datetime_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["yesterday", "2024-01-01", "2024-13-01T00:00:00.000"])
def test_bad_datetime_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        reset.parse_datetime_ms(text)


def test_reset_plan_survives_csv_in_both_forms() -> None:
    plan = {"g": {tp("t-0"): 5, tp("odd,name-1"): 7}}
    assert reset.from_csv(reset.to_csv(plan, with_group=False), ["g"]) == plan
    assert reset.from_csv(reset.to_csv(plan, with_group=True), ["g", "h"]) == plan


@pytest.mark.parametrize("text", ["t,0\n", "t,x,5\n", "g,t,0,y\n"])
def test_bad_reset_plan_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(UsageError, match="line 1"):
        reset.from_csv(text, ["g"])


def test_reset_needs_exactly_one_rule() -> None:
    assert reset.Rule.of(to_offset=None, to_earliest=True, shift_by=None).kind == "to_earliest"
    assert reset.Rule.of(to_offset=0, to_earliest=False).number == 0
    for given in ({"to_offset": None, "to_earliest": False}, {"to_offset": 1, "to_earliest": True}):
        with pytest.raises(UsageError):
            reset.Rule.of(**given)


@pytest.mark.parametrize(
    ("rules", "chosen"),
    [
        ("a", ["a-0", "a-1", "a-5"]),
        ("a:1", ["a-1"]),
        ("a:1-", ["a-1", "a-5"]),
        ("a:-5", ["a-0", "a-1"]),
        ("a:0-1,b", ["a-0", "b-0"]),
        (":0", ["a-0", "b-0"]),
        ("[ab]:0", ["a-0", "b-0"]),
    ],
)
def test_partition_rules(rules: str, chosen: list[str]) -> None:
    everything = ["a-0", "a-1", "a-5", "b-0"]
    assert [text for text in everything if rules_filter(rules)(tp(text))] == chosen


def test_topic_with_partitions() -> None:
    wanted = topic_filter("a", "0,5")
    assert [text for text in ("a-0", "a-1", "a-5", "b-0") if wanted(tp(text))] == ["a-0", "a-5"]
    with pytest.raises(UsageError):
        topic_filter("a", "x")


# -- JSON files -------------------------------------------------------------------------------------------------------


def test_records_to_delete() -> None:
    entry = {"topic": "t", "partition": 1, "offset": 5}
    assert parse_delete_records({"partitions": [entry], "version": 1}) == {tp("t-1"): 5}
    for bad in (
        {},
        {"partitions": {}},
        {"partitions": [entry, entry]},
        {"partitions": [{"topic": "t", "partition": "1", "offset": 5}]},
        {"partitions": [{"topic": "t", "partition": 1}]},
        {"partitions": [entry], "version": 2},
    ):
        with pytest.raises(UsageError):
            parse_delete_records(bad)


def test_partitions_to_elect_for() -> None:
    entry = {"topic": "t", "partition": 1}
    assert parse_election({"partitions": [entry]}) == [tp("t-1")]
    with pytest.raises(UsageError, match="duplicate partitions: t-1"):
        parse_election({"partitions": [entry, entry]})


# -- figures ----------------------------------------------------------------------------------------------------------


def test_producer_figures_are_worded_as_kafkas() -> None:
    stats = Stats(4)
    stats.start(100.0)
    stats.record([1, 2, 3, 10], 4 * 1048576, 102.0)
    assert stats.total(102.0) == (
        "4 records sent, 2.000000 records/sec (2.00 MB/sec), 4.00 ms avg latency, 10.00 ms max latency, "
        "3 ms 50th, 10 ms 95th, 10 ms 99th, 10 ms 99.9th."
    )
    assert stats.window(102.0) == (
        "4 records sent, 2.0 records/sec (2.00 MB/sec), 4.0 ms avg latency, 10.0 ms max latency."
    )


def test_dates_are_formatted_by_javas_letters() -> None:
    text = java_date(1_700_000_000.123, "yyyy-MM-dd HH:mm:ss:SSS")
    assert text.endswith(":123")
    assert len(text) == len("2023-11-14 22:13:20:123")
