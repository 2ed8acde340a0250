"""The end of a turn of the loop: once for many, fair to others, and one failure is not everybody's."""

import asyncio

from barnabas.broker.runtime.turns import TurnEnd


async def test_what_is_put_off_comes_in_order_with_what_comes_of_it_in_one_turn() -> None:
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


async def test_what_goes_on_for_ever_lets_others_have_their_turn() -> None:
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


async def test_call_that_fails_is_heard_of_and_the_rest_comes_all_the_same() -> None:
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
