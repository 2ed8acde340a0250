"""Where the command begins, before any sub-command is there to handle anything."""

import importlib
import sys

import pytest

from barnabas.cli import entry
from barnabas.cli import main as commands


def _interrupted(*_: str) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("arguments", [["broker", "server.properties"], ["topics", "--list"]], ids=["direct", "typer"])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["barnabas", *arguments])
    monkeypatch.setattr(importlib, "import_module", _interrupted)
    monkeypatch.setattr(commands, "main", _interrupted)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == entry.INTERRUPTED
