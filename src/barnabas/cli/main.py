"""The command `barnabas`. Its sub-commands are imported when they are called, so that each starts fast.

A sub-command is a module with a function `command` that typer can turn into a command: annotated parameters, a docstring.
It may also have `OPTIONAL_VALUES`, the names of options whose value may be left out (`--state`), and `NO_VALUE`, the value
that is used then; and `REWRITES`, options that are replaced by other arguments.
"""

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup

from barnabas.base.names import did_you_mean

if TYPE_CHECKING:
    from types import ModuleType


class _Entry(NamedTuple):
    module: str
    help: str


COMMANDS: dict[str, _Entry] = {
    "up": _Entry("barnabas.cli.up", "Start a local cluster: ZooKeeper and N brokers."),
    "status": _Entry("barnabas.cli.status", "Show the local clusters that run, and their brokers."),
    "restart": _Entry("barnabas.cli.restart", "Restart brokers of a local cluster."),
    "down": _Entry("barnabas.cli.down", "Stop a local cluster."),
    "broker": _Entry("barnabas.cli.broker", "Run one broker."),
    "host": _Entry("barnabas.cli.host.command", "Run a broker for each core of this machine."),
    "zookeeper": _Entry("barnabas.cli.zookeeper", "Run the embedded ZooKeeper."),
    "zookeeper-shell": _Entry("barnabas.cli.zookeeper_shell", "Look at and change znodes."),
    "zookeeper-security-migration": _Entry(
        "barnabas.cli.zookeeper_security_migration", "Allow only brokers to change znodes, or everybody."
    ),
    "snapshot": _Entry("barnabas.cli.snapshot", "Save a local cluster under a name; bring it back."),
    "topics": _Entry("barnabas.cli.topics", "Create, list, describe, alter and delete topics."),
    "configs": _Entry(
        "barnabas.cli.configs", "Describe and alter settings of topics, brokers, users, clients and IPs."
    ),
    "consumer-groups": _Entry(
        "barnabas.cli.consumer_groups", "List, describe, delete groups; reset and delete offsets."
    ),
    "console-producer": _Entry("barnabas.cli.console_producer", "Send lines of standard input to a topic."),
    "console-consumer": _Entry("barnabas.cli.console_consumer", "Print the records of a topic."),
    "get-offsets": _Entry("barnabas.cli.get_offsets", "Print offsets of partitions, by time."),
    "delete-records": _Entry("barnabas.cli.delete_records", "Delete records before given offsets."),
    "log-dirs": _Entry("barnabas.cli.log_dirs", "Describe log directories and the replicas in them."),
    "leader-election": _Entry("barnabas.cli.leader_election", "Elect preferred or unclean leaders."),
    "reassign-partitions": _Entry("barnabas.cli.reassign_partitions", "Move replicas between brokers."),
    "rebalance": _Entry("barnabas.cli.rebalance", "Spread replicas and leaders evenly over the brokers."),
    "brokers": _Entry("barnabas.cli.brokers", "Show what each broker has; move everything off one."),
    "metadata": _Entry("barnabas.cli.backup.command", "Back up topics, settings, users and ACLs; restore them."),
    "transactions": _Entry("barnabas.cli.transactions", "List, describe and abort transactions."),
    "link": _Entry("barnabas.cli.link", "Mirror topics of another cluster, with their offsets."),
    "acls": _Entry("barnabas.cli.acls", "List, add and remove access control entries."),
    "delegation-tokens": _Entry(
        "barnabas.cli.delegation_tokens", "Create, renew, expire and describe delegation tokens."
    ),
    "producer-perf-test": _Entry("barnabas.cli.producer_perf_test", "Measure producing."),
    "consumer-perf-test": _Entry("barnabas.cli.consumer_perf_test", "Measure consuming."),
    "broker-api-versions": _Entry("barnabas.cli.broker_api_versions", "Print which API versions each broker serves."),
    "cluster": _Entry("barnabas.cli.cluster", "Print the cluster's id; unregister a broker."),
    "migrate": _Entry("barnabas.cli.migrate", "Say what of a Kafka cluster would work here."),
    "pipeline": _Entry(
        "barnabas.cli.pipeline", "Run pipelines on Spark: topics, files, tables in; topics, tables out."
    ),
    "pipeline offsets": _Entry(
        "barnabas.cli.pipeline_offsets", "Show how far a flow has read; let it read records again."
    ),
    "tables": _Entry("barnabas.cli.tables", "Keep topics as Delta and Iceberg tables, with Spark."),
    "schema-registry": _Entry("barnabas.cli.schema_registry", "Run a schema registry: Confluent's REST API."),
    "console": _Entry("barnabas.cli.console", "Show a cluster in a browser."),
    "schemas": _Entry("barnabas.cli.schemas", "Register, get, list, check, delete, export and import schemas."),
    "dump-log": _Entry("barnabas.cli.dump_log", "Print what log segments and their indexes hold."),
    "doctor": _Entry("barnabas.cli.doctor", "Check settings or a cluster, and say what to do."),
}


#: The groups of commands in `--help`; each command is in exactly one.
GROUPS: dict[str, tuple[str, ...]] = {
    "A cluster on this machine": ("up", "status", "restart", "snapshot", "down"),
    "Servers": ("broker", "host", "zookeeper", "schema-registry", "console"),
    "Topics, records and groups (Kafka's tools)": (
        "topics",
        "configs",
        "console-producer",
        "console-consumer",
        "consumer-groups",
        "get-offsets",
        "delete-records",
        "transactions",
        "producer-perf-test",
        "consumer-perf-test",
    ),
    "Users and rights (Kafka's tools)": ("acls", "delegation-tokens", "zookeeper-security-migration"),
    "Brokers and replicas (Kafka's tools)": (
        "log-dirs",
        "leader-election",
        "reassign-partitions",
        "broker-api-versions",
        "cluster",
        "zookeeper-shell",
        "dump-log",
    ),
    "Care for a cluster": ("doctor", "brokers", "rebalance", "metadata", "migrate", "link"),
    "Schemas and data": ("schemas", "pipeline", "pipeline offsets", "tables"),
}


class LazyGroup(TyperGroup):
    """Has the names and one-line helps of all commands, and imports a command's module when it is used."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Report mistakes on the command line in one line, like other failures."""
        if not options.pop("standalone_mode", True):
            return super().main(*args, **{**options, "standalone_mode": False})
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except typer.Abort:
            sys.exit(130)
        except Exception as error:
            sys.exit(_tell(error))
        sys.exit(status if isinstance(status, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return load(cmd_name, importlib.import_module(entry.module)) if entry else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Accept names of two words. The error for an unknown name offers the nearest known name."""
        if (name := " ".join(args[:2])) in COMMANDS:
            args = [name, *args[2:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], COMMANDS) or "; barnabas --help lists them"
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print one line per command, without importing any of them."""
        formatter.write_usage("barnabas", "COMMAND [OPTIONS]")
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, COMMANDS[name].help) for name in names])
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    ("--version", "Print the version and exit."),
                    ("--install-completion", "Install completion for this shell."),
                    ("--help", "Print this and exit; after a command, its own options."),
                ]
            )


def _tell(error: Exception) -> int:
    """Print click's error in one line and return its exit status; raise any other error again."""
    from barnabas.cli._command import complain

    message, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
    if message is None:
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help() if context else "", err=True)
    else:
        words = str(message()).strip().removesuffix(".")
        words = " ".join(words.split())  # click lists choices on a line each
        where = f"; see {context.command_path} --help" if context and not words.endswith("?") else ""
        complain(f"error: {words[:1].lower()}{words[1:]}{where}")
    return int(getattr(error, "exit_code", 1))


def load(name: str, module: "ModuleType") -> Any:
    """Build the click command of a module, with Kafka's parsing of options and one way to report failures."""
    from barnabas.cli import _command, _completion

    _completion.offer_names(module.command)
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.command(
        name,
        cls=_command.command_class(
            optional_values=getattr(module, "OPTIONAL_VALUES", ()),
            no_value=getattr(module, "NO_VALUE", ""),
            rewrites=getattr(module, "REWRITES", {}),
        ),
        help=module.command.__doc__,
        context_settings=getattr(module, "CONTEXT_SETTINGS", None),
    )(_command.failing_well(module.command))
    command = typer.main.get_command(one)
    _show_types_plainly(command)
    return command


def _show_types_plainly(command: Any) -> None:
    """Show `N` and `<str>` in usages, where typer shows `N <list[int]>` and `<list[str]>`."""
    for parameter in command.params:
        shown = getattr(parameter, "display_type_rich", None)  # typer before 0.29 does not show these types
        if shown is None:
            continue
        has_name = parameter.param_type_name == "argument" and parameter.metavar

        def plainly(ctx: Any, shown: Any = shown, has_name: bool = bool(has_name)) -> str:
            return "" if has_name else re.sub(r"^<list\[(.*)\]>$", r"<\1>", shown(ctx=ctx) or "")

        parameter.display_type_rich = plainly


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from barnabas import __version__

        typer.echo(f"barnabas {__version__}")
        raise typer.Exit


@app.callback(help="Apache Kafka's broker cluster in Python. `barnabas up` starts one here.")
def _root(version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True)) -> None:
    """Options before the sub-command."""


def main() -> None:
    try:
        app(prog_name="barnabas")
    except KeyboardInterrupt:
        sys.exit(130)
