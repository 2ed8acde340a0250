"""Identifies users and permits changes: every request passes `identify`, every change `changing` as well.

Without sign-in, all requests use the settings with which the console was started. With sign-in, each user has a separate
client, so that the cluster's ACLs apply; all sessions of a user share it. Owner: the event loop.
"""

import asyncio
import base64
import binascii
import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from barnabas.client.errors import AuthenticationFailed
from barnabas.client.registry import RegistryClient
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import Refusal
from barnabas.services.console.registered import Registered
from barnabas.services.console.services import Tasks
from barnabas.services.console.sessions import LIFETIME_S, Session, Sessions, TooManySessions, is_csrf_token
from barnabas.services.console.settings import Settings
from barnabas.services.console.sign_in import Credentials, Identity, credentials_of, prove, registry_config
from barnabas.services.console.web import Call, Endpoint, User
from barnabas.services.http.peers import peer_address
from barnabas.wire.auth.login_pace import SignInThrottle

log = logging.getLogger(__name__)
#: Logs every change and every sign-in: user, change, time, address.
audit = logging.getLogger("barnabas.console.audit")

CSRF_HEADER: Final = "x-csrf-token"
COOKIE: Final = "barnabas-console"
#: The prefix makes browsers accept the cookie over HTTPS only, and send it to this host only.
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
#: Limits of concurrent sign-ins at the cluster, and (below) of those that wait.
_SIGN_INS_MAX: Final = 8
_SIGN_INS_WAITING_MAX: Final = 64
#: The user's name if there is no sign-in.
_NOBODY: Final = "console"
ACCOUNTS_MAX: Final = 50
#: A user is waiting.
_REGISTRY_TIMEOUT_MS: Final = 10_000
#: Limits of concurrent searches and exports; each of them has limits of its own.
SEARCHES_PER_USER_MAX: Final = 3
SEARCHES_MAX: Final = 12
_AUDIT_CHARACTERS_MAX: Final = 2_000
#: Members with a record's content, which is not logged: readers of the log may lack the right to read the topic.
_CONTENT: Final = frozenset({"text", "base64"})
#: Members that are not logged, in lower case and without punctuation.
_SECRET_NAMES: Final = ("password", "secret", "token", "jaas", "keystore", "truststore", "credential")


@dataclass(slots=True, eq=False)
class Account:
    """One user with one secret; all sessions with these credentials share the client."""

    name: str
    cluster: ConsoleCluster
    digest: str
    #: The schema registry with the user's rights.
    registered: Registered | None = None
    sessions: int = 0

    async def close(self) -> None:
        await self.cluster.close()
        if self.registered is not None:
            await self.registered.close()


class Guard:
    def __init__(self, settings: Settings, tasks: Tasks) -> None:
        self._settings = settings
        self._tasks = tasks
        #: The shared client of all requests if there is no sign-in.
        self._own = None
        if not settings.needs_sign_in:
            cluster = ConsoleCluster(settings.client, tasks)
            self._own = Account(_NOBODY, cluster, "", _registered(settings, None))
        self.sessions: Sessions[Account] = Sessions(
            now_s=lambda: asyncio.get_running_loop().time(), ended=self._session_ended
        )
        self._accounts: dict[str, Account] = {}
        #: Sessions of scripts, which send their credentials with each request, by digest.
        self._scripts: dict[str, Session[Account]] = {}
        self._signing: dict[str, asyncio.Lock] = {}
        self._throttle = SignInThrottle()
        self._sign_ins = asyncio.Semaphore(_SIGN_INS_MAX)
        self._sign_ins_waiting = 0
        self._searches: dict[str, int] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        #: CSRF token for changes without sign-in. Other sites cannot read it, so they cannot send it.
        self._open_token = self.sessions.digest("without sign-in")

    # -- identification -----------------------------------------------------------------------------------------------

    async def identify(self, request: Request, endpoint: Endpoint) -> User:
        """:raises Refusal: 401 if the user has to sign in, 403 for a change that the console's page did not send."""
        if self._own is not None:
            if endpoint.changes and request.headers.get(CSRF_HEADER) != self._open_token:
                raise _forged()
            return User(_NOBODY, self._own.cluster, self._own.registered)
        session, by_cookie = await self._session(request)
        if session is None:
            if endpoint.is_open:
                return User("", None)
            raise Refusal(401, "SIGN_IN", "sign in with a user of the cluster")
        if endpoint.method != "GET" and by_cookie and not is_csrf_token(session, request.headers.get(CSRF_HEADER)):
            raise _forged()
        account = session.held
        return User(
            session.user, account.cluster, account.registered, is_present=lambda: self.sessions.is_used(session)
        )

    async def _session(self, request: Request) -> tuple[Session[Account] | None, bool]:
        """Return the session, and whether a cookie named it: browsers send cookies by themselves, but not headers."""
        authorization = request.headers.get("authorization")
        if authorization:
            return await self._script(authorization, self.address_of(request)), False
        cookie = request.cookies.get(self.cookie_name)
        return (self.sessions.of_cookie(cookie) if cookie else None), True

    def session_of(self, request: Request) -> Session[Account] | None:
        cookie = request.cookies.get(self.cookie_name)
        return self.sessions.of_cookie(cookie) if cookie else None

    async def _script(self, authorization: str, address: str) -> Session[Account]:
        digest = self.sessions.digest(authorization)
        lock = self._signing.setdefault(digest, asyncio.Lock())
        try:
            # Of many concurrent requests, the first one signs in, and the others find its session.
            async with lock:
                session = self._scripts.get(digest)
                if session is None or not self.sessions.is_used(session):
                    session = await self.sign_in(_of_header(authorization), address)
                    self._scripts[digest] = session
                return session
        finally:
            if not lock.locked():
                self._signing.pop(digest, None)

    @property
    def cookie_name(self) -> str:
        return SECURE_COOKIE if self._settings.is_https else COOKIE

    def csrf_token(self, session: Session[Account] | None) -> str | None:
        """Return the token that the page must send with changes; None before sign-in."""
        if not self._settings.needs_sign_in:
            return self._open_token
        return session.csrf_token if session is not None else None

    def address_of(self, request: Request) -> str:
        fields = request.headers.getlist("x-forwarded-for")
        return peer_address(request.client, fields, behind_proxy=self._settings.behind_proxy)

    # -- signing in ---------------------------------------------------------------------------------------------------

    async def sign_in(self, credentials: Credentials, address: str) -> Session[Account]:
        """:raises Refusal: if the cluster refuses the user, or after too many failures."""
        now_s = asyncio.get_running_loop().time()
        wait_s = self._throttle.wait_s(address, credentials.user, now_s)
        if wait_s > 0:
            raise Refusal(
                429, "TOO_MANY_TRIES", f"too many sign-ins failed; try again in {wait_s:.0f} s", retry_s=wait_s
            )
        if self._sign_ins_waiting >= _SIGN_INS_WAITING_MAX:
            raise Refusal(429, "TOO_MANY", "too many people sign in at once; try again in a moment", retry_s=5)
        self._throttle.tried(address, credentials.user, now_s)
        identity = await self._proven(credentials, address)
        self._throttle.succeeded(address, credentials.user)
        account = self._account(credentials, identity)
        lifetime_s = LIFETIME_S if credentials.lifetime_s is None else credentials.lifetime_s
        account.sessions += 1
        try:
            session = self.sessions.begin(credentials.user, account, lifetime_s=lifetime_s)
        except TooManySessions:
            self._leave(account)
            raise Refusal(503, "TOO_MANY", "all sessions of this console are in use", retry_s=60) from None
        audit.info("user=%s does=sign-in from=%s", _safe(credentials.user), address)
        self._sweep()
        return session

    async def _proven(self, credentials: Credentials, address: str) -> Identity:
        self._sign_ins_waiting += 1
        try:
            async with self._sign_ins:
                return await prove(self._settings.client, credentials)
        except AuthenticationFailed as error:
            audit.warning("user=%s fails=sign-in from=%s: %s", _safe(credentials.user), address, error)
            # Do not say why: the answer must not reveal whether a user exists.
            raise Refusal(401, "SIGN_IN_FAILED", "the cluster does not know this user with this password") from None
        except BaseException:
            self._throttle.forgotten(address, credentials.user)
            raise
        finally:
            self._sign_ins_waiting -= 1

    def _account(self, credentials: Credentials, identity: Identity) -> Account:
        digest = self.sessions.digest(credentials.secret)
        account = self._accounts.get(digest)
        if account is None:
            if len(self._accounts) >= ACCOUNTS_MAX:
                raise Refusal(503, "TOO_MANY", f"{ACCOUNTS_MAX} users are signed in, which is the limit", retry_s=60)
            cluster = ConsoleCluster(identity.config, self._tasks, security=identity.security)
            registered = _registered(self._settings, credentials)
            account = self._accounts[digest] = Account(credentials.user, cluster, digest, registered)
        return account

    def sign_out(self, session: Session[Account]) -> None:
        audit.info("user=%s does=sign-out", _safe(session.user))
        self.sessions.end(session)

    def _session_ended(self, session: Session[Account]) -> None:
        self._scripts = {digest: each for digest, each in self._scripts.items() if each is not session}
        self._leave(session.held)

    def _leave(self, account: Account) -> None:
        account.sessions -= 1
        if account.sessions == 0 and self._accounts.pop(account.digest, None) is not None:
            self._tasks.start(account.close(), f"close the client of {account.name}")

    def _sweep(self) -> None:
        """End sessions on time, also without requests, so that their credentials are removed from memory."""
        wait_s = self.sessions.sweep()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = None if wait_s is None else asyncio.get_running_loop().call_later(wait_s + 1, self._sweep)

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        accounts = list(self._accounts.values())
        self._accounts.clear()
        self.sessions.end_all()
        for account in (*accounts, *((self._own,) if self._own else ())):
            await account.close()

    # -- permissions --------------------------------------------------------------------------------------------------

    async def changing(self, endpoint: Endpoint, call: Call) -> Any:
        """Carry out a change, and log it with its outcome."""
        if not self._settings.read_write:
            raise Refusal(403, "READ_ONLY", "this console only reads; start it with --read-write to allow changes")
        address = self.address_of(call.request) if call.request is not None else "-"
        what = f"{endpoint.method} {endpoint.path} {_described(call.path, call.query, call.body)}"
        try:
            answer = await endpoint.handler(call)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            audit.warning("user=%s fails=%s from=%s: %s", _safe(call.user.name), what, address, reason)
            raise
        audit.info("user=%s does=%s from=%s", _safe(call.user.name), what, address)
        return answer

    @contextlib.contextmanager
    def searching(self, user: User) -> Iterator[None]:
        """Count a running search or export. :raises Refusal: if there are too many."""
        mine = self._searches.get(user.name, 0)
        limit = SEARCHES_PER_USER_MAX if self._settings.needs_sign_in else SEARCHES_MAX
        if mine >= limit or sum(self._searches.values()) >= SEARCHES_MAX:
            raise Refusal(
                429, "TOO_MANY_SEARCHES", "too many searches run; stop one, or wait for one to end", retry_s=5
            )
        self._searches[user.name] = mine + 1
        try:
            yield
        finally:
            self._searches[user.name] -= 1
            if not self._searches[user.name]:
                del self._searches[user.name]


def _registered(settings: Settings, credentials: Credentials | None) -> Registered | None:
    if settings.schema_registry is None:
        return None
    client = RegistryClient.from_config(
        settings.schema_registry, registry_config(settings, credentials), timeout_ms=_REGISTRY_TIMEOUT_MS
    )
    return Registered(client, credentials.user if credentials is not None else "")


def _forged() -> Refusal:
    return Refusal(403, "CSRF", f"a change needs the header {CSRF_HEADER}; GET /api/session has its value")


def _of_header(authorization: str) -> Credentials:
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        return credentials_of(None, None, value.strip())
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            return credentials_of(user, password, None)
    raise Refusal(401, "SIGN_IN", "Authorization is Basic with a user and a password, or Bearer with a token")


def _described(*parts: Mapping[str, Any]) -> str:
    """Return the request for the log: without secrets, and shortened."""
    shown = " ".join(json.dumps(_without_secrets(part), ensure_ascii=True, default=str) for part in parts if part)
    return shown if len(shown) <= _AUDIT_CHARACTERS_MAX else shown[:_AUDIT_CHARACTERS_MAX] + "…"


def _without_secrets(document: Any) -> Any:
    if isinstance(document, Mapping):
        if document and document.keys() <= _CONTENT:
            return "(not logged)"
        return {
            name: "(hidden)" if _is_secret(str(name)) else _without_secrets(value) for name, value in document.items()
        }
    if isinstance(document, list):
        return [_without_secrets(each) for each in document]
    return document


def _is_secret(name: str) -> bool:
    plain = "".join(character for character in name.lower() if character.isalnum())
    return any(word in plain for word in _SECRET_NAMES)


def _safe(name: str) -> str:
    """Quote a user's name, so that it cannot end its field in the log."""
    return json.dumps(name, ensure_ascii=True)
