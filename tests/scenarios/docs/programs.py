"""Which programs the documents may call: those of every Debian, those that README.md tells to install, and barnabas' own."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

#: Of packages that every Debian has: apt, bash, coreutils, findutils, grep, hostname, passwd, sed, util-linux.
_OF_EVERY_DEBIAN: Final = (
    "apt-get bash cat chmod cp cut date dd df dirname du echo env expr false find grep head hostname id install ln ls "
    "mkdir mktemp mv nice nohup printf pwd readlink realpath rm rmdir sed seq sh sleep sort stat tail tee test timeout "
    "touch tr true tty uname uniq useradd wc xargs"
)
ESSENTIAL: Final = frozenset(_OF_EVERY_DEBIAN.split())
#: Package in README.md -> the program that it is for.
NAMED_BY_THE_README: Final = {
    "git": "git",
    "make": "make",
    "openjdk-17-jre-headless": "java",
    "python3-venv": "python3",
}
#: What the virtual environment has, which README.md makes.
_OF_THE_ENVIRONMENT: Final = frozenset({"barnabas", "pip", "python", "pytest"})
#: Words of bash after which another command follows, and those after which its arguments do.
_BEFORE_A_COMMAND: Final = frozenset(
    {"!", "{", "}", "do", "done", "elif", "else", "fi", "if", "then", "until", "while"}
)
_BUILT_IN: Final = frozenset({"[", "cd", "exit", "export", "for", "source", "wait"})
_FENCE: Final = re.compile(r"^```(?:sh|bash|console)\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT: Final = re.compile(r"(<<-?\s*'?(\w+)'?[^\n]*\n)(?:.*?)^\2$", re.MULTILINE | re.DOTALL)
_FUNCTION: Final = re.compile(r"\b(\w+)\(\)\s*\{")
_SEPARATORS: Final = frozenset({"|", "||", "&&", "&", ";", "(", ")", ";;"})


class Command(NamedTuple):
    line: int
    program: str


def commands_of(text: str) -> Iterator[Command]:
    """The programs that the shell blocks of a document call. Of blocks with a `$` at the beginning, the others are output."""
    own = set(_FUNCTION.findall(text)) | _BUILT_IN
    for block in _FENCE.finditer(text):
        first = text.count("\n", 0, block.start()) + 2
        body = _HERE_DOCUMENT.sub(
            lambda found: found.group(1) + "\n" * (found.group(0).count("\n") - 1), block.group(1)
        )
        has_prompt = bool(re.search(r"^\$ ", body, re.MULTILINE))
        continued = ""
        for number, line in enumerate(body.split("\n"), first):
            if line.endswith("\\"):
                continued += line[:-1] + "\n"
                continue
            whole, begins, continued = continued + line, number - continued.count("\n"), ""
            if has_prompt and not whole.startswith("$ "):
                continue
            for program in _programs(whole.removeprefix("$ ")):
                if program not in own:
                    yield Command(begins, program)


def _programs(line: str) -> Iterator[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True  # also at the newlines of a line that was continued
    is_first = True
    for token in lexer:
        if token in _SEPARATORS:
            is_first = True
        elif "$(" in token and token != "$(":
            yield from _programs(token.partition("$(")[2])
            is_first = is_first and "=" in token
        elif is_first and token not in _BEFORE_A_COMMAND and not re.fullmatch(r"\w+=.*", token):
            is_first = False
            if not token.startswith("$"):
                yield token.rpartition("/")[2]


def not_named(text: str) -> list[Command]:
    """Programs that neither every Debian has, nor README.md names, nor the text of this document (`podman build …`)."""
    prose = _FENCE.sub("", text)
    named = set(re.findall(r"`([\w.-]+)[` ]", prose))
    known = ESSENTIAL | set(NAMED_BY_THE_README.values()) | _OF_THE_ENVIRONMENT | named
    return [command for command in commands_of(text) if command.program not in known]


def folder_of_programs(folder: Path) -> Path:
    """Links to the programs that a document may call: with this folder as `PATH`, others are not found."""
    folder.mkdir()
    for program in ESSENTIAL | set(NAMED_BY_THE_README.values()):
        if (there := shutil.which(program)) is not None:
            (folder / program).symlink_to(there)
    return folder
