"""S20: no id and no text of a store steers the terminal of an operator, or the shell that a hint is pasted into."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shlex
import unicodedata

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, ToolContext, process, tool
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.tasks import CreateSessionTask
from perdure.tools.errors import ToolError
from perdure.vocab.invisible import spelled
from tests.e2e.command import Ran, in_this_process

pytestmark = pytest.mark.timeout(120)

EVIL = (
    "\x1b]0;PWNED\x07\x1b[31mRED\x1b[0m\x9b31mC1\x9d0;T\x9c\rOVER\x08\x7f\u202eRTL\u202c\u2066\u200bZW\ufeff"
    "\u2028LS\u2029PS\U000e0041TAG\u3164\ufe01\x1b[2J\x1b[?1049h\nerror: forged"
)
NAME = "s\u202e\u200b'; touch $(id) `x` \U000e0041\u2028z"
OPTION = "--db=other.db"
HIDDEN = {"Cc", "Cf", "Co", "Cn", "Zl", "Zp"}


@tool(needs_approval=True)
async def pay(to: str, cents: int) -> str:
    """Pay."""
    return to


@tool
async def look(ctx: ToolContext) -> str:
    """Look."""
    ctx.progress(EVIL)
    ctx.output(EVIL)
    return EVIL


@tool
async def fail() -> str:
    """Fail."""
    raise ToolError(EVIL, code="x\x1b[31m\u202e")


@process
async def odd(ctx: ProcessContext, text: str) -> str:
    await ctx.step("st\u202e", lambda: text)
    return text


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store full of hostile names and texts, and no worker."""
    path = tmp_path_factory.mktemp("a place") / "h.db"

    async def fill() -> None:
        replies = {"go": [call("look"), call("fail"), say(EVIL, exact=True)], "pay": [call("pay", to=EVIL, cents=1)]}
        model = ScriptedModel.by_input(replies, default=[say(EVIL, exact=True)])
        agent = Agent("ag", model=model, tools=[pay, look, fail])
        options = RuntimeOptions(idle_timeout_s=0.0)
        async with Runtime(f"sqlite:///{path}", agents=[agent], processes=[odd], options=options) as rt:
            for name in (NAME, OPTION):
                session = await rt.session(name, agent=agent.name)
                await session.ask("go")
                await session.set_title("T\u202e\u200bx")
                await session.set_tags(["t\u202e\u200b"])
                new = CreateSessionTask(SessionId(name), "external", EVIL, id=f"task of {name}")
                await rt.tasks.create(new)
            await (await rt.session("pay", agent=agent.name)).send("pay")
            await (await rt.start(odd, EVIL, id="p\u202e; id", label="l\u202e")).wait(20)
            await rt.schedule("sch\u202e", send=EVIL, session=NAME, cron="0 9 * * *")
            async with asyncio.timeout(20):
                while not await rt.approvals.list():  # noqa: ASYNC110 - it is asked by the worker
                    await asyncio.sleep(0.01)

    asyncio.run(fill())
    return str(path)


def shown(db: str, *args: str) -> Ran:
    return in_this_process(*args[:2], "--db", db, *args[2:])


COMMANDS = [
    *(("sessions", "list"), ("sessions", "show", NAME), ("sessions", "show", "pay"), ("sessions", "export", NAME)),
    *(("journal", "show", NAME), ("journal", "show", NAME, "5"), ("journal", "verify", NAME)),
    *(("approvals", "list"), ("processes", "list", "--all"), ("processes", "show", "p\u202e; id")),
    *(("processes", "logs", "p\u202e; id"), ("schedules", "list"), ("schedules", "show", "sch\u202e")),
    *(("tasks", "list", NAME), ("tasks", "show", NAME, f"task of {NAME}"), ("tasks", "show", NAME, "no\u202e")),
    *(("sessions", "show", "nosuch\x1b[31m\u202e"), ("sessions", "send", NAME, "hi"), ("triggers", "list")),
]


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: "-".join(args[:2]))
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_s20_no_command_prints_an_invisible_character(args: tuple[str, ...], flags: tuple[str, ...], db: str) -> None:
    ran = shown(db, *args[:2], *flags, *args[2:])
    for text in (ran.out, ran.err):
        assert not {f"U+{ord(char):04X}" for char in text if char != "\n" and unicodedata.category(char) in HIDDEN}
        assert not set(text) & set("\u3164\ufe01")
        assert "\nerror: forged" not in text
    assert "internal error" not in ran.err
    if flags and ran.code == 0:
        assert all(json.loads(line) for line in ran.out.splitlines())


def test_s20_approval_shows_every_character_of_its_arguments(db: str) -> None:
    [asked] = shown(db, "approvals", "list", "--json").objects
    ran = shown(db, "approvals", "show", str(asked["id"]))
    assert r"\u202eRTL\u202c\u2066\u200bZW\ufeff\u2028LS\u2029PS\U000e0041TAG\u3164\ufe01" in ran.out
    assert asked["arguments"] == {"to": EVIL, "cents": 1}


@pytest.mark.parametrize("name", [NAME, OPTION])
def test_s20_hints_name_the_session_as_one_argument(name: str, db: str) -> None:
    ran = shown(db, "sessions", "show", "--", name)
    [hint] = re.findall(r"next: (.*)", ran.err)
    words = shlex.split(hint)
    assert ("--db", db) in itertools.pairwise(words)
    named = words[-1] if name == OPTION else words[words.index("show") + 1]
    assert named == spelled(name)


def test_s20_printed_hint_can_be_run_for_a_name_like_an_option(db: str) -> None:
    ran = shown(db, "sessions", "show", "--", OPTION)
    [hint] = re.findall(r"next: (.*)", ran.err)
    again = in_this_process(*shlex.split(hint)[-6:])
    assert again.code == 0, again.err
    assert "look" in again.out
