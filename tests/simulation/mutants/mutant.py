"""Mutants: small defects that are put into shipping code one at a time. The simulation must notice every one.

A mutant replaces a piece of a source file when the module is loaded; nothing is written to disk. If the piece is no longer in
the file, the mutant is out of date, and a test fails.
"""

import importlib.machinery
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SOURCE = Path(__file__).parents[3] / "src" / "barnabas"


@dataclass(frozen=True, slots=True)
class Mutant:
    #: The defect, as a sentence.
    name: str
    #: Path below `src/barnabas`: the file, or a package in which exactly one file has this piece.
    where: str
    old: str
    new: str
    #: Further replacements: (where, old, new).
    also: tuple[tuple[str, str, str], ...] = ()
    #: The fixed defect that it puts back.
    finding: str = ""
    #: The profile whose worlds are likely to notice it, or the kind of trouble of the world `link` or `tier`; empty: any.
    profile: str = ""
    #: "cluster": whole brokers; "storage": logs alone, much cheaper; "link": two clusters; "tier": one with an object store;
    #: "tables": tables alone.
    world: str = "cluster"
    #: Path below `tests`: the test that notices it, if no seed has yet.
    test: str = ""
    #: Why no seed of any world can notice it.
    why: str = ""

    def find(self) -> dict[Path, str]:
        """Return the files with their mutated text."""
        found: dict[Path, str] = {}
        for where, old, new in ((self.where, self.old, self.new), *self.also):
            place = SOURCE / where
            files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
            having = [(file, text) for file in files if old in (text := found.get(file) or file.read_text())]
            if len(having) != 1 or having[0][1].count(old) != 1:
                raise LookupError(f"{self.name}: {where} must have this piece exactly once: {old!r}")
            file, text = having[0]
            found[file] = text.replace(old, new)
        return found

    def apply(self) -> None:
        """Put the mutant in. Call it before the modules are imported."""
        sources = {str(file): source for file, source in self.find().items()}
        original = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
            if loader.path in sources:
                return compile(sources[loader.path], loader.path, "exec", dont_inherit=True)
            return original(loader, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
