"""`simulation.run` and its world: time, processes, networks; refused calls."""

import os
import subprocess
import sys
from typing import Any

import pytest

from barnabas.testing import simulation
from tests.simulation.api import applications

HOUR: dict[str, Any] = {"brokers": 1, "faults": "calm", "virtual_minutes": 60}


def test_hour_passes_at_once_and_everything_is_the_seeds() -> None:
    first = simulation.run(applications.says_what_time_it_is, seed=3, **HOUR)
    again = simulation.run(applications.says_what_time_it_is, seed=3, **HOUR)
    other = simulation.run(applications.says_what_time_it_is, seed=4, **HOUR)
    assert not first.broken, first.trace
    assert first.result == again.result
    assert first.digest == again.digest != other.digest
    said = first.result
    assert (said["slept"], said["today"], said["in a thread"], said["host"]) == (3610, "2026-01-01", 42, "test")
    assert said["now"] == "2026-01-01T01:01:50"
    assert said["is datetime"]
    assert said["wall"] == 3710
    for name in ("uuid", "uuid1", "chance", "own chance", "bytes"):
        assert said[name] != other.result[name]


def test_same_seed_is_the_same_run_in_every_interpreter() -> None:
    program = (
        "from barnabas.testing import simulation; from tests.simulation.api import applications;"
        "report = simulation.run(applications.no_order_is_lost, seed=5, virtual_minutes=0.1);"
        "print(report.digest, report.broken, report.result)"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = simulation.run(applications.no_order_is_lost, seed=5, virtual_minutes=0.1)
    assert elsewhere == f"{here.digest} {here.broken} {here.result}\n"


@pytest.mark.parametrize(
    "what",
    [
        "threading.Thread",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "writing the file",
        "sqlite3.connect",
        "confluent_kafka.Producer",
        "asyncio.run",
        "os.remove",
        "TLS",
    ],
)
def test_calls_that_cannot_be_simulated_are_refused_by_name(what: str) -> None:
    report = simulation.run(applications.does, seed=0, brokers=1, faults="calm", what=what)
    assert report.broken == "an application makes only calls that can be simulated"
    assert f"{what}" in report.message
    assert "cannot be simulated: " in report.message
    assert "applications.py" in report.message


def test_streams_talk_and_fall_silent() -> None:
    report = simulation.run(applications.talks_over_streams, brokers=1, faults="calm")
    assert not report.broken, report.message + report.trace
    assert report.result == ["HELLO\nWORLD\n", "silence", "refused"]


def test_processes_live_by_hand() -> None:
    report = simulation.run(applications.lives, brokers=1, faults="calm")
    assert report.result == [
        "worker begins",
        "killed",
        "worker begins",
        "worker crashes",
        "worker cleans up",
        "worker begins",
        "1 crash",
        "worker begins",
    ]
    assert ("worker", "crashes: RuntimeError: on purpose") in [
        (subject, what.partition(", at")[0]) for _, subject, what in report.story
    ]


def test_brokers_go_and_come_back_by_hand() -> None:
    report = simulation.run(applications.fails_with_two_brokers_away, faults="calm", virtual_minutes=0.5)
    assert not report.broken, report.message + report.trace


def test_services_answer_and_lose_answers() -> None:
    report = simulation.run(applications.loses_answers, brokers=1, faults="calm")
    assert report.result == {
        "events": ["201 {'orders': 1}", "RemoteProtocolError", "AnswerLost", "Duplicate"],
        "asked": [("POST", "/orders", {"dish": "soup"}), ("POST", "/orders", {"dish": "bread"})],
        "soup": 1,
        "counted": 20,
        "conflicts": True,
    }, report.trace


def test_two_processes_that_own_the_same_are_found() -> None:
    report = simulation.run(applications.two_work_at_once, brokers=1, faults="calm")
    assert report.broken == "one process at a time"
    assert "third begins with orders-0, on which second works" in report.message
