"""Console producer and consumer, perf tests, and what other tools say of the records."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.testing import wait_until
from tests.scenarios.tools.conftest import Tool


def test_lines_go_in_and_come_out(process: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    process("console-producer", "--topic", topic, stdin="one\ntwo\nthree")
    read = process("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "3")
    assert read.lines == ["one", "two", "three"]
    assert read.err == "Processed a total of 3 messages\n"


def test_keys_headers_and_nulls_survive(process: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    parse = [f"--property={name}=true" for name in ("parse.key", "parse.headers")]
    process(
        "console-producer",
        "--topic",
        topic,
        *parse,
        "--property=null.marker=NULL",
        stdin="h:1,i:2\tk\tv\nNULL\tk\tNULL\n",
    )
    show = [f"--property=print.{name}=true" for name in ("key", "headers", "offset", "partition")]
    read = process("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", *show)
    assert read.lines == [
        "Partition:0\tOffset:0\th:1,i:2\tk\tv",
        "Partition:0\tOffset:1\tNO_HEADERS\tk\tnull",
    ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(process: Tool, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic(replicas=1)
    lines = "\n".join(f"line {n}" for n in range(500))
    process("console-producer", "--topic", topic, "--compression-codec", codec, stdin=lines)
    read = process("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "500")
    assert read.out.strip() == lines


def test_one_partition_from_an_offset(process: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    process("console-producer", "--topic", topic, "--sync", stdin="a\nb\nc\n")
    partition = ["--topic", topic, "--partition", "0", "--timeout-ms", "600"]
    assert process("console-consumer", *partition, "--offset", "1").lines == ["b", "c"]
    assert process("console-consumer", *partition, "--offset", "earliest").lines == ["a", "b", "c"]
    assert process("console-consumer", *partition).lines == []


def test_group_goes_on_where_it_was_and_its_lag_shows(
    process: Tool, tool: Tool, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    group = f"g-{topic}"
    process(
        "console-producer",
        "--topic",
        topic,
        "--property=parse.key=true",
        stdin="".join(f"k{n}\tv{n}\n" for n in range(10)),
    )
    in_group = ["--topic", topic, "--group", group, "--from-beginning"]
    first = process("console-consumer", *in_group, "--max-messages", "4").lines
    assert len(first) == 4
    rows = tool("consumer-groups", "--describe", "--group", group, "--json").json[0]["offsets"]
    assert sum(row["lag"] for row in rows) == 6
    second = process("console-consumer", *in_group, "--max-messages", "6").lines
    assert sorted(first + second) == sorted(f"v{n}" for n in range(10))
    members = tool("consumer-groups", "--describe", "--group", group, "--members", "--verbose")
    assert "has no active members" in members.err and members.out.strip() == ""
    described = tool("consumer-groups", "--describe", "--group", group)
    assert described.err == f"\nConsumer group '{group}' has no active members.\n"
    assert described.lines[1].split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]
    assert [line.split()[5] for line in described.lines[2:]] == ["0", "0"]
    assert group in tool("consumer-groups", "--list").lines
    assert any(line.split() == [group, "Empty"] for line in tool("consumer-groups", "--list", "--state").lines)
    _reset_every_way(tool, topic, group, tmp_path)
    assert "was successful" in tool("consumer-groups", "--delete", "--group", group).out
    assert "does not exist" in tool("consumer-groups", "--describe", "--group", group, status=1).out


def _reset_every_way(tool: Tool, topic: str, group: str, folder: Path) -> None:
    reset = ["--reset-offsets", "--group", group, "--topic", topic]

    def offsets() -> list[int]:
        rows = tool("consumer-groups", "--describe", "--group", group, "--json").json[0]["offsets"]
        return [row["currentOffset"] for row in rows]

    ends = offsets()
    dry = tool("consumer-groups", *reset, "--to-earliest", "--dry-run")
    assert dry.lines[1].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert [line.split() for line in dry.lines[2:]] == [[group, topic, "0", "0"], [group, topic, "1", "0"]]
    assert offsets() == ends, "a dry run changes nothing"
    tool("consumer-groups", *reset, "--to-earliest", "--execute")
    assert offsets() == [0, 0]
    tool("consumer-groups", *reset, "--shift-by", "2", "--execute")
    assert offsets() == [2, 2]
    beyond = tool("consumer-groups", *reset, "--to-offset", "999", "--execute")
    assert "is higher than latest offset" in beyond.err
    assert offsets() == ends
    tool("consumer-groups", *reset, "--by-duration", "PT1H", "--execute")
    assert offsets() == [0, 0]
    tool("consumer-groups", *reset, "--to-datetime", "2100-01-01T00:00:00.000", "--execute")
    assert offsets() == ends
    exported = tool(
        "consumer-groups", "--reset-offsets", "--group", group, "--all-topics", "--to-current", "--export", "--dry-run"
    )
    assert exported.lines[:2] == [f"{topic},0,{ends[0]}", f"{topic},1,{ends[1]}"]
    plan = folder / "plan.csv"
    plan.write_text(f"{topic},0,1\n")
    tool("consumer-groups", "--reset-offsets", "--group", group, "--from-file", str(plan), "--execute")
    assert offsets() == [1, ends[1]]
    tool("consumer-groups", "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert offsets() == [ends[1]]


def test_members_are_described_while_they_are_there(
    tool: Tool, process: Tool, new_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = new_topic(partitions=2)
    group = f"g-{topic}"
    command = [sys.executable, "-m", "barnabas", "console-consumer", "--bootstrap-server", bootstrap]
    consumer = subprocess.Popen(
        [*command, "--topic", topic, "--group", group], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        state = ("consumer-groups", "--describe", "--group", group, "--json")
        wait_until(lambda: tool(*state, status=None).json[0]["state"] == "Stable")
        head, row = tool("consumer-groups", "--describe", "--group", group, "--members", "--verbose").lines[1:]
        assert head.split() == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
        assert row.split()[0] == group
        assert row.split()[3:] == ["console-consumer", "2", f"{topic}(0,1)"]
        refused = tool(
            "consumer-groups",
            "--reset-offsets",
            "--group",
            group,
            "--topic",
            topic,
            "--to-latest",
            "--execute",
            status=1,
        )
        assert "is inactive, but the current state is Stable" in refused.err
        assert "NON_EMPTY_GROUP" in tool("consumer-groups", "--delete", "--group", group, status=1).out
    finally:
        consumer.send_signal(signal.SIGINT)
        _, errors = consumer.communicate(timeout=60)
    assert consumer.returncode == 130
    assert errors.decode() == "Processed a total of 0 messages\n"
    assert tool("consumer-groups", "--describe", "--group", group, "--json").json[0]["state"] == "Empty"


def test_offsets_are_printed_and_records_deleted(
    process: Tool, tool: Tool, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    process("console-producer", "--topic", topic, stdin="".join(f"{n}\n" for n in range(10)))
    assert tool("get-offsets", "--topic", topic).out == f"{topic}:0:10\n"
    assert tool("get-offsets", "--topic", topic, "--time", "earliest").out == f"{topic}:0:0\n"
    file = tmp_path / "delete.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}))
    deleted = tool("delete-records", "--offset-json-file", str(file))
    assert deleted.lines == [
        "Executing records delete operation",
        "Records delete operation completed:",
        f"partition: {topic}-0\tlow_watermark: 4",
    ]
    assert tool("get-offsets", "--topic", topic, "--time", "-2").out == f"{topic}:0:4\n"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 99}]}))
    assert "error: OFFSET_OUT_OF_RANGE" in tool("delete-records", "--offset-json-file", str(file), status=1).out


def test_perf_tests_print_kafkas_figures(process: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    produced = process(
        "producer-perf-test", "--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1",
        "--producer-props", "acks=1", "linger.ms=5",
    )  # fmt: skip
    assert produced.lines[-1].startswith("2000 records sent, ")
    assert produced.lines[-1].endswith(" ms 99.9th.")
    consumed = process("consumer-perf-test", "--topic", topic, "--messages", "2000")
    header, figures = consumed.lines
    assert len(header.split(", ")) == len(figures.split(", ")) == 10
    assert figures.split(", ")[4] == "2000"


def test_reader_that_goes_away_ends_the_consumer_in_silence(
    process: Tool, new_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = new_topic()
    process("console-producer", "--topic", topic, stdin="".join(f"{n}\n" for n in range(20_000)))
    consumer = subprocess.Popen(
        [sys.executable, "-m", "barnabas", "console-consumer", "--bootstrap-server", bootstrap, "--topic", topic,
         "--from-beginning", "--timeout-ms", "10000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"0\n"
    consumer.stdout.close()
    _, errors = consumer.communicate(timeout=60)
    assert consumer.returncode == 141
    assert b"Traceback" not in errors


@pytest.mark.parametrize("more", [(), ("--group", "g-of-nothing"), ("--partition", "0")])
def test_consumer_of_a_misspelt_topic_says_so_and_creates_nothing(
    tool: Tool, process: Tool, new_topic: Callable[..., str], more: tuple[str, ...]
) -> None:
    topic = new_topic()
    wrong = f"{topic}x"
    read = process("console-consumer", "--topic", wrong, "--timeout-ms", "1500", *more, status=1)
    assert f"warning: there is no topic {wrong}; did you mean {topic}? Waiting until it is created" in read.err
    assert f"error: UNKNOWN_TOPIC_OR_PARTITION: there is no topic {wrong}" in read.err
    assert wrong not in tool("topics", "--list").lines


def test_consumer_that_waits_for_a_topic_reads_it_from_its_first_record(
    tool: Tool, process: Tool, new_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = f"{new_topic()}-later"
    command = [sys.executable, "-m", "barnabas", "console-consumer", "--bootstrap-server", bootstrap, "--topic", topic]
    consumer = subprocess.Popen([*command, "--max-messages", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert consumer.stderr is not None
    assert b"Waiting until it is created" in consumer.stderr.readline()
    tool("topics", "--create", "--topic", topic, "--partitions", "1")
    process("console-producer", "--topic", topic, stdin="first\n")
    out, _ = consumer.communicate(timeout=60)
    assert (consumer.returncode, out) == (0, b"first\n")
    tool("topics", "--delete", "--topic", topic)


def test_producer_to_a_topic_that_does_not_exist_warns_before_it_creates_it(
    tool: Tool, process: Tool, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    sent = process("console-producer", "--topic", f"{topic}x", stdin="one\n")
    assert f"warning: there is no topic {topic}x; did you mean {topic}? The first record creates it" in sent.err
    assert process("console-producer", "--topic", topic, stdin="one\n").err == ""
    tool("topics", "--delete", "--topic", f"{topic}x")


def test_ctrl_c_sends_what_was_typed_and_ends_without_a_traceback(
    tool: Tool, new_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = new_topic()
    terminal, typed = pty.openpty()
    command = [sys.executable, "-m", "barnabas", "console-producer", "--bootstrap-server", bootstrap, "--topic", topic]
    producer = subprocess.Popen(
        [*command, "--timeout", "60000"], stdin=typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(typed)
    assert producer.stdout is not None
    os.write(terminal, b"one\n")
    assert producer.stdout.read(2) == b">>"  # it has taken the line and waits for the next
    producer.send_signal(signal.SIGINT)
    _, errors = producer.communicate(timeout=60)
    os.close(terminal)
    assert producer.returncode == 130
    assert errors == b""
    assert tool("get-offsets", "--topic", topic).out == f"{topic}:0:1\n"


def test_consumer_that_is_told_to_end_leaves_its_group(
    tool: Tool, new_topic: Callable[..., str], bootstrap: str
) -> None:
    """U1: whoever takes over would wait for the session to end."""
    topic = new_topic()
    group = f"g-{topic}"
    command = [sys.executable, "-m", "barnabas", "console-consumer", "--bootstrap-server", bootstrap]
    consumer = subprocess.Popen(
        [*command, "--topic", topic, "--group", group], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    state = ("consumer-groups", "--describe", "--group", group, "--json")
    wait_until(lambda: tool(*state, status=None).json[0]["state"] == "Stable")
    consumer.terminate()
    _, errors = consumer.communicate(timeout=60)
    assert consumer.returncode == 128 + signal.SIGTERM
    assert errors.decode() == "Processed a total of 0 messages\n"
    assert tool(*state).json[0]["state"] == "Empty"
