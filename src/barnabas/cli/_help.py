"""The help of a tool, and of `barnabas` itself, for a terminal. Made from the tables."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.cli.main import GROUPS
from barnabas.cli.tool import BOOTSTRAP, Action, Argument, Option, Tool

_WIDTH_MAX: Final = 80
#: Widest left column; longer entries stand on a line of their own.
_LEFT_MAX: Final = 28


def tool_help(name: str, summary: str, tool: Tool) -> str:
    """Return the help of a tool: usage, actions, arguments, options, examples."""
    parts = [usage(name, tool), _paragraphs(f"{summary}\n\n{tool.about}")]
    if shown := actions(tool):
        parts.append(_section("Actions, exactly one" if len(shown) > 1 else "Action", shown))
    arguments = [(each.shown, meaning(tool, each)) for each in tool.arguments]
    options = [(each.shown, meaning(tool, each)) for each in tool.options]
    parts += [_section("Arguments", arguments)] * bool(arguments)
    parts.append(_section("Options", [*options, ("--help", "Print this and exit.")]))
    if tool.examples:
        parts.append(f"{_examples_heading(tool)}:\n" + "\n".join(map(_example, tool.examples)))
    return "\n\n".join(parts) + "\n"


def _examples_heading(tool: Tool) -> str:
    """Say where the cluster is, if the examples leave it to the environment."""
    is_read = any(option.env == BOOTSTRAP.env for option in tool.options)
    is_left_out = is_read and not any(BOOTSTRAP.flag in line for line in tool.examples)
    return f"Examples, after export {BOOTSTRAP.env}=localhost:9092" if is_left_out else "Examples"


def actions(tool: Tool) -> list[tuple[str, str]]:
    """Return the actions with the arguments that they take, and what they do; none of a tool that does one thing."""
    return [
        (f"{action.flag} {_words_of(tool, action)}".strip(), _about(tool, action))
        for action in tool.actions
        if action.flag
    ]


def _example(line: str) -> str:
    """Fold a long command line as a shell takes it."""
    lines = textwrap.wrap(line, _width() - 4, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"  {each}" for each in " \\\n".join(lines).split("\n"))


def usage(name: str, tool: Tool) -> str:
    action = " ACTION" if len(tool.actions) > 1 else f" {tool.actions[0].flag}".rstrip()
    words = "".join(f" {_placeholder(each, tool.actions)}" for each in tool.arguments if _is_for_all(tool, each))
    words += "" if all(_is_for_all(tool, each) for each in tool.arguments) else " …"
    return f"Usage: barnabas {name}{action}{words} [OPTIONS]"


def group_help() -> str:
    """Return the help of `barnabas`: one line for each command."""
    parts = [
        "Usage: barnabas COMMAND [OPTIONS]",
        "Apache Kafka's broker cluster in Python. `barnabas up` starts one here.",
        *(
            _section(heading, [(name, entry.help) for name, entry in commands.items()])
            for heading, commands in GROUPS.items()
        ),
        _section(
            "Options",
            [
                ("--version", "Print the version and exit."),
                ("--install-completion", "Install completion for this shell."),
                ("--help", "Print this and exit; after a command, its own options."),
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _words_of(tool: Tool, action: Action) -> str:
    return (
        " ".join(_placeholder(each, [action]) for each in tool.arguments if action in tool.readers(each))
        if action.flag
        else ""
    )


def _is_for_all(tool: Tool, argument: Argument) -> bool:
    return len(tool.readers(argument)) == len(tool.actions)


def _placeholder(argument: Argument, actions: Sequence[Action]) -> str:
    text = argument.shown + (" …" if argument.many else "")
    is_needed = argument.required or all(argument.name in action.needs for action in actions)
    return text if is_needed else f"[{text}]"


def _about(tool: Tool, action: Action) -> str:
    flags = [need for need in action.needs if need.startswith("-")]
    return f"{action.help} Needs {' and '.join(flags)}." if flags else action.help


def meaning(tool: Tool, each: Option | Argument) -> str:
    """Return what an option means, its default, and the actions that take it if not all do."""
    text = each.help
    if isinstance(each, Option):
        text = text or each.refused
        text += f" No effect: {each.no_effect}." if each.no_effect else ""
    if each.default and each.default != -1:
        text += f" [{each.default}]"
    readers = tool.readers(each)
    if len(tool.actions) > 1 and 0 < len(readers) < len(tool.actions):
        instead = f"; {each.instead}" if isinstance(each, Option) and each.instead else ""
        text += f" ({', '.join(action.flag for action in readers)}{instead})"
    return text.strip()


def _paragraphs(text: str) -> str:
    return "\n\n".join(textwrap.fill(" ".join(each.split()), _width()) for each in text.strip().split("\n\n"))


def _section(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format two columns; a left cell that is too wide has a line of its own."""
    left = max((len(cell.strip()) for cell, _ in rows if len(cell.strip()) <= _LEFT_MAX), default=_LEFT_MAX)
    return "\n".join([f"{heading}:", *(line for cell, text in rows for line in _row(cell.strip(), text, left))])


def _row(cell: str, text: str, left: int) -> Iterable[str]:
    lines = textwrap.wrap(text, _width() - left - 4, break_on_hyphens=False) or [""]
    if len(cell) > left:
        yield f"  {cell}"
        cell = ""
    for line in lines:
        yield f"  {cell:<{left}}  {line}".rstrip()
        cell = ""


def _width() -> int:
    return min(_WIDTH_MAX, max(40, shutil.get_terminal_size().columns)) - 1
