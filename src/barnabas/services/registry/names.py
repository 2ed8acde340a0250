"""Subjects and contexts: `:.staging:orders-value` is the subject `orders-value` of the context `.staging`. Pure."""

from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
#: Settings of this context apply to all others.
GLOBAL_CONTEXT: Final = ".__GLOBAL"
ALL_CONTEXTS: Final = ":*:"
#: Names that are reserved by Confluent.
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})


class Subject(NamedTuple):
    context: str
    #: Empty if the text names a context only.
    name: str

    @property
    def prefix(self) -> str:
        """The prefix of all subjects of this context."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    def __str__(self) -> str:
        return self.prefix + self.name


def split(text: str) -> Subject:
    if text.startswith(":."):
        context, _, name = text[1:].partition(":")
        return Subject(context, name)
    if text.startswith(ALL_CONTEXTS):
        return Subject("*", text.removeprefix(ALL_CONTEXTS))
    return Subject(DEFAULT_CONTEXT, text)


def context_of(subject: str) -> str:
    return split(subject).context


def prefix_of(subject: str) -> str:
    return split(subject).prefix


def normal(text: str) -> str:
    """Return the shortest form of a subject: `:.:orders` becomes `orders`."""
    return str(split(text))


def beside(parent: str, text: str) -> str:
    """Return the full name of a subject that the schema of another one names: in the same context, unless it names its own."""
    wanted = split(text)
    if wanted.context == DEFAULT_CONTEXT:
        wanted = Subject(context_of(parent), wanted.name)
    return str(wanted)


def in_context(context: str, text: str) -> str:
    """Return the full name of a subject that a request below `/contexts/{context}` names."""
    wanted = split(text)
    if wanted.context != DEFAULT_CONTEXT or text.startswith(":.:"):
        return text
    return str(Subject(context_named(context), wanted.name))


def context_named(text: str) -> str:
    """`staging`, `.staging` and `:.staging:` name the same context."""
    name = text.strip(":")
    return name if name.startswith(".") else f".{name}"


def is_valid(text: str, *, for_settings: bool = False) -> bool:
    """Whether a subject's name is valid. Names for settings may also be those of a context, without a subject."""
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
        return False
    subject = split(text)
    if subject.name in _RESERVED:
        return False
    return for_settings or (subject.context not in (GLOBAL_CONTEXT, "*") and subject.name not in ("", "*"))


def covers(pattern: str | None, subject: str) -> bool:
    """Whether a pattern covers the subject: the subject itself, its context, or the global context; `None` covers all."""
    if pattern is None or pattern == subject:
        return True
    wanted = split(pattern)
    return not wanted.name and wanted.context in (GLOBAL_CONTEXT, context_of(subject))
