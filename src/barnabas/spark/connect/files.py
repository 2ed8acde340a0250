"""Files of connectors and of a worker, as Kafka Connect takes them."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from barnabas.base import json_reader
from barnabas.client.config import load_properties
from barnabas.spark.connect.connector import Worker
from barnabas.spark.connect.options import ConnectorRefused, as_texts

#: States that a file may ask for (KIP-980).
STATES: Final = ("RUNNING", "PAUSED", "STOPPED")
_SECRET: Final = re.compile(r"\$\{(env|file|dir|directory):([^}]*)\}")
_FILE_BYTES_MAX: Final = 1 << 20
#: Settings of a worker that have nothing to do here: Spark keeps offsets and shares out the work.
_CLIENT_PREFIXES: Final = ("security.", "sasl.", "ssl.")


@dataclass(frozen=True)
class Described:
    """A connector's file."""

    name: str
    config: Mapping[str, str]
    initial_state: str = "RUNNING"
    file: Path | None = None


def read_connectors(place: Path) -> list[Described]:
    """Read a file, or all JSON and properties files of a folder in the order of their names."""
    if place.is_dir():
        files = sorted(each for each in place.iterdir() if each.suffix in (".json", ".properties") and each.is_file())
        if not files:
            raise ConnectorRefused(f"{place} has no .json or .properties file of a connector")
    elif place.exists():
        files = [place]
    else:
        raise ConnectorRefused(f"{place} does not exist")
    found = [read_connector(each) for each in files]
    by_name: dict[str, Described] = {}
    for each in found:
        if (other := by_name.setdefault(each.name, each)) is not each:
            raise ConnectorRefused(
                f"{each.file} and {other.file} both describe a connector {each.name}: give one another name"
            )
    return found


def read_connector(file: Path) -> Described:
    if file.suffix == ".properties":
        return described(dict(load_properties(str(file))), file)
    with file.open("rb") as stream:
        data = stream.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise ConnectorRefused(f"{file} is larger than {_FILE_BYTES_MAX} bytes, which no connector's file is")
    try:
        document = json_reader.read(data)
    except json_reader.BadJson as error:
        raise ConnectorRefused(f"{file}: {error}") from None
    if not isinstance(document, dict):
        raise ConnectorRefused(f'{file}: a connector\'s file is {{"name": …, "config": {{…}}}}, or its config alone')
    return described(document, file)


def described(document: Mapping[str, Any], file: Path | None = None) -> Described:
    """Return the connector of a document: name and config, or the config alone."""
    where = f"{file}: " if file is not None else ""
    config = document.get("config")
    if config is not None and not isinstance(config, dict):
        raise ConnectorRefused(f"{where}config is not an object")
    if config is None:
        texts, state = as_texts(document), "RUNNING"
    else:
        if extra := sorted(document.keys() - {"name", "config", "initial_state", "tasks", "type"}):
            raise ConnectorRefused(f"{where}unknown member {', '.join(extra)} beside name and config")
        texts, state = as_texts(config), str(document.get("initial_state") or "RUNNING").upper()
    name = str(document.get("name") or texts.get("name") or (file.stem if file is not None else ""))
    if texts.get("name", name) != name:
        raise ConnectorRefused(f"{where}the name is {name}, and that of its config {texts['name']}")
    if state not in STATES:
        raise ConnectorRefused(f"{where}initial_state {state!r} is not valid: use {', '.join(STATES)}")
    if not name or "/" in name or name in (".", "..") or not name.isprintable():
        raise ConnectorRefused(f"{where}{name!r} is not a name for a connector: it must be printable, without a slash")
    return Described(name, {"name": name, **texts}, state, file)


def read_worker(file: Path | None) -> tuple[Worker, list[str]]:
    """Read a worker's properties. Return, too, the names of those that have no effect."""
    if file is None:
        return Worker(), []
    given = load_properties(str(file))
    converters = {name: value for name, value in given.items() if re.match(r"(key|value|header)\.converter", name)}
    client = {name: value for name, value in given.items() if name.startswith(_CLIENT_PREFIXES)}
    rest = sorted(given.keys() - converters.keys() - client.keys() - {"bootstrap.servers"})
    return Worker(given.get("bootstrap.servers", ""), client, converters), rest


def resolved(config: Mapping[str, str]) -> dict[str, str]:
    """Put in what `${env:NAME}`, `${file:PATH:KEY}` and `${dir:PATH:FILE}` stand for (Connect's config providers)."""
    return {name: _SECRET.sub(partial(_secret, name), value) for name, value in config.items()}


def _secret(option: str, found: re.Match[str]) -> str:
    provider, path = found[1], found[2]
    if provider == "env":
        value = os.environ.get(path)
        if value is None:
            raise ConnectorRefused(f"{option}: the environment has no {path}")
        return value
    place, _, key = path.rpartition(":")
    try:
        if provider == "file":
            return load_properties(place)[key]
        return (Path(place) / key).read_text()
    except (OSError, LookupError) as error:
        raise ConnectorRefused(f"{option}: ${{{provider}:{path}}} cannot be read: {error}") from None


def secrets_in(config: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of options whose values are put in at the start."""
    return (name for name, value in config.items() if _SECRET.search(value))
