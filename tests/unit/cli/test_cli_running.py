"""How `barnabas status` and `down` find the clusters of this machine."""

from barnabas.cli.running import Running

SAID = {
    "pid": 1,
    "folder": "/data",
    "bootstrap": "127.0.0.1:9092",
    "zookeeper": "127.0.0.1:2181",
    "brokers": 3,
    "secure": False,
    "started_s": 1.0,
}


def test_cluster_of_an_older_release_that_says_less_is_known() -> None:
    assert Running.of(SAID).console is None


def test_cluster_of_a_newer_release_that_says_more_is_known() -> None:
    assert Running.of({**SAID, "console": "http://127.0.0.1:8080", "moon": "full"}).console == "http://127.0.0.1:8080"
