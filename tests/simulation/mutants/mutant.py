"""Small wrongs, each put into what ships, one at a time: the simulation must notice every one.

A mutant is a piece of a source file and what stands there instead. It is put in when the module is loaded, so nothing of
it is on disk. A mutant whose piece is gone from its file is out of date: a test says so.
"""

import importlib.machinery
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SOURCE = Path(__file__).parents[3] / "src" / "barnabas"


@dataclass(frozen=True, slots=True)
class Mutant:
    #: What it does wrong, as a sentence.
    name: str
    #: Below `src/barnabas`: the file, or the package whose only file with this piece it is.
    where: str
    old: str
    new: str
    #: More pieces: (where, old, new).
    also: tuple[tuple[str, str, str], ...] = ()
    #: The mended defect that it puts back.
    finding: str = ""
    #: The profile of the worlds that are likely to notice it, or the trouble that a world of links or of a tier has on
    #: purpose; empty: any.
    profile: str = ""
    #: "cluster": whole brokers; "broker/storage": logs alone, much cheaper; "broker/features/link": two clusters; "tier": one with an object store.
    world: str = "cluster"
    #: Below `tests`: the test that notices it, where no seed has yet.
    test: str = ""
    #: Why no seed of any world can be expected to.
    why: str = ""

    def find(self) -> dict[Path, str]:
        """The files, and what stands in them instead."""
        found: dict[Path, str] = {}
        for where, old, new in ((self.where, self.old, self.new), *self.also):
            place = SOURCE / where
            files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
            having = [(file, text) for file in files if old in (text := found.get(file) or file.read_text())]
            if len(having) != 1 or having[0][1].count(old) != 1:
                raise LookupError(f"{self.name}: {where} does not have its piece once: {old!r}")
            file, text = having[0]
            found[file] = text.replace(old, new)
        return found

    def apply(self) -> None:
        """From now on: call it before the modules are imported."""
        sources = {str(file): source for file, source in self.find().items()}
        original = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
            if loader.path in sources:
                return compile(sources[loader.path], loader.path, "exec", dont_inherit=True)
            return original(loader, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
