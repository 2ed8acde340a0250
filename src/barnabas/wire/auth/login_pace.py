"""Limit how fast passwords can be guessed: one memory of failed logins, and two policies. Pure: the caller passes the time.

`LoginPace` makes attempts wait for their turn (brokers, the registry). `SignInThrottle` refuses them and says when to try
again (the console).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from barnabas.base.backoff import doubled
from barnabas.base.hosts import network_of
from barnabas.base.recent import Recent

E = TypeVar("E")

#: Bound of remembered addresses or users. Those that failed longest ago are forgotten first.
REMEMBERED_MAX: Final = 10_000


class _Memory(Recent[str, E]):
    """An entry for each address or user that failed, sorted by the last failure."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], E]) -> None:
        super().__init__(REMEMBERED_MAX)
        self._make = make

    def latest(self, key: str) -> E:
        """Return the entry for a failure that happens now; it moves to the end."""
        entry = self.use(key)
        if entry is None:
            entry = self._make()
            self.put(key, entry)
        return entry


# -- attempts that wait for their turn --------------------------------------------------------------------------------------

#: Failures without a wait: a client with a wrong password in its settings tries a few times.
FREE_FAILURES: Final = 20
#: Time after which one failure is forgotten.
FORGOTTEN_AFTER_MS: Final = 500
#: Extra wait for each attempt that waits before this one.
STEP_MS: Final = 50
#: Bound of attempts from one address that wait at the same time; more are refused.
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
    """After some failures, evaluates the attempts from an address one after the other.

    Kafka's delayed answer (`connection.failed.authentication.delay.ms`) does not slow down a client that opens many
    connections, or does not wait for the answer. Other users at the same address wait too, but only for seconds, and only while
    the failures continue. There is no limit per user, because then anyone could lock a user out. Owner: the event loop.
    """

    def __init__(self) -> None:
        self._addresses: _Memory[_Address] = _Memory(_Address)

    def wait_ms(self, host: str, now_ms: int) -> int | None:
        """Return how long an attempt must wait; None if too many wait. Then call `waited` after the wait or a disconnect."""
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

#: Failures without a wait, because people mistype.
FREE_SIGN_INS: Final = 3
FIRST_WAIT_S: Final = 1.0
ADDRESS_WAIT_MAX_S: Final = 300.0
USER_WAIT_MAX_S: Final = 5.0
#: Time without a failure after which all failures are forgotten.
FORGET_S: Final = 900.0


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0

    def wait_s(self, most_s: float, now_s: float) -> float:
        if self.count < FREE_SIGN_INS:
            return 0.0
        wait_s = doubled(FIRST_WAIT_S, most_s, self.count - FREE_SIGN_INS)
        return max(0.0, self.last_s + wait_s - now_s)


class SignInThrottle:
    """Makes sign-ins wait after failures: twice as long each time, by address and by user.

    An early attempt is refused at once, because a waiting attempt would cost the service more than the guesser. Waits by user
    are short, since anyone can cause them for another user. Owner: the event loop.
    """

    def __init__(self) -> None:
        self._addresses: _Memory[_Failures] = _Memory(_Failures)
        self._users: _Memory[_Failures] = _Memory(_Failures)

    def wait_s(self, address: str, user: str, now_s: float) -> float:
        """Return how long this address must wait before it may try again for this user; 0: not at all."""
        by_address, by_user = self._addresses.get(network_of(address)), self._users.get(user)
        return max(
            by_address.wait_s(ADDRESS_WAIT_MAX_S, now_s) if by_address is not None else 0.0,
            by_user.wait_s(USER_WAIT_MAX_S, now_s) if by_user is not None else 0.0,
        )

    def tried(self, address: str, user: str, now_s: float) -> None:
        """Count the try as a failure until `succeeded` or `forgotten`, so that parallel tries do not all count as the first."""
        for entry in (self._addresses.latest(network_of(address)), self._users.latest(user)):
            if now_s - entry.last_s > FORGET_S:
                entry.count = 0
            entry.count += 1
            entry.last_s = now_s

    def succeeded(self, address: str, user: str) -> None:
        """Keep the address's other failures: otherwise the owner of one account could reset them while guessing other
        accounts."""
        self._users.pop(user)
        _take_back(self._addresses, network_of(address))

    def forgotten(self, address: str, user: str) -> None:
        """Take back a try that the cluster did not answer."""
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
            failures.pop(key)
