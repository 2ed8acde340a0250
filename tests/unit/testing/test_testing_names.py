"""Misspelt names are refused when a test gives them, with the nearest name."""

import re

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.cli.faults.names import check_topic_settings, checked_api, checked_error, no_such_topic
from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.local_settings import setting_texts
from barnabas.testing import Cluster
from barnabas.testing.shared import Kafka, check_options


@pytest.mark.parametrize(
    ("given", "meant"), [("Prodcue", "Produce"), ("produce", "Produce"), ("OffsetCommmit", "OffsetCommit")]
)
def test_misspelt_api_is_refused_with_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"there is no API '{given}'; did you mean {meant}?")):
        checked_api(given)


def test_api_of_kraft_is_refused_because_no_broker_here_serves_it() -> None:
    with pytest.raises(ValueError, match="there is no API 'Vote'"):
        checked_api("Vote")


def test_known_names_pass() -> None:
    assert [checked_api(name) for name in ("Produce", "*")] == ["Produce", "*"]
    assert checked_error("NOT_ENOUGH_REPLICAS") == checked_error(ErrorCode.NOT_ENOUGH_REPLICAS) == "NOT_ENOUGH_REPLICAS"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("NOT_ENOUGH_REPLICA", "did you mean NOT_ENOUGH_REPLICAS?"),
        ("not_enough_replicas", "did you mean NOT_ENOUGH_REPLICAS?"),
        ("NONE", "is success, and no fault"),
        ("XYZ", "names are as in Kafka"),
    ],
)
def test_misspelt_error_is_refused(given: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        checked_error(given)


def test_misspelt_settings_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=re.escape("'num.partition' of a broker; did you mean num.partitions?")):
        Cluster(config={"num.partition": 3})
    with pytest.raises(ValueError, match=re.escape("'log.retention.mss' of a broker; did you mean log.retention.ms?")):
        Cluster(brokers=2, broker_config={2: {"log.retention.mss": 3}})
    with pytest.raises(ValueError, match=re.escape("'retention.m' of a topic; did you mean retention.ms?")):
        check_topic_settings({"retention.m": "1"})


def test_settings_of_a_listener_and_of_a_provider_are_known() -> None:
    Cluster(config={"listener.name.client.ssl.client.auth": "none", "config.providers": "env"})


def test_settings_of_a_missing_broker_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no broker 4: this cluster has brokers 1 to 3"):
        Cluster(brokers=3, broker_config={4: {}})


def test_values_of_settings_may_be_numbers_and_truths() -> None:
    assert setting_texts({"a": 3, "b": True, "c": 0.5, "d": "x"}) == {"a": "3", "b": "true", "c": "0.5", "d": "x"}
    with pytest.raises(TypeError, match=r"num.partitions is \[3\]: give a string, a number, True or False"):
        LocalCluster(config={"num.partitions": [3]})  # type: ignore[dict-item]


def test_error_for_an_unknown_topic_lists_the_topics() -> None:
    assert str(no_such_topic("order", ["orders", "bills"])) == "there is no topic 'order'; did you mean orders?"
    assert str(no_such_topic("x", ["orders", "bills"])) == "there is no topic 'x'; there are: bills, orders"
    assert str(no_such_topic("x", [])) == "there is no topic 'x'; there is none"


def test_misspelt_option_of_a_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("the marker has no option 'broker'; did you mean brokers?")):
        check_options({"broker": 3}, of="the marker")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail_api", "the fixture kafka has no fail_api; write kafka.cluster.fail_api"),
        ("create_topic", "kafka.cluster.create_topic, or kafka.topic(), whose topics go when the test ends"),
        ("moon", "the fixture kafka has no moon"),
    ],
)
def test_error_for_a_missing_attribute_of_the_fixture_names_its_place(name: str, words: str) -> None:
    kafka = Kafka.__new__(Kafka)
    with pytest.raises(AttributeError, match=re.escape(words)):
        getattr(kafka, name)
