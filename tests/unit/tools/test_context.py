import asyncio
import threading

import pytest

from perdure.errors import Code, Error
from perdure.tools.context import Cancellation
from tests.unit.tools.calling import context


def test_dependencies_are_what_the_application_gave() -> None:
    assert context(deps="bank").deps == "bank"
    assert context(deps=None).deps is None


def test_missing_dependencies_say_how_to_give_them() -> None:
    with pytest.raises(Error) as caught:
        _ = context().deps
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "deps=" in caught.value.hint


def test_context_repr_shows_presence_and_no_values() -> None:
    shown = repr(context(deps="password-1", args={"card": "4242"}))
    assert "password-1" not in shown
    assert "4242" not in shown
    assert "key-1" not in shown
    assert "deps=present" in shown
    assert "deps=absent" in repr(context())


def test_a_context_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        context().attempt = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_callbacks_run_once_and_later_ones_at_once() -> None:
    token, seen = Cancellation(), list[str]()
    token.add_callback(lambda: seen.append("first"))
    take_back = token.add_callback(lambda: seen.append("never"))
    take_back()
    assert not token.cancelled
    token.cancel()
    token.cancel()
    token.add_callback(lambda: seen.append("late"))()
    assert (seen, token.cancelled) == (["first", "late"], True)
    assert repr(token) == "Cancellation(cancelled=True)"


def test_a_callback_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    token, seen = Cancellation(), list[int]()
    token.add_callback(lambda: seen.append(1 // 0))
    token.add_callback(lambda: seen.append(2))
    token.cancel()
    assert seen == [2]
    assert "callback failed" in caplog.text


async def test_waiting_ends_with_a_cancellation_from_another_thread() -> None:
    token = Cancellation()
    waiting = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    thread = threading.Thread(target=token.cancel)
    thread.start()
    await waiting
    thread.join()
    await token.wait()


async def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    token = Cancellation()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(token.wait(), 0.001)
    token.cancel()


def test_cancelling_after_the_loop_is_gone_does_no_harm() -> None:
    token = Cancellation()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await token.wait()

    asyncio.run(leave())
    token.cancel()
