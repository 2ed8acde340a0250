"""Completion in a shell: commands, actions, options, values, and names that only the cluster knows.

The shell calls `barnabas --complete SHELL LINE` with the line up to the cursor. A person waits for the answer, so a failure or
delay offers no names.
"""

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli._command import UsageError
from barnabas.cli.tool import Given, Option, Tool, choices_of, complete, texts_of

if TYPE_CHECKING:
    from barnabas.client.asynchronous import AsyncClient

_TIMEOUT_S: Final = 3.0
_TIMEOUT_MS: Final = "2000"

Names = Callable[["AsyncClient"], Awaitable[Iterable[str]]]


async def _topics(cluster: "AsyncClient") -> Iterable[str]:
    return (await cluster.refresh(None)).topics


async def _groups(cluster: "AsyncClient") -> Iterable[str]:
    from barnabas.client.admin.groups import list_groups

    return [group.group_id for group in await list_groups(cluster)]


async def _brokers(cluster: "AsyncClient") -> Iterable[str]:
    return [str(broker_id) for broker_id in (await cluster.refresh(())).brokers]


_ENTITIES: Final[dict[str, Names]] = {"topics": _topics, "groups": _groups, "brokers": _brokers}
#: By option, and by the name of an argument in the usage, for all tools.
_NAMES: Final[dict[str, Names]] = {
    "--topic": _topics,
    "--group": _groups,
    "--broker": _brokers,
    "--broker-logger": _brokers,
    "--id": _brokers,
    "ID": _brokers,
}
#: Options that name a file with client settings.
_FILES: Final = ("--command-config", "--consumer.config", "--producer.config", "--admin.config", "--config")

#: Where each shell's script goes, and what it is. bash splits words at `:` and `=`, and replaces only what comes after them.
_SCRIPTS: Final = {
    "bash": (
        ".local/share/bash-completion/completions/barnabas",
        """_barnabas() {
    local IFS=$'\\n'
    COMPREPLY=($(barnabas --complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _barnabas barnabas
""",
    ),
    "zsh": (
        ".zfunc/_barnabas",
        """#compdef barnabas
local -a found
found=("${(@f)$(barnabas --complete zsh "${words[1,CURRENT]}" 2>/dev/null)}")
if [[ -n $found ]]; then compadd -a found; else _files; fi
""",
    ),
    "fish": (
        ".config/fish/completions/barnabas.fish",
        "complete -c barnabas -a '(barnabas --complete fish (commandline -cp | string collect) 2>/dev/null)'\n",
    ),
}


def install(shell: str) -> str:
    """Write the script of a shell below the home folder; return what to tell the person."""
    shell = shell.rpartition("/")[2]
    if shell not in _SCRIPTS:
        raise UsageError(
            f"there is no completion for the shell {shell or 'of this session'}: use {', '.join(_SCRIPTS)}"
        )
    place, text = _SCRIPTS[shell]
    file = Path.home() / place
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
    more = "; add `fpath+=~/.zfunc; autoload -Uz compinit && compinit` to ~/.zshrc" if shell == "zsh" else ""
    return f"wrote {file}: the next {shell} completes barnabas{more}"


def candidates(shell: str, line: str, commands: Iterable[str], load: Callable[[str], Tool]) -> list[str]:
    """Return what the last word of a command line may become."""
    words = _split(line)[1:]
    if not words:
        return []
    *before, last = words
    found = sorted(each for each in _offered(before, last, list(commands), load) if each.startswith(last))
    if shell == "bash":
        keep = max(last.rfind(":"), last.rfind("=")) + 1
        return [each[keep:] for each in found]
    return found


def _split(line: str) -> list[str]:
    """Split as a shell does; the last word may be empty, or have an open quote."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return [*words, ""] if line[-1:].isspace() or not line else words


def _offered(before: Sequence[str], last: str, commands: Sequence[str], load: Callable[[str], Tool]) -> Iterable[str]:
    name = " ".join(before[:2]) if " ".join(before[:2]) in commands else "".join(before[:1])
    if not before:
        return [each for each in (*commands, "--help", "--version", "--install-completion") if " " not in each]
    if name not in commands:
        return []
    tool, words = load(name), before[len(name.split()) :]
    if last.startswith("--") and "=" in last:
        flag, _, value = last.partition("=")
        return [f"{flag}={each}" for each in _offered([*before, flag], value, commands, load)]
    option = _waits_for_value(tool, words)
    given = _parsed(tool, words[:-1] if option else words)
    if option is not None:
        return choices_of(option) or _names_for(_names_of(option, given), given, tool, last)
    if last.startswith("-"):
        return tool.flags() - {each.flag for each in tool.options if each.flag in given.texts and not each.is_many}
    return [*_words(name, tool, given, commands), *_of_argument(tool, given, last)]


def _words(name: str, tool: Tool, given: Given, commands: Sequence[str]) -> Iterable[str]:
    """Return actions, and second words of commands of two words."""
    if given.words:
        return
    yield from (each.removeprefix(f"{name} ") for each in commands if each.startswith(f"{name} "))
    if tool.has_words:
        yield from (action.flag for action in tool.actions)


def _of_argument(tool: Tool, given: Given, last: str) -> Iterable[str]:
    place = len(given.words) - int(tool.has_words)
    if place < 0 or not tool.arguments:
        return []
    argument = tool.arguments[min(place, len(tool.arguments) - 1)]
    if place >= len(tool.arguments) and not argument.many:
        return []
    return choices_of(argument) or _names_for(_NAMES.get(argument.shown), given, tool, last)


def _waits_for_value(tool: Tool, words: Sequence[str]) -> Option | None:
    flag = complete(words[-1], tool.flags()) if words else ""
    return next(
        (each for each in tool.options if flag in each.flags and each.kind is not bool and not each.means), None
    )


def _parsed(tool: Tool, words: Sequence[str]) -> Given:
    try:
        return tool.parse(words)
    except UsageError:
        return Given()


def _names_of(option: Option, given: Given) -> Names | None:
    if option.flag == "--entity-name":
        return _ENTITIES.get("".join(given.texts.get("--entity-type", [])[-1:]))
    return _NAMES.get(option.flag)


def _names_for(names: Names | None, given: Given, tool: Tool, incomplete: str) -> list[str]:
    """Ask the cluster that the words name."""
    if names is None:
        return []
    from barnabas.base.errors import BarnabasError
    from barnabas.client.asynchronous import AsyncClient
    from barnabas.client.config import client_config, load_properties

    async def ask() -> list[str]:
        file = next((given.texts[flag][-1] for flag in _FILES if flag in given.texts), None)
        settings: Mapping[str, Any] = load_properties(file) if file else {}
        limits = {"socket.connection.setup.timeout.ms": _TIMEOUT_MS, "default.api.timeout.ms": _TIMEOUT_MS}
        bootstrap = "".join(
            texts_of(next(each for each in tool.options if each.flag == "--bootstrap-server"), given)[-1:]
        )
        config = client_config(bootstrap or None, {**settings, **limits}, client_id="barnabas-completion")
        if not config.bootstrap:
            return []
        async with asyncio.timeout(_TIMEOUT_S), AsyncClient(config) as cluster:
            return [name for name in await names(cluster) if name.startswith(incomplete)]

    try:
        return asyncio.run(ask())
    except (BarnabasError, OSError, TimeoutError):
        return []


def answer(shell: str, line: str, commands: Iterable[str], load: Callable[[str], Tool]) -> None:
    sys.stdout.write("".join(f"{each}\n" for each in candidates(shell, line, commands, load)))
