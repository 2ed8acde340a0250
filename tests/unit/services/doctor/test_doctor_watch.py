"""`barnabas doctor --watch`: what begins, and what is over."""

import json
import re
from collections.abc import Iterator

import pytest

from barnabas.cli import doctor
from barnabas.cli.main import app
from barnabas.services.doctor.finding import Finding, Severity
from tests.support.command_line import CliRunner

GONE = Finding(Severity.ERROR, "partitions-offline", "cluster", "1 partition has no leader", "start it", "no writes")
SLOW = Finding(Severity.NOTE, "zookeeper-slow", "ZooKeeper", "answers after 2.0 s", "look at its disk")
HERE = Finding(Severity.NOTE, "log-dirs-in-tmp", "brokers 1, 2", "data is in /tmp", "fine for a try")
THERE = Finding(Severity.NOTE, "log-dirs-in-tmp", "brokers 1, 2, 3", "data is in /tmp", "fine for a try")
SLOWER = Finding(Severity.NOTE, "zookeeper-slow", "ZooKeeper", "answers after 3.0 s", "look at its disk")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five looks, then Ctrl-C."""
    seen: Iterator[list[Finding]] = iter([[], [GONE, SLOW, HERE], [GONE, SLOWER, HERE], [SLOWER, THERE], [THERE]])
    monkeypatch.setattr(doctor, "_look", lambda files, config: (next(seen), 3))
    pauses = iter([None, None, None, None])

    def sleep(seconds: float) -> None:
        if next(pauses, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr(doctor.time, "sleep", sleep)


@pytest.mark.usefixtures("looks")
def test_watching_prints_each_change_once() -> None:
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", "localhost:1", "--watch", "1"])
    assert result.exit_code == 130
    lines = [re.sub(r"^20.*Z$", "(time)", line) for line in result.stdout.splitlines()]
    assert lines == [
        "(time)",
        "nothing is wrong with these 3 brokers",
        "(time)",
        "ERROR   cluster: 1 partition has no leader",
        "        means: no writes",
        "        do:    start it",
        "NOTE    ZooKeeper: answers after 2.0 s",
        "        do:    look at its disk",
        "NOTE    brokers 1, 2: data is in /tmp",
        "        do:    fine for a try",
        "(time)",
        "OVER    cluster: 1 partition has no leader",
        "nothing is wrong with these 3 brokers",
        "(time)",
        "OVER    ZooKeeper: answers after 3.0 s",
    ]


@pytest.mark.usefixtures("looks")
def test_watching_in_json_is_an_object_a_line() -> None:
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", "localhost:1", "--watch", "1", "--json"])
    changes = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["change"], each["check"]) for each in changes] == [
        ("begins", "partitions-offline"),
        ("begins", "zookeeper-slow"),
        ("begins", "log-dirs-in-tmp"),
        ("over", "partitions-offline"),
        ("over", "zookeeper-slow"),
    ]


def test_one_broker_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """H21: "these 1 brokers"."""
    monkeypatch.setattr(doctor, "_look", lambda files, config: ([], 1))
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", "localhost:1"])
    assert (result.exit_code, result.stdout) == (0, "nothing is wrong with this broker\n")
