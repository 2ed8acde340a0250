"""SQL files of a project may read topics: `FROM STREAM read_topic('orders', bootstrap => 'localhost:9092')`.

Spark's SQL has no such function, and a Python function cannot be a stream. So each call becomes a temporary view of the
pipeline, made by `sources.topic`, and the text gets the view's name. The arguments are those of `sources.topic`: the name
first, the others by name; `bootstrap` is `$BARNABAS_BOOTSTRAP_SERVER` by default. Without STREAM it is a batch of all
records that the topic has now.
"""

import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePath
from typing import Any, Final

from barnabas.spark.pipelines import sources
from barnabas.spark.pipelines._flows import short

_CALL: Final = re.compile(r"(?P<stream>\bSTREAM\s*\(?\s*)?\bread_topic\s*\(", re.IGNORECASE)
_TEXT: Final = r"'(?:[^'\\]|''|\\.)*'"
_ARGUMENT: Final = re.compile(
    rf"\s*(?:(?P<name>[a-z_]+)\s*=>\s*)?(?:(?P<text>{_TEXT})|(?P<number>\d+)|(?P<truth>true|false))\s*(?P<end>[,)])",
    re.IGNORECASE | re.DOTALL,
)
#: Parts that are not code: texts, quoted names and comments.
_QUIET: Final = re.compile(rf'{_TEXT}|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/', re.DOTALL)
_ESCAPED: Final = re.compile(r"''|\\(['\\])")
_NAME: Final = r"(?:[\w.]|`[^`]+`)+"
#: Names that a statement creates or writes, and names that it reads.
_MADE: Final = re.compile(
    rf"\bCREATE\s+(?:OR\s+REFRESH\s+)?"
    rf"(?:(?P<kind>STREAMING\s+TABLE|MATERIALIZED\s+VIEW|TEMPORARY\s+VIEW|VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?(?P<name>{_NAME})"
    rf"|FLOW\s+(?P<flow>{_NAME})\s+.*?\bINSERT\s+INTO\s+(?:ONCE\s+)?(?P<target>{_NAME}))",
    re.IGNORECASE | re.DOTALL,
)
_READ: Final = re.compile(rf"\b(?:FROM|JOIN)[\s(]+(?P<stream>STREAM[\s(]+)?(?P<name>{_NAME})", re.IGNORECASE)
#: Names that a statement gives to parts of itself.
_PART: Final = re.compile(rf"(?P<name>{_NAME})\s+AS\s*\(", re.IGNORECASE)
_NO_TABLES: Final = frozenset({"select", "values", "with", "lateral"})


class BadCall(ValueError):
    """A call of read_topic that is not valid; the message begins with its line."""


@dataclass(frozen=True)
class TopicView:
    name: str
    given: Mapping[str, Any]
    is_stream: bool
    line: int

    def source(self) -> sources.Source:
        """Return the source. Call it while the view is defined, so that its consumer group is named for it."""
        bootstrap = self.given.get("bootstrap") or os.environ.get("BARNABAS_BOOTSTRAP_SERVER")
        if bootstrap is None:
            raise BadCall(f"{self.line}: read_topic needs bootstrap => 'host:port', or $BARNABAS_BOOTSTRAP_SERVER")
        try:
            return sources.topic(**{**self.given, "bootstrap": bootstrap})
        except ValueError as error:
            raise BadCall(f"{self.line}: {error}") from None


@dataclass(frozen=True)
class Statement:
    flow: str
    target: str
    is_view: bool
    line: int
    reads: frozenset[str]
    #: The names in `reads` that the statement reads as streams.
    streams: frozenset[str]


def topic_views(text: str, file: PurePath) -> tuple[str, list[TopicView]]:
    """Replace calls by the names of views; return the text and the views. Their names begin with that of `file`."""
    stem = re.sub(r"\W", "_", str(file.with_suffix("")))
    views: list[TopicView] = []
    done, at = "", 0
    quiet = _quiet(text)
    for call in _CALL.finditer(text):
        if call.start() < at or _is_in(quiet, call.start()):
            continue
        line = _line(text, call.start())
        given, end = _arguments(text, call.end(), line)
        views.append(TopicView(f"{stem}_topic_{len(views) + 1}", given, bool(call["stream"]), line))
        done += text[at : call.start()] + (call["stream"] or "") + views[-1].name
        at = end
    return done + text[at:], views


def statements(text: str) -> list[Statement]:
    """Return the statements that make flows, as far as the text shows: Spark says more only when everything is defined."""
    quiet = [span for span in _quiet(text) if text[span[0]] != "`"]
    matches = [found for found in _MADE.finditer(text) if not _is_in(quiet, found.start())]
    found = []
    for each, after in zip_longest(matches, matches[1:]):
        end = after.start() if after is not None else len(text)
        tables = [table for table in _READ.finditer(text, each.end(), end) if not _is_in(quiet, table.start())]
        own = _NO_TABLES | {short(part["name"]).lower() for part in _PART.finditer(text, each.end(), end)}
        tables = [table for table in tables if short(table["name"]).lower() not in own]
        reads = frozenset(short(table["name"]) for table in tables)
        streams = frozenset(short(table["name"]) for table in tables if table["stream"])
        target = short(each["name"] or each["target"])
        flow = short(each["flow"]) if each["flow"] else target
        is_view = bool(each["kind"]) and each["kind"].split()[0].upper() in ("TEMPORARY", "VIEW")
        found.append(Statement(flow, target, is_view, _line(text, each.start()), reads, streams))
    return found


def _quiet(text: str) -> list[tuple[int, int]]:
    return [found.span() for found in _QUIET.finditer(text)]


def _is_in(spans: list[tuple[int, int]], at: int) -> bool:
    return any(start <= at < end for start, end in spans)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _arguments(text: str, at: int, line: int) -> tuple[dict[str, Any], int]:
    given: dict[str, Any] = {}
    while True:
        found = _ARGUMENT.match(text, at)
        if found is None:
            raise BadCall(
                f"{line}: read_topic takes texts in quotes, numbers, true and false; after the first argument by name => value"
            )
        name = (found["name"] or ("" if given else "name")).lower()
        if not name or name in given:
            raise BadCall(f"{line}: read_topic takes the topic's name, and each other argument once, by name => value")
        if found["text"] is not None:
            given[name] = _ESCAPED.sub(lambda escaped: escaped[1] or "'", found["text"][1:-1])
        else:
            given[name] = int(found["number"]) if found["number"] else found["truth"].lower() == "true"
        at = found.end()
        if found["end"] == ")":
            break
    known = [name for name in inspect.signature(sources.topic).parameters if name != "options"]
    if unknown := sorted(set(given) - set(known)):
        raise BadCall(f"{line}: read_topic has no {', '.join(unknown)}; there are {', '.join(known)}")
    return given, at
