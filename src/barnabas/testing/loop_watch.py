"""Warns when code of a test holds the loop that runs its brokers. A client that blocks there waits for brokers that cannot run;
without the warning the test hangs and does not show why.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback

_log = logging.getLogger(__name__)

#: A loop that stands still for so long is worth a warning.
STANDSTILL_S = 2.0
_LOOK_S = 0.5
#: Frames of the code that holds the loop, the innermost ones.
_FRAMES_MAX = 6


class LoopWatch:
    """Owner: the loop that it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._beat_s = time.monotonic()
        self._ended = threading.Event()
        self._timer = loop.call_soon(self._beat)
        self._thread = threading.Thread(target=self._watch, name="kafka loop watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._timer.cancel()
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._timer = self._loop.call_later(_LOOK_S, self._beat)

    def _watch(self) -> None:
        warned_of_s = 0.0
        while not self._ended.wait(_LOOK_S):
            beat_s = self._beat_s
            if beat_s != warned_of_s and time.monotonic() - beat_s > STANDSTILL_S:
                warned_of_s = beat_s  # once for each standstill
                self._warn()

    def _warn(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        where = "".join(traceback.format_stack(frame)[-_FRAMES_MAX:]) if frame is not None else ""
        _log.warning(
            "the event loop that runs the brokers has stood still for %g s. Call clients that block with asyncio.to_thread, "
            "or give the brokers a thread: Broker(own_thread=True). The loop is held here:\n%s",
            STANDSTILL_S,
            where,
        )
