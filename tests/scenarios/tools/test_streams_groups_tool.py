"""`barnabas streams-groups`, against a cluster of ours. A member is what the tool sees of an application: its heartbeats."""

from barnabas.testing import wait_until
from tests.scenarios.tools.conftest import Tool
from tests.support.streams_member import StreamsMember


def test_tool_lists_describes_resets_and_deletes(tool: Tool, process: Tool, bootstrap: str, topic: str) -> None:
    member = StreamsMember(bootstrap, topic)
    group = ("--group", member.group)
    tool("topics", "--create", "--topic", topic, "--partitions", "2")
    at_once = "streams.initial.rebalance.delay.ms=0,streams.assignment.interval.ms=0"
    tool("configs", "--alter", "--entity-type", "groups", "--entity-name", member.group, "--add-config", at_once)
    process("console-producer", "--topic", topic, stdin="a\nb\nc\n")
    member.join()

    assert member.group in tool("streams-groups", "--list").lines
    assert {"group": member.group, "state": "Stable"} in tool("streams-groups", "--list", "--state", "--json").json
    shown = tool("streams-groups", "--describe", *group, "--members")
    assert shown.lines[1].split() == ["GROUP", "MEMBER", "PROCESS", "CLIENT-ID", "ASSIGNMENTS"]
    assert shown.lines[2].split() == [member.group, "member-1", "process-1", "counter", "ACTIVE:", "0:[0,1]"]
    verbose = tool("streams-groups", "--describe", *group, "--members", "--verbose").lines
    assert dict(zip(verbose[1].split(), verbose[2].split(), strict=False))["MEMBER-EPOCH"] == str(member.epoch)
    assert " Stable " in tool("streams-groups", "--describe", *group, "--state", "--verbose").out
    assert "NON_EMPTY_GROUP" in tool("streams-groups", "--delete", *group, status=1).out
    reset = ("streams-groups", "--reset-offsets", *group, "--all-input-topics", "--to-latest")
    assert "is not empty: stop the application first" in tool(*reset, status=1).err

    member.leave()
    assert "No action will be performed" in tool(*reset).err
    tool(*reset, "--execute")
    tool("streams-groups", "--reset-offsets", *group, "--all-input-topics", "--shift-by", "-1", "--execute")
    [document] = tool("streams-groups", "--describe", *group, "--json").json
    assert (document["state"], document["subtopologies"][0]["sourceTopics"]) == ("Empty", [topic])
    assert sum(each["logEndOffset"] for each in document["offsets"]) == 3
    assert all(each["lag"] == min(1, each["logEndOffset"]) for each in document["offsets"])
    lags = tool("streams-groups", "--describe", *group, "--verbose")
    assert lags.err == f"Streams group '{member.group}' has no active members.\n"
    assert lags.lines[1].split()[-2:] == ["LOG-END-OFFSET", "OFFSET-LAG"]
    assert "Successful" in tool("streams-groups", "--delete-offsets", *group, "--input-topic", topic).out
    [document] = tool("streams-groups", "--describe", *group, "--json").json
    assert [each["currentOffset"] for each in document["offsets"]] == [None, None]

    said = tool("streams-groups", "--delete", *group, "--delete-all-internal-topics").out
    assert said == f"Deletion of requested streams groups ('{member.group}') was successful.\n"
    wait_until(lambda: f"{member.group}-count-changelog" not in tool("topics", "--list").lines)
    gone = tool("streams-groups", "--describe", *group, status=1)
    assert gone.out == f"\nError: Streams group '{member.group}' does not exist.\n"
    assert "GROUP_ID_NOT_FOUND" in tool("streams-groups", "--delete", *group, status=1).out


def test_tool_refuses_what_does_not_go_together(tool: Tool) -> None:
    assert "Use either --input-topic or --all-input-topics" in tool(
        "streams-groups", "--reset-offsets", "--group", "g", "--to-latest", status=1
    ).err  # fmt: skip
    both = ("--group", "g", "--all-groups")
    assert "can't be used with option" in tool("streams-groups", "--describe", *both, status=1).err
    missing = tool("streams-groups", "--delete-offsets", "--group", "nobody", "--all-input-topics", status=1)
    assert "Streams group 'nobody' does not exist." in missing.err
