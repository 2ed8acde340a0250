"""Failed sign-ins make the next ones wait: twice as long each time, by address and by user. Pure.

A guesser is turned away at once instead of being kept waiting: a connection that waits costs the console more than him.
Waits by user are short, since anybody can make another user's name wait.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

#: Failures without a wait: people mistype.
FREE_FAILURES: Final = 3
FIRST_WAIT_S: Final = 1.0
ADDRESS_WAIT_MAX_S: Final = 300.0
USER_WAIT_MAX_S: Final = 5.0
#: After this long without a failure all is forgotten.
FORGET_S: Final = 900.0
ENTRIES_MAX: Final = 10_000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0


@dataclass(slots=True)
class Throttle:
    #: By address or user, those that failed last at the end.
    _failures: OrderedDict[tuple[str, str], _Failures] = field(default_factory=OrderedDict)

    def wait_s(self, address: str, user: str, now_s: float) -> float:
        """How long until this address may try again for this user; 0: now."""
        waits = (
            self._wait_s(_by_address(address), ADDRESS_WAIT_MAX_S, now_s),
            self._wait_s(("user", user), USER_WAIT_MAX_S, now_s),
        )
        return max(waits)

    def tried(self, address: str, user: str, now_s: float) -> None:
        """Counts a try as a failure until `succeeded` or `forgotten` says otherwise: many at once must not all be the first."""
        for key in (_by_address(address), ("user", user)):
            entry = self._failures.pop(key, None)
            if entry is None or now_s - entry.last_s > FORGET_S:
                entry = _Failures()
            entry.count += 1
            entry.last_s = now_s
            self._failures[key] = entry
        while len(self._failures) > ENTRIES_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, user: str) -> None:
        """The address keeps its other failures: who owns one account must not get free guesses at the others by it."""
        self._failures.pop(("user", user), None)
        self._take_back(_by_address(address))

    def forgotten(self, address: str, user: str) -> None:
        """The cluster had nothing to say about this try."""
        self._take_back(_by_address(address))
        self._take_back(("user", user))

    def _take_back(self, key: tuple[str, str]) -> None:
        entry = self._failures.get(key)
        if entry is not None:
            entry.count -= 1
            if entry.count <= 0:
                del self._failures[key]

    def _wait_s(self, key: tuple[str, str], wait_max_s: float, now_s: float) -> float:
        entry = self._failures.get(key)
        if entry is None or entry.count < FREE_FAILURES:
            return 0.0
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(entry.count - FREE_FAILURES, 30), wait_max_s)
        return max(0.0, entry.last_s + wait_s - now_s)


def _by_address(address: str) -> tuple[str, str]:
    """One customer of a provider has a /64 of IPv6 to himself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "address", address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return "address", str(ipaddress.ip_network((parsed, 64), strict=False))
    return "address", address
