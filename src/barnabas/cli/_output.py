"""How tools print.

If stdout is a file or a pipe, a tool prints what Kafka's tool prints, to the byte where scripts may depend on it. On a
terminal, tables get a frame. `--json` prints one JSON document.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence

from barnabas.cli._command import printable

#: Indent of the continuation lines of a folded row.
_FOLD = "    "


def say(line: str = "") -> None:
    write(line + "\n")


def write(text: str) -> None:
    """To standard output: as it is in a file or a pipe, without control characters on a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def say_fields(line: str) -> None:
    """Print tab-separated fields as Kafka does.

    A line that does not fit the terminal is folded between fields, and fields without a value are left out.
    """
    columns = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or len(line.expandtabs()) <= columns:
        say(line)
        return
    indent = "  " * (len(line) - len(line.lstrip("\t")))
    folded = indent
    for field in (field.strip() for field in line.split("\t")):
        if not field or field.endswith(":"):
            continue
        if folded.strip() and len(folded) + len(field) > columns:
            say(folded.rstrip())
            folded = indent + _FOLD
        folded += field + "  "
    say(folded.rstrip())


def say_json(document: object) -> None:
    say(json.dumps(document, indent=2, ensure_ascii=False))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], plain: Callable[[], None] | None = None) -> None:
    """On a terminal, print a table that fits its width: framed if there is room, else unframed and folded between columns.
    Elsewhere call `plain()`, or print columns as wide as their widest cell. No cell is ever cut."""
    if plain is not None and not sys.stdout.isatty():
        plain()
        return
    rows = [tuple(_cell(text) for text in row) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        for row in (tuple(headers), *rows):
            say(" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.cells import cell_len

    columns = shutil.get_terminal_size().columns
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    # Each column needs a blank on both sides and a line; the last column has one more line.
    if 1 + sum(3 + width for width in widths) > columns:
        for row in (tuple(headers), *rows):
            padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            for line in _folded(padded, widths, columns):
                say(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    framed = Table(header_style="bold")
    for header in headers:
        framed.add_column(header, no_wrap=True)
    for row in rows:
        framed.add_row(*(Text(cell) for cell in row))
    Console(width=columns).print(framed)


def _cell(text: str) -> str:
    """Format a cell on one line: a line end in a name would look like another row."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _folded(cells: Sequence[str], widths: Sequence[int], columns: int) -> list[str]:
    """Fold one row. All rows fold at the same columns, so that the columns stay aligned."""
    lines, used = [""], 0
    for cell, width in zip(cells, widths, strict=True):
        if used and used + 1 + width > columns:
            lines.append(_FOLD)
            used = len(_FOLD)
        elif used:
            lines[-1] += " "
            used += 1
        lines[-1] += cell
        used += width
    return [line.rstrip() for line in lines]
