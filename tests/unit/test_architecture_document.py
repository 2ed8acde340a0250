"""docs/ARCHITECTURE.md names modules that exist, and the layers that import-linter keeps."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
PACKAGES = {path.name for path in (ROOT / "src" / "barnabas").iterdir() if path.is_dir()}


def modules_named() -> set[str]:
    """`server.pipeline` in prose and in diagrams; not the names of settings, files or methods."""
    words = set(re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", TEXT))
    return {word for word in words if word.split(".")[0] in PACKAGES and not word.endswith((".md", ".py"))}


def test_every_module_that_is_named_exists() -> None:
    named = modules_named()
    assert len(named) > 20
    assert [name for name in sorted(named) if find_spec(f"barnabas.{name}") is None] == []


def test_layers_are_those_of_the_contract() -> None:
    [said] = re.findall(r"kept by `import-linter`: ([^.]+)\.", TEXT)
    layers = [sorted(re.findall(r"\w+", layer)) for layer in said.split(">")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [kept] = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    assert layers == [sorted(re.findall(r"barnabas\.(\w+)", layer)) for layer in kept]


def test_paths_of_a_record_a_fetch_a_commit_and_a_fail_over_are_drawn() -> None:
    for path in ("a produced record", "a fetch", "a commit", "a fail-over"):
        section = TEXT.partition(f"## The path of {path}\n")[2].partition("\n## ")[0]
        assert "```mermaid\nsequenceDiagram\n" in section, path
