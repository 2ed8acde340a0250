"""Tables on terminals of any width."""

import io
import sys

import pytest

from barnabas.cli._tool import table

HEADERS = ("GROUP", "TOPIC", "CONSUMER-ID")
ROWS = [("shop", "orders", "rdkafka-1ea9b1c8-0d4e-4a0e-8d0a-000000000000"), ("東京", "[red]", "-")]
#: The cells, a blank on both sides of each, and four lines.
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
    """At 80 columns the words of a group's description were cut in two."""
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
