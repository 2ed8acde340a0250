"""A TCP proxy between a broker and ZooKeeper, which can hold back data in either direction and break connections."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

Address = Callable[[], tuple[str, int]]


class Proxy:
    """Runs in a thread of its own. Data that it holds back while silent arrives later, as with TCP."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._loop = asyncio.new_event_loop()
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._to_server.set()
        self._to_client.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def silence(self, *, to_server: bool = True, to_client: bool = True) -> None:
        if to_server:
            self._call(self._to_server.clear)
        if to_client:
            self._call(self._to_client.clear)

    def speak(self) -> None:
        self._call(self._to_server.set)
        self._call(self._to_client.set)

    def drop(self) -> None:
        """End every connection, whatever is in flight."""

        def drop() -> None:
            for writer in list(self._open):
                writer.transport.abort()

        self._call(drop)

    def close(self) -> None:
        self.drop()
        self._call(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listening.close()

    def _call(self, what: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listening))
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            host, port = self._target()
            server_reader, server_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            self._open.discard(writer)
            self._tasks.discard(task)
            return
        self._open.add(server_writer)
        try:
            await asyncio.wait(
                [
                    self._loop.create_task(_pump(reader, server_writer, self._to_server)),
                    self._loop.create_task(_pump(server_reader, writer, self._to_client)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for each in (writer, server_writer):
                each.transport.abort()
                self._open.discard(each)
            self._tasks.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            await gate.wait()
            writer.write(data)
            await writer.drain()
