"""The rules of docs/style.md that a program can check. Each count may only fall."""

import re
from functools import cache
from pathlib import Path

import pytest
from scripts import tidy

ROOT = Path(__file__).parents[2]
ROOMS = sorted(path.name for path in (ROOT / "src/barnabas").iterdir() if (path / "__init__.py").exists())
#: Lines that match a pattern of `scripts.tidy`. Lower a number when you have lowered its count.
WORDS_MAX = {
    "src/barnabas/base": 0,
    "src/barnabas/broker": 0,
    "src/barnabas/cli": 0,
    "src/barnabas/client": 0,
    "src/barnabas/services": 1,
    "src/barnabas/spark": 0,
    "src/barnabas/testing": 0,
    "src/barnabas/wire": 0,
    "src/barnabas/zookeeper": 1,
    "bench": 0,
    "scripts": 0,
    "tests": 14,
}
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
#: Longer than they should be; a module leaves this list when it is split.
LONG_MODULES: frozenset[str] = frozenset()
LONG_FUNCTIONS_MAX = 7


def test_every_room_is_counted() -> None:
    assert {f"src/barnabas/{room}" for room in ROOMS} <= set(WORDS_MAX)


@pytest.mark.parametrize("place", WORDS_MAX)
def test_plain_words(place: str) -> None:
    found = sum(tidy.count(ROOT / place).values())
    assert found <= WORDS_MAX[place], f"see docs/style.md, and `python -m scripts.tidy {place}` for the lines"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("# Whoever does not lead need not ask.", "headless who"),
        ("# Who waits is told.", "headless who"),
        ('"""What is left waits for the next leader."""', "headless what"),
        ('raise ValueError(f"acks={acks} is none of all, 0, 1")', "is none"),
        ("#: Its first.", "fragment"),
        ("# The task is under way.", "under way"),
        ("# Nobody reads this.", "nobody"),
        ("told = 1", "name"),
        ("def test_what_is_written_is_read(): ...", "name"),
    ],
)
def test_pattern_is_found(text: str, pattern: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(text + "\n")
    assert pattern in {hit.pattern for hit in tidy.hits_in(module)}


@pytest.mark.parametrize(
    "text", ["# There is none.", '"""Which client sent it?"""', "# The broker that leads answers.", '"""Who is it?"""']
)
def test_plain_sentence_is_not_a_hit(text: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(text + "\n")
    assert list(tidy.hits_in(module)) == []


@cache
def modules(room: str = "src/barnabas") -> list[Path]:
    return list(tidy.ours(ROOT / room))


def test_modules_are_short() -> None:
    long = {str(path.relative_to(ROOT)) for path in modules() if len(path.read_text().splitlines()) > MODULE_LINES_MAX}
    assert long <= LONG_MODULES


def test_functions_are_short() -> None:
    long = [found for path in modules() for found in tidy.long_functions(path, FUNCTION_LINES_MAX)]
    assert len(long) <= LONG_FUNCTIONS_MAX, long


def test_long_function_is_found(tmp_path: Path) -> None:
    body = "    x = 1\n" * FUNCTION_LINES_MAX
    for name, source, long in (
        ("last", f"def last():\n{body}", ["last"]),
        ("short", f"def short():\n{body}".removesuffix("    x = 1\n"), []),
        (
            "nested",
            f"class A:\n    def outer(self):\n        def inner():\n            pass\n\n{body}\n\nx = 1\n",
            ["outer"],
        ),
        ("followed", f"async def followed():\n{body}\n\n@decorator\ndef next():\n    pass\n", ["followed"]),
    ):
        module = tmp_path / f"{name}.py"
        module.write_text(source.replace("    x = 1", "        x = 1") if name == "nested" else source)
        assert [found.split()[-1] for found in tidy.long_functions(module, FUNCTION_LINES_MAX)] == long


#: What was once written several times, as a pattern of its code: how many files of the room may have it.
ONE_HOME = {
    "the depth of JSON": ("src/barnabas", r"^_?DEPTH_MAX\b.* = ", 1),
    "the end of the last whole batch": ("src/barnabas", r"def _?whole_batches", 1),
    "a mapping with a bound": ("src/barnabas", r"\bOrderedDict\(", 1),
    "pauses that grow": ("src/barnabas", r"def doubled\(|_s = min\(2 \* ", 2),  # also `share_coordinator.persister`
    "the nearest name": ("src/barnabas", r"\bget_close_matches\(", 1),
    "a blocking HTTP client": ("src/barnabas", r"^ *import urllib\.request", 2),  # also `cli.host.supervisor`
    "waiting on the loop of a test": ("tests", r"^ *async def (?:wait_)?until\(|^async def eventually\(", 1),
    "polling on the loop of a test": ("tests/unit", r"^ +while (?!.*await).*:\n +await asyncio\.sleep\(0\.0\d+\)\n", 0),
}


@pytest.mark.parametrize("idea", ONE_HOME)
def test_each_idea_has_one_home(idea: str) -> None:
    room, pattern, homes_max = ONE_HOME[idea]
    homes = [path for path in modules(room) if re.search(pattern, path.read_text(), re.M)]
    assert len(homes) <= homes_max, homes
