"""The tools of share groups, against a cluster of ours."""

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
