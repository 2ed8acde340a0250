"""JAAS lines, which hold credentials in Kafka's settings: `org…PlainLoginModule required username="u" password="p";`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ConfigError

_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s=;"']+)|([=;]))""")
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_ESCAPE: Final = re.compile(r"\\(.)")

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
#: `user_alice="secret"`: a password that a PLAIN server accepts.
_USER_PREFIX: Final = "user_"


@dataclass(frozen=True, slots=True, repr=False)
class JaasEntry:
    """Has secrets, so `repr` hides them."""

    module: str
    options: Mapping[str, str]

    def require(self, option: str) -> str:
        value = self.options.get(option)
        if not value:
            raise ConfigError(f'sasl.jaas.config: {self.module} needs {option}="…"')
        return value

    @property
    def users(self) -> dict[str, str]:
        """Return the passwords that a PLAIN server accepts, by user."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX)
        }


def parse_jaas(text: str) -> JaasEntry:
    """:raises ConfigError: saying what is missing, without repeating any of the line."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise ConfigError('sasl.jaas.config must be: MODULE required name="value" …; with the semicolon')
    (module, _), (flag, _), *rest = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise ConfigError(f"sasl.jaas.config: the flag after the module must be one of {', '.join(_FLAGS)}")
    if any(token == (";", True) for token in rest):
        raise ConfigError("sasl.jaas.config must have exactly one login module")
    options: dict[str, str] = {}
    for at in range(0, len(rest), 3):
        triple = rest[at : at + 3]
        if len(triple) != 3 or triple[1] != ("=", True) or triple[0][1] or triple[2][1]:
            raise ConfigError('sasl.jaas.config: options are written name="value"')
        options[triple[0][0]] = triple[2][0]
    return JaasEntry(module, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Return words, and whether each is a single punctuation mark."""
    tokens: list[tuple[str, bool]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigError("sasl.jaas.config: a quotation mark is missing")
        at = match.end()
        double, single, word, sign = match.groups()
        if sign is not None:
            tokens.append((sign, True))
        elif word is not None:
            tokens.append((word, False))
        else:
            tokens.append((_ESCAPE.sub(r"\1", double if double is not None else single), False))
    return tokens
