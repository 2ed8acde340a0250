"""Tables on terminals of any width."""

import io
import re
import sys

import pytest

from barnabas.cli._command import complain
from barnabas.cli._output import say, say_fields, table

HEADERS = ("GROUP", "TOPIC", "CONSUMER-ID")
ROWS = [("shop", "orders", "rdkafka-1ea9b1c8-0d4e-4a0e-8d0a-000000000000"), ("東京", "[red]", "-")]
#: The width of the cells, with a blank on both sides of each, and four lines.
WIDTH = 5 + 6 + 44 + 2 * 3 + 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, stream: io.StringIO) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", stream)
    table(HEADERS, iter(ROWS), lambda: print("plain"))
    return stream.getvalue().splitlines()


def test_table_that_fits_has_a_frame_and_no_folded_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, WIDTH, Terminal())
    assert len(lines) == 3 + len(ROWS) + 1
    assert all(ROWS[0][index] in lines[3] for index in range(3))
    assert "[red]" in lines[4], "names are no markup"


def test_table_that_does_not_fit_loses_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, WIDTH - 1, Terminal()) == [
        "GROUP TOPIC  CONSUMER-ID",
        "shop  orders rdkafka-1ea9b1c8-0d4e-4a0e-8d0a-000000000000",
        "東京  [red]  -",
    ]


def test_table_on_a_narrow_terminal_is_folded_between_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns the words of a group's description were once cut in two."""
    assert shown(monkeypatch, 50, Terminal()) == [
        "GROUP TOPIC",
        "    CONSUMER-ID",
        "shop  orders",
        "    rdkafka-1ea9b1c8-0d4e-4a0e-8d0a-000000000000",
        "東京  [red]",
        "    -",
    ]


def test_table_in_a_pipe_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, 500, io.StringIO()) == ["plain"]


def fields(monkeypatch: pytest.MonkeyPatch, columns: int, stream: io.StringIO, line: str) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", stream)
    say_fields(line)
    return stream.getvalue().splitlines()


def test_line_of_fields_is_folded_between_them_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns `topics --describe` was once cut in the middle of words."""
    line = "\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,3,2\tIsr: 1,3,2\tElr: \tLastKnownElr: "
    assert fields(monkeypatch, 80, Terminal(), line) == [
        "  Topic: orders  Partition: 0  Leader: 1  Replicas: 1,3,2  Isr: 1,3,2"
    ], "without what has no value"
    assert fields(monkeypatch, 60, Terminal(), line) == [
        "  Topic: orders  Partition: 0  Leader: 1  Replicas: 1,3,2",
        "      Isr: 1,3,2",
    ]
    assert fields(monkeypatch, 200, Terminal(), line) == [line]
    assert fields(monkeypatch, 60, io.StringIO(), line) == [line], "in a pipe it is Kafka's"


def test_field_that_is_wider_than_the_terminal_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fields(monkeypatch, 20, Terminal(), "a: 1\tConfigs: " + "x" * 30) == ["a: 1", "    Configs: " + "x" * 30]


def test_long_error_is_folded_between_words_on_a_terminal_and_one_line_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    line = "error: 127.0.0.1:39465 closed the connection at the first request\nits log"
    for stream, shown in (
        (Terminal(), "error: 127.0.0.1:39465 closed the connection at\n  the first request\nits log\n"),
        (io.StringIO(), line + "\n"),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        complain(line)
        assert stream.getvalue() == shown


HOSTILE = ("\x1b[2J\x1b]0;gone\x07shop", "a\nb\tc\r", "\x9b31m\u202egpj")


@pytest.mark.parametrize("columns", [30, 300])
def test_names_of_strangers_do_not_act_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal, errors = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", errors)
    table(HEADERS, [HOSTILE])
    say_fields("\t".join(HOSTILE))
    say(HOSTILE[0])
    complain(f"no group {HOSTILE[0]}")
    shown = re.sub(r"\x1b\[[01]m", "", terminal.getvalue()) + errors.getvalue()  # the headers are bold
    assert "\\x1b[2J\\x1b]0;gone\\x07shop" in shown and "a\\nb\\tc\\r" in shown and "\\x9b31m\\u202egpj" in shown
    assert not set(shown) & set("\x1b\x07\x9b\r\u202e")


def test_a_name_with_a_line_end_makes_no_row_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Kafka's tools print no such table. Theirs are printed to the byte, for the scripts that read them."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    table(HEADERS, [HOSTILE])
    assert len(stream.getvalue().splitlines()) == 2
