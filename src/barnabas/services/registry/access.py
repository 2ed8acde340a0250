"""Sign-in and access rules: users with passwords or tokens, and rules for subjects, from one file (TOML).

    [users]
    alice = "scrypt:…"            # `barnabas schema-registry --hash-password` prints it
    [tokens]
    pipeline = "sha256:…"         # of a long random token, sent as `Authorization: Bearer …`
    [jwt]                         # or a token that a provider has signed
    jwks = "https://…/keys"       # or file:///…
    issuer = "https://…"
    audience = ["registry"]
    [[rules]]
        users = ["alice", "pipeline"] # "*" stands for every user who signed in
    read = ["*"]
    write = ["orders-*", ":.staging:*"]

A pattern stands for whole subjects, `*` for any characters. Registering, deleting and changing the settings of a subject need
`write`; settings of all subjects need `write = ["*"]`. Without a file every client may do everything.

Guessing a password is slow: after some failures the attempts of an address wait for each other, as at a broker. Two threads at
most hash passwords, and few requests may wait for them, so that all addresses together guess no faster than that.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.base.clock import Clock, SystemClock
from barnabas.base.errors import ConfigError
from barnabas.client.key_sets import KeySetSource
from barnabas.services.registry import names
from barnabas.services.registry.errors import Refusal
from barnabas.wire.auth.jwt import InvalidToken, check_installed
from barnabas.wire.auth.login_pace import LoginPace
from barnabas.wire.auth.mechanisms.oauthbearer import BearerToken, TokenRules, signed_validator
from barnabas.wire.auth.registry import KeySetSettings

log = logging.getLogger(__name__)

EVERYBODY: Final = "*"
_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_SALT_BYTES: Final = 16
#: Successful sign-ins that are cached: hashing a password takes 50 ms, looking up its digest takes no time.
_CHECKED_MAX: Final = 10_000
#: Passwords that are hashed at the same time. Each takes 16 MB and 50 ms.
_HASHED_TOGETHER: Final = 2
_HASHES_WAITING_MAX: Final = 100
#: A cached signed token is verified again after this time: the provider may have withdrawn its key.
_TOKEN_KEPT_MS: Final = 5 * 60 * 1000
_NEVER_MS: Final = 2**63
#: A character that no subject contains, so only a pattern that ends in `*` matches it.
_ANY_NAME: Final = "\0"
_JWT_WORDS: Final = frozenset({"jwks", "issuer", "audience", "principal_claim", "refresh_s"})
_REFRESH_S: Final = 3600
_BACKOFF_MS, _BACKOFF_MAX_MS = 100, 10_000


def hash_password(password: str, salt: bytes | None = None) -> str:
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    key = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL)
    return f"scrypt:{salt.hex()}:{key.hex()}"


def hash_token(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of subjects in which only `*` is special: dots are common in subjects.

    A match takes time in proportion to the subject for each part. A regular expression goes back for every `*`, and a stranger
    chooses the subject: 4,000 characters took eight seconds.
    """

    #: The text between the stars.
    parts: tuple[str, ...]

    @staticmethod
    def of(text: str) -> "Pattern":
        return Pattern(tuple(re.split(r"\*+", text)))

    @property
    def is_all(self) -> bool:
        return self.parts == ("", "")

    def matches(self, subject: str) -> bool:
        first, *rest = self.parts
        if not rest:
            return subject == first
        *middle, last = rest
        if not subject.startswith(first) or not subject.endswith(last):
            return False
        at, end = len(first), len(subject) - len(last)
        for part in middle:
            at = subject.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return at <= end


@dataclass(frozen=True, slots=True)
class Rule:
    users: tuple[str, ...]
    read: tuple[Pattern, ...]
    write: tuple[Pattern, ...]


class SignedTokens:
    """Tokens of a provider (JWT): signed with a key of its key set, and meant for this registry."""

    def __init__(self, settings: KeySetSettings, rules: TokenRules, clock: Clock) -> None:
        check_installed()
        self.keys = KeySetSource(settings, now_s=clock.monotonic_s)
        self._validate = signed_validator(self.keys.verify, rules, clock.now_ms)

    def token(self, text: str) -> BearerToken | None:
        try:
            return self._validate(text)
        except InvalidToken as error:
            log.info("a token was refused: %s", error)
            return None


class _SignedIn(NamedTuple):
    user: str
    until_ms: int


@dataclass(slots=True, eq=False)
class Access:
    """Owner: the event loop."""

    users: Mapping[str, str]
    tokens: Mapping[str, str]
    rules: Sequence[Rule]
    signed: SignedTokens | None = None
    #: True without an access file: no client signs in, and every client may do everything.
    is_open: bool = False
    clock: Clock = field(default_factory=SystemClock)
    #: By a digest of the `Authorization` header.
    _checked: dict[bytes, _SignedIn] = field(default_factory=dict)
    _secret: bytes = field(default_factory=lambda: os.urandom(32))
    _pace: LoginPace = field(default_factory=LoginPace)
    _hashing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HASHED_TOGETHER))
    _hashes_waiting: int = 0

    async def run(self) -> None:
        """Load the provider's keys and refresh them. Return at once without a provider."""
        if self.signed is not None:
            await self.signed.keys.run()

    async def sign_in(self, authorization: str | None, host: str) -> str | None:
        """Return the user of the `Authorization` header; raise Refusal if the credentials are missing or wrong."""
        if self.is_open:
            return None
        if not authorization:
            raise Refusal(401, 40101, "Unauthorized")
        digest = hmac.digest(self._secret, authorization.encode(), "sha256")
        known = self._checked.get(digest)
        if known is not None and self.clock.now_ms() < known.until_ms:
            return known.user
        signed_in = await self._check_at_pace(authorization, host)
        if len(self._checked) >= _CHECKED_MAX:
            self._checked.clear()
        self._checked[digest] = signed_in
        return signed_in.user

    async def _check_at_pace(self, authorization: str, host: str) -> _SignedIn:
        wait_ms = self._pace.wait_ms(host, self._now_ms())
        if wait_ms is None:
            raise Refusal(429, 42901, "too many failed attempts to sign in from this address")
        if wait_ms:
            try:
                await asyncio.sleep(wait_ms / 1000)
            finally:
                self._pace.waited(host)
        signed_in = await self._check(authorization)
        if signed_in is None:
            self._pace.failed(host, self._now_ms())
            raise Refusal(401, 40101, "Unauthorized")
        return signed_in

    def _now_ms(self) -> int:
        return int(self.clock.monotonic_s() * 1000)

    async def _check(self, authorization: str) -> _SignedIn | None:
        kind, _, value = authorization.partition(" ")
        if kind.lower() == "basic":
            user = await self._with_password(value)
            return None if user is None else _SignedIn(user, _NEVER_MS)
        if kind.lower() != "bearer":
            return None
        if (user := self._with_token(value)) is not None:
            return _SignedIn(user, _NEVER_MS)
        bearer = self.signed.token(value.strip()) if self.signed is not None else None
        if bearer is None:
            return None
        return _SignedIn(bearer.principal, min(bearer.expires_at_ms, self.clock.now_ms() + _TOKEN_KEPT_MS))

    async def _with_password(self, value: str) -> str | None:
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        known = self.users.get(name)
        # An unknown user takes as much time as a known one, so that the time does not reveal which users exist.
        salt = bytes.fromhex((known or f"scrypt:{'00' * _SALT_BYTES}:").split(":")[1])
        if self._hashes_waiting >= _HASHES_WAITING_MAX:
            raise Refusal(429, 42901, "too many users sign in at the same time")
        self._hashes_waiting += 1
        try:
            async with self._hashing:
                given = await asyncio.to_thread(hash_password, password, salt)
        finally:
            self._hashes_waiting -= 1
        return name if known is not None and hmac.compare_digest(given, known) else None

    def _with_token(self, value: str) -> str | None:
        given = hash_token(value.strip())
        return next((name for name, known in self.tokens.items() if hmac.compare_digest(given, known)), None)

    def may_read(self, user: str | None, subject: str) -> bool:
        return self.is_open or any(_matches((*rule.read, *rule.write), subject) for rule in self._rules_of(user))

    def may_write(self, user: str | None, subject: str | None) -> bool:
        """Whether the user may write. None: all subjects. A context without a name: all subjects of that context."""
        if self.is_open:
            return True
        if subject is None or names.context_of(subject) == names.GLOBAL_CONTEXT:
            return any(pattern.is_all for rule in self._rules_of(user) for pattern in rule.write)
        if not names.split(subject).name:
            subject += _ANY_NAME
        return any(_matches(rule.write, subject) for rule in self._rules_of(user))

    def may_read_all(self, user: str | None, context: str) -> bool:
        """Whether the user may read every subject of a context, also subjects that are registered later."""
        return self.may_read(user, str(names.Subject(context, _ANY_NAME)))

    def _rules_of(self, user: str | None) -> list[Rule]:
        return [rule for rule in self.rules if user in rule.users or EVERYBODY in rule.users]


OPEN: Final = Access({}, {}, (), is_open=True)


def _matches(patterns: Sequence[Pattern], subject: str) -> bool:
    return any(pattern.matches(subject) for pattern in patterns)


def load(path: str | Path) -> Access:
    try:
        document = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return access_of(document, str(path))


def access_of(document: Mapping[str, Any], where: str) -> Access:
    unknown = document.keys() - {"users", "tokens", "jwt", "rules"}
    if unknown:
        raise ConfigError(f"{where}: unknown table {', '.join(sorted(unknown))}: use users, tokens, jwt, rules")
    users = _hashes(document.get("users", {}), r"scrypt:[0-9a-f]{32}:[0-9a-f]{128}", f"{where}: [users]")
    tokens = _hashes(document.get("tokens", {}), r"sha256:[0-9a-f]{64}", f"{where}: [tokens]")
    if both := users.keys() & tokens.keys():
        raise ConfigError(f"{where}: {', '.join(sorted(both))} is a user and a token; give the token another name")
    signed = _signed_tokens(document["jwt"], f"{where}: [jwt]") if "jwt" in document else None
    rules = []
    for number, rule in enumerate(document.get("rules", ()), 1):
        place = f"{where}: rule {number}"
        if odd := rule.keys() - {"users", "read", "write"}:
            raise ConfigError(f"{place}: unknown entry {', '.join(sorted(odd))}: use users, read, write")
        given = _words(rule, "users", place)
        for name in given:
            # The provider's users are unknown here.
            if signed is None and name != EVERYBODY and name not in users and name not in tokens:
                raise ConfigError(f"{place}: there is no user or token {name!r}")
        read, write = (tuple(map(Pattern.of, _words(rule, what, place))) for what in ("read", "write"))
        rules.append(Rule(given, read, write))
    return Access(users, tokens, rules, signed)


def _signed_tokens(found: object, place: str) -> SignedTokens:
    if not isinstance(found, dict) or not isinstance(found.get("jwks"), str):
        raise ConfigError(f"{place} needs jwks, the address of a key set")
    if odd := found.keys() - _JWT_WORDS:
        raise ConfigError(f"{place}: unknown entry {', '.join(sorted(odd))}: use {', '.join(sorted(_JWT_WORDS))}")
    issuer, claim, refresh_s = (
        found.get("issuer"),
        found.get("principal_claim", "sub"),
        found.get("refresh_s", _REFRESH_S),
    )
    if not isinstance(issuer, str | None) or not isinstance(claim, str):
        raise ConfigError(f"{place}: issuer and principal_claim are strings")
    if not isinstance(refresh_s, int) or refresh_s < 1:
        raise ConfigError(f"{place}: refresh_s is a number of seconds")
    settings = KeySetSettings(found["jwks"], refresh_s * 1000, _BACKOFF_MS, _BACKOFF_MAX_MS, f"{place} jwks")
    rules = TokenRules(audiences=_words(found, "audience", place), issuer=issuer, principal_claim=claim)
    return SignedTokens(settings, rules, SystemClock())


def _hashes(found: object, form: str, place: str) -> dict[str, str]:
    if not isinstance(found, dict):
        raise ConfigError(f"{place} must be a table")
    for name, value in found.items():
        if not isinstance(value, str) or not re.fullmatch(form, value):
            raise ConfigError(
                f"{place}: the value of {name} is not a hash: create one with barnabas schema-registry --hash-password"
            )
    return found


def _words(rule: Mapping[str, Any], name: str, place: str) -> tuple[str, ...]:
    value = rule.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{place}: {name} must be a list of strings")
    return tuple(value)
