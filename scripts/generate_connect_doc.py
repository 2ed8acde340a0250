#!/usr/bin/env python3
"""Write the tables of docs/connect.md from the tables of connectors, converters and transforms.

With --check it writes nothing, and fails if the page is outdated.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from barnabas.spark.connect.classes import CLASSES
from barnabas.spark.connect.connector import COMMON, SINK, SOURCE
from barnabas.spark.connect.converters.table import CONVERTERS
from barnabas.spark.connect.elsewhere import ELSEWHERE
from barnabas.spark.connect.options import Option, Refused, Row, Without
from barnabas.spark.connect.transforms.table import PREDICATES, TRANSFORMS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "connect.md"
BEGIN = "<!-- tables: begin (scripts/generate_connect_doc.py writes this) -->"
END = "<!-- tables: end -->"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def cells(row: Row) -> tuple[str, str, str]:
    match row:
        case Option():
            default = f" [{row.default}]" if row.default else ""
            return row.name, f"{row.does}{default}", "required" if row.needed else "honoured"
        case Without():
            return row.name, row.why, "accepted, changes nothing"
        case Refused():
            but = f", except {' and '.join(f'`{each}`' for each in row.allowed)}" if row.allowed else ""
            return row.name, row.advice, f"refused{but}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        yield from ("It has no options.", "")
        return
    yield from ("| option | meaning | here |", "|---|---|---|")
    for row in rows:
        yield "| " + " | ".join((f"`{cells(row)[0]}`", cell(cells(row)[1]), cell(cells(row)[2]))) + " |"
    yield ""


def short(name: str) -> str:
    return name.rpartition(".")[2]


def lines() -> Iterator[str]:
    yield from ("## Classes", "", "| class | kind | what it does |", "|---|---|---|")
    for of in CLASSES:
        names = "<br>".join(f"`{each}`" for each in (of.name, *of.aliases))
        yield f"| {names} | {of.kind} | {cell(of.does)} |"
    yield ""
    yield from (
        "Another part of barnabas does the work of these classes. They are refused, with the command to run:",
        "",
    )
    yield from ("| class | instead |", "|---|---|")
    for name, elsewhere in ELSEWHERE.items():
        yield f"| `{name}` | {elsewhere.instead} |"
    yield ""
    for of in CLASSES:
        yield from (f"### {of.short}", "", *table(of.rows))
    yield from ("## Options of every connector", "", *table(COMMON))
    yield from ("### Of every sink", "", *table(SINK))
    if any(of.kind == "source" for of in CLASSES):
        yield from ("### Of every source", "", *table(SOURCE))
    yield from (
        "## Converters",
        "",
        "Their options have the prefix `key.converter.`, `value.converter.` or `header.converter.`.",
        "",
    )
    for name, kind in CONVERTERS.items():
        yield from (f"**`{name}`**", "", *table(kind.rows))
    yield from (
        "## Transforms",
        "",
        "Classes of `org.apache.kafka.connect.transforms`; those with `$Key` and `$Value` are of a key or a value. Each takes",
        "`predicate` and `negate`.",
        "",
    )
    for name, of_transform in TRANSFORMS.items():
        yield from (
            f"**`{name}{'$Key`, `' + name + '$Value' if of_transform.has_sides else ''}`**",
            "",
            *table(of_transform.rows),
        )
    yield from ("## Predicates", "", "Classes of `org.apache.kafka.connect.transforms.predicates`.", "")
    for name, predicate in PREDICATES.items():
        yield from (f"**`{name}`**", "", *table(predicate.rows))


def page(present: str) -> str:
    """Return the document with current tables; the other sections stay as they are."""
    before, begin, rest = present.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.name} has no section between {BEGIN!r} and {END!r}")
    return before + begin + "\n" + "\n".join(lines()).rstrip() + "\n" + end + after


def main() -> None:
    present = PAGE.read_text()
    wanted = page(present)
    if "--check" in sys.argv[1:]:
        if wanted != present:
            sys.exit("outdated: docs/connect.md; run scripts/generate_connect_doc.py")
        return
    PAGE.write_text(wanted)


if __name__ == "__main__":
    main()
