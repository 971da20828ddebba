"""`perdure approvals`, from another process than the worker."""

from __future__ import annotations

import asyncio
import getpass
import os
import subprocess
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, tool
from perdure.cli.app import run_app
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.tools.client_side import ask_user, client_tool
from tests.e2e.command import COMMAND, Ran, environment, in_this_process, perdure

pytestmark = pytest.mark.timeout(300)  # each command is a process, and takes seconds on a busy machine


async def test_a_person_decides_from_another_process(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    async def refund(cents: int) -> str:
        """Refund."""
        paid.append(cents)
        return "refunded"

    path = tmp_path / "s.db"

    async def command(*args: str) -> Ran:
        return await asyncio.to_thread(perdure, "approvals", *args, "--db", str(path), cwd=tmp_path)

    agent = Agent("bank", model=ScriptedModel(call("refund", cents=700), say("done")), tools=[refund])
    async with Runtime(f"sqlite:///{path}", agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0)) as rt:
        sent = await (await rt.session("s", agent="bank")).send("go")
        async with asyncio.timeout(20):
            while not await rt.approvals.list():  # noqa: ASYNC110 - it is asked by the worker
                await asyncio.sleep(0.01)
        (listed,) = (await command("list", "--json")).objects
        assert (listed["type"], listed["tool"], listed["arguments"]) == ("approval", "refund", {"cents": 700})
        assert (listed["status"], listed["decided_by"]) == ("waiting", None)
        id = str(listed["id"])
        shown = await command("list")
        assert id in shown.out
        assert "1 decision waiting" in shown.err
        to_paste = f"`perdure approvals approve {id} --db {path}` or `perdure approvals deny {id} --db {path}`"
        assert to_paste in (await command("show", id)).out
        why = await asyncio.to_thread(perdure, "why", "s", "--db", str(path), cwd=tmp_path)
        assert why.out.count(to_paste) == 1, "the hint does not repeat the text of the wait"
        for slip in ('{"cents": "x"}', "{", "", "null", "[]", "7", '"x"', "\udcff"):
            args = ("approvals", "approve", id, "--args", slip, "--by", "ana", "--db", str(path))
            slipped = await asyncio.to_thread(in_this_process, *args)
            assert (slipped.code, slipped.out) == (2, ""), slip
            assert "inside perdure" not in slipped.err
        assert (await rt.approvals.get(id)).status == "waiting"
        assert (await command("approve", "apr_ffffffffffffffff", "--by", "ana")).code == 3
        short = await command("approve", id[:11], "--by", "ana")
        assert short.code == 2, "S17: seven characters"
        assert "is too short for an approval" in short.err
        prefixed = await command("show", id[:12])
        assert (prefixed.code, prefixed.err) == (0, f"{id[:12]} is {id}.\n")
        approved = await command("approve", id, "--args", '{"cents": 400}', "--by", "ana")
        assert (approved.code, approved.out) == (0, f"{id}  approved by ana\n")
        late = await command("deny", id, "--by", "bob", "--reason", "no")
        assert late.code == 4
        assert "already decided by ana: approved at" in late.err
        assert (await sent.result(20)).text.startswith("done")
        assert paid == [400]
        (told,) = (await command("show", id, "--json")).objects
        assert (told["status"], told["decided_by"], told["via"]) == ("approved", "ana", "cli")
        assert (told["edited"], told["used_at"] is None) == ({"cents": 400}, False)
        empty = await command("list")
        assert (empty.code, empty.out, empty.err) == (0, "", "No pending decisions.\n")
        shown = await command("show", id)
        assert '  arguments  {"cents":700}\n' in shown.out
        assert '  edited     {"cents":400}\n' in shown.out


KEY = urlsafe_b64encode(b'{"scope":"default:s:t","wait":{"type":"custom","key":"go"},"signature":"xxxx"}').decode()


@dataclass(frozen=True)
class Asked:
    """A store in which one call waits for a person, and no worker is there."""

    path: Path
    id: str

    def command(self, *args: str, env: dict[str, str] | None = None) -> Ran:
        return perdure(*args, "--db", str(self.path), cwd=self.path.parent, env=env)


@pytest.fixture
async def waiting(tmp_path: Path) -> Asked:
    @tool(needs_approval=True)
    async def refund(note: str) -> str:
        """Refund."""
        return note

    path = tmp_path / "s.db"
    step = call("refund", note="a\nb \u202e evil")
    agent = Agent("bank", model=ScriptedModel(step, say("done")), tools=[refund])
    async with Runtime(f"sqlite:///{path}", agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0)) as rt:
        await (await rt.session("s", agent="bank")).send("go")
        async with asyncio.timeout(20):
            while not (found := await rt.approvals.list()):  # noqa: ASYNC110 - it is asked by the worker
                await asyncio.sleep(0.01)
    return Asked(path, found[0].id)


def test_words_of_others_stay_on_their_line(waiting: Asked) -> None:
    reason = "no\nerror: forged\r\x1b[2J \u202e\u2028x\x85y"
    assert waiting.command("approvals", "deny", waiting.id, "--by", "eve\nana", "--reason", reason).code == 0
    for args in (("show", waiting.id), ("list",), ("deny", waiting.id, "--by", "bob")):
        ran = waiting.command("approvals", *args)
        for text in (ran.out, ran.err):
            assert not set(text) & set("\u202e\u2028\x1b\r\x85")
            assert "\nana" not in text
            assert "\nerror: forged" not in text
    shown = waiting.command("approvals", "show", waiting.id).out
    assert r"  reason     no\nerror: forged\r\x1b[2J \u202e\u2028x\x85y" in shown
    assert r'  arguments  {"note":"a\nb \u202e evil"}' in shown
    late = waiting.command("approvals", "deny", waiting.id, "--by", "bob")
    assert late.err.startswith(r"error: already decided by eve\nana: denied at")


def test_a_key_where_an_id_belongs_is_not_repeated(waiting: Asked) -> None:
    for args in (
        ("approvals", "show", KEY),
        ("approvals", "approve", KEY, "--by", "ana"),
        ("sessions", "show", KEY),
        ("sessions", "cancel", "s", "--input", KEY),
        ("resolve", KEY, "go", "--value", "1"),
        ("why", KEY),
        ("sessions", "show", "s", KEY),
    ):
        ran = waiting.command(*args)
        assert ran.code in (2, 3), (args, ran)
        assert KEY[:9] not in ran.out + ran.err, args


def test_a_slip_of_cancel_does_not_cancel_the_running_turn(waiting: Asked) -> None:
    for options in (("--input", ""), ("--input", " "), ("--include-later",)):
        ran = waiting.command("sessions", "cancel", "s", *options)
        assert (ran.code, ran.out) == (2, ""), options
    assert waiting.command("approvals", "list", "--quiet").out == f"{waiting.id}\n"
    assert waiting.command("sessions", "cancel", "s").code == 0


def test_a_decision_of_a_user_without_a_name_needs_one(
    waiting: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert run_app(["approvals", "deny", waiting.id, "--db", str(waiting.path)]) == 2
    assert "--by NAME" in capsys.readouterr().err
    assert waiting.command("approvals", "list", "--quiet").out == f"{waiting.id}\n"


async def test_answers_results_and_grants_by_command(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    async def refund(cents: int) -> str:
        """Refund."""
        paid.append(cents)
        return "refunded"

    path = tmp_path / "s.db"

    async def command(*args: str, input: str = "") -> Ran:
        return await asyncio.to_thread(in_this_process, *args, "--db", str(path), input=input)

    def at_a_terminal(typed: str, *args: str) -> int:
        ours, theirs = os.openpty()
        shell = [*COMMAND, *args, "--db", str(path)]
        with subprocess.Popen(
            shell, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment(), start_new_session=True
        ) as process:
            os.close(theirs)
            shown = b""
            for line, prompt in zip(typed.splitlines(), (b"Size? (S, M)", b"The PIN?"), strict=True):
                while prompt not in shown:
                    shown += os.read(ours, 4096)
                os.write(ours, f"{line}\n".encode())
            code = process.wait(60)
        os.close(ours)
        assert b"97531" not in shown
        return code

    async def waits(kind: str, but: str = "") -> None:
        async with asyncio.timeout(30):
            while [item.kind for item in await session.pending() if item.id != but] != [kind]:  # noqa: ASYNC110 - the worker asks
                await asyncio.sleep(0.02)

    size: Json = {"id": "size", "question": "Size?", "kind": "choice", "options": ["S", "M"]}
    pin: Json = {"id": "pin", "question": "The PIN?", "kind": "secret"}
    asking = call("ask_user", questions=[size, pin])
    steps = (asking, call("look"), call("look"), call("refund", cents=1), call("refund", cents=2))
    tools = [ask_user, client_tool("look", "Look.", {"type": "object"}), refund]
    agent = Agent("bank", model=ScriptedModel(*steps, say("done")), tools=tools)
    async with Runtime(f"sqlite:///{path}", agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0)) as rt:
        session = await rt.session("s", agent="bank")
        sent = await session.send("go")
        await waits("question")
        assert (await command("sessions", "post-result", "s", "1")).code == 3
        shown = await command("sessions", "answer", "s", "size=M", "pin=97531")
        assert (shown.code, "pin is a secret" in shown.err) == (2, True)
        assert (await command("sessions", "answer", "s", "size=XL", input="97531\n")).code != 0
        assert (await command("sessions", "answer", "s", "size")).code == 2
        assert await asyncio.to_thread(at_a_terminal, "M\n97531\n", "sessions", "answer", "s", "--by", "ann") == 0
        await waits("client_call")
        assert (await command("sessions", "post-result", "s", "{")).code == 2
        assert (await command("sessions", "post-result", "s")).code == 2
        assert (await command("sessions", "post-result", "s", "1", "--error", "dark", "too dark")).code == 2
        failed = await command("sessions", "post-result", "s", "--error", "dark", "too dark")
        assert failed.code == 0, failed.err
        await waits("client_call", but=failed.out.split()[0])
        posted = await command("sessions", "post-result", "s", "-", input='{"seen": true}')
        assert posted.code == 0, posted.err
        await waits("approval")
        for option in ("--key", "--replace-key"):  # an empty variable of a script is a slip, and not "without a key"
            assert (await command("sessions", "send", "s", "more", option, "")).code == 2
        assert await session.queued_inputs() == ()
        [asked] = await session.pending()
        assert (await command("approvals", "approve", asked.id, "--for-session", "--by", "ann")).code == 0
        assert (await sent.result(30)).status == "finished"
        assert paid == [1, 2]
        [grant] = (await command("grants", "list", "s", "--json")).objects
        assert (grant["tool"], grant["by"]) == ("refund", "ann")
        revoked = await command("grants", "revoke", "s", str(grant["grant"]), "--by", "bob")
        assert (revoked.code, await session.grants()) == (0, ()), revoked.err
        assert (await command("grants", "list", "s")).err == "No session-wide approvals.\n"
        history = str(await session.messages())
    assert "'seen': True" in history
    assert "'error': 'too dark', 'code': 'dark'" in history
    assert "'value': 'M'" in history
    assert "97531" not in history
