"""How every tool parses its options, and how every tool fails."""

import subprocess
import sys

import pytest

from barnabas.cli import main as commands
from barnabas.cli._command import UsageError
from barnabas.cli.main import COMMANDS, GROUPS, Entry, app, run
from barnabas.cli.tool import BOOTSTRAP, Argument, Option, Tool, WrongUse
from tests.support.command_line import CliRunner

runner = CliRunner()
TOOL = Tool(
    options=(
        BOOTSTRAP,
        Option("--topic"),
        Option("--topic-id"),
        Option("--state", alone="any"),
        Option("--default", means=("--topic", "the default")),
        Option("--settings", rest=True),
        Option("--wait", kind=bool, off="--no-wait"),
    ),
    arguments=(Argument("words", "", many=True),),
)


@TOOL.action("--list", "")
def _list() -> None: ...


@TOOL.action("--describe", "")
def _describe() -> None: ...


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        # A unique abbreviation is completed; an exact name wins over a longer one.
        ("--boot h:1 --desc", {"--bootstrap-server": ["h:1"], "--describe": [""]}),
        ("--boot=h:1", {"--bootstrap-server": ["h:1"]}),
        ("--topic x", {"--topic": ["x"]}),
        # A value may be left out at the end and before another option.
        ("--list --state", {"--list": [""], "--state": ["any"]}),
        ("--state --list", {"--list": [""], "--state": ["any"]}),
        ("--state Empty", {"--state": ["Empty"]}),
        ("--state=Empty", {"--state": ["Empty"]}),
        # One flag stands for other words, in its place.
        ("--topic a --default --topic b", {"--topic": ["a", "the default", "b"]}),
        ("--settings a=1 b=2 --list", {"--settings": ["a=1", "b=2"], "--list": [""]}),
        ("--no-wait", {"--wait": ["no"]}),
        # A number below zero is no option.
        ("--topic -1", {"--topic": ["-1"]}),
    ],
)
def test_options_are_parsed_as_in_kafka(typed: str, texts: dict[str, list[str]]) -> None:
    given = TOOL.parse(typed.split())
    assert (given.texts, given.words) == (texts, [])


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--to x", "no such option: --to; did you mean --topic?"),  # ambiguous
        ("--topic", "option '--topic' requires an argument"),
        ("--topic --list", "option '--topic' requires an argument"),
        ("--list=yes", "option '--list' does not take a value"),
        ("--no-wait=yes", "option '--no-wait' does not take a value"),
    ],
)
def test_options_that_cannot_be_parsed_are_refused(typed: str, words: str) -> None:
    with pytest.raises(WrongUse) as refused:
        TOOL.parse(typed.split())
    assert str(refused.value) == words


def test_arguments_after_two_dashes_are_not_touched() -> None:
    assert TOOL.parse(["--list", "--", "--boot"]).words == ["--boot"]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_exists_and_explains_itself(name: str) -> None:
    result = runner.invoke(app, [*name.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert COMMANDS[name].help in " ".join(result.output.split())
    too_long = [line for line in result.output.splitlines() if len(line) > 80]
    assert not too_long, "it fits an ordinary terminal"


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
    assert len(grouped) == len(COMMANDS)
    shown = runner.invoke(app, ["--help"]).output
    assert all(f"{heading}:" in shown for heading in GROUPS)
    assert max(map(len, shown.splitlines())) <= 80


def test_version_is_printed() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.output.startswith("barnabas ")


def test_unknown_command_is_refused() -> None:
    assert runner.invoke(app, ["topic"]).exit_code == 2


def command_that_raises(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool()

    @tool.main
    def fail() -> None:
        raise error

    monkeypatch.setitem(COMMANDS, "fails", Entry("fails", "Fails."))
    monkeypatch.setattr(commands, "load", lambda name: tool)


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("say it differently"), 1), (KeyboardInterrupt(), 130)], ids=["failure", "ctrl-c"]
)
def test_failures_end_with_a_status_and_at_most_one_line(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_that_raises(error, monkeypatch)
    assert run(["fails"]) == status
    assert capsys.readouterr().err == ("error: say it differently\n" if status == 1 else "")


def test_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    command_that_raises(ZeroDivisionError(), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        run(["fails"])


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
        (
            ["client-metrics", "--bootstrap-server", "h:1", "--alter", "--metrics", "*"],
            "One of --name or --generate-name",
        ),
        (["client-metrics", "--bootstrap-server", "h:1", "--delete"], "Missing required argument"),
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
            'be used with option "[list]"',
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
        (["cluster", "id", "--bootstrap-server", "h:1"], "use one of cluster-id, unregister"),
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
