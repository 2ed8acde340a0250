"""`barnabas doctor --watch`: what begins, and what is over."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from barnabas.cli import doctor
from barnabas.cli.main import app
from barnabas.doctor.finding import Finding, Severity

GONE = Finding(Severity.ERROR, "partitions-offline", "cluster", "1 partition has no leader", "start it", "no writes")
SLOW = Finding(Severity.NOTE, "zookeeper-slow", "ZooKeeper", "answers after 2.0 s", "look at its disk")
SLOWER = Finding(Severity.NOTE, "zookeeper-slow", "ZooKeeper", "answers after 3.0 s", "look at its disk")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four looks, then Ctrl-C."""
    seen: Iterator[list[Finding]] = iter([[], [GONE, SLOW], [GONE, SLOWER], [SLOWER]])
    monkeypatch.setattr(doctor, "_look", lambda files, config: (next(seen), 3))
    pauses = iter([None, None, None])

    def sleep(seconds: float) -> None:
        if next(pauses, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr(doctor.time, "sleep", sleep)


@pytest.mark.usefixtures("looks")
def test_watching_tells_each_change_once() -> None:
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", "localhost:1", "--watch", "1"])
    assert result.exit_code == 130
    lines = [line.partition("Z ")[2] or line for line in result.stdout.splitlines() if not line.endswith("Z")]
    assert lines == [
        "nothing is wrong with these 3 brokers",
        "ERROR   cluster: 1 partition has no leader",
        "        means: no writes",
        "        do:    start it",
        "NOTE    ZooKeeper: answers after 2.0 s",
        "        do:    look at its disk",
        "over: cluster: 1 partition has no leader",
    ]


@pytest.mark.usefixtures("looks")
def test_watching_in_json_is_an_object_a_line() -> None:
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", "localhost:1", "--watch", "1", "--json"])
    changes = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["change"], each["check"]) for each in changes] == [
        ("begins", "partitions-offline"),
        ("begins", "zookeeper-slow"),
        ("over", "partitions-offline"),
    ]
