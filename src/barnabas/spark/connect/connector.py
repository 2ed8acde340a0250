"""A connector as its file describes it: class, options, converters, transforms. It is checked before anything starts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from barnabas.base.names import did_you_mean
from barnabas.spark.connect import options
from barnabas.spark.connect.converters import simple, table
from barnabas.spark.connect.converters.base import Converter
from barnabas.spark.connect.elsewhere import advice_for
from barnabas.spark.connect.options import (
    ConnectorRefused,
    Option,
    Problem,
    Refused,
    Row,
    Values,
    Without,
    flag,
    names,
    number,
    one_of,
)
from barnabas.spark.connect.transforms.table import Chain, chain_of

_CONVERTERS: Final = ("key.converter", "value.converter", "header.converter")
#: Options of which a table knows the beginning alone: they are checked elsewhere, or are those of a Kafka client.
_PREFIXES: Final = (
    *(f"{each}." for each in _CONVERTERS),
    "transforms.",
    "predicates.",
    "consumer.override.",
    "producer.override.",
    "admin.override.",
)


def regular_expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


COMMON: Final[tuple[Row, ...]] = (
    Option("name", "the connector's name", needed=True),
    Option("connector.class", "the class, by its whole or its short name", needed=True),
    Option("tasks.max", "most partitions of Spark that read at once", number, "1"),
    Without("tasks.max.enforce", "no connector here makes more tasks than `tasks.max`"),
    *(Option(each, "the class of the converter; without it that of the worker") for each in _CONVERTERS),
    Option("transforms", "the chain of transforms, by their aliases", names, ""),
    Option("predicates", "aliases of predicates", names, ""),
    Option(
        "errors.tolerance",
        "`all`: a record that cannot be converted or transformed is left out",
        one_of("none", "all"),
        "none",
    ),
    Option("errors.log.enable", "log each such record", flag, "false"),
    Option("errors.log.include.messages", "log its topic, partition and offset, too", flag, "false"),
    Without(
        "errors.retry.timeout",
        "converters and transforms have nothing to wait for; a registry that is away is asked again",
    ),
    Without("errors.retry.delay.max.ms", "as `errors.retry.timeout`"),
    Without("config.action.reload", "`${file:…}` and `${env:…}` are read when the connector starts"),
    Refused("plugin.version", "plugins are part of barnabas"),
    Refused("connector.plugin.version", "plugins are part of barnabas"),
)

SINK: Final[tuple[Row, ...]] = (
    Option("topics", "the topics to read, by commas", names, ""),
    Option("topics.regex", "a regular expression of their names", regular_expression),
    Option("errors.deadletterqueue.topic.name", "the topic that gets records that cannot be used", default=""),
    Option("errors.deadletterqueue.topic.replication.factor", "replicas of that topic, if it is made", number, "3"),
    Option("errors.deadletterqueue.context.headers.enable", "add the headers `__connect.errors.…`", flag, "false"),
)

SOURCE: Final[tuple[Row, ...]] = (
    Option("topic.creation.default.replication.factor", "replicas of topics that are made", number, "-1"),
    Option("topic.creation.default.partitions", "partitions of topics that are made", number),
    Refused("topic.creation.groups", "make topics with other settings beforehand (barnabas topics --create)"),
    Without("exactly.once.support", "records are written exactly once in any case"),
    Without("transaction.boundary", "a batch of Spark is one transaction"),
    Without("transaction.boundary.interval.ms", "a batch of Spark is one transaction"),
    Without("offsets.storage.topic", "offsets are in the checkpoint of the query"),
)


@dataclass(frozen=True)
class ConnectorClass:
    """A class of connectors that runs here."""

    name: str
    kind: Literal["sink", "source"]
    does: str
    rows: tuple[Row, ...]
    #: Checks what one option cannot say. Returns problems.
    check: Callable[["Connector"], list[Problem]]
    #: Makes the part that reads or writes, when the connector starts: it may import Spark and ask the database.
    make: Callable[["Connector"], Any]
    aliases: tuple[str, ...] = ()
    #: Beginnings of further options of this class.
    prefixes: tuple[str, ...] = ()
    version: str = ""

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def all_rows(self) -> tuple[Row, ...]:
        return (*COMMON, *(SINK if self.kind == "sink" else SOURCE), *self.rows)


@dataclass(frozen=True)
class Worker:
    """The part of a worker's configuration that holds for all of its connectors."""

    bootstrap: str = ""
    #: Settings of Kafka clients.
    client: Mapping[str, str] = field(default_factory=dict)
    #: Converters and their options, for connectors that do not name any.
    converters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Connector:
    name: str
    #: The config as it was given, as texts; secrets are not resolved.
    config: Mapping[str, str]
    of: ConnectorClass
    options: Values
    key_converter: Converter
    value_converter: Converter
    header_converter: Converter
    chain: Chain

    @property
    def tolerates(self) -> bool:
        return bool(self.options["errors.tolerance"] == "all")

    def clients(self, which: Literal["consumer", "producer"]) -> dict[str, str]:
        """Return the settings of clients that the connector overrides."""
        prefix = f"{which}.override."
        return {name.removeprefix(prefix): value for name, value in self.config.items() if name.startswith(prefix)}


def validated(
    config: Mapping[str, str], classes: Sequence[ConnectorClass], worker: Worker
) -> tuple[Connector | None, list[Problem]]:
    """Check everything that can be checked without a cluster or a database. Return all problems, not only the first one."""
    given = config.get("connector.class", "")
    of = find_class(given, classes)
    if of is None and (advice := advice_for(config)) is not None:
        return None, [Problem("connector.class", f"{given!r} does not run here: {advice}")]
    if of is None:
        known = [each.name for each in classes]
        hint = did_you_mean(given.rpartition(".")[2], [each.short for each in classes])
        return None, [Problem("connector.class", f"{given!r} does not run here{hint}. There are {', '.join(known)}")]
    values, problems = options.parse(of.all_rows, config)
    problems += options.unknown(config, [row.name for row in of.all_rows], (*_PREFIXES, *of.prefixes))
    made: list[Converter] = []
    for name in _CONVERTERS:
        default = table.DEFAULT_OF_HEADERS if name == "header.converter" else table.DEFAULT
        converter, found = table.converter_of(name, _with_worker(name, config, worker), default)
        made.append(converter)
        problems += found
    chain, found = chain_of(config)
    problems += found
    connector = Connector(config.get("name", ""), config, of, values, made[0], made[1], made[2], chain)
    if not problems:
        problems += _topics(connector) if of.kind == "sink" else []
        problems += of.check(connector)
    return (None if problems else connector), problems


def _with_worker(name: str, config: Mapping[str, str], worker: Worker) -> Mapping[str, str]:
    """Return the config with the worker's converter, if the connector names none of its own."""
    if name in config:
        return config
    return {**config} | {
        key: value for key, value in worker.converters.items() if key == name or key.startswith(f"{name}.")
    }


def _topics(connector: Connector) -> list[Problem]:
    topics, pattern = connector.options["topics"], connector.options["topics.regex"]
    if bool(topics) == (pattern is not None):
        return [Problem("topics", "a sink reads either topics or topics.regex")]
    letters = connector.options["errors.deadletterqueue.topic.name"]
    if letters and (letters in topics or (pattern is not None and pattern.fullmatch(letters))):
        return [
            Problem("errors.deadletterqueue.topic.name", f"the connector reads {letters} itself: choose another topic")
        ]
    return []


def find_class(given: str, classes: Sequence[ConnectorClass]) -> ConnectorClass | None:
    """Find a class as Connect does: by its whole name, its last part, or its last part without `Connector`."""
    for each in classes:
        for name in (each.name, *each.aliases):
            short = name.rpartition(".")[2]
            if given in (name, short, short.removesuffix("Connector")):
                return each
    return None


def refuse(name: str, problems: Sequence[Problem]) -> ConnectorRefused:
    lines = "".join(f"\n  {each}" for each in problems)
    return ConnectorRefused(f"connector {name} cannot run:{lines}")


#: For headers of records that a source makes.
PLAIN_HEADERS: Final = simple.SimpleHeaderConverter()
