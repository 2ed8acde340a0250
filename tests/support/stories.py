"""Stories: scenes of a machine as text, event in and effects out, compared with a file in tests/stories.

`pytest --update-stories` writes the files again. Read the difference before you commit it.
"""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "stories"


class Story:
    """Lines of one scene. Created by the fixture `story`, which compares them when the test ends."""

    def __init__(self, name: str) -> None:
        self.path = FOLDER / f"{name}.txt"
        self._lines: list[str] = []

    def title(self, text: str) -> None:
        if self._lines:
            self._lines.append("")
        self._lines.append(f"# {text}")

    def event(self, text: str) -> None:
        self._lines.append(text)

    def effect(self, text: str) -> None:
        self._lines.append(f"    {text}")

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compare(self, *, update: bool) -> None:
        if update:
            FOLDER.mkdir(exist_ok=True)
            self.path.write_text(self.text)
        assert self.path.exists(), f"{self.path} is missing: run pytest --update-stories"
        assert self.text == self.path.read_text(), (
            f"the story of {self.path.name} has changed: run pytest --update-stories"
        )
