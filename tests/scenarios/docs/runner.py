"""Runs a document: its blocks marked ```` ```sh run ```` and ```` ```python run ````, in order, as one reader would.

Shell blocks share one bash, which stops at the first failure; a Python block is a program of its own. The bash finds only the
programs that `programs` lists: a document that needs another one fails on a bare machine. A block
```` ```text output ```` after one says what it prints: each of its lines must be there, in order, with `…` for anything.
Addresses that a document gives for a cluster on its usual ports stand for the cluster of the test.
"""

import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.scenarios.docs.programs import folder_of_programs
from tests.spark_python import spark_environment

_FENCE: Final = re.compile(r"^```(\w+) (run|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK: Final = "--- block "
#: Spark needs half a minute to start, and minutes on a busy machine.
TIMEOUT_S: Final = 500


@dataclass
class Block:
    language: str
    code: str
    #: The line of the document that it starts at.
    line: int
    expected: list[str] = field(default_factory=list)


def blocks_of(text: str) -> list[Block]:
    blocks: list[Block] = []
    for match in _FENCE.finditer(text):
        language, kind, body = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if kind == "output":
            assert blocks, f"line {line}: output of nothing"
            blocks[-1].expected += body.splitlines()
        else:
            assert language in ("sh", "python"), f"line {line}: {language} cannot be run"
            blocks.append(Block(language, body, line))
    return blocks


def run_document(document: Path, folder: Path, addresses: Mapping[str, str]) -> None:
    """Run it in `folder`; raises AssertionError that names the line of the block."""
    text = document.read_text()
    for shown, real in addresses.items():
        text = text.replace(shown, real)
    blocks = blocks_of(text)
    script = ["set -eo pipefail"]
    for number, block in enumerate(blocks):
        # The newline before it: a block may end without one.
        script.append(f"printf '\\n{_MARK}{number}\\n'")
        if block.language == "python":
            file = folder / f"block_{number}.py"
            file.write_text(block.code)
            script.append(f"python {file.name}")
        else:
            script.append(block.code)
    binaries = Path(sys.executable).parent
    programs = folder_of_programs(folder / "programs")
    environment = {"PATH": f"{binaries}:{programs}", "COLUMNS": "200", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=os.environ | environment | spark_environment(folder),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    outputs = re.split(rf"^{_MARK}\d+\n", done.stdout, flags=re.MULTILINE)[1:]
    last = blocks[len(outputs) - 1] if outputs else blocks[0]
    assert done.returncode == 0, f"{document.name}:{last.line}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    for block, output in zip(blocks, outputs, strict=True):
        missing = first_missing(block.expected, output.splitlines())
        assert missing is None, f"{document.name}:{block.line}: {missing!r} is not in\n{output}"


def first_missing(expected: list[str], printed: list[str]) -> str | None:
    """The first expected line that does not come after the ones before it."""
    lines = iter(printed)
    for wanted in expected:
        pattern = re.sub(r"([\[\]?*])", r"[\1]", wanted).replace("…", "*")
        if not any(fnmatch.fnmatchcase(line.expandtabs(1), pattern) for line in lines):
            return wanted
    return None
