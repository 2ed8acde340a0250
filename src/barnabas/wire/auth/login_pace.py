"""How fast passwords can be guessed: one memory of failed logins, and two policies over it. Pure: time is given.

`LoginPace` makes attempts wait for their turn (brokers, the registry). `SignInThrottle` refuses them and says when to come back
(the console).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from barnabas.base.hosts import network_of

E = TypeVar("E")

#: Addresses or users that are remembered; those that failed longest ago are forgotten.
REMEMBERED_MAX: Final = 10_000


class _Memory(Generic[E]):
    """An entry for each address or user that failed, those that failed last at the end."""

    def __init__(self, make: Callable[[], E]) -> None:
        self._make = make
        self._entries: OrderedDict[str, E] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> E | None:
        return self._entries.get(key)

    def latest(self, key: str) -> E:
        """The entry of one that fails now."""
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= REMEMBERED_MAX:
                self._entries.popitem(last=False)
            entry = self._entries[key] = self._make()
        self._entries.move_to_end(key)
        return entry

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()


# -- attempts that wait for their turn --------------------------------------------------------------------------------------

#: Failures that are forgiven: a client with a wrong password in its settings tries a few times.
FREE_FAILURES: Final = 20
#: How long it takes until one failure is forgotten.
FORGOTTEN_AFTER_MS: Final = 500
#: How much longer an attempt waits for each one before it.
STEP_MS: Final = 50
#: Attempts of one address that wait at the same time; more are refused.
WAITING_MAX: Final = 100


@dataclass(slots=True)
class _Address:
    failures: float = 0.0
    since_ms: int = 0
    waiting: int = 0

    def forget(self, now_ms: int) -> None:
        self.failures = max(0.0, self.failures - (now_ms - self.since_ms) / FORGOTTEN_AFTER_MS)
        self.since_ms = now_ms


class LoginPace:
    """After some failures the attempts of an address are evaluated one after the other.

    A wait before the answer alone (`connection.failed.authentication.delay.ms`) does not slow down a client that opens many
    connections, or does not wait for the answer. Others at the same address wait as well, for seconds at most, and only as
    long as the failures go on. Users have no such limit: anybody could lock them out. Owner: the event loop.
    """

    def __init__(self) -> None:
        self._addresses: _Memory[_Address] = _Memory(_Address)

    def wait_ms(self, host: str, now_ms: int) -> int | None:
        """How long an attempt of this address must wait: `waited` is called when it has, or has gone. None: too many wait."""
        address = self._addresses.get(network_of(host))
        if address is None:
            return 0
        address.forget(now_ms)
        if address.failures < FREE_FAILURES:
            return 0
        if address.waiting >= WAITING_MAX:
            return None
        address.waiting += 1
        return address.waiting * STEP_MS

    def waited(self, host: str) -> None:
        address = self._addresses.get(network_of(host))
        if address is not None and address.waiting:
            address.waiting -= 1

    def failed(self, host: str, now_ms: int) -> None:
        address = self._addresses.latest(network_of(host))
        address.forget(now_ms)
        address.failures = min(address.failures + 1, 2 * FREE_FAILURES)


# -- attempts that are refused for a while -----------------------------------------------------------------------------------

#: Failures without a wait: people mistype.
FREE_SIGN_INS: Final = 3
FIRST_WAIT_S: Final = 1.0
ADDRESS_WAIT_MAX_S: Final = 300.0
USER_WAIT_MAX_S: Final = 5.0
#: After this long without a failure all is forgotten.
FORGET_S: Final = 900.0


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0

    def wait_s(self, most_s: float, now_s: float) -> float:
        if self.count < FREE_SIGN_INS:
            return 0.0
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(self.count - FREE_SIGN_INS, 30), most_s)
        return max(0.0, self.last_s + wait_s - now_s)


class SignInThrottle:
    """Failed sign-ins make the next ones wait: twice as long each time, by address and by user.

    A guesser is turned away at once instead of being kept waiting: an attempt that waits costs the service more than the
    guesser. Waits by user are short, since anybody can make another user's name wait. Owner: the event loop.
    """

    def __init__(self) -> None:
        self._addresses: _Memory[_Failures] = _Memory(_Failures)
        self._users: _Memory[_Failures] = _Memory(_Failures)

    def wait_s(self, address: str, user: str, now_s: float) -> float:
        """How long until this address may try again for this user; 0: now."""
        by_address, by_user = self._addresses.get(network_of(address)), self._users.get(user)
        return max(
            by_address.wait_s(ADDRESS_WAIT_MAX_S, now_s) if by_address is not None else 0.0,
            by_user.wait_s(USER_WAIT_MAX_S, now_s) if by_user is not None else 0.0,
        )

    def tried(self, address: str, user: str, now_s: float) -> None:
        """Counts a try as a failure until `succeeded` or `forgotten` says otherwise: many at once must not all be the first."""
        for entry in (self._addresses.latest(network_of(address)), self._users.latest(user)):
            if now_s - entry.last_s > FORGET_S:
                entry.count = 0
            entry.count += 1
            entry.last_s = now_s

    def succeeded(self, address: str, user: str) -> None:
        """The address keeps its other failures: the owner of one account gets no free guesses at the others by it."""
        self._users.forget(user)
        _take_back(self._addresses, network_of(address))

    def forgotten(self, address: str, user: str) -> None:
        """The cluster had no answer to this try."""
        _take_back(self._addresses, network_of(address))
        _take_back(self._users, user)

    def clear(self) -> None:
        self._addresses.clear()
        self._users.clear()


def _take_back(failures: _Memory[_Failures], key: str) -> None:
    entry = failures.get(key)
    if entry is not None:
        entry.count -= 1
        if entry.count <= 0:
            failures.forget(key)
