"""`perdure resolve`, from another process than the one that waits: what it says, and what it never says."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from perdure import Agent, EventKey, Runtime, RuntimeOptions, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.values import PendingCompletion
from tests.e2e.command import COMMAND, environment, perdure


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[Path, EventKey]:
    """A store with one session whose turn waits for a completion and an event, and no worker."""
    keys: list[EventKey] = []

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key())
        return ctx.pending()

    @tool(effect="resumable")
    async def review(ctx: ToolContext) -> object:
        """Review."""
        return await ctx.wait_for_event("reviewed")

    async def begin() -> None:
        model = ScriptedModel(calls(call("order"), call("review")), say("ok"))
        agent = Agent("a", model=model, tools=[order, review])
        async with Runtime(
            f"sqlite:///{tmp_path / 's.db'}", agents=[agent], options=RuntimeOptions(idle_timeout_s=0)
        ) as rt:
            session = await rt.session("s-1", agent="a")
            await session.send("go")
            while (await session.why()).status != "waiting":  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.01)

    asyncio.run(begin())
    return tmp_path, keys[0]


def test_a_key_is_answered_once_and_never_printed(waiting: tuple[Path, EventKey]) -> None:
    folder, key = waiting
    said = [
        perdure("resolve", key.text, "--value", '{"parcel": 7}', "--db", "s.db", cwd=folder),
        perdure("resolve", key.text, "--error", "lost", "it is lost", "--db", "s.db", cwd=folder),
        perdure("resolve", key.text, "--cancel", "--db", "s.db", "--json", cwd=folder),
        perdure("resolve", key.text[:-3], "--cancel", "--db", "s.db", cwd=folder),
        perdure("resolve", key.text, "reviewed", "--value", "1", "--db", "s.db", cwd=folder),
        perdure("resolve", "s-1", key.text, "--value", "1", "--db", "s.db", cwd=folder),
        perdure("why", "s-1", "--db", "s.db", cwd=folder),
        perdure("sessions", "show", "s-1", "--db", "s.db", cwd=folder),
        perdure("journal", "show", "s-1", "--db", "s.db", cwd=folder),
    ]
    assert [ran.code for ran in said] == [0, 4, 4, 3, 2, 2, 0, 0, 0]
    assert said[0].out == f"accepted  {key.key_id}\n"
    assert said[1].out == f'already resolved  {key.key_id}\n  first  {{"status":"ok","value":{{"parcel":7}}}}\n'
    first = {"status": "ok", "value": {"parcel": 7}}
    assert said[2].objects == [{"type": "resolved", "v": 1, "promise": key.key_id, "accepted": False, "first": first}]
    assert said[3].err.startswith("error: nothing waits under this key\n")
    for ran in said:
        assert key.signature not in ran.out + ran.err
        assert key.text[:-3] not in ran.out + ran.err


def test_event_is_resolved_by_the_command_that_why_prints(waiting: tuple[Path, EventKey]) -> None:
    folder, _ = waiting
    why = perdure("why", "s-1", "--db", "s.db", cwd=folder).out
    (printed,) = re.findall(r"`perdure (resolve [^`]*)`", why)  # once: the hint does not repeat the wait's text
    pasted = perdure(*shlex.split(printed), cwd=folder)
    assert pasted.code == 0, printed + pasted.err


def test_the_key_comes_from_stdin_or_a_file(waiting: tuple[Path, EventKey]) -> None:
    folder, key = waiting
    (folder / "key").write_text(key.text + "\n")
    by_file = perdure("resolve", "--key-file", "key", "--cancel", "--db", "s.db", cwd=folder)
    assert (by_file.code, by_file.out) == (0, f"accepted  {key.key_id}\n")
    command = [*COMMAND, "resolve", "-", "--value", "1", "--db", "s.db"]
    by_stdin = subprocess.run(
        command, cwd=folder, env=environment(), input=key.text, capture_output=True, text=True, check=False
    )
    assert by_stdin.returncode == 4
    assert '"status":"cancelled"' in by_stdin.stdout


def test_an_event_is_answered_by_its_name(waiting: tuple[Path, EventKey]) -> None:
    folder, _ = waiting
    ran = perdure("resolve", "s-", "reviewed", "--value", '"fine"', "--db", "s.db", cwd=folder)
    assert (ran.code, ran.out) == (0, "accepted  s-1 reviewed\n")
    again = perdure("resolve", "s-1", "reviewed", "--value", '"bad"', "--db", "s.db", cwd=folder)
    assert (again.code, again.out.splitlines()[1]) == (4, '  first  {"status":"ok","value":"fine"}')


@pytest.mark.parametrize(
    "args",
    [
        ("k",),
        ("k", "--value", "1", "--cancel"),
        ("k", "--value", "{"),
        ("--value", "1"),
        ("--key-file", "none", "--value", "1"),
    ],
)
def test_invalid_arguments_are_refused(args: tuple[str, ...], tmp_path: Path) -> None:
    ran = perdure("resolve", *args, cwd=tmp_path)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
