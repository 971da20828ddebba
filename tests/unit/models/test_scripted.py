import pytest

from perdure.models.protocol import ProviderCall
from perdure.models.scripted import ScriptedModel, call, calls, fail, malformed, refuse, say, truncate
from perdure.models.wording import plain
from perdure.vocab.messages import Message, Text
from perdure.vocab.usage import Usage
from tests.unit.models.conversing import Talk


def talking(text: str = "go") -> Talk:
    talk = Talk()
    talk.user(text)
    return talk


async def test_a_script_is_followed_one_reply_at_a_time() -> None:
    model, talk = ScriptedModel(call("look", city="Rome"), say("done")), talking()
    (asked,) = (await talk.ask(model)).calls
    assert (asked.name, asked.args) == ("look", {"city": "Rome"})
    talk.result(asked, "sunny")
    assert plain((await talk.ask(model)).text) == "done"
    assert len(model.requests) == 2


async def test_a_new_process_continues_where_the_conversation_is() -> None:
    talk = talking()
    steps = (call("look"), call("look"), say("done"))
    for _ in range(2):
        (asked,) = (await talk.ask(ScriptedModel(*steps))).calls
        talk.result(asked, "x")
    assert plain((await talk.ask(ScriptedModel(*steps))).text) == "done"


async def test_every_user_message_starts_the_script_again() -> None:
    model, talk = ScriptedModel(say("one")), talking()
    await talk.ask(model)
    talk.user("again")
    assert plain((await talk.ask(model)).text) == "one"


async def test_asking_twice_is_always_noticed() -> None:
    talk = talking()
    for step in (say("same"), call("look")):
        model = ScriptedModel(step)
        assert len({(await talk.sample(model)).parts for _ in range(20)}) == 20


async def test_exact_text_stays_exact() -> None:
    assert (await talking().ask(ScriptedModel(say("same", exact=True)))).text == "same"


async def test_text_is_streamed_in_as_many_chunks_as_asked() -> None:
    talk = talking()
    reply = await talk.ask(ScriptedModel(say("abcdefgh", chunks=4, exact=True)))
    assert talk.deltas == ["ab", "cd", "ef", "gh"]
    assert reply.text == "abcdefgh"
    await talking().ask(ScriptedModel(say("", exact=True)))


async def test_usage_can_be_said_and_is_counted_otherwise() -> None:
    assert (await talking().ask(ScriptedModel(say("x", usage=Usage(input=7))))).usage == Usage(input=7)
    assert (await talking().ask(ScriptedModel(say("x")))).usage.tokens > 0


async def test_several_calls_come_in_one_reply_after_text() -> None:
    step = calls(call("a", tool="x"), malformed("b", "{oops"), call("a"), text="working")
    reply = await talking().ask(ScriptedModel(step))
    assert plain(reply.text) == "working"
    assert [(one.name, one.args, one.malformed) for one in reply.calls] == [
        ("a", {"tool": "x"}, None),
        ("b", {}, "{oops"),
        ("a", {}, None),
    ]
    assert reply.finish == "tool_calls"


async def test_a_refusal_is_a_reply() -> None:
    assert (await talking().ask(ScriptedModel(refuse("no")))).finish == "refusal"


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (429, "rate_limit", True),
        (500, "unavailable", True),
        (529, "unavailable", True),
        (408, "unavailable", True),
        (400, "invalid", False),
        (401, "auth", False),
        (402, "quota", False),
        (413, "too_large", False),
    ],
)
async def test_a_failure_has_the_meaning_of_its_status(status: int, kind: str, retryable: bool) -> None:
    error = (await talking().fails(ScriptedModel(fail(status, retry_after_ms=50)))).error
    assert (error.kind, error.retryable, error.status, error.retry_after_ms) == (kind, retryable, status, 50)


async def test_scripted_fault_repeats_as_often_as_configured() -> None:
    model, talk = ScriptedModel(call("look"), fail(429, times=2), truncate("so f"), say("done")), talking()
    (asked,) = (await talk.ask(model)).calls
    talk.result(asked, "x")
    kinds = [(await talk.fails(model)).error.kind for _ in range(3)]
    assert kinds == ["rate_limit", "rate_limit", "stream_cut"]
    assert "".join(talk.deltas) == "so f"
    assert plain((await talk.ask(model)).text) == "done"


async def test_scripted_fault_repeats_after_a_crash() -> None:
    steps, talk = (fail(500), say("done")), talking()
    await talk.fails(ScriptedModel(*steps))
    model = ScriptedModel(*steps)
    await talk.fails(model)
    assert plain((await talk.ask(model)).text) == "done"


async def test_running_past_the_script_is_not_retryable() -> None:
    model, talk = ScriptedModel(say("one")), talking()
    await talk.ask(model)
    error = (await talk.fails(model)).error
    assert (error.kind, error.retryable) == ("invalid", False)
    assert "1 replies" in error.message


async def test_scripts_can_be_chosen_by_the_input() -> None:
    model = ScriptedModel.by_input({"hi": [say("hello")], "bye": [fail(), say("ciao")]}, default=[say("what?")])
    assert plain((await talking("hi").ask(model)).text) == "hello"
    talk = talking("bye")
    await talk.fails(model)
    assert plain((await talk.ask(model)).text) == "ciao"
    assert plain((await talking("else").ask(model)).text) == "what?"


async def test_an_input_is_recognised_after_one_that_was_never_answered() -> None:
    model = ScriptedModel.by_input({"hi": [say("hello")], "lost": [say("?")], "two\nlines": [say("both")]})
    talk = Talk()
    talk.messages.append(Message(role="user", parts=(Text(text="lost"), Text(text="hi"))))
    assert plain((await talk.ask(model)).text) == "hello"
    assert plain((await talking("two\nlines").ask(model)).text) == "both"


async def test_an_input_without_a_script_is_named() -> None:
    error = (await talking("else").fails(ScriptedModel.by_input({"hi": [say("hello")]}))).error
    assert "'else'" in error.message


async def test_the_reply_has_text_parts_and_calls_only() -> None:
    reply = await talking().sample(ScriptedModel(calls(call("a"), text="t")))
    assert [type(part) for part in reply.parts] == [Text, ProviderCall]
