"""Commands that typer still parses, until they are tables."""

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand

from barnabas.base.errors import BarnabasError
from barnabas.cli._command import complain
from barnabas.cli.tool import Argument, Option, Tool

P = ParamSpec("P")
T = TypeVar("T")


def run(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    command = load(name, module)
    try:
        status = command.main(list(arguments), prog_name=f"barnabas {name}", standalone_mode=False)
    except typer.Abort:
        return 130
    except Exception as error:
        return _tell(error)
    return status if isinstance(status, int) else 0


def table(name: str, module: ModuleType) -> Tool:
    """Return what completion needs of a command."""
    options, arguments = [], []
    for each in load(name, module).params:
        if each.param_type_name == "argument":
            arguments.append(Argument(each.name, "", metavar=each.metavar or "", many=each.nargs == -1))
        else:
            kind = bool if each.is_flag else str
            options.append(Option(each.opts[0], kind=kind, many=each.multiple, env=each.envvar or ""))
    return Tool(tuple(options), tuple(arguments))


def _tell(error: Exception) -> int:
    """Print click's error in one line and return its exit status; raise any other error again."""
    message, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
    if message is None:
        raise error
    words = str(message()).strip().removesuffix(".")
    words = " ".join(words.split())  # click lists choices on a line each
    where = f"; see {context.command_path} --help" if context and not words.endswith("?") else ""
    complain(f"error: {words[:1].lower()}{words[1:]}{where}")
    return int(getattr(error, "exit_code", 1))


def load(name: str, module: ModuleType) -> Any:
    """Build the click command of a module, with Kafka's parsing of options and one way to report failures."""
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.command(
        name,
        cls=command_class(
            optional_values=getattr(module, "OPTIONAL_VALUES", ()),
            no_value=getattr(module, "NO_VALUE", ""),
            rewrites=getattr(module, "REWRITES", {}),
        ),
        help=module.command.__doc__,
        context_settings=getattr(module, "CONTEXT_SETTINGS", None),
    )(failing_well(module.command))
    command = typer.main.get_command(one)
    for parameter in command.params:
        shown = getattr(parameter, "display_type_rich", None)  # typer before 0.29 does not show these types
        if shown is None:
            continue
        has_name = parameter.param_type_name == "argument" and parameter.metavar

        def plainly(ctx: Any, shown: Any = shown, has_name: bool = bool(has_name)) -> str:
            return "" if has_name else re.sub(r"^<list\[(.*)\]>$", r"<\1>", shown(ctx=ctx) or "")

        parameter.display_type_rich = plainly  # type: ignore[attr-defined]
    return command


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
