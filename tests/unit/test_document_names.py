"""What the documents name exists, and what exists is named: commands and their options, settings, metrics, pages, pictures.

That docs/configuration.md has every setting, docs/metrics.md every metric of a broker, and docs/tools.md every check of the
doctor, tests beside those parts see to.
"""

import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
from scripts import diagrams

from barnabas.base.config.catalog import TOPIC_SETTINGS, broker_setting
from barnabas.cli.main import COMMANDS, load

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"])
#: docs/extending.md names what its reader is to add.
NAMES = [str(page.relative_to(ROOT)) for page in PAGES if page.name != "extending.md"]
FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)$", re.MULTILINE | re.DOTALL)
#: A command in a block or in `code`, up to the end of the line, of the code or of the command.
CALL = re.compile(r"\bbarnabas ([a-z][a-z-]+)((?:\\\n|[^`\n|;&)])*)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
#: Words that follow the name in prose within a block, and are no commands.
NO_COMMANDS = {"is", "and", "runs", "as"}
#: What Prometheus makes of one histogram or counter.
SERIES = re.compile(r"_(?:bucket|sum|count|total|created)$")


def read(name: str) -> str:
    return (ROOT / name).read_text()


def code_of(text: str) -> str:
    """Blocks and `code`: where names are meant to be typed."""
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return "\n".join([*(block for block in FENCE.findall(text)), *inline])


@cache
def options_of(command: str) -> frozenset[str]:
    return frozenset({name for names in spellings(command) for name in names} | {"--help"})


@cache
def spellings(command: str) -> tuple[tuple[str, ...], ...]:
    """Each option, by all of its names: `--wait` and `--no-wait` are one."""
    tool = load(command)
    return tuple(option.flags for option in tool.options) + tuple((action.flag,) for action in tool.actions)


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    for command, rest in CALL.findall(code_of(text)):
        if (of_two_words := f"{command} {rest.split()[0]}" if rest.split() else "") in COMMANDS:
            command = of_two_words
        if command not in NO_COMMANDS:
            yield command, re.findall(r"(?<=\s)--[a-z][a-z0-9.-]*", rest)


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_of_the_page_exist(name: str) -> None:
    wrong = []
    for command, options in calls(read(name)):
        if command not in COMMANDS:
            wrong.append(f"barnabas {command}")
            continue
        known = options_of(command)
        wrong += [f"barnabas {command} {each}" for each in options if not any(k.startswith(each) for k in known)]
    assert wrong == []


def test_every_command_is_described() -> None:
    described = code_of("\n".join(read(name) for name in NAMES if name != "docs/changelog.md"))
    missing = [command for command in COMMANDS if f"barnabas {command}" not in described]
    table = re.findall(r"^\| (`[^|]+`) \|", read("docs/tools.md"), re.MULTILINE)
    listed = {name for row in table for name in re.findall(r"`([a-z-]+)`", row)}
    assert [command for command in missing if command not in listed] == []


#: The page of all options is made from the tools' tables.
WITHOUT_EXPLANATION = {"docs/changelog.md", "docs/tool-options.md"}
#: Kafka's scripts that are in no row of the table: their page is about ZooKeeper.
OF_KAFKA = {"zookeeper-shell", "zookeeper-security-migration"}
#: Options of others' programs that pages name in their text.
OF_OTHERS = {
    "--read-only",  # podman
    "--beside",  # bench.registry
    "--apache",  # tests.fuzz.siege
    "--kafka-brokers",  # pytest, with our plugin
    "--kafka-secure",
    "--simulation-seed",  # likewise
    "--simulation-seeds",
    "--simulation-jobs",
}


def test_every_option_of_our_own_tools_is_described() -> None:
    """Those of Kafka's tools are Kafka's, and its documentation has them."""
    of_kafka = OF_KAFKA | {name for name in COMMANDS if load(name).kafka}
    described = code_of("\n".join(read(name) for name in NAMES if name not in WITHOUT_EXPLANATION))
    missing = [
        f"{command} {names[0]}"
        for command in COMMANDS
        if command not in of_kafka
        for names in spellings(command)
        if names[0].startswith("--")
        and not any(re.search(rf"{re.escape(name)}(?![a-z-])", described) for name in names)
    ]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_options_in_the_text_of_the_page_exist(name: str) -> None:
    known = OF_OTHERS.union(*(options_of(command) for command in COMMANDS))
    named = re.findall(r"`(--[a-z][a-z0-9.-]*)[^`]*`", FENCE.sub("", read(name)))
    assert sorted({each for each in named if not any(option.startswith(each) for option in known)}) == []


def metrics_known() -> set[str]:
    return set(re.findall(r"^\| `([a-z_]+)`", read("docs/metrics.md"), re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_metrics_of_the_page_exist(name: str) -> None:
    known = metrics_known()
    parts = {"_".join(each.split("_")[:2]) for each in known if each.startswith(("kafka_", "barnabas_"))}
    named = re.findall(rf"\b(?:{'|'.join(parts)})_[a-z_]*[a-z]\b(?!_)", code_of(read(name)))
    # A counter and a histogram are documented by the name of their family.
    assert sorted({each for each in named if each not in known and SERIES.sub("", each) not in known}) == []


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_our_own_on_the_page_exist(name: str) -> None:
    named = set(re.findall(r"(?<![\w./-])barnabas(?:\.[a-z]+){2,}(?![\w.(/-])", code_of(read(name))))
    known = TOPIC_SETTINGS.keys() | loggers()
    known |= {each for each in named if broker_setting(each) is not None or is_module(each)}
    assert sorted(named - known) == []


@cache
def loggers() -> frozenset[str]:
    """Those with a name of their own."""
    found = (re.findall(r'getLogger\("([\w.]+)"\)', file.read_text()) for file in (ROOT / "src").rglob("*.py"))
    return frozenset(name for names in found for name in names)


def is_module(name: str) -> bool:
    """A module, or something that one has."""
    for length in range(len(name.split(".")), 1, -1):
        module = ".".join(name.split(".")[:length])
        try:
            if find_spec(module) is not None:
                rest = name.split(".")[length:]
                return not rest or hasattr(importlib.import_module(module), rest[0])
        except ModuleNotFoundError:
            continue
    return False


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_a_properties_file_on_the_page_exist(name: str) -> None:
    blocks = [block for block in FENCE.findall(read(name)) if "zookeeper.connect=" in block or "broker.id=" in block]
    named = {each for block in blocks for each in re.findall(r"^([a-z]+(?:\.[a-z.]+)+)=", block, re.MULTILINE)}
    assert [each for each in sorted(named) if broker_setting(each) is None] == []


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_of_the_page_lead_somewhere(name: str) -> None:
    page = ROOT / name
    wrong = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = unquote(link).partition("#")
        if "://" in link or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists() and (not anchor or anchor in anchors_of(target.read_text()))
        if not is_there:
            wrong.append(link)
    assert wrong == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_every_diagram_is_drawn_as_it_is_written() -> None:
    """`scripts/diagrams.py` draws them."""
    drawn = {picture.name for picture in diagrams.PICTURES.iterdir()}
    assert {diagram.name for diagram in diagrams.diagrams()} == drawn


def test_version_has_one_place() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/barnabas/__init__.py"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/api").glob("*.md")), ids=lambda page: page.stem)
def test_every_object_of_the_reference_exists(page: Path) -> None:
    """`make docs` takes their docstrings."""
    named = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    assert named
    assert [name for name in named if not is_module(name)] == []


def test_extras_that_users_install_are_in_the_readme() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"].keys()
    named = re.search(r"extras are ([^:]+):", read("README.md").replace("\n", " "))
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == extras - {"dev", "docs", "release"}


def test_names_are_found_where_they_are_typed() -> None:
    block = "```sh\nbarnabas topics --create \\\n    --topik x | grep --y\n```\n"
    text = f"a barnabas nothing `barnabas topcis --lsit` and\n{block}"
    assert list(calls(text)) == [("topics", ["--create", "--topik"]), ("topcis", ["--lsit"])]
    assert "--topic" in options_of("topics")
    assert not is_module("barnabas.server.nothing") and is_module("barnabas.broker.server.pipeline")
