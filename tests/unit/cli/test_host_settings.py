"""The own settings of each broker on a host, and their metrics as one page."""

import pytest

from barnabas.base.errors import ConfigError
from barnabas.cli.host.metrics import merge
from barnabas.cli.host.settings import derive

FILE = {
    "broker.id": "10",
    "listeners": "PLAINTEXT://0.0.0.0:9092,SSL://:9192",
    "advertised.listeners": "PLAINTEXT://kafka1:9092,SSL://kafka1:9192",
    "log.dirs": "/disk1/kafka, /disk2/kafka/",
    "zookeeper.connect": "zk:2181",
}


def test_ids_ports_and_folders_count_on_from_the_file() -> None:
    first, second = derive(FILE, 2, host="kafka1")
    assert (first.broker_id, second.broker_id) == (10, 11)
    assert first.overrides["listeners"] == "PLAINTEXT://0.0.0.0:9092,SSL://:9192"
    assert second.overrides["listeners"] == "PLAINTEXT://0.0.0.0:9093,SSL://:9193"
    assert second.overrides["advertised.listeners"] == "PLAINTEXT://kafka1:9093,SSL://kafka1:9193"
    assert second.overrides["log.dirs"] == "/disk1/kafka/broker-11,/disk2/kafka/broker-11"
    assert "broker.id=11" in second.arguments


def test_rack_is_the_users_or_the_host() -> None:
    assert derive(FILE, 1, host="kafka1")[0].overrides["broker.rack"] == "kafka1"
    assert derive({**FILE, "broker.rack": "zone-b"}, 1, host="kafka1")[0].overrides["broker.rack"] == "zone-b"


def test_file_without_listeners_or_log_dirs_has_kafkas_defaults() -> None:
    second = derive({"broker.id": "0"}, 2, host="h")[1].overrides
    assert (second["listeners"], second["log.dirs"]) == ("PLAINTEXT://:9093", "/tmp/kafka-logs/broker-1")
    assert "advertised.listeners" not in second


def test_port_that_was_free_is_kept() -> None:
    broker = derive({**FILE, "listeners": "PLAINTEXT://:0,SSL://127.0.0.1:0,EXTRA://:9392"}, 2, host="h")[1]
    assert broker.overrides["listeners"] == "PLAINTEXT://:0,SSL://127.0.0.1:0,EXTRA://:9393"
    again = broker.at("PLAINTEXT://kafka1:4711,SSL://kafka1:4712,EXTRA://kafka1:9393")
    assert again.overrides["listeners"] == "PLAINTEXT://:4711,SSL://127.0.0.1:4712,EXTRA://:9393"
    assert again.overrides["log.dirs"] == broker.overrides["log.dirs"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"broker.id": ""}, "broker.id must be set"),
        ({"broker.id": "-1"}, "broker.id must be set"),
        ({"listeners": "PLAINTEXT://host"}, "has no port"),
        ({"listeners": "PLAINTEXT://:65535"}, "no port 65536 for broker 2"),
    ],
)
def test_file_that_cannot_serve_several_brokers_is_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        derive({**FILE, **change}, 2, host="h")


def test_metrics_of_all_brokers_are_one_page() -> None:
    page = '# HELP bytes Bytes.\n# TYPE bytes counter\nbytes{topic="a b"} 3\n# HELP up Up.\n# TYPE up gauge\nup 1\n'
    merged = merge({1: page, 2: page.replace("3", "4")})
    assert merged == (
        '# HELP bytes Bytes.\n# TYPE bytes counter\nbytes{broker="1",topic="a b"} 3\nbytes{broker="2",topic="a b"} 4\n'
        '# HELP up Up.\n# TYPE up gauge\nup{broker="1"} 1\nup{broker="2"} 1\n'
    )
