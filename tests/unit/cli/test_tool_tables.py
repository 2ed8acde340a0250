"""What every tool's table says is true: each option has a reader, each rule is kept, the help shows everything."""

import ast
import inspect
import itertools
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from barnabas.cli._command import UsageError
from barnabas.cli._help import tool_help
from barnabas.cli.main import COMMANDS, load
from barnabas.cli.tool import (
    CLIENT,
    CLUSTER,
    Action,
    Argument,
    Given,
    OneOf,
    Option,
    Rule,
    Tool,
    texts_of,
)

each_tool = pytest.mark.parametrize("name", COMMANDS)


def parameters(action: Action) -> Iterator[str]:
    return (each for each in action.parameters if each not in (CLUSTER, CLIENT))


def unread(source: str) -> set[str]:
    """Return parameters that the body of a function never reads."""
    [function] = ast.parse(textwrap.dedent(source)).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    names = {
        node.id
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)} - names


@each_tool
def test_each_option_and_argument_has_a_reader(name: str) -> None:
    tool = load(name)
    without = [each for each in (*tool.options, *tool.arguments) if not tool.readers(each)]
    assert [each for each in without if isinstance(each, Argument) or each.is_read] == []
    assert [each.flag for each in tool.options if not each.is_read and tool.readers(each)] == []
    for action in tool.actions:
        assert unread(inspect.getsource(action.run)) == set(), action.flag
    if tool.connect is not None:
        assert unread(inspect.getsource(tool.connect)) == set()


@each_tool
def test_fields_of_a_group_of_options_are_read_in_the_module(name: str) -> None:
    tool = load(name)
    groups = {group for action in tool.actions for each in parameters(action) if (group := tool.group(action, each))}
    read = {
        node.attr
        for group in groups
        for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(group) or group)))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert {field for group in groups for field in group.__dataclass_fields__} <= read


def test_unread_option_is_found() -> None:
    assert unread("def command(a, b, *, c):\n    c = a\n") == {"b", "c"}


@each_tool
def test_each_parameter_of_an_action_is_declared_with_its_type(name: str) -> None:
    tool = load(name)
    assert tool.actions
    declared: dict[str, Option | Argument] = {each.parameter: each for each in tool.options if each.is_read}
    declared |= {each.name: each for each in tool.arguments}
    for action in tool.actions:
        for parameter in parameters(action):
            group = tool.group(action, parameter)
            hints = get_type_hints(group or action.run)
            for each in group.__dataclass_fields__ if group else (parameter,):
                option = declared[each.rstrip("_")]
                check_type(option, action, hints[each], f"{name} {action.flag} {each}")


def check_type(option: Option | Argument, action: Action, annotation: Any, where: str) -> None:
    key = option.flag if isinstance(option, Option) else option.name
    is_many = option.is_many if isinstance(option, Option) else option.many
    may_be_none = not (
        option.required or is_many or option.kind is bool or option.default is not None or key in action.needs
    )
    if is_many:
        assert get_origin(annotation) is Sequence, where
        annotation = get_args(annotation)[0]
    if may_be_none:
        assert NoneType in get_args(annotation), f"{where} may be None"
    kind: Any = option.kind
    if isinstance(kind, OneOf):
        kind = str
    elif not isinstance(kind, type):
        if kind.__name__ == "<lambda>":
            return
        kind = get_type_hints(kind)["return"]
    assert without_none(annotation) == without_none(kind), where


def without_none(annotation: Any) -> Any:
    """Return the kinds of a value; `tuple[int, ...]` counts as `Sequence[int]`."""
    members = (
        [each for each in get_args(annotation) if each is not NoneType] if NoneType in get_args(annotation) else []
    )
    kinds = members or [annotation]
    return {Sequence[get_args(each)[0]] if get_origin(each) is tuple else each for each in kinds}


@each_tool
def test_help_shows_each_action_option_and_argument_within_80_columns(name: str) -> None:
    tool = load(name)
    shown = tool_help(name, COMMANDS[name].help, tool)
    for each in (*tool.options, *tool.arguments):
        assert f"\n  {each.shown}" in shown
        assert each.help or (isinstance(each, Option) and each.no_effect), f"{each.shown} says what it is"
    for action in tool.actions:
        assert f"\n  {action.flag}" in shown
        assert action.help or not action.flag
    assert [line for line in shown.splitlines() if len(line) > 80] == []


@each_tool
def test_examples_are_right(name: str) -> None:
    tool = load(name)
    assert tool.examples, "a tool teaches"
    for line in tool.examples:
        words = shlex.split(line, comments=True)
        while words[0] != "barnabas":  # a pipe, or a variable of the environment
            words = words[1:]
        assert words[1 : 1 + len(name.split())] == name.split()
        words = words[1 + len(name.split()) :]
        ends = [index for index, word in enumerate(words) if word in ("|", ">", "<", "&")]
        given = tool.parse(words[: ends[0]] if ends else words)
        action = tool.choose(given)
        tool.check(action, given)
        for option in tool.options:
            if not isinstance(option.kind, type) and not isinstance(option.kind, OneOf):
                continue  # it may read a file
            for text in texts_of(option, given):
                option.kind(text)


# -- rules ----------------------------------------------------------------------------------------------------------------


def least(tool: Tool, action: Action) -> set[str]:
    """Return what an action needs at least, but for its rules."""
    required = {each.flag for each in tool.options if each.required}
    return {*action.needs, *required, *(each.name for each in tool.arguments if each.required)}


def given(tool: Tool, action: Action, names: set[str]) -> Given:
    words = [each.name for each in tool.arguments if action in tool.readers(each)]
    count = max((words.index(each) + 1 for each in names if each in words), default=0)
    return Given({each: ["x"] for each in names if each.startswith("-")}, words[:count])


def error_of(tool: Tool, action: Action, names: set[str]) -> str:
    with pytest.raises(UsageError) as refused:
        tool.check(action, given(tool, action, names))
    return str(refused.value)


def rules() -> Iterator[Any]:
    for name in COMMANDS:
        tool = load(name)
        for number, rule in enumerate(tool.rules):
            yield pytest.param(tool, tool.actions, rule, id=f"{name}-{number}")
        for action in tool.actions:
            for number, rule in enumerate(action.rules):
                yield pytest.param(tool, [action], rule, id=f"{name}{action.flag}-{number}")


@pytest.mark.parametrize(("tool", "actions", "rule"), list(rules()))
def test_each_rule_is_kept(tool: Tool, actions: Sequence[Action], rule: Rule) -> None:
    known = {each.flag for each in tool.options} | {each.name for each in tool.arguments}
    assert set(rule.flags) <= known, "a rule about options that do not exist"
    broken = [
        error_of(tool, action, least(tool, action) | set(some))
        for action in actions
        for count in range(len(rule.flags) + 1)
        for some in itertools.combinations(rule.flags, count)
        if not rule.is_kept(frozenset(least(tool, action) | set(some)))
    ]
    assert rule.says in broken


@each_tool
def test_option_that_an_action_does_not_read_is_refused_with_it(name: str) -> None:
    tool = load(name)
    for action, option in itertools.product(tool.actions, tool.options):
        if option.is_read and action not in tool.readers(option) and option.flag not in action.ignores:
            said = error_of(tool, action, {*action.needs, option.flag})
            assert f'"[{option.flag.lstrip("-")}]" can\'t be used with option "[{action.name}]"' in said
        elif option.refused:
            assert error_of(tool, action, {*action.needs, option.flag}) == option.refused


@each_tool
def test_options_that_an_action_needs_are_declared_and_required(name: str) -> None:
    tool = load(name)
    known = {each.flag for each in tool.options} | {each.name for each in tool.arguments}
    for action in tool.actions:
        assert {*action.needs, *action.ignores} <= known
        for need in action.needs:
            words = [each.name for each in tool.arguments]
            after = words[words.index(need) :] if need in words else []
            said = error_of(tool, action, least(tool, action) - {need, *after})
            what = next((each.what for each in tool.arguments if each.name == need and each.what), need)
            assert what.lstrip("-") in said


def test_documents_of_the_tools_are_current() -> None:
    script = Path(__file__).parents[3] / "scripts" / "generate_tools_doc.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
