"""One queue for calls of a model: what waits together is asked together.

    batcher = Batcher(completer.complete_many, most=32)
    answer = await batcher.ask(question)       # in a coroutine
    answer = batcher.ask_sync(question)        # in a thread
    batcher.close()

A model answers 32 questions in little more time than one, and must not be called by two threads at
once. So one worker thread calls it. The first question waits for up to `wait` seconds for others;
questions that arrive while the model is busy form the next batch. The queue is bounded: a question
that finds it full is refused at once, with the seconds after which to try again.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prixlm.errors import PrixError

T = TypeVar("T")
R = TypeVar("R")
_NEWEST = 0.3
"""Weight of the last call in the mean time of a call."""


class Busy(PrixError):
    """The queue is full or closed: try again after some seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class _Waiting(Generic[T, R]):
    item: T
    answer: "Future[R]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher(Generic[T, R]):
    """Calls a function for many askers, a batch at a time, in a thread of its own."""

    def __init__(
        self,
        function: Callable[[list[T]], list[R]],
        *,
        most: int = 32,
        wait: float = 0.005,
        room: int = 256,
    ) -> None:
        """Start the thread.

        function: returns an answer for each item. If it raises, its items are tried one by one, so
        that an error reaches only those who asked for it.
        most: items of a call. wait: seconds that an item waits for others. room: items that wait.
        """
        assert most >= 1 and room >= 1 and wait >= 0
        self._function, self._most, self._wait, self._room = function, most, wait, room
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._changed = threading.Condition()  # guards all that follows, and the queue
        self._is_closed = False
        self._seconds = 0.0  # mean time of a call
        self._worker = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._worker.start()

    async def ask(self, item: T) -> R:
        """Return the answer; a cancelled asker leaves the queue. Raises `Busy` at once if full."""
        return await asyncio.wrap_future(self._add(item))

    def ask_sync(self, item: T) -> R:
        """Return the answer, blocking this thread. Raises `Busy` at once if the queue is full."""
        answer = self._add(item)
        try:
            return answer.result()
        finally:
            answer.cancel()  # of an interrupted thread; no effect on an answer that is there

    def close(self) -> None:
        """Finish the call that is running, refuse what still waits, and end the thread."""
        with self._changed:
            self._is_closed = True
            refused = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for waiting in refused:
            if waiting.answer.set_running_or_notify_cancel():
                waiting.answer.set_exception(_closed())
        self._worker.join()

    def _add(self, item: T) -> "Future[R]":
        with self._changed:
            if self._is_closed:
                raise _closed()
            if len(self._waiting) >= self._room:
                kept = [waiting for waiting in self._waiting if not waiting.answer.cancelled()]
                self._waiting = deque(kept)
            if len(self._waiting) >= self._room:
                calls = 1 + math.ceil(self._room / self._most)
                seconds = max(1, math.ceil(calls * self._seconds))
                raise Busy(
                    f"{self._room} questions are waiting already. Ask again in {seconds} s.",
                    seconds,
                )
            waiting: _Waiting[T, R] = _Waiting(item)
            self._waiting.append(waiting)
            self._changed.notify_all()
            return waiting.answer

    def _work(self) -> None:
        while batch := self._take():
            started = time.monotonic()
            self._answer(batch)
            seconds = time.monotonic() - started
            with self._changed:
                before = self._seconds or seconds
                self._seconds = (1 - _NEWEST) * before + _NEWEST * seconds

    def _take(self) -> list[_Waiting[T, R]]:
        """Wait for a batch and return it; empty when the queue is closed."""
        with self._changed:
            while not self._is_closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                # Those that waited through the last call need not wait for company.
                left = self._waiting[0].since + self._wait - time.monotonic()
                if len(self._waiting) < self._most and left > 0:
                    self._changed.wait(left)
                    continue
                number = min(self._most, len(self._waiting))
                taken = [self._waiting.popleft() for _ in range(number)]
                # From here on an asker can no longer cancel.
                batch = [one for one in taken if one.answer.set_running_or_notify_cancel()]
                if batch:
                    return batch
            return []

    def _answer(self, batch: list[_Waiting[T, R]]) -> None:
        """Call the function and hand out what it returns or raises."""
        try:
            answers = self._function([waiting.item for waiting in batch])
            assert len(answers) == len(batch), "an answer for each item"
        # Also SystemExit: an asker without an answer would wait for ever.
        except BaseException as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(_as_error(error))
                return
            for waiting in batch:
                self._answer([waiting])
            return
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answer.set_result(answer)


def _as_error(error: BaseException) -> Exception:
    """Return what an asker may be given: SystemExit would end the server's event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"the function ended with {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _closed() -> Busy:
    return Busy("the server is stopping. Ask again when it is back.", 1)
