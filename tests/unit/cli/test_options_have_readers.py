"""Every option that a command accepts is read by code."""

import ast
from pathlib import Path

import pytest

import barnabas
from barnabas.cli.main import COMMANDS, module_of
from tests.unit.cli.test_cli_mistakes import run_tool

ROOT = Path(barnabas.__file__).parents[1]


def unread(code: str) -> set[str]:
    """Return parameters of `command` that its body never reads."""
    [command] = [each for each in ast.parse(code).body if isinstance(each, ast.FunctionDef) and each.name == "command"]
    names = (
        node.id
        for statement in command.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    parameters = {each.arg for each in (*command.args.posonlyargs, *command.args.args, *command.args.kwonlyargs)}
    return parameters - set(names)


@pytest.mark.parametrize("name", [name for name in COMMANDS if not hasattr(module_of(name), "TOOL")])
def test_each_option_of_a_command_has_a_reader(name: str) -> None:
    module = module_of(name)
    assert module.__file__ is not None
    assert unread(Path(module.__file__).read_text()) == set()


def test_unread_option_is_found() -> None:
    assert unread("def command(a, b, *, c):\n    c = a\n") == {"b", "c"}


@pytest.mark.parametrize("action", ["--alter", "--create", "--describe"])
def test_a_setting_is_not_removed_by_the_topics_tool(action: str) -> None:
    code, line = run_tool(
        "topics", "--bootstrap-server", "x:1", action, "--topic", "t", "--delete-config", "retention.ms"
    )
    assert code == 1
    assert line.startswith('error: Option "[delete-config]" can\'t be used with option "[bootstrap-server]"')
    assert "barnabas configs --alter" in line
