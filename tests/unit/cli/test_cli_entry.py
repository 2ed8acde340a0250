"""The entry point, before any sub-command is imported."""

import gc
import importlib
import sys

import pytest

from barnabas.cli import entry, fork_server
from barnabas.cli import main as commands


def _interrupted(*_: str) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("arguments", [["broker", "server.properties"], ["topics", "--list"]], ids=["service", "tool"])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["barnabas", *arguments])
    monkeypatch.setattr(importlib, "import_module", _interrupted)
    monkeypatch.setattr(commands, "main", _interrupted)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == entry.INTERRUPTED


@pytest.mark.parametrize(
    ("arguments", "launched"),
    [(["up"], True), (["up", "--brokers", "3"], True), (["up", "--detach"], False), (["topics", "--list"], False)],
)
def test_up_starts_the_process_that_forks_brokers_before_it_imports_its_commands(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], launched: bool
) -> None:
    happened: list[tuple[str, bool]] = []
    monkeypatch.setattr(sys, "argv", ["barnabas", *arguments])
    monkeypatch.setattr(fork_server, "fork_server", lambda: happened.append(("launcher", gc.isenabled())))
    monkeypatch.setattr(commands, "main", lambda: happened.append(("command", gc.isenabled())))
    entry.main()
    # Garbage collection runs during a command, but not during imports.
    assert happened == [("launcher", False)] * launched + [("command", True)]
