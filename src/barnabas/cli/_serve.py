"""What a server process does once its settings are known: the body of `barnabas broker` and of the children of `barnabas up`.

No typer here: these run where every millisecond of a cluster's start counts.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Tells whoever started the process that it serves, with what is worth knowing: ports, addresses.
Ready = Callable[[dict[str, object]], None]


def configure_logging(level: int) -> None:
    logging.basicConfig(level=level, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)")


def broker(settings: Mapping[str, Any], ready: Ready) -> None:
    """One broker, until SIGTERM or SIGINT. `settings` are its properties."""
    import uvloop

    from barnabas.broker import Broker

    configure_logging(logging.INFO)

    async def main() -> None:
        served = Broker({name: str(value) for name, value in settings.items()})
        _stop_on_signals(served.stop)
        await served.run(lambda it: ready({"broker_id": it.broker_id, "ports": dict(it.ports)}))

    uvloop.run(main())


def zookeeper(settings: Mapping[str, Any], ready: Ready) -> None:
    """The embedded coordinator, until SIGTERM or SIGINT. `settings`: data, host, port."""
    import uvloop

    from barnabas.coordination.embedded.server import EmbeddedZooKeeper

    configure_logging(logging.WARNING)

    async def main() -> None:
        stopped = asyncio.Event()
        _stop_on_signals(stopped.set)
        server = EmbeddedZooKeeper(Path(settings["data"]), settings["host"], settings["port"])
        await server.start()
        ready({"connect": server.connect_string})
        assert server.failed is not None
        server.failed.add_done_callback(lambda _: stopped.set())
        await stopped.wait()
        await server.stop()
        if server.failed.done():
            server.failed.result()

    uvloop.run(main())


def _stop_on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
