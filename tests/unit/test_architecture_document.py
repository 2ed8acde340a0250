"""docs/ARCHITECTURE.md names modules that exist, and the layers that import-linter keeps."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
SOURCE = ROOT / "src" / "barnabas"
#: A name may begin with a room, or with a package of the broker.
ROOMS = {path.name for path in SOURCE.iterdir() if path.is_dir()}
BROKER_PACKAGES = {path.name for path in (SOURCE / "broker").iterdir() if path.is_dir()}


def exists(name: str) -> bool:
    for prefix in ("barnabas", "barnabas.broker"):
        try:
            if find_spec(f"{prefix}.{name}") is not None:
                return True
        except ModuleNotFoundError:
            continue
    return False


def modules_named() -> set[str]:
    """`server.pipeline` in prose and in diagrams; not the names of settings, files or methods."""
    words = set(re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", TEXT))
    return {
        word for word in words if word.split(".")[0] in ROOMS | BROKER_PACKAGES and not word.endswith((".md", ".py"))
    }


def test_every_module_that_is_named_exists() -> None:
    named = modules_named()
    assert len(named) > 20
    assert [name for name in sorted(named) if not exists(name)] == []


def test_every_room_and_every_package_of_the_broker_is_in_a_table() -> None:
    first_cells = " ".join(re.findall(r"^\| (.*?) \|", TEXT, flags=re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", first_cells))
    assert {name for name in ROOMS | BROKER_PACKAGES if not name.startswith("_")} - named == set()


@pytest.mark.parametrize(
    ("contract", "words"), [("rooms", "Each room imports"), ("broker", "Inside the broker as well")]
)
def test_layers_are_those_of_the_contract(contract: str, words: str) -> None:
    [said] = re.findall(words + r"[^:]*: ([^:]+?)\.\n", TEXT)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [kept] = [layers["layers"] for layers in contracts if layers["id"] == contract]
    names = r"(?:barnabas\.broker\.)?([\w.]+)"
    assert [sorted(re.findall(r"[\w.]+", layer)) for layer in said.split(">")] == [
        sorted(re.findall(names, layer)) for layer in kept
    ]


def test_paths_of_a_record_a_fetch_a_commit_and_a_fail_over_are_drawn() -> None:
    for path in ("a produced record", "a fetch", "a commit", "a fail-over"):
        section = TEXT.partition(f"## The path of {path}\n")[2].partition("\n## ")[0]
        assert "```mermaid\nsequenceDiagram\n" in section, path
