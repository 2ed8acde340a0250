"""A pool of threads whose size may change while it is in use."""

import threading
from concurrent.futures import CancelledError

import pytest

from barnabas.broker.runtime.threads import ThreadPool


def test_threads_start_with_the_work_up_to_the_size() -> None:
    pool = ThreadPool(2, name="test")
    assert pool.thread_count == 0
    go = threading.Event()
    started = threading.Semaphore(0)

    def work(number: int) -> int:
        started.release()
        assert go.wait(60)
        return number

    futures = [pool.submit(work, number) for number in range(4)]
    for _ in range(2):
        assert started.acquire(timeout=60)
    assert pool.thread_count == 2
    assert not started.acquire(blocking=False)
    go.set()
    assert [future.result(60) for future in futures] == [0, 1, 2, 3]
    pool.shutdown()
    assert pool.thread_count == 0


def test_larger_pool_starts_waiting_work_at_once() -> None:
    pool = ThreadPool(1, name="test")
    both = threading.Barrier(2)
    futures = [pool.submit(both.wait, 10) for _ in range(2)]
    # With one thread they would wait for each other forever.
    pool.resize(2)
    assert sorted(future.result(60) for future in futures) == [0, 1]
    pool.shutdown()


@pytest.mark.parametrize("times", [1, 3])
def test_smaller_pool_loses_its_threads_but_no_work(times: int) -> None:
    pool = ThreadPool(4, name="test")
    go = threading.Event()
    held = [pool.submit(go.wait, 10) for _ in range(4)]
    for _ in range(times):
        pool.resize(1)
    later = [pool.submit(int, number) for number in range(20)]
    go.set()
    assert all(future.result(60) for future in held)
    assert [future.result(60) for future in later] == list(range(20))
    pool.shutdown()
    assert pool.thread_count == 0


def test_error_reaches_the_caller_and_the_thread_continues() -> None:
    pool = ThreadPool(1, name="test")
    with pytest.raises(ValueError, match="nonsense"):
        pool.submit(int, "nonsense").result(60)
    assert pool.submit(int, "7").result(60) == 7
    pool.shutdown()


def test_pool_after_shutdown_refuses_work_and_cancels_futures_on_request() -> None:
    pool = ThreadPool(1, name="test")
    go, running = threading.Event(), threading.Event()

    def hold() -> bool:
        running.set()
        return go.wait(60)

    first, second = pool.submit(hold), pool.submit(int, 2)
    assert running.wait(60)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError):
        pool.submit(int, 3)
    go.set()
    assert first.result(60)
    with pytest.raises(CancelledError):
        second.result(60)


def test_existing_threads_do_the_work_if_the_system_starts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that could not be started was counted all the same: it was never replaced, and the caller got an error."""
    pool = ThreadPool(2, name="test")
    try:
        going = threading.Event()
        first = pool.submit(going.wait, 10)
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        second = pool.submit(int)
        assert pool.thread_count == 1
        monkeypatch.setattr(threading.Thread, "start", start)
        third = pool.submit(int)
        assert pool.thread_count == 2
        assert (second.result(10), third.result(10)) == (0, 0)
        going.set()
        assert first.result(10)
    finally:
        pool.shutdown()
