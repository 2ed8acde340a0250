"""How every tool parses its options, and how every tool fails."""

import importlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from barnabas.cli._command import UsageError, failing_well, normalise
from barnabas.cli.main import COMMANDS, GROUPS, app, load

runner = CliRunner()
KNOWN = {"--bootstrap-server", "--topic", "--topic-id", "--state", "--list", "--describe"}


def test_unique_abbreviation_is_completed() -> None:
    assert normalise(["--boot", "h:1", "--desc"], KNOWN, (), "") == ["--bootstrap-server", "h:1", "--describe"]


def test_ambiguous_abbreviation_is_left_for_the_parser_to_refuse() -> None:
    assert normalise(["--to", "x"], KNOWN, (), "") == ["--to", "x"]


def test_exact_name_wins_over_a_longer_one() -> None:
    assert normalise(["--topic", "x"], KNOWN, (), "") == ["--topic", "x"]


def test_abbreviation_keeps_its_value() -> None:
    assert normalise(["--boot=h:1"], KNOWN, (), "") == ["--bootstrap-server=h:1"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--list", "--state"], ["--list", "--state", ""]),
        (["--state", "--list"], ["--state", "", "--list"]),
        (["--state", "Empty"], ["--state", "Empty"]),
        (["--state=Empty"], ["--state=Empty"]),
    ],
)
def test_value_that_may_be_left_out_is_filled_in(given: list[str], expected: list[str]) -> None:
    assert normalise(given, KNOWN, ("--state",), "") == expected


def test_rewritten_option_keeps_its_place() -> None:
    rewrites = {"--entity-default": ("--entity-name", "")}
    known = {"--entity-default", "--entity-name"}
    given = ["--entity-name", "a", "--entity-default", "--entity-name", "b"]
    assert normalise(given, known, (), "", rewrites) == [
        "--entity-name",
        "a",
        "--entity-name",
        "",
        "--entity-name",
        "b",
    ]


def test_arguments_after_two_dashes_are_not_touched() -> None:
    assert normalise(["--", "--boot"], KNOWN, (), "") == ["--", "--boot"]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_exists_and_explains_itself(name: str) -> None:
    result = runner.invoke(app, [*name.split(), "--help"])
    assert result.exit_code == 0, result.output
    module = importlib.import_module(COMMANDS[name].module)
    first_line = (module.command.__doc__ or "").strip().splitlines()[0]
    assert first_line[:40] in " ".join(result.output.split())
    too_long = [line for line in result.output.splitlines() if len(line) > 80]
    assert not too_long, "it fits an ordinary terminal"
    assert "list[" not in result.output and "]...]" not in result.output
    command = load(name, module)
    mute = [parameter.name for parameter in command.params if not (parameter.help or parameter.hidden)]
    assert not mute, "every option says what it is"


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys; from barnabas.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith(('barnabas.client', 'barnabas.broker.compose'))])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert all(name in output for name in COMMANDS)
    assert output.rstrip().endswith("[]")


def test_help_shows_every_command_once_in_a_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    shown = runner.invoke(app, ["--help"]).output
    assert all(f"{heading}:" in shown for heading in GROUPS)
    assert max(map(len, shown.splitlines())) <= 80


def test_version_is_printed() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.output.startswith("barnabas ")


def test_unknown_command_is_refused() -> None:
    assert runner.invoke(app, ["topic"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("say it differently"), 1), (KeyboardInterrupt(), 130)], ids=["failure", "ctrl-c"]
)
def test_failures_end_with_a_status_and_at_most_one_line(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        failing_well(command)()
    assert ended.value.exit_code == status
    assert capsys.readouterr().err == ("error: say it differently\n" if status == 1 else "")


def test_bug_is_not_hidden() -> None:
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_well(command)()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["topics", "--list"], "--bootstrap-server must be specified"),
        (["topics", "--bootstrap-server", "nowhere", "--list"], "is not host:port"),
        (["topics", "--bootstrap-server", "h:1"], "must include exactly one action"),
        (["topics", "--bootstrap-server", "h:1", "--list", "--create"], "must include exactly one action"),
        (["topics", "--bootstrap-server", "h:1", "--create"], 'Missing required argument "[topic]"'),
        (
            ["topics", "--bootstrap-server", "h:1", "--alter", "--topic", "t", "--config", "a=b", "--partitions", "2"],
            "barnabas configs --alter",
        ),
        (
            ["topics", "--bootstrap-server", "h:1", "--create", "--topic", "t", "--config", "ab"],
            "must be in the format key=value",
        ),
        (["topics", "--bootstrap-server", "h:1", "--list", "--command-config", "/nix"], "cannot read /nix"),
        (["configs", "--bootstrap-server", "h:1", "--describe"], "At least one entity type"),
        (["configs", "--bootstrap-server", "h:1", "--describe", "--entity-type", "x"], "Invalid entity type x"),
        (["configs", "--bootstrap-server", "h:1", "--describe", "--client-metrics", "m"], "are not supported"),
        (["configs", "--bootstrap-server", "h:1", "--alter", "--topic", "t"], "At least one of --add-config"),
        (["consumer-groups", "--bootstrap-server", "h:1", "--describe"], "takes one of these options"),
        (["consumer-groups", "--bootstrap-server", "h:1", "--list", "--group", "g"], "can't be used with"),
        (
            ["consumer-groups", "--bootstrap-server", "h:1", "--reset-offsets", "--group", "g", "--all-topics"],
            "requires one of the following scenarios",
        ),
        (["get-offsets", "--bootstrap-server", "h:1", "--time", "noon"], "Malformed time argument noon"),
        (["log-dirs", "--bootstrap-server", "h:1"], 'Missing required argument "[describe]"'),
        (["leader-election", "--bootstrap-server", "h:1", "--topic", "t"], "Missing required option(s): election-type"),
        (["reassign-partitions", "--bootstrap-server", "h:1", "--execute"], "[reassignment-json-file]"),
        (
            ["reassign-partitions", "--bootstrap-server", "h:1", "--list", "--throttle", "5"],
            "can't be used with action",
        ),
        (["transactions", "--bootstrap-server", "h:1", "describe"], "needs --transactional-id"),
        (["transactions", "--bootstrap-server", "h:1", "find-hanging"], "requires either --topic or --broker-id"),
        (["acls", "--bootstrap-server", "h:1", "--add", "--topic", "t"], "--allow-principal, --deny-principal"),
        (["acls", "--bootstrap-server", "h:1", "--add", "--allow-principal", "bob", "--topic", "t"], "principalType"),
        (["console-consumer", "--bootstrap-server", "h:1"], "Exactly one of --include/--topic is required"),
        (["console-consumer", "--bootstrap-server", "h:1", "--topic", "t", "--offset", "3"], "partition is required"),
        (
            ["producer-perf-test", "--topic", "t", "--num-records", "1", "--throughput", "-1"],
            "exactly one of --record-size",
        ),
        (["cluster", "id", "--bootstrap-server", "h:1"], "use cluster-id or unregister"),
        (["up", "--brokers", "0"], "--brokers must be at least 1"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_done(arguments: list[str], complaint: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert complaint in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_missing_cluster_is_reported_in_one_line() -> None:
    result = runner.invoke(app, ["topics", "--bootstrap-server", "127.0.0.1:1", "--list"])
    assert result.exit_code == 1
    assert result.output.strip() == "error: cannot connect to 127.0.0.1:1: Connection refused"
