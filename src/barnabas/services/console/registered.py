"""Records by the schemas of a registry: Avro, Protobuf, JSON Schema. Each schema is requested once; decoding needs no request.

Owner: the event loop; the registry's client blocks, so that it runs on threads. They are not those that decode records: a
registry that does not answer must not hold up pages that need no schema.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from barnabas.base.errors import BarnabasError
from barnabas.client.registry import RegistryClient, RegistryRefused, RegistryUnreachable
from barnabas.services.console.decoding import Undecodable
from barnabas.services.console.errors import Refusal
from barnabas.services.registry import wire
from barnabas.services.registry.values import by_schema
from barnabas.wire.records import Record

T = TypeVar("T")

_SCHEMAS_MAX: Final = 1_000
#: Threads for the requests of one user. Further requests wait.
_THREADS: Final = 4
#: How long a page waits for the schemas of its records. Records whose schemas are still missing are shown as bytes.
PREPARE_S: Final = 5.0
#: Time before the registry is asked again after it did not answer, or did not know an id.
_TROUBLE_S: Final = 5.0
#: Limit of values in one record: a page shows fewer characters than this.
_VALUES_MAX: Final = 250_000
_REASON_CHARS_MAX: Final = 500
#: Time before a refused user is tried again: many failures would slow the console's address down, as for a guesser.
_LOCKED_OUT_S: Final = 60.0


class Registered:
    """One user's view of the registry: readers of its schemas, and the schemas that cannot be used."""

    def __init__(self, client: RegistryClient, user: str = "") -> None:
        """`user`: the user's name at the registry; empty for the console itself."""
        self.client = client
        self._user = user
        #: The registry refused the user: these credentials are not used before this time.
        self._locked_out_until_s = 0.0
        #: The registry did not answer: pages do not wait for it before this time (of the event loop).
        self._away_until_s = 0.0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-registry")
        self._readers: dict[int, Any] = {}
        self._trouble: dict[int, tuple[float, str]] = {}

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def ask(self, method: str, *path: object, body: object = None, **query: object) -> Any:
        """Send any request of the registry's API. Its refusals become the console's."""
        try:
            return await self._on_thread(partial(self._ask, method, *path, body=body, **query))
        except RegistryRefused as error:
            if error.status == 401:
                # A 401 would end the session at the console.
                raise Refusal(403, "REGISTRY_SIGN_IN", str(error)) from None
            status = error.status if 400 <= error.status < 500 else 502
            raise Refusal(status, f"REGISTRY_{error.code}", str(error)) from None
        except RegistryUnreachable as error:
            raise Refusal(502, "REGISTRY_UNREACHABLE", str(error)) from None

    def _ask(self, method: str, *path: object, body: object = None, **query: object) -> Any:
        """Runs on threads."""
        if time.monotonic() < self._locked_out_until_s:
            raise self._not_let_in()
        try:
            return self.client.ask(method, *path, body=body, **query)
        except RegistryRefused as error:
            if error.status != 401:
                raise
            self._locked_out_until_s = time.monotonic() + _LOCKED_OUT_S
            raise self._not_let_in() from None

    def _not_let_in(self) -> RegistryRefused:
        if not self._user:
            return RegistryRefused(401, 40101, "the registry does not let the console in; see --schema-registry-config")
        if not self.client.signs_in:
            why = "passwords are not sent to a registry without HTTPS"
        else:
            why = "it must know the user with the password or token of the cluster"
        return RegistryRefused(401, 40101, f"the registry does not let {self._user} in: {why}")

    async def prepare(self, records: Iterable[Record]) -> None:
        """Request the unknown schemas of these records. Wait for a limited time."""
        ids = {number for each in records for data in (each.key, each.value) if (number := _id_of(data)) is not None}
        now_s = asyncio.get_running_loop().time()
        wanted = [number for number in sorted(ids) if self._is_wanted(number, now_s)]
        trouble: Exception | None = None
        if now_s >= self._away_until_s:
            try:
                async with asyncio.timeout(PREPARE_S):
                    while wanted:
                        await self._get(wanted[0], now_s)
                        del wanted[0]
            except TimeoutError:
                trouble = RegistryUnreachable(f"the registry did not answer within {PREPARE_S:g} s")
            except RegistryUnreachable as error:
                trouble = error
            if trouble is not None:
                self._away_until_s = asyncio.get_running_loop().time() + _TROUBLE_S
        for number in wanted:  # what the registry would say of them next time is unknown
            self._note_trouble(number, now_s, trouble or RegistryUnreachable("the registry has not answered lately"))

    def _is_wanted(self, number: int, now_s: float) -> bool:
        trouble = self._trouble.get(number)
        return number not in self._readers and (trouble is None or now_s - trouble[0] >= _TROUBLE_S)

    async def _get(self, number: int, now_s: float) -> None:
        try:
            reader = await self._on_thread(lambda: self._reader(number))
        except RegistryUnreachable:
            raise
        # A registry, or a stranger's schema, may fail in any other way: the other records are still shown.
        except Exception as error:
            self._note_trouble(number, now_s, error)
            return
        if len(self._readers) >= _SCHEMAS_MAX:
            self._readers.clear()
        self._readers[number] = reader
        self._trouble.pop(number, None)

    def _note_trouble(self, number: int, now_s: float, error: Exception) -> None:
        reason = str(error)
        if not isinstance(error, BarnabasError):
            reason = f"it cannot be used: {type(error).__name__} {reason}"
        if len(self._trouble) >= _SCHEMAS_MAX:
            self._trouble.clear()
        self._trouble[number] = (now_s, reason[:_REASON_CHARS_MAX])

    def decode(self, data: bytes) -> tuple[str, Any, str]:
        """Decode with a prepared schema. Return (format, value, note)."""
        try:
            number, payload = wire.unframe(data)
        except wire.NotFramed as error:
            raise Undecodable(str(error)) from None
        reader = self._readers.get(number)
        if reader is None:
            # The loop may clear the troubles at any time: this runs on a thread.
            _, why = self._trouble.get(number, (0.0, "it was not asked for"))
            raise Undecodable(f"schema {number}: {why}")
        try:
            kind, value = reader(payload)
        except Exception as error:  # each library has its own errors for bytes of another format
            reason = f"{type(error).__name__} {error}"[:_REASON_CHARS_MAX]
            raise Undecodable(f"not as schema {number} says: {reason}") from None
        return kind, value, f"schema {number}"

    # -- on a thread ------------------------------------------------------------------------------------------------------

    def _reader(self, number: int) -> Any:
        return by_schema.reader(
            by_schema.schema_of(self._ask("GET", "schemas", "ids", number), self._ask), values_max=_VALUES_MAX
        )


def _id_of(data: bytes | None) -> int | None:
    if data is None or len(data) <= wire.HEAD_BYTES or data[0] != wire.MAGIC:
        return None
    return wire.unframe(data)[0]
