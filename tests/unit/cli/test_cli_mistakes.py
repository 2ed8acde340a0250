"""Mistakes on the command line: one line, in one style, that says what to do."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from barnabas.cli import _progress
from barnabas.cli._parsing import warn_of_unknown
from barnabas.cli.main import app
from tests.support.command_line import CliRunner


def run_tool(*arguments: str) -> tuple[int, str]:
    """Return the exit status, and the line on stderr."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.exit_code, result.stderr.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["topcs"], 2, "error: there is no command 'topcs'; did you mean topics?"),
        (["topics", "--nope"], 2, "error: no such option: --nope"),
        (["dump-log"], 2, "error: missing option '--files'; see "),
        (
            ["brokers", "--bootstrap-server", "x:1"],
            2,
            "error: missing argument 'action'. Choose from: list, drain, replace, add; see ",
        ),
        (["topics", "--bootstrap-server"], 2, "error: option '--bootstrap-server' requires an argument"),
        (["topics", "--bootstrap-server", "localhost:1"], 1, "error: Command must include exactly one action"),
        (["up", "--config", "nope"], 1, "error: --config nope: expected name=value"),
        (["up", "--host", "0.0.0.0"], 1, "error: --host 0.0.0.0 listens on all addresses: give --advertised-host"),
    ],
)
def test_mistake_is_reported_in_one_line(arguments: list[str], status: int, words: str) -> None:
    code, line = run_tool(*arguments)
    assert (code, line[: len(words)]) == (status, words)


def test_unusable_data_folder_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run_tool("up", "--data", str(file)) == (1, f"error: --data {file}: it is a file; name a folder")
    below = file / "below"
    assert run_tool("up", "--data", str(below))[1] == f"error: --data {below}: it cannot be created: Not a directory"

    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write anywhere
    assert run_tool("up", "--data", str(tmp_path))[1] == (
        f"error: --data {tmp_path}: you may not write there; choose another folder, or change its owner"
    )


def test_folder_without_segments_cannot_be_dumped(tmp_path: Path) -> None:
    assert "there are no segments in this folder" in run_tool("dump-log", "--files", str(tmp_path))[1]


def test_missing_file_cannot_be_dumped() -> None:
    result = CliRunner().invoke(app, ["dump-log", "--files", "/nope"])
    assert (result.exit_code, result.stderr) == (1, "/nope cannot be dumped: there is no such file\n")


def test_no_command_prints_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "A cluster on this machine:" in result.output


def test_misspelt_settings_of_topics_and_brokers_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_unknown(["retention.sm", "retention.ms", "something.else.entirely"], of_topic=True)
    warn_of_unknown(["log.cleaner.thraeds", "listener.name.client.ssl.keystore.location"], of_topic=False)
    assert capsys.readouterr().err.splitlines() == [
        "warning: retention.sm is not a known setting of a topic; did you mean retention.ms?",
        "warning: log.cleaner.thraeds is not a known setting of a broker; did you mean log.cleaner.threads?",
    ]


def test_progress_is_shown_on_a_terminal_and_not_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "PATIENCE_S", 0.0)
    terminal, said = io.StringIO(), threading.Event()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(terminal, "flush", said.set, raising=False)
    for stream in (terminal, io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with _progress.telling("asking"):
            assert stream is not terminal or said.wait(60)
        assert stream.getvalue() == ("asking …\n" if stream is terminal else "")


@pytest.mark.parametrize("action", ["--alter", "--create", "--describe"])
def test_a_setting_is_not_removed_by_the_topics_tool(action: str) -> None:
    code, line = run_tool(
        "topics", "--bootstrap-server", "x:1", action, "--topic", "t", "--delete-config", "retention.ms"
    )
    assert code == 1
    assert line.startswith('error: Option "[delete-config]" can\'t be used with option "[bootstrap-server]"')
    assert "barnabas configs --alter" in line
