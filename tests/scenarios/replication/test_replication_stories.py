"""Each `.txt` file in this folder is a story: commands, and their trace. `REWRITE=1` writes the traces again."""

import os
from pathlib import Path

import pytest

from tests.scenarios.replication.replication_stage import Stage

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def parse(text: str) -> list[tuple[list[str], str | None]]:
    """Return the blocks of a story: lines of prose and, perhaps, a command, whose trace follows it in the file."""
    blocks: list[tuple[list[str], str | None]] = []
    prose: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            prose.append(line)
            continue
        blocks.append((prose, line))
        prose = []
        if next(lines, None) != "----":
            raise ValueError(f"after {line!r} a line ---- is due")
        for trace in lines:
            if not trace.strip():
                prose.append(trace)
                break
    if prose:
        blocks.append((prose, None))
    return blocks


def play(text: str) -> str:
    stage = Stage()
    out: list[str] = []
    for prose, command in parse(text):
        out.extend(prose)
        if command is not None:
            out += [command, "----", *stage.run(command)]
    return "\n".join(out).rstrip("\n") + "\n"


def test_there_are_stories():
    assert len(STORIES) >= 12


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story_has_the_recorded_trace(story):
    recorded = story.read_text()
    played = play(recorded)
    if os.environ.get("REWRITE"):
        story.write_text(played)
    assert played == recorded
