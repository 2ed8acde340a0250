"""Readers and writers of messages are compiled at their first use. A process that forks seeds compiles what one has needed, so
that later ones save a tenth of a second each.
"""

import sys

from barnabas.wire import codec

#: A message by the name of its module and of its class, and a version.
Compiled = tuple[str, str, int]


def compiled() -> list[Compiled]:
    """Return the messages for which this process has compiled readers and writers."""
    return sorted({(cls.__module__, cls.__name__, at) for cls, at in (*codec.readers, *codec.writers)})


def compile_all(messages: list[Compiled]) -> None:
    for module, name, version in messages:
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None:
            codec.reader(cls, version)
            codec.writer(cls, version)
