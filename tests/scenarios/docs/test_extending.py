"""docs/extending.md: its changes are applied to a copy of the source, and the programs that demonstrate them run."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "extending.md").read_text()

_BLOCK: Final = re.compile(r"^([^\n]+):\n```(?:python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEW: Final = re.compile(r"A new file, `([^`]+)`")
_EDIT: Final = re.compile(r"In `([^`]+)`, (below|above|instead of) `(.+)`")
_SHOWN: Final = "This shows it"


@dataclass
class Edit:
    file: str
    #: below, above or instead of the anchor; empty for a new file.
    place: str
    anchor: str
    text: str

    def apply(self, root: Path) -> None:
        path = root / self.file
        if not self.place:
            assert not path.exists(), f"{self.file} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        assert f"{self.anchor}\n" in lines, f"{self.file} has no line {self.anchor!r}"
        at = lines.index(f"{self.anchor}\n")
        stop = at + 1 if self.place == "instead of" else at if self.place == "above" else at + 1
        start = at if self.place == "instead of" else stop
        lines[start:stop] = [self.text]
        path.write_text("".join(lines))


@dataclass
class Example:
    title: str
    touches: list[str]
    edits: list[Edit] = field(default_factory=list)
    program: str = ""


def examples() -> list[Example]:
    found = []
    for section in TEXT.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        [touches] = re.findall(r"^It touches: (.+)\.$", body, re.MULTILINE)
        example = Example(title, re.findall(r"`([^`]+)`", touches))
        for sentence, code in _BLOCK.findall(body):
            if sentence == _SHOWN:
                example.program = code
            elif new := _NEW.fullmatch(sentence):
                example.edits.append(Edit(new[1], "", "", code))
            else:
                edit = _EDIT.fullmatch(sentence)
                assert edit is not None, f"{title}: nobody knows what to do with {sentence!r}"
                example.edits.append(Edit(edit[1], edit[2], edit[3], code))
        found.append(example)
    return found


EXAMPLES = examples()


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the source and the documents with every change of the page."""
    root = tmp_path_factory.mktemp("extended")
    for part in ("src", "docs", "scripts"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for example in EXAMPLES:
        for edit in example.edits:
            edit.apply(root)
    return root


def run(root: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_has_all_examples() -> None:
    assert [example.title for example in EXAMPLES] == [
        "A topic setting",
        "An API",
        "A feature of a broker",
        "A metric",
        "A tool",
        "A check of the doctor",
        "A Spark option",
        "A SASL mechanism",
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_example_names_every_file_that_it_touches(example: Example) -> None:
    assert {edit.file for edit in example.edits} <= set(example.touches)
    made = {edit.file for edit in example.edits if not edit.place}
    assert [path for path in example.touches if path not in made and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_example_does_what_it_says(example: Example, changed: Path) -> None:
    assert example.program
    run(changed, sys.executable, "-c", example.program)


def test_changed_source_passes_the_linter_and_its_settings_and_tools_are_documented(changed: Path) -> None:
    files = {edit.file for example in EXAMPLES for edit in example.edits if edit.file.endswith(".py")}
    run(changed, sys.executable, "-m", "ruff", "check", *sorted(files))
    run(changed, sys.executable, "scripts/generate_config_doc.py")
    assert "`max.batch.records`" in (changed / "docs" / "configuration.md").read_text()
    run(changed, sys.executable, "scripts/generate_tools_doc.py")
    assert "`config-resources`" in (changed / "docs" / "tools.md").read_text()
    assert "`--prefix PREFIX`" in (changed / "docs" / "tool-options.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_example_fails_without_its_change(example: Example) -> None:
    """Otherwise the program would demonstrate nothing."""
    with pytest.raises(AssertionError):
        run(ROOT, sys.executable, "-c", example.program)
