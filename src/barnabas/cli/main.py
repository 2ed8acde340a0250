"""The command `barnabas`: the table of its sub-commands. Each is imported when it is called, so that it starts fast.

A sub-command is a module with a `TOOL` (see `barnabas.cli.tool`).
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from barnabas.base.errors import BarnabasError
from barnabas.base.names import did_you_mean
from barnabas.cli._command import complain
from barnabas.cli.tool import Tool, WrongUse


class Entry(NamedTuple):
    module: str
    help: str


#: The commands by group, as `--help` shows them.
GROUPS: dict[str, dict[str, Entry]] = {
    "A cluster on this machine": {
        "up": Entry("up", "Start a local cluster: ZooKeeper and N brokers."),
        "status": Entry("status", "Show the local clusters that run, and their brokers."),
        "restart": Entry("restart", "Restart brokers of a local cluster."),
        "snapshot": Entry("snapshot", "Save a local cluster under a name; bring it back."),
        "fault": Entry("fault", "Break a local cluster on purpose, and repair it."),
        "down": Entry("down", "Stop a local cluster."),
    },
    "Topics and records": {
        "topics": Entry("topics", "Create, list, describe, alter and delete topics."),
        "configs": Entry("configs", "Describe and alter settings of topics, brokers, users, clients."),
        "console-producer": Entry("console_producer", "Send lines of standard input to a topic."),
        "console-consumer": Entry("console_consumer", "Print the records of a topic."),
        "console-share-consumer": Entry("console_share_consumer", "Print records as a member of a share group."),
        "get-offsets": Entry("get_offsets", "Print offsets of partitions, by time."),
        "delete-records": Entry("delete_records", "Delete records before given offsets."),
        "transactions": Entry("transactions", "List, describe and abort transactions."),
        "dump-log": Entry("dump_log", "Print what log segments and their indexes hold."),
        "producer-perf-test": Entry("producer_perf_test", "Measure producing."),
        "consumer-perf-test": Entry("consumer_perf_test", "Measure consuming."),
        "share-consumer-perf-test": Entry("share_consumer_perf_test", "Measure consuming with share consumers."),
    },
    "Groups": {
        "consumer-groups": Entry("consumer_groups", "List, describe, delete groups; reset and delete offsets."),
        "share-groups": Entry("share_groups", "The same for share groups."),
        "streams-groups": Entry("streams_groups", "The same for groups of Kafka Streams."),
    },
    "Security": {
        "acls": Entry("acls", "List, add and remove access control entries."),
        "delegation-tokens": Entry("delegation_tokens", "Create, renew, expire and describe delegation tokens."),
        "zookeeper-security-migration": Entry(
            "zookeeper_security_migration", "Allow only brokers to change znodes, or everybody."
        ),
    },
    "Services": {
        "broker": Entry("broker", "Run one broker."),
        "host": Entry("host.command", "Run a broker for each core of this machine."),
        "zookeeper": Entry("zookeeper", "Run the embedded ZooKeeper."),
        "schema-registry": Entry("schema_registry", "Run a schema registry: Confluent's REST API."),
        "console": Entry("console", "Show a cluster in a browser."),
    },
    "Pipelines, tables, schemas": {
        "pipeline": Entry("pipeline", "Run pipelines on Spark: topics, files, tables in; topics, tables out."),
        "pipeline offsets": Entry("pipeline_offsets", "Show how far a flow has read; let it read records again."),
        "connect": Entry("connect", "Run Kafka Connect's connectors from their own files, on Spark."),
        "tables": Entry("tables", "Keep topics as Delta and Iceberg tables, with Spark."),
        "schemas": Entry("schemas", "Register, get, list, check, delete, export and import schemas."),
    },
    "Operations": {
        "doctor": Entry("doctor", "Check settings or a cluster, and say what to do."),
        "brokers": Entry("brokers", "Show what each broker has; move everything off one."),
        "rebalance": Entry("rebalance", "Spread replicas and leaders evenly over the brokers."),
        "reassign-partitions": Entry("reassign_partitions", "Move replicas between brokers."),
        "leader-election": Entry("leader_election", "Elect preferred or unclean leaders."),
        "log-dirs": Entry("log_dirs", "Describe log directories and the replicas in them."),
        "client-metrics": Entry("client_metrics", "Ask clients for their metrics."),
        "cluster": Entry("cluster", "Print the cluster's id; unregister a broker."),
        "broker-api-versions": Entry("broker_api_versions", "Print which API versions each broker serves."),
        "metadata": Entry("backup.command", "Back up topics, settings, users and ACLs; restore them."),
        "link": Entry("link", "Mirror topics of another cluster, with their offsets."),
        "migrate": Entry("migrate", "Say what of a Kafka cluster would work here."),
        "zookeeper-shell": Entry("zookeeper_shell", "Look at and change znodes."),
    },
}
COMMANDS: dict[str, Entry] = {name: entry for commands in GROUPS.values() for name, entry in commands.items()}


def load(name: str) -> Tool:
    """Import the module of a command, and return its table."""
    tool = importlib.import_module(f"barnabas.cli.{COMMANDS[name].module}").TOOL
    assert isinstance(tool, Tool)
    return tool


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line, and return its exit status. A failure is one line on stderr; a bug has a traceback."""
    name = ""
    try:
        name, rest = _command_of(arguments)
        return _root(rest) if not name else _tool(name, rest)
    except BarnabasError as error:
        see = f"; see barnabas {name}".rstrip() + " --help"
        is_wrong = isinstance(error, WrongUse)
        complain(f"error: {error}{see if is_wrong and not str(error).endswith('?') else ''}")
        return 2 if is_wrong else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has closed the pipe, so nothing more can be written to stdout, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _command_of(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the command's name, of one word or two, and the words after it; "" for options of `barnabas` itself."""
    if not arguments or arguments[0].startswith("-"):
        return "", arguments
    for count in (2, 1):
        if (name := " ".join(arguments[:count])) in COMMANDS:
            return name, arguments[count:]
    hint = did_you_mean(arguments[0], COMMANDS) or "; barnabas --help lists them"
    raise WrongUse(f"there is no command {arguments[0]!r}{hint}")


def _tool(name: str, arguments: Sequence[str]) -> int:
    tool = load(name)
    given = tool.parse(arguments)
    if "--help" in given.texts:
        from barnabas.cli._help import tool_help

        sys.stdout.write(tool_help(name, COMMANDS[name].help, tool))
        return 0
    return tool.run(given)


def _root(arguments: Sequence[str]) -> int:
    """Carry out an option of `barnabas` itself."""
    match list(arguments):
        case ["--version"]:
            from barnabas import __version__

            sys.stdout.write(f"barnabas {__version__}\n")
        case ["--complete", shell, line]:
            from barnabas.cli import _completion

            _completion.answer(shell, line, COMMANDS, load)
        case ["--install-completion", *shell]:
            from barnabas.cli import _completion

            sys.stdout.write(f"{_completion.install(''.join(shell) or os.environ.get('SHELL', ''))}\n")
        case [] | ["--help" | "-h"]:
            from barnabas.cli._help import group_help

            (sys.stdout if arguments else sys.stderr).write(group_help())
            return 0 if arguments else 2
        case _:
            raise WrongUse(f"no such option: {arguments[0]}")
    return 0


def app(arguments: Sequence[str]) -> NoReturn:
    sys.exit(run(arguments))


def main() -> None:
    app(sys.argv[1:])
