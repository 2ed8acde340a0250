"""How fast one address may try to log in once it has failed often. Pure: time is given.

Waiting before the answer alone (`connection.failed.authentication.delay.ms`) does not slow down who opens many connections, or
who does not wait for the answer. So after some failures the attempts of an address are evaluated one after the other. Whoever
shares the address waits as well, for seconds at most, and only as long as the failures go on. Users have no such limit: anybody
could lock them out.
"""

from collections import OrderedDict
from typing import Final

#: Failures that are forgiven: a client with a wrong password in its settings tries a few times.
FREE_FAILURES: Final = 20
#: How long it takes until one failure is forgotten.
FORGOTTEN_AFTER_MS: Final = 500
#: How much longer an attempt waits for each one before it.
STEP_MS: Final = 50
#: Attempts of one address that wait at the same time; more are refused.
WAITING_MAX: Final = 100
#: Addresses that are remembered; the longest unheard of are forgotten.
ADDRESSES_MAX: Final = 10_000


class _Address:
    __slots__ = ("failures", "since_ms", "waiting")

    def __init__(self, now_ms: int) -> None:
        self.failures = 0.0
        self.since_ms = now_ms
        self.waiting = 0

    def forget(self, now_ms: int) -> None:
        self.failures = max(0.0, self.failures - (now_ms - self.since_ms) / FORGOTTEN_AFTER_MS)
        self.since_ms = now_ms


class LoginPace:
    """Owner: the event loop."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def wait_ms(self, host: str, now_ms: int) -> int | None:
        """How long an attempt of this address must wait: `waited` is called when it has, or has gone. None: too many wait."""
        address = self._addresses.get(host)
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
        address = self._addresses.get(host)
        if address is not None and address.waiting:
            address.waiting -= 1

    def failed(self, host: str, now_ms: int) -> None:
        address = self._addresses.get(host)
        if address is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses.popitem(last=False)
            address = self._addresses[host] = _Address(now_ms)
        self._addresses.move_to_end(host)
        address.forget(now_ms)
        address.failures = min(address.failures + 1, 2 * FREE_FAILURES)
