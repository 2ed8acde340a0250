"""Who may do what: users with passwords or tokens, and rules for subjects, from one file (TOML).

    [users]
    alice = "scrypt:…"            # `barnabas schema-registry --hash-password` prints it
    [tokens]
    pipeline = "sha256:…"         # of a long random token, sent as `Authorization: Bearer …`
    [[rules]]
    users = ["alice", "pipeline"] # "*" is everybody who signed in
    read = ["*"]
    write = ["orders-*", ":.staging:*"]

A pattern stands for whole subjects, `*` for any characters. To write is to register, to delete, and to change the subject's
settings; settings of all subjects need `write = ["*"]`. Without a file everybody may do everything.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.core.errors import ConfigError
from barnabas.registry.errors import Refusal

EVERYBODY: Final = "*"
_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_SALT_BYTES: Final = 16
#: Sign-ins that were checked: a password costs 50 ms, its digest nothing.
_CHECKED_MAX: Final = 10_000


def hash_password(password: str, salt: bytes | None = None) -> str:
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    key = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL)
    return f"scrypt:{salt.hex()}:{key.hex()}"


def hash_token(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Rule:
    users: tuple[str, ...]
    read: tuple[re.Pattern[str], ...]
    write: tuple[re.Pattern[str], ...]


@dataclass(slots=True, eq=False)
class Access:
    users: Mapping[str, str]
    tokens: Mapping[str, str]
    rules: Sequence[Rule]
    #: Everybody may do everything, and nobody signs in.
    is_open: bool = False
    #: Users by a digest of what they signed in with.
    _checked: dict[bytes, str] = field(default_factory=dict)
    _secret: bytes = field(default_factory=lambda: os.urandom(32))

    async def sign_in(self, authorization: str | None) -> str | None:
        """The user of a request's `Authorization`; raises where there is none that counts."""
        if self.is_open:
            return None
        kind, _, value = (authorization or "").partition(" ")
        digest = hmac.digest(self._secret, (authorization or "").encode(), "sha256")
        user = self._checked.get(digest)
        if user is None:
            if kind.lower() == "basic":
                user = await self._with_password(value)
            elif kind.lower() == "bearer":
                user = self._with_token(value)
            if user is None:
                raise Refusal(401, 40101, "Unauthorized")
            if len(self._checked) >= _CHECKED_MAX:
                self._checked.clear()
            self._checked[digest] = user
        return user

    async def _with_password(self, value: str) -> str | None:
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        known = self.users.get(name)
        # Unknown users cost as much as known ones: the time tells nobody who exists.
        salt = bytes.fromhex((known or f"scrypt:{'00' * _SALT_BYTES}:").split(":")[1])
        given = await asyncio.to_thread(hash_password, password, salt)
        return name if known is not None and hmac.compare_digest(given, known) else None

    def _with_token(self, value: str) -> str | None:
        given = hash_token(value.strip())
        return next((name for name, known in self.tokens.items() if hmac.compare_digest(given, known)), None)

    def may_read(self, user: str | None, subject: str) -> bool:
        return self.is_open or any(_matches((*rule.read, *rule.write), subject) for rule in self._rules_of(user))

    def may_write(self, user: str | None, subject: str | None) -> bool:
        """`None` is what concerns all subjects."""
        if self.is_open:
            return True
        if subject is None:
            return any(pattern.pattern == _ALL for rule in self._rules_of(user) for pattern in rule.write)
        return any(_matches(rule.write, subject) for rule in self._rules_of(user))

    def _rules_of(self, user: str | None) -> list[Rule]:
        return [rule for rule in self.rules if user in rule.users or EVERYBODY in rule.users]


OPEN: Final = Access({}, {}, (), is_open=True)


def _matches(patterns: Sequence[re.Pattern[str]], subject: str) -> bool:
    return any(pattern.fullmatch(subject) for pattern in patterns)


def _pattern(text: str) -> re.Pattern[str]:
    """`*` is the only special character: dots are common in subjects."""
    parts = [re.escape(part) for part in re.split(r"\*+", text)]
    return re.compile(".*?".join(parts), re.DOTALL)


_ALL: Final = _pattern("*").pattern


def load(path: str | Path) -> Access:
    try:
        document = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return access_of(document, str(path))


def access_of(document: Mapping[str, Any], where: str) -> Access:
    unknown = document.keys() - {"users", "tokens", "rules"}
    if unknown:
        raise ConfigError(f"{where}: {', '.join(sorted(unknown))} is none of users, tokens, rules")
    users = _hashes(document.get("users", {}), r"scrypt:[0-9a-f]{32}:[0-9a-f]{128}", f"{where}: [users]")
    tokens = _hashes(document.get("tokens", {}), r"sha256:[0-9a-f]{64}", f"{where}: [tokens]")
    if both := users.keys() & tokens.keys():
        raise ConfigError(f"{where}: {', '.join(sorted(both))} is a user and a token; give the token another name")
    rules = []
    for number, rule in enumerate(document.get("rules", ()), 1):
        place = f"{where}: rule {number}"
        if odd := rule.keys() - {"users", "read", "write"}:
            raise ConfigError(f"{place}: {', '.join(sorted(odd))} is none of users, read, write")
        names = _words(rule, "users", place)
        for name in names:
            if name != EVERYBODY and name not in users and name not in tokens:
                raise ConfigError(f"{place}: there is no user or token {name!r}")
        read, write = (tuple(map(_pattern, _words(rule, what, place))) for what in ("read", "write"))
        rules.append(Rule(names, read, write))
    return Access(users, tokens, rules)


def _hashes(found: object, form: str, place: str) -> dict[str, str]:
    if not isinstance(found, dict):
        raise ConfigError(f"{place} must be a table")
    for name, value in found.items():
        if not isinstance(value, str) or not re.fullmatch(form, value):
            raise ConfigError(
                f"{place}: the value of {name} is no hash; barnabas schema-registry --hash-password makes one"
            )
    return found


def _words(rule: Mapping[str, Any], name: str, place: str) -> tuple[str, ...]:
    value = rule.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{place}: {name} must be a list of strings")
    return tuple(value)
