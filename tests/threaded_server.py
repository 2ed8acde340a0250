"""A server of ours in a thread of its own, for tests that are its clients."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from barnabas.services.http.server import Service

DEADLINE_S: Final = 60.0

S = TypeVar("S", bound=Service)


class ThreadedServer(Generic[S]):
    def __init__(self, name: str, make: Callable[[], S]) -> None:
        """`make` is called in the thread. Waits until the server is ready; what fails there is raised here."""
        self._name = name
        self._make = make
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_S), f"the {name} did not start"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.server = self._make()
            await self.server.run(self._ready.set)

        try:
            asyncio.run(main())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"the {self._name} did not stop"
        if self._failure is not None:
            raise self._failure
