"""The clock and the chance of applications: `time`, `datetime`, `random`, `uuid`, `os.urandom` are those of the world.

`install` is called once in an interpreter that does nothing but simulate, before the modules of the application are loaded, so
that `from time import time` gets the world's, too. Outside of a running world all of them are the machine's.
"""

import asyncio
import gc
import os
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from barnabas.testing.simulation.guests import current, refuse
from barnabas.testing.simulation.world import EPOCH_MS, World

_WALL_START_S = EPOCH_MS / 1000


class _Running:
    world: World | None = None
    chance: random.Random | None = None


def begin(world: World) -> None:
    """From now on everything is the world's."""
    _Running.world = world
    reseed(world.seed)


def reseed(seed: int) -> None:
    _Running.chance = random.Random(seed ^ 0x5EED)
    random.seed(seed)
    gc.disable()


def _monotonic_s() -> float | None:
    world = _Running.world
    if world is None:
        return None
    guest = current()
    return world.now_s if guest is None or guest.loop is None else guest.loop.time()


def _wall_s() -> float | None:
    now_s = _monotonic_s()
    if now_s is None:
        return None
    guest = current()
    return _WALL_START_S + now_s + (guest.clock.skew_ms / 1000 if guest is not None else 0.0)


def _clock(real: Callable[[], Any], virtual: Callable[[], float | None], factor: int) -> Callable[[], Any]:
    if factor == 1:

        def seconds() -> Any:
            now_s = virtual()
            return real() if now_s is None else now_s

        return seconds

    def nanoseconds() -> Any:
        now_s = virtual()
        return real() if now_s is None else round(now_s * 1_000_000) * 1000

    return nanoseconds


def _sleep(real: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        """Hold the whole process for so long, as the real one holds the event loop."""
        guest = current()
        if guest is not None and guest.loop is not None:
            guest.loop.cost_s += seconds
        elif _Running.world is None:
            real(seconds)

    return sleep


def _urandom(size: int, real: Callable[[int], bytes] = os.urandom) -> bytes:
    return real(size) if _Running.chance is None else _Running.chance.randbytes(size)


class _DatetimeKind(type(datetime)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, datetime)


class _WorldsDatetime(datetime, metaclass=_DatetimeKind):
    """`datetime.datetime` with the world's now. It makes ordinary datetimes."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return datetime(*args, **options)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        wall_s = _wall_s()
        if wall_s is None:
            return datetime.now(tz)
        if tz is None:
            return datetime.fromtimestamp(wall_s, UTC).replace(tzinfo=None)  # the world is in UTC
        return datetime.fromtimestamp(wall_s, tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


class _DateKind(type(date)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, date)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, date)


class _WorldsDate(date, metaclass=_DateKind):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        return date(*args, **options)

    @classmethod
    def today(cls) -> Any:
        return _WorldsDatetime.now().date()


def replace_everywhere(pairs: list[tuple[Any, Any]]) -> None:
    """Put the second of each pair where loaded modules have the first."""
    by_id = {id(real): (real, new) for real, new in pairs}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or getattr(module, "__name__", "") == __name__:
            continue
        for name, value in list(names.items()):
            found = by_id.get(id(value))
            if found is not None and found[0] is value:
                names[name] = found[1]


def _random_seed(real: Callable[..., None]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _Running.chance is not None:
            a = _Running.chance.getrandbits(128)
        real(self, a, version)

    return seed


def _process_id(real: Callable[[], int] = os.getpid) -> int:
    guest = current()
    return real() if guest is None else guest.pid


def _host_name(real: Callable[[], str] = socket.gethostname) -> str:
    guest = current()
    return real() if guest is None else guest.host.name


def _run(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(main: Any, **options: Any) -> Any:
        if current() is not None:
            getattr(main, "close", lambda: None)()
            refuse("asyncio.run", "give world.process the coroutine function: it runs on a loop already")
        return real(main, **options)

    return run


def install() -> None:
    """Make all of it the world's in this interpreter, for good."""
    pairs: list[tuple[Any, Any]] = [
        (time.time, _clock(time.time, _wall_s, 1)),
        (time.time_ns, _clock(time.time_ns, _wall_s, 10**9)),
        (time.monotonic, _clock(time.monotonic, _monotonic_s, 1)),
        (time.monotonic_ns, _clock(time.monotonic_ns, _monotonic_s, 10**9)),
        (time.perf_counter, _clock(time.perf_counter, _monotonic_s, 1)),
        (time.perf_counter_ns, _clock(time.perf_counter_ns, _monotonic_s, 10**9)),
        (time.sleep, _sleep(time.sleep)),
        (os.urandom, _urandom),
        (os.getpid, _process_id),
        (socket.gethostname, _host_name),
        (socket.getfqdn, _host_name),
        (datetime, _WorldsDatetime),
        (date, _WorldsDate),
        (asyncio.run, _run(asyncio.run)),
    ]
    if hasattr(os, "getrandom"):
        pairs.append((os.getrandom, lambda size, flags=0: _urandom(size)))
    replace_everywhere(pairs)
    vars(random.Random)["seed"]  # it is there in every version
    random.Random.seed = _random_seed(random.Random.seed)  # type: ignore[method-assign]
    uuid._node = 0x0242AC110002  # type: ignore[attr-defined]
    uuid._generate_time_safe = None  # type: ignore[attr-defined]
    os.environ["TZ"] = "UTC"
    time.tzset()
