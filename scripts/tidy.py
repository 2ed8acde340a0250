"""Find words that make a reader stumble, in comments, docstrings, messages and names.

    python -m scripts.tidy                       # counts by pattern and by room
    python -m scripts.tidy src/barnabas/client   # each hit in a folder or a file

docs/style.md says what to write instead. `tests/unit/test_tidy.py` keeps the counts from rising.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: Written by a program or by other people, or lists of the words themselves.
NOT_OURS = (
    "src/barnabas/wire/messages/",
    "src/barnabas/services/console/static/vendor/",
    "tests/golden/",
    "tests/unit/test_tidy.py",
    "scripts/tidy.py",
)
_WHAT = r"[Ww]hat (?:is|was|were|are|has|had|came|comes|goes|stands|lies|nobody|others|it|a|an) [^?\n]*$"
_START = r"(?:^|(?<=[.:;,?!(] )|(?<=\"))"

PATTERNS = {
    # A clause stands where the sentence needs a subject: name the client, the follower, the request, the record.
    "headless who": re.compile(
        rf"{_START}(?:And |But |So )?[Ww]ho (?!\w+\?)[^?\n]*$|\b[Ww]hoever\b|\b[Ww]hose is\b", re.M
    ),
    "headless what": re.compile(rf"{_START}(?:And |But |So )?{_WHAT}", re.M),
    # One verb for notify, report, announce, return and print.
    "told": re.compile(r"\btold\b|\b[Tt]ells? of\b"),
    # "X is not valid: use a or b".
    "is none": re.compile(r"(?<![Tt]here )\b(?:is|are|was|were|be|that's) none\b"),
    # A field comment without its subject.
    "fragment": re.compile(r"^#: (?:Its|Of|And|For so|For all|By whom|To whom|In which|From which)\b"),
    "anew": re.compile(r"\banew\b"),
    "under way": re.compile(r"\bunder way\b"),
    "nobody": re.compile(r"\b(?:[Ss]ome|[Nn]o)body\b"),
    "by chance": re.compile(
        r"\bby chance\b|\bin the lead\b|\b(?:its|their) word (?:is|counts|holds)\b|\bat most by itself\b"
    ),
}
#: Names that say nothing: of functions, classes, parameters and variables.
NAMES = re.compile(
    r"(?:^|_)(?:told|anew|whoever|who|nobody|somebody|under_way)(?:_|$)|^test_what_|(?<!there)_(?:is|are)_no_(?!longer|larger)|_is_none_|_that_are_none|^is_so$"
)
#: A file without any of these has no hits. Most files have none, and this is faster than reading them as Python.
SUSPECT = re.compile(
    rf"\b[Ww]ho\b(?! \w+\?)[^?\n]*$|\b{_WHAT}"
    r"|hoever|hose is|\b[Tt]ells? of|\bnone\b|#: (?:Its|Of|And|For so|For all|By whom|To whom|In which|From which)\b"
    r"|told|anew|under.way|[Ss]omebody|[Nn]obody|by chance|in the lead|word (?:is|counts|holds)|at most by itself"
    r"|(?<![a-z])who(?![a-z ])|test_what_|_(?:is|are)_no_|\bis_so\b",
    re.M,
)
#: The beginning of a function, or of what stands behind one.
BEGINNING = re.compile(r"( *)(?:(def |async def )|class |@)")


class Hit(NamedTuple):
    path: Path
    line: int
    pattern: str
    text: str


def hits_in(path: Path) -> Iterator[Hit]:
    source = path.read_text()
    if path.suffix == ".py" and not SUSPECT.search(source):
        return
    tree = ast.parse(source) if path.suffix == ".py" else None
    for line, text in _prose(source, tree):
        for pattern, expression in PATTERNS.items():
            for found in expression.finditer(text):
                at = line + text.count("\n", 0, found.start())
                shown = text.splitlines()[text.count("\n", 0, found.start())].strip() if text else text
                yield Hit(path, at, pattern, shown)
    if tree is not None:
        for line, name in _names(tree):
            if NAMES.search(name):
                yield Hit(path, line, "name", name)


def _prose(source: str, tree: ast.Module | None) -> Iterator[tuple[int, str]]:
    if tree is None:
        yield 1, source
        return
    if _may_have_hits_in_comments(source):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], _comment(token.string)
    for node in ast.walk(tree):
        # A key, an option or a name is one word; a message and a docstring are several.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _comment(text: str) -> str:
    return ("#: " if text.startswith("#:") else "") + text.lstrip("#: ")


def _may_have_hits_in_comments(source: str) -> bool:
    """Most files have none, and the tokenizer takes most of the time. A `#` may also stand in a string."""
    texts = [_comment(line[at:]) for line in source.splitlines() for at, char in enumerate(line) if char == "#"]
    return any(expression.search(text) for text in texts for expression in PATTERNS.values())


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def long_functions(path: Path, lines_max: int) -> Iterator[str]:
    source = path.read_text()
    if not _may_have_function_longer_than(lines_max, source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > lines_max:
                yield f"{path}:{node.lineno} {node.name}"


def _may_have_function_longer_than(lines_max: int, source: str) -> bool:
    """A function ends before the next function, class or decorator that is not indented more than it."""
    open_functions: list[tuple[int, int]] = []
    lines = source.splitlines()
    for number, line in enumerate([*lines, "@ the end"]):
        if beginning := BEGINNING.match(line):
            indent = len(beginning[1])
            while open_functions and open_functions[-1][0] >= indent:
                if number - open_functions.pop()[1] > lines_max:
                    return True
            if beginning[2]:
                open_functions.append((indent, number))
    return False


def ours(*places: Path, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    for place in map(Path.resolve, places):
        root = f"{ROOT}/" if place.is_relative_to(ROOT) else ""
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            relative = str(path).removeprefix(root)
            if path.suffix in suffixes and "__pycache__" not in path.parts and not relative.startswith(NOT_OURS):
                yield path


def count(*places: Path, suffixes: tuple[str, ...] = (".py",)) -> Counter[str]:
    return Counter(hit.pattern for path in ours(*places, suffixes=suffixes) for hit in hits_in(path))


def main(arguments: list[str]) -> None:
    if arguments:
        for path in ours(*map(Path, arguments), suffixes=(".py", ".md")):
            for hit in sorted(set(hits_in(path))):
                print(f"{hit.path}:{hit.line}: [{hit.pattern}] {hit.text[:160]}")
        return
    rooms = [path for path in sorted((ROOT / "src/barnabas").iterdir()) if path.is_dir() and path.name != "__pycache__"]
    for room in [*rooms, ROOT / "tests/unit", ROOT / "tests", ROOT / "bench", ROOT / "scripts"]:
        counts = count(room)
        print(f"{room.relative_to(ROOT)!s:28} {counts.total():5}  {dict(counts.most_common())}")
    counts = count(ROOT / "docs", ROOT / "README.md", suffixes=(".md",))
    print(f"{'docs':28} {counts.total():5}  {dict(counts.most_common())}")


if __name__ == "__main__":
    main(sys.argv[1:])
