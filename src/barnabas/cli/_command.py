"""Shared by all commands: parse options as Kafka's tools do, and report failures."""

import functools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand

from barnabas.base.errors import BarnabasError

P = ParamSpec("P")
T = TypeVar("T")


class UsageError(BarnabasError):
    """Options that do not go together. The message says what would work."""


#: Control characters but for line ends and tabs, and those that reverse the direction of text.
_UNSAFE: Final = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")


def printable(text: str) -> str:
    """The text for a terminal: names come from strangers, and an escape sequence in one would act on the terminal."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def complain(line: str) -> None:
    """Write one line to stderr, with log lines below it. On a narrow terminal, fold it between words."""
    lines = line.split("\n")
    if sys.stderr.isatty():
        lines = [printable(each) for each in lines]
        width = max(40, shutil.get_terminal_size().columns)
        lines = [
            textwrap.fill(each, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for each in lines
        ]
    sys.stderr.write("\n".join(lines) + "\n")


def failing_well(function: Callable[P, T]) -> Callable[P, T]:
    """Report a failure in one line on stderr with exit 1, Ctrl-C with exit 130, a closed pipe silently, a bug with a
    traceback."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BarnabasError as error:
            complain(f"error: {error}")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader (`head`, a pager) has closed the pipe, so nothing more can be written to stdout, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None

    return command


def command_class(
    *, optional_values: Sequence[str], no_value: str, rewrites: Mapping[str, Sequence[str]]
) -> type[TyperCommand]:
    """A command that takes options as Kafka's tools do: unique abbreviations, and values that may be left out."""

    class KafkaCommand(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            known = {name for parameter in self.params for name in parameter.opts} | {"--help"}
            return list(super().parse_args(ctx, normalise(args, known, optional_values, no_value, rewrites)))

    return KafkaCommand


def normalise(
    args: Sequence[str],
    known: set[str],
    optional_values: Sequence[str],
    no_value: str,
    rewrites: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Complete abbreviated options, insert `no_value` where an optional value is missing, and apply `rewrites`."""
    out: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return [*out, *args[index:]]
        if not arg.startswith("--"):
            out.append(arg)
            continue
        name, equals, value = arg.partition("=")
        if name not in known:
            candidates = [option for option in known if option.startswith(name)]
            if len(candidates) == 1:
                name = candidates[0]
        if rewrites and name in rewrites:
            out.extend(rewrites[name])
            continue
        out.append(name + equals + value)
        if name in optional_values and not equals:
            following = args[index + 1] if index + 1 < len(args) else "--"
            if following.startswith("--"):
                out.append(no_value)
    return out
