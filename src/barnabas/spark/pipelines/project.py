"""A pipeline's folder: its spec file, its code, and what our runner keeps beside them.

The spec is that of `pyspark.pipelines`, so that Spark's own `spark-pipelines` runs the same project. We keep our files in
`.barnabas/`: the last known progress, Spark's log, and, unless the spec says otherwise, the catalog and the tables.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from barnabas.base.errors import BarnabasError
from barnabas.client.config import load_properties

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
#: In `configuration:`, a properties file with the settings of Kafka clients; relative to the project.
CLIENT_CONFIG = "barnabas.client.config"
_FIELDS = {"name", "storage", "catalog", "database", "schema", "configuration", "libraries"}


class ProjectError(BarnabasError):
    """The project is not valid; the message names the file and what to change."""


@dataclass(frozen=True)
class Project:
    folder: Path
    spec_file: Path
    name: str
    #: The folder of checkpoints: an absolute URI.
    storage: str
    catalog: str | None
    database: str | None
    configuration: Mapping[str, str]
    libraries: Sequence[str]

    @property
    def state(self) -> Path:
        return self.folder / ".barnabas"

    @property
    def progress_file(self) -> Path:
        return self.state / "progress.json"

    @property
    def topics_file(self) -> Path:
        return self.state / "topics.json"

    @property
    def log_file(self) -> Path:
        return self.state / "spark.log"

    def client_settings(self) -> dict[str, str]:
        """Return the settings of Kafka clients for all topics of the project, in the form of the tools' `--command-config`."""
        name = self.configuration.get(CLIENT_CONFIG)
        if name is None:
            return {}
        try:
            return load_properties(self.folder / name)
        except (OSError, BarnabasError) as error:
            raise ProjectError(f"{self.spec_file}: {CLIENT_CONFIG} {name}: {error}") from None

    def files(self) -> list[Path]:
        """Return the files with code, in the order of their names."""
        found: set[Path] = set()
        for pattern in self.libraries:
            found.update(each for each in self.folder.glob(pattern) if each.is_file() and _is_code(each))
        return sorted(found)


def _is_code(file: Path) -> bool:
    return "__pycache__" not in file.parts and not file.name.startswith(".")


def find_spec(place: Path) -> Path:
    """Find the spec of a project: `place` itself, or in it, or in a folder above it, as `spark-pipelines` looks."""
    if place.is_file():
        return place.absolute()
    if not place.is_dir():
        raise ProjectError(f"{place}: no such folder or file")
    start = place.absolute()
    for folder in (start, *start.parents):
        found = [folder / name for name in SPEC_NAMES if (folder / name).is_file()]
        if len(found) > 1:
            raise ProjectError(f"{folder} has both {' and '.join(SPEC_NAMES)}; keep one")
        if found:
            return found[0]
    raise ProjectError(f"{start} has no {SPEC_NAMES[0]}, nor has a folder above it; `barnabas pipeline init` makes one")


def load_project(place: Path) -> Project:
    spec_file = find_spec(place)
    try:
        document = yaml.safe_load(spec_file.read_text())
    except yaml.YAMLError as error:
        raise ProjectError(f"{spec_file}: not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ProjectError(f"{spec_file}: it must have at least name: and storage:")
    _check(spec_file, document)
    folder = spec_file.parent
    project = Project(
        folder=folder,
        spec_file=spec_file,
        name=document["name"],
        storage=_absolute(folder, document["storage"]),
        catalog=document.get("catalog"),
        database=document.get("database", document.get("schema")),
        configuration=document.get("configuration") or {},
        libraries=[_glob(spec_file, entry) for entry in document.get("libraries") or []],
    )
    if not project.files():
        raise ProjectError(f"{spec_file}: libraries name no file: {', '.join(project.libraries) or 'there are none'}")
    return project


def _check(file: Path, document: dict[str, Any]) -> None:
    unknown = sorted(map(str, set(document) - _FIELDS))
    if unknown:
        raise ProjectError(f"{file}: unknown {', '.join(unknown)}; there are {', '.join(sorted(_FIELDS))}")
    for name in ("name", "storage"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise ProjectError(f"{file}: {name} is missing or not text")
    configuration = document.get("configuration") or {}
    if not isinstance(configuration, dict):
        raise ProjectError(f"{file}: configuration must be names and values")
    for key, value in configuration.items():
        if not isinstance(value, str):
            raise ProjectError(f'{file}: configuration {key} must be text; write "{value}" in quotes')


def _glob(file: Path, entry: object) -> str:
    pattern = entry.get("glob", {}).get("include") if isinstance(entry, dict) else None
    if not isinstance(pattern, str):
        raise ProjectError(f"{file}: an entry of libraries must be glob: include: PATTERN")
    # Like spark-pipelines: a file, or a folder and all below it.
    return f"{pattern}/*" if pattern.endswith("/**") else pattern


def _absolute(folder: Path, storage: str) -> str:
    return storage if re.match(r"[a-z0-9]+:/", storage) else f"file://{(folder / storage).absolute()}"


def create_project(folder: Path, *, bootstrap: str) -> list[Path]:
    """Create a project that runs as it is; return its files. Does not overwrite any file."""
    name = folder.name
    if not _NAME.fullmatch(name):
        raise ProjectError(f"{name!r} is not a valid name: use a letter first, then letters, digits, _ and -")
    if folder.exists() and any(folder.iterdir()):
        raise ProjectError(f"{folder} exists already, and is not empty")
    texts = {
        SPEC_NAMES[0]: _SPEC,
        "transformations/orders.py": _CODE,
        ".gitignore": ".barnabas/\nstorage/\n__pycache__/\n",
    }
    written: list[Path] = []
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        filled = text.replace("{{name}}", name).replace("{{bootstrap}}", bootstrap)
        file.write_text(filled.replace("{{folder}}", str(folder.absolute())))
        written.append(file)
    (folder / "storage").mkdir(exist_ok=True)
    return written


def user_environment(project: Project) -> dict[str, str]:
    """Return the environment with which Python on executors can import the project's own modules."""
    paths = [str(project.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


_SPEC = """\
# As `pyspark.pipelines` has it: `barnabas pipeline run` runs it here, `--master spark://…` on a cluster.
name: {{name}}
storage: file://{{folder}}/storage
configuration:
  spark.sql.shuffle.partitions: "2"
libraries:
  - glob:
      include: transformations/**
"""

_CODE = '''\
"""Orders are made up, kept in a table, and sent to the topic {{name}}-orders; the records of the topic are counted."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from barnabas.spark.pipelines import sinks, sources

BOOTSTRAP = os.environ.get("BARNABAS_BOOTSTRAP_SERVER", "{{bootstrap}}")
TOPIC = "{{name}}-orders"
spark = SparkSession.active()

sinks.topic(TOPIC, bootstrap=BOOTSTRAP, partitions=3).create("orders_topic")


@dp.table
def orders() -> DataFrame:
    kinds = {"number": "sequence:1", "item": "choice:coffee,bread,ink", "price": "uniform:1..20", "at": "timestamp"}
    return sources.synthetic(kinds, rows_per_second=50).stream()


@dp.append_flow(target="orders_topic")
def publish() -> DataFrame:
    return spark.readStream.table("orders").select(F.col("item").alias("key"), F.to_json(F.struct("*")).alias("value"))


@dp.table
def received() -> DataFrame:
    """A run reads the records that are in the topic when it starts; run it again, or with --continuous, for later ones."""
    rows = sources.topic(TOPIC, bootstrap=BOOTSTRAP).stream()
    order = F.from_json(F.col("value").cast("string"), "number LONG, item STRING, price LONG, at TIMESTAMP")
    return rows.select("partition", "offset", order.alias("order")).select("partition", "offset", "order.*")


@dp.materialized_view
def turnover() -> DataFrame:
    return spark.table("orders").groupBy("item").agg(F.count("*").alias("orders"), F.sum("price").alias("sum"))
'''
