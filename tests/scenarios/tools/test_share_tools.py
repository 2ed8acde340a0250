"""The tools of share groups, against a cluster of ours."""

import asyncio

from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.share_consumer import ShareConsumer
from barnabas.client.share_session import ShareConfig
from tests.scenarios.tools.conftest import Tool


def test_console_share_consumer_prints_accepts_releases_and_rejects(tool: Tool, process: Tool, topic: str) -> None:
    group = f"{topic}-group"
    tool("topics", "--create", "--topic", topic)
    tool(
        "configs", "--alter", "--entity-type", "groups", "--entity-name", group, "--add-config",
        "share.auto.offset.reset=earliest",
    )  # fmt: skip
    process("console-producer", "--topic", topic, stdin="a\nb\nc\nd\n")
    consume = ("console-share-consumer", "--topic", topic, "--group", group)
    delivery = ("--formatter-property", "print.delivery=true")
    first = tool(*consume, *delivery, "--max-messages", "1", "--release")
    assert first.out == "Delivery:1\ta\n"
    assert first.err == "Processed a total of 1 messages\n"
    assert tool(*consume, *delivery, "--max-messages", "1").out == "Delivery:2\ta\n"
    assert tool(*consume, "--max-messages", "1", "--reject", "--property", "print.offset=true").out == "Offset:1\tb\n"
    wrong = tool(
        *consume, "--max-messages", "1", "--value-deserializer", "Integer", "--reject-message-on-error",
        "--enable-systest-events",
    )  # fmt: skip
    assert wrong.out == "shutdown_complete\n"
    assert wrong.err.startswith(f"rejected {topic}-0 offset 2: Size of data received by IntegerDeserializer is not 4\n")
    assert tool(*consume, "--timeout-ms", "5000").out == "d\n"


def test_console_share_consumer_refuses_what_does_not_go_together(tool: Tool) -> None:
    both = tool("console-share-consumer", "--topic", "t", "--release", "--reject", status=1)
    assert "At most one of --reject and --release may be specified." in both.err
    mode = ("--command-property", "share.acknowledgement.mode=implicit")
    assert "is always explicit here" in tool("console-share-consumer", "--topic", "t", *mode, status=1).err


def test_share_consumer_perf_test_prints_kafkas_figures(tool: Tool, process: Tool, topic: str) -> None:
    group = f"{topic}-group"
    tool("topics", "--create", "--topic", topic)
    tool(
        "configs", "--alter", "--entity-type", "groups", "--entity-name", group, "--add-config",
        "share.auto.offset.reset=earliest",
    )  # fmt: skip
    process("console-producer", "--topic", topic, stdin="ten bytes \n" * 300)
    measured = tool(
        "share-consumer-perf-test", "--topic", topic, "--group", group, "--num-records", "300", "--threads", "3",
        "--show-consumer-stats", "--show-detailed-stats", "--reporting-interval", "1",
        "--command-property", "max.poll.records=50", "--command-property", "share.acquire.mode=record_limit",
    )  # fmt: skip
    header, *lines, total = measured.lines
    parts = [line for line in lines if line.startswith("Share consumer ")]
    progress = [line for line in lines if " for share consumer " in line]
    assert len(parts) == 3 and progress and len(parts) + len(progress) == len(lines)
    names, figures = header.split(", "), total.split(", ")
    assert names[:2] == ["start.time", "end.time"] and len(names) == len(figures) == 7
    assert (figures[2], figures[5]) == (f"{3_000 / 1024 / 1024:.4f}", "300")
    assert sum(int(line.split(", ")[5]) for line in parts) == 300
    late = tool(
        "share-consumer-perf-test", "--topic", topic, "--group", group, "--num-records", "1", "--timeout", "300",
        "--hide-header",
    )  # fmt: skip
    assert late.lines[0].startswith(
        "WARNING: Exiting before consuming the expected number of records: timeout (300 ms)"
    )
    assert late.lines[1].split(", ")[5] == "0"


def test_share_groups_tool_describes_resets_forgets_and_deletes(tool: Tool, process: Tool, topic: str) -> None:
    group = f"{topic}-group"
    tool("topics", "--create", "--topic", topic)
    tool(
        "configs", "--alter", "--entity-type", "groups", "--entity-name", group, "--add-config",
        "share.auto.offset.reset=earliest",
    )  # fmt: skip
    process("console-producer", "--topic", topic, stdin="a\nb\nc\n")
    consume = ("console-share-consumer", "--topic", topic, "--group", group)
    assert tool(*consume, "--max-messages", "2").out == "a\nb\n"
    assert group in tool("share-groups", "--list").lines
    assert {"group": group, "state": "Empty"} in tool("share-groups", "--list", "--json").json
    assert all(each["state"] != "Empty" for each in tool("share-groups", "--list", "--state", "stable", "--json").json)
    described = tool("share-groups", "--describe", "--group", group)
    assert described.lines[1].split() == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    row = described.lines[2].split()
    # The start offset follows with the next write: the lag already counts what is done after it.
    assert (row[:3], row[4]) == ([group, topic, "0"], "1")
    assert described.err == f"Share group '{group}' has no active members.\n"
    [document] = tool("share-groups", "--describe", "--group", group, "--json").json
    assert document["state"] == "Empty"
    assert [(each["topic"], each["partition"], each["lag"]) for each in document["offsets"]] == [(topic, 0, 1)]
    assert " Empty " in tool("share-groups", "--describe", "--group", group, "--state").out
    reset = ("share-groups", "--reset-offsets", "--group", group, "--to-earliest", "--topic", topic)
    assert "No action will be performed" in tool(*reset).err
    assert tool(*consume, "--max-messages", "1").out == "c\n"
    assert tool(*reset, "--execute", "--json").json == [{"topic": topic, "partition": 0, "newOffset": 0}]
    assert tool(*consume, "--max-messages", "3").out == "a\nb\nc\n"
    assert "Successful" in tool("share-groups", "--delete-offsets", "--group", group, "--topic", topic).out
    assert tool("share-groups", "--describe", "--group", group, "--json").json[0]["offsets"] == []
    assert (
        tool("share-groups", "--delete", "--group", group).out
        == f"Deletion of requested share groups ({group}) was successful.\n"
    )
    gone = tool("share-groups", "--describe", "--group", group, status=1)
    assert gone.out == f"\nError: Share group '{group}' does not exist.\n"
    assert "GROUP_ID_NOT_FOUND" in tool("share-groups", "--delete", "--group", group, status=1).out


async def test_share_groups_tool_shows_members(tool: Tool, bootstrap: str, topic: str) -> None:
    group = f"{topic}-group"
    await asyncio.to_thread(tool, "topics", "--create", "--topic", topic)
    async with (
        AsyncClient(client_config(bootstrap, client_id="reader")) as client,
        ShareConsumer(client, ShareConfig(group_id=group), topics=[topic]) as consumer,
    ):
        async with asyncio.timeout(60):
            while not consumer.assignment:
                await consumer.poll(100)
        shown = await asyncio.to_thread(tool, "share-groups", "--describe", "--group", group, "--members", "--verbose")
        [row] = [line.split() for line in shown.lines if consumer.member_id in line]
        assert (row[0], row[3], row[4], row[6]) == (group, "reader", "1", f"{topic}(0)")
        reset = ("share-groups", "--reset-offsets", "--group", group, "--to-latest", "--topic", topic, "--execute")
        refused = await asyncio.to_thread(lambda: tool(*reset, status=1))
        assert f"Share group '{group}' is not empty" in refused.err
