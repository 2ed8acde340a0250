"""SASL SCRAM (RFC 5802, RFC 7677) with SHA-256 and SHA-512, as Kafka speaks it: no channel binding.

The server stores no passwords: a credential can verify a password but not reveal it. The caller provides the nonces.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from barnabas.base.errors import ConfigError
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.jaas import JaasEntry
from barnabas.wire.auth.registry import ListenerSasl, Login, client_side, server_side, user_and_password

ITERATIONS_MIN: Final = 4096
#: Parameters of the credential for an unknown user, like those that Kafka's tools create.
DECOY_SALT_BYTES: Final = 32
DECOY_ITERATIONS: Final = 4096
ITERATIONS_MAX: Final = 16384
#: A client computes at most this many iterations for a server, about a fifth of a second. Kafka's client has no maximum.
CLIENT_ITERATIONS_MAX: Final = 100_000
#: The option of `sasl.jaas.config` that changes it.
CLIENT_ITERATIONS_OPTION: Final = "maxIterations"
#: A server's message has a nonce, a salt and a number: more than this comes from a server that wants to waste memory.
_CHALLENGE_BYTES_MAX: Final = 16 * 1024
#: Random bytes of a nonce. In base64url they are printable and without a comma.
_SERVER_NONCE_BYTES: Final = 24
_CLIENT_NONCE_BYTES: Final = 18

_SASL_NAME: Final = r"(?:[^\x00=,]|=2C|=3D)+"
_PRINTABLE: Final = r"[\x21-\x2B\x2D-\x7E]+"
_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^\x00,]+)*)"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,(?P<bare>(?:m=[^\x00,]+,)?n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"{_EXTENSIONS})"
)
_SERVER_FIRST: Final = re.compile(
    rf"(?:m=[^\x00,]+,)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,8}})"
    rf"{_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<bare>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>[^\x00,]+)|v=(?P<verifier>{_BASE64})){_EXTENSIONS}")


class ScramMechanism(IntEnum):
    """Numbered as in Describe and AlterUserScramCredentials."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.digest, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.digest)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        return hashlib.pbkdf2_hmac(self.digest, password.encode(), salt, iterations)


BY_NAME: Final = {each.sasl_name: each for each in ScramMechanism}


@dataclass(frozen=True, slots=True, repr=False)
class ScramCredential:
    """The data that a server stores for a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @staticmethod
    def of_salted(
        mechanism: ScramMechanism, salted_password: bytes, *, salt: bytes, iterations: int
    ) -> "ScramCredential":
        return ScramCredential(
            salt=salt,
            stored_key=mechanism.hash(mechanism.hmac(salted_password, b"Client Key")),
            server_key=mechanism.hmac(salted_password, b"Server Key"),
            iterations=iterations,
        )

    @staticmethod
    def of_password(mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int) -> "ScramCredential":
        salted = mechanism.salted_password(password, salt, iterations)
        return ScramCredential.of_salted(mechanism, salted, salt=salt, iterations=iterations)

    def encode(self) -> str:
        """Format as Kafka stores it among a user's settings."""
        return (
            f"salt={_b64(self.salt)},stored_key={_b64(self.stored_key)},server_key={_b64(self.server_key)},"
            f"iterations={self.iterations}"
        )

    @staticmethod
    def decode(text: str) -> "ScramCredential":
        """:raises ValueError: without the text, because it is partly secret."""
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        if set(fields) != {"salt", "stored_key", "server_key", "iterations"}:
            raise ValueError("a SCRAM credential has salt, stored_key, server_key and iterations")
        try:
            salt, stored, server = (
                base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
        except binascii.Error:
            raise ValueError("a SCRAM credential's salt and keys are in base64") from None
        return ScramCredential(salt, stored, server, int(fields["iterations"]))


@dataclass(frozen=True, slots=True, repr=False)
class TokenCredential:
    """A delegation token for SCRAM: its id is the user, its HMAC in base64 the password."""

    owner: str
    credential: ScramCredential
    expires_at_ms: int


class ScramServer:
    """Owner: one connection. Receives two tokens and sends two."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_of: Callable[[str], ScramCredential | None],
        *,
        nonce: str,
        token_of: Callable[[str], TokenCredential | None] = lambda token_id: None,
        decoy_secret: bytes = b"",
    ) -> None:
        """`token_of` returns delegation tokens, which clients use with the extension `tokenauth=true`."""
        self._mechanism = mechanism
        self._credential_of = credential_of
        self._token_of = token_of
        self._decoy_secret = decoy_secret
        self.expires_at_ms: int | None = None
        self.by_delegation_token = False
        self._own_nonce = nonce
        self._claimed = ""
        self._owner = ""
        self._credential: ScramCredential | None = None
        self._nonce = ""
        self._messages = ""
        self.user: str | None = None

    def evaluate(self, token: bytes) -> bytes:
        if self.user is not None:
            raise SaslFailed("the exchange is complete")
        return self._first(token) if self._credential is None else self._final(self._credential, token)

    def _fail(self) -> SaslFailed:
        """Return the same error for every cause, so that it reveals nothing. The message is Kafka's."""
        return SaslFailed(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism.sasl_name}"
        )

    def _first(self, token: bytes) -> bytes:
        match = _CLIENT_FIRST.fullmatch(token.decode("utf-8", "replace"))
        if match is None:
            raise self._fail()
        self._claimed = _decode_name(match["name"])
        # Users and tokens may have the same names: the extension says which is meant.
        if "tokenauth=true" in match["extensions"].split(","):
            credential = self._take_token()
        else:
            credential = self._credential_of(self._claimed)
        if credential is None and self._decoy_secret:
            credential = self._decoy()
        if credential is None or credential.iterations < ITERATIONS_MIN:
            raise self._fail()
        if match["authzid"] and _decode_name(match["authzid"]) != self._claimed:
            raise SaslFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._credential = credential
        self._nonce = match["nonce"] + self._own_nonce
        answer = f"r={self._nonce},s={_b64(credential.salt)},i={credential.iterations}"
        self._messages = f"{match['bare']},{answer}"
        return answer.encode()

    def _decoy(self) -> ScramCredential:
        """Return a credential that no password matches. Its salt is constant, so an attacker cannot see that the user is
        unknown."""
        mechanism, user = self._mechanism, self._claimed.encode("utf-8", "surrogatepass")
        salt = mechanism.hmac(self._decoy_secret, b"salt" + user)
        key = mechanism.hmac(self._decoy_secret, b"key" + user)
        return ScramCredential(
            salt=salt[:DECOY_SALT_BYTES], stored_key=key, server_key=key, iterations=DECOY_ITERATIONS
        )

    def _take_token(self) -> ScramCredential | None:
        token = self._token_of(self._claimed)
        if token is None:
            return None
        self._owner, self.expires_at_ms, self.by_delegation_token = token.owner, token.expires_at_ms, True
        return token.credential

    def _final(self, credential: ScramCredential, token: bytes) -> bytes:
        match = _CLIENT_FINAL.fullmatch(token.decode("utf-8", "replace"))
        # librdkafka before 2.6.1 puts its own nonce before the server's. Kafka accepts that, and the proof covers it.
        if match is None or not hmac.compare_digest(match["nonce"][-len(self._nonce) :], self._nonce):
            raise self._fail()
        mechanism = self._mechanism
        signed = f"{self._messages},{match['bare']}".encode()
        proof = base64.b64decode(match["proof"])
        signature = mechanism.hmac(credential.stored_key, signed)
        if len(proof) != len(signature):
            raise self._fail()
        if not hmac.compare_digest(mechanism.hash(_xor(proof, signature)), credential.stored_key):
            raise self._fail()
        self.user = self._owner if self.by_delegation_token else self._claimed
        return f"v={_b64(mechanism.hmac(credential.server_key, signed))}".encode()


class ScramClient:
    """Proves a password, and makes the server prove that it also knows the password."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        *,
        nonce: str,
        delegation_token: bool = False,
        iterations_max: int = CLIENT_ITERATIONS_MAX,
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._iterations_max = iterations_max
        self._nonce = nonce
        self._bare = f"n={_encode_name(user)},r={nonce}" + (",tokenauth=true" if delegation_token else "")
        self._verifier: bytes | None = None
        self.is_complete = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Computes for up to a fifth of a second: a caller on an event loop calls it on a thread."""
        if len(challenge) > _CHALLENGE_BYTES_MAX:
            raise SaslFailed(
                f"the server sent a SCRAM message of {len(challenge)} bytes: {_CHALLENGE_BYTES_MAX} is the limit"
            )
        text = challenge.decode("utf-8", "replace")
        if self._verifier is None:
            return self._prove(text)
        match = _SERVER_FINAL.fullmatch(text)
        if match is None:
            raise SaslFailed("the server's last SCRAM message cannot be read")
        if match["error"]:
            raise SaslFailed(f"the server refused the SCRAM exchange: {match['error']}")
        if not hmac.compare_digest(base64.b64decode(match["verifier"]), self._verifier):
            raise SaslFailed("the server did not prove that it knows the password: it may be another server")
        self.is_complete = True
        return None

    def _prove(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise SaslFailed("the server's first SCRAM message cannot be read")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslFailed("the server's SCRAM nonce does not continue the client's")
        if iterations < ITERATIONS_MIN:
            raise SaslFailed(f"the server asks for {iterations} SCRAM iterations; the minimum is {ITERATIONS_MIN}")
        if iterations > self._iterations_max:
            raise SaslFailed(
                f"the server asks for {iterations} SCRAM iterations; this client computes at most {self._iterations_max}. If "
                f"you trust the server, set {CLIENT_ITERATIONS_OPTION} in sasl.jaas.config"
            )
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, base64.b64decode(match["salt"]), iterations)
        final = f"c=biws,r={nonce}"  # biws: "n,,", that is, no channel binding
        signed = f"{self._bare},{text},{final}".encode()
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = _xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._verifier = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{final},p={_b64(proof)}".encode()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _encode_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _decode_name(text: str) -> str:
    return text.replace("=2C", ",").replace("=3D", "=")


# -- registration -----------------------------------------------------------------------------------------------------


def _register(mechanism: ScramMechanism) -> None:
    @server_side(mechanism.sasl_name)
    def server(sasl: ListenerSasl) -> Callable[[], ScramServer]:
        decoy_secret = secrets.token_bytes(32)
        return lambda: ScramServer(
            mechanism,
            lambda user: sasl.scram_credential(mechanism, user),
            nonce=secrets.token_urlsafe(_SERVER_NONCE_BYTES),
            token_of=lambda token_id: sasl.delegation_token(mechanism, token_id),
            decoy_secret=decoy_secret,
        )

    @client_side(mechanism.sasl_name)
    def client(settings: Mapping[str, str]) -> Login:
        entry = user_and_password(settings)
        # A delegation token: its id is the user, its HMAC the password.
        by_token = entry.options.get("tokenauth", "").lower() == "true"
        iterations_max = _iterations_max(entry)
        return Login(
            lambda: ScramClient(
                mechanism,
                entry.require("username"),
                entry.require("password"),
                nonce=secrets.token_urlsafe(_CLIENT_NONCE_BYTES),
                delegation_token=by_token,
                iterations_max=iterations_max,
            )
        )


def _iterations_max(entry: JaasEntry) -> int:
    text = entry.options.get(CLIENT_ITERATIONS_OPTION)
    if text is None:
        return CLIENT_ITERATIONS_MAX
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= ITERATIONS_MIN):
        raise ConfigError(
            f"sasl.jaas.config: {CLIENT_ITERATIONS_OPTION} is a number from {ITERATIONS_MIN} to 999999999"
        )
    return int(text)


for _mechanism in ScramMechanism:
    _register(_mechanism)
