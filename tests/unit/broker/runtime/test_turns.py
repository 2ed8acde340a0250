"""The end of a turn of the loop: one entry for many calls, fair to other tasks, and a failed call does not stop the others."""

import asyncio

from barnabas.broker.runtime.turns import TurnEnd


async def test_deferred_calls_and_the_calls_they_defer_run_in_order_in_one_turn() -> None:
    end = TurnEnd()
    seen: list[str] = []

    def write(name: str) -> None:
        seen.append(f"write {name}")
        end.put_off(lambda: seen.append(f"answer {name}"))

    end.put_off(lambda: write("a"))
    end.put_off(lambda: write("b"))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["write a", "write b", "answer a", "answer b"]


async def test_calls_that_always_defer_another_let_other_tasks_run() -> None:
    end = TurnEnd()
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        end.put_off(again)

    end.put_off(again)
    await asyncio.sleep(0)
    assert count == 2
    await asyncio.sleep(0)
    assert count == 4


async def test_failed_call_is_reported_and_the_others_still_run() -> None:
    end = TurnEnd()
    seen: list[str] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    end.put_off(lambda: [].pop())
    end.put_off(lambda: seen.append("after"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["after"]
    assert [type(failure) for failure in failures] == [IndexError]
    end.put_off(lambda: seen.append("later"))
    await asyncio.sleep(0)
    assert seen == ["after", "later"]
