"""The queue before a model: who is asked together, and what an error, a cancel or a close does."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from prixlm.errors import PrixError
from prixlm.service.batching import Batcher, Busy

LONG = 60.0
"""Seconds after which a test that hangs fails."""


class Doubler:
    """Doubles numbers and notes its calls; while it is held, the first call does not return."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.threads: set[int] = set()
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def hold(self) -> None:
        self.may_go_on.clear()

    def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(list(items))
        self.threads.add(threading.get_ident())
        self.has_begun.set()
        assert self.may_go_on.wait(LONG)
        if -1 in items:
            raise PrixError("-1 cannot be doubled")
        if -2 in items:
            raise SystemExit
        return [2 * item for item in items]


@pytest.fixture
def doubler() -> Doubler:
    return Doubler()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


def wait_until_waiting(batcher: Batcher[int, int], number: int) -> None:
    """Return when this number of items waits in the queue."""
    with batcher._changed:
        assert batcher._changed.wait_for(lambda: len(batcher._waiting) == number, LONG)


def ask_behind(
    batcher: Batcher[int, int], doubler: Doubler, pool: ThreadPoolExecutor, items: list[int]
) -> list["Future[int]"]:
    """Ask 0 alone and hold its call, then let `items` wait in this order; return all answers."""
    doubler.hold()
    answers = [pool.submit(batcher.ask_sync, 0)]
    assert doubler.has_begun.wait(LONG)
    for number, item in enumerate(items, start=1):
        answers.append(pool.submit(batcher.ask_sync, item))
        wait_until_waiting(batcher, number)
    return answers


def test_what_waits_together_is_asked_together_in_one_thread(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, most=8, wait=0)
    answers = ask_behind(batcher, doubler, pool, list(range(1, 21)))
    doubler.may_go_on.set()
    assert [answer.result(LONG) for answer in answers] == [2 * n for n in range(21)]
    assert doubler.calls == [[0], [*range(1, 9)], [*range(9, 17)], [*range(17, 21)]]
    batcher.close()
    assert len(doubler.threads) == 1 and threading.get_ident() not in doubler.threads


def test_the_first_waits_for_company_until_the_batch_is_full(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, most=3, wait=LONG)  # only a full batch is asked before the end
    answers = [pool.submit(batcher.ask_sync, item) for item in (1, 2, 3)]
    assert [answer.result(LONG / 2) for answer in answers] == [2, 4, 6]
    assert [sorted(call) for call in doubler.calls] == [[1, 2, 3]]
    batcher.close()


def test_one_question_alone_is_asked_after_the_wait(doubler: Doubler) -> None:
    batcher = Batcher(doubler, most=32, wait=0.01)
    assert batcher.ask_sync(21) == 42 and doubler.calls == [[21]]
    batcher.close()


def test_coroutines_share_a_batch(doubler: Doubler) -> None:
    batcher = Batcher(doubler, most=50, wait=LONG)

    async def ask_all() -> list[int]:
        return await asyncio.gather(*(batcher.ask(item) for item in range(50)))

    assert asyncio.run(ask_all()) == [2 * item for item in range(50)]
    assert doubler.calls == [list(range(50))]
    batcher.close()


@pytest.mark.parametrize(("poison", "error"), [(-1, PrixError), (-2, RuntimeError)])
def test_an_error_reaches_only_the_one_who_asked_for_it(
    doubler: Doubler, poison: int, error: type[Exception]
) -> None:
    batcher = Batcher(doubler, most=4, wait=LONG)

    async def ask_all() -> list[int | BaseException]:
        asked = (batcher.ask(item) for item in (1, poison, 2, 3))
        return await asyncio.gather(*asked, return_exceptions=True)

    first, failed, *others = asyncio.run(ask_all())
    assert [first, *others] == [2, 4, 6] and isinstance(failed, error)
    assert doubler.calls == [[1, poison, 2, 3], [1], [poison], [2], [3]]
    batcher.close()


def test_a_wrong_number_of_answers_is_an_error_and_not_a_hang() -> None:
    batcher: Batcher[int, int] = Batcher(lambda items: [], wait=0)
    with pytest.raises(AssertionError, match="an answer for each item"):
        batcher.ask_sync(1)
    batcher.close()


def test_a_full_queue_refuses_at_once_and_says_when_to_try_again(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, most=2, wait=0, room=3)
    answers = ask_behind(batcher, doubler, pool, [1, 2, 3])
    with pytest.raises(Busy, match="3 questions are waiting already") as refused:
        batcher.ask_sync(4)
    assert refused.value.retry_after >= 1
    with pytest.raises(Busy):
        asyncio.run(batcher.ask(4))
    doubler.may_go_on.set()
    assert [answer.result(LONG) for answer in answers] == [0, 2, 4, 6]
    assert batcher.ask_sync(4) == 8, "there is room again"
    batcher.close()


def test_the_time_to_try_again_grows_with_the_time_of_a_call(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, most=1, wait=0, room=2)
    batcher._seconds = 4.0  # as calls of a slow model would have it
    answers = ask_behind(batcher, doubler, pool, [1, 2])
    with pytest.raises(Busy) as refused:
        batcher.ask_sync(3)
    assert refused.value.retry_after == 12, "the running call and two that wait"
    doubler.may_go_on.set()
    assert [answer.result(LONG) for answer in answers] == [0, 2, 4]
    batcher.close()


def test_a_cancelled_asker_is_not_asked_for_and_leaves_room(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, most=8, wait=0, room=2)

    async def cancel_two() -> None:
        impatient = [asyncio.ensure_future(batcher.ask(item)) for item in (7, 8)]
        await asyncio.sleep(0)  # lets both enter the queue
        wait_until_waiting(batcher, 2)
        for task in impatient:
            task.cancel()
        await asyncio.gather(*impatient, return_exceptions=True)
        assert all(task.cancelled() for task in impatient)

    [held] = ask_behind(batcher, doubler, pool, [])
    asyncio.run(cancel_two())
    later = pool.submit(batcher.ask_sync, 5)
    wait_until_waiting(batcher, 1)  # the queue was full of cancelled ones
    doubler.may_go_on.set()
    assert held.result(LONG) == 0 and later.result(LONG) == 10
    assert doubler.calls == [[0], [5]]
    batcher.close()


def test_a_batch_of_cancelled_askers_is_not_asked(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, wait=0)
    [held] = ask_behind(batcher, doubler, pool, [])

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.ask(9), timeout=0.01)

    asyncio.run(give_up())
    doubler.may_go_on.set()
    assert held.result(LONG) == 0 and batcher.ask_sync(1) == 2
    assert doubler.calls == [[0], [1]]
    batcher.close()


def test_closing_finishes_the_running_call_and_refuses_the_rest(
    doubler: Doubler, pool: ThreadPoolExecutor
) -> None:
    batcher = Batcher(doubler, wait=0)
    running, waiting = ask_behind(batcher, doubler, pool, [1])
    closing = pool.submit(batcher.close)
    with pytest.raises(Busy, match="stopping"):
        waiting.result(LONG)
    assert not running.done()
    doubler.may_go_on.set()
    assert running.result(LONG) == 0
    closing.result(LONG)
    assert not batcher._worker.is_alive() and doubler.calls == [[0]]
    with pytest.raises(Busy, match="stopping"):
        batcher.ask_sync(2)
    batcher.close()  # a second time is no harm


def test_many_threads_and_coroutines_at_once_get_their_own_answers(doubler: Doubler) -> None:
    batcher = Batcher(doubler, most=16, wait=0.001, room=1000)

    async def ask_many(start: int) -> list[int]:
        return await asyncio.gather(*(batcher.ask(item) for item in range(start, start + 40)))

    with ThreadPoolExecutor(8) as pool:
        loops = [pool.submit(asyncio.run, ask_many(40 * number)) for number in range(4)]
        threads = [pool.submit(batcher.ask_sync, item) for item in range(1000, 1100)]
        found = [answer for loop in loops for answer in loop.result(LONG)]
        assert found == [2 * item for item in range(160)]
        assert [thread.result(LONG) for thread in threads] == [2 * n for n in range(1000, 1100)]
    asked = sorted(item for call in doubler.calls for item in call)
    assert asked == [*range(160), *range(1000, 1100)], "each once"
    assert max(map(len, doubler.calls)) <= 16
    batcher.close()
