"""Seeds that have failed, kept in a folder: they run first the next time. Their stories lie beside them."""

from pathlib import Path

from barnabas.testing.simulation.running import Report

#: Seeds that are kept of one test; the oldest go.
SEEDS_MAX = 50


class KeptSeeds:
    def __init__(self, folder: Path | None, name: str) -> None:
        self._folder = folder
        self._name = name

    def _file(self, ending: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{self._name}{ending}"

    def seeds(self) -> list[int]:
        """Return the seeds that have failed, the newest first."""
        file = self._file(".seeds")
        if file is None or not file.exists():
            return []
        lines = file.read_text().split()
        return [int(line) for line in reversed(lines[-SEEDS_MAX:]) if line.isdigit()]

    def add(self, seed: int) -> None:
        file = self._file(".seeds")
        if file is None:
            return
        seeds = [each for each in reversed(self.seeds()) if each != seed]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{each}\n" for each in [*seeds, seed][-SEEDS_MAX:]))

    def keep_story(self, report: Report) -> Path | None:
        """Write the whole story; return where it lies."""
        file = self._file(f".{report.seed}.story")
        if file is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{when_s:10.3f}  {subject:<12} {what}\n" for when_s, subject, what in report.story))
        return file
