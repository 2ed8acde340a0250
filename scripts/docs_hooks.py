"""Convert our pages for mkdocs before it renders them. The repository shows the same text with another Markdown dialect.

* The marks of blocks that the test suite runs (`sh run`, `text output`) become plain languages.
* Diagrams become the pictures that `scripts/diagrams.py` has drawn.
* Lists may follow a paragraph without an empty line, and their parts may be indented by two or three spaces.
* Tables of settings and of metrics have a row for each with six columns: on a page of this width they are lists.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import diagrams

_MARKED = re.compile(r"^```(\w+) (?:run|tests|example|shows)$", re.MULTILINE)
_OUTPUT = re.compile(r"^```text output$", re.MULTILINE)
_TABLE = re.compile(r"^\| (?:setting|metric) \|.*\n\|[-|]+\n(?:\|.*\n)+", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")
#: The column with the meaning; the other columns are facts.
_MEANINGS = ("meaning", "what")
_ITEM = re.compile(r"^( *)([-*]|\d+\.) ")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name = Path(page.file.src_path).stem

    def picture(match: re.Match[str]) -> str:
        svg = (diagrams.PICTURES / diagrams.picture_name(name, match[1])).read_text().strip()
        return f'<div class="diagram" markdown="0">\n{svg}\n</div>'

    markdown = diagrams.FENCE.sub(picture, markdown)
    markdown = _TABLE.sub(_listed, markdown)
    markdown = _OUTPUT.sub("``` { .text .output }", markdown)
    markdown = _MARKED.sub(r"```\1", markdown)
    return "\n".join(_spaced(markdown.split("\n")))


def _listed(match: re.Match[str]) -> str:
    """Convert a table to a list of definitions: the meaning, then the facts on a line. Each item can be linked to by its
    name."""
    names, _, *rows = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in match[0].splitlines()]
    meaning = next((names.index(name) for name in names if name in _MEANINGS), -1)
    if meaning < 0 or len(names) < 4:
        return match[0]
    lines = []
    for cells in rows:
        facts = [
            cell if name == "type" else f"{name} {cell}"
            for place, (name, cell) in enumerate(zip(names, cells, strict=True))
            if place not in (0, meaning) and cell not in ("", "–")
        ]
        lines += [
            f'<a id="{cells[0].strip("`")}"></a>{cells[0]}',
            ":   " + cells[meaning].replace("\\|", "|"),
            "",
            "    " + " · ".join(facts).replace("\\|", "|") + "\n    {: .facts }" if facts else "",
            "",
        ]
    return "\n".join(lines)


def _spaced(lines: list[str]) -> list[str]:
    """Convert lists for this renderer: an empty line before the first item, four spaces per level."""
    spaced: list[str] = []
    in_fence = False
    #: Indentation of the open items, outermost first, with the width of their mark.
    levels: list[tuple[int, int]] = []
    was_in_list = False
    for line in lines:
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        item = None if in_fence else _ITEM.match(line)
        indent = len(line) - len(line.lstrip(" "))
        if item:
            while levels and indent < levels[-1][0] + levels[-1][1]:
                levels.pop()
            if not levels and spaced and spaced[-1].strip() and not _ITEM.match(spaced[-1]) and not was_in_list:
                spaced.append("")
            levels.append((indent, len(item[0]) - indent))
            spaced.append("    " * (len(levels) - 1) + line.lstrip(" "))
        elif levels and line.strip() and indent >= levels[0][0] + levels[0][1]:
            while indent < levels[-1][0] + levels[-1][1]:
                levels.pop()
            spaced.append("    " * len(levels) + line[levels[-1][0] + levels[-1][1] :])
        else:
            if line.strip() and not in_fence:
                levels = []
            spaced.append(line)
        was_in_list = bool(levels)
    return spaced
