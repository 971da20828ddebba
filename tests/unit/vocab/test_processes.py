"""The names of process commands: those of the seed, and one command each whatever the names in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from perdure.vocab.processes import (
    AwaitProcess,
    CancelProcess,
    DeleteSessionEdges,
    ListProcesses,
    ProcessCommand,
    SessionScope,
    SignalProcess,
    StartProcess,
    TransferProcesses,
)

FROM, TO = SessionScope(session_id="s1"), SessionScope(session_id="s1", frame_id="f2")


@pytest.mark.parametrize(
    ("command", "effect_id"),
    [
        (StartProcess(process_id="p1", registration={}), "process:start:p1"),
        (ListProcesses(session_scope=FROM), "process:list:session:s1:live"),
        (ListProcesses(session_scope=TO, mode="all"), "process:list:session:s1/frame:f2:all"),
        (
            TransferProcesses(from_scope=FROM, to_scope=TO, process_ids=("a", "b")),
            # sha256 of ["a","b"]
            "process:transfer:session:s1:session:s1/frame:f2:"
            "0473ef2dc0d324ab659d3580c1134e9d812035905c4781fdd6d529b0c6860e13",
        ),
        (DeleteSessionEdges(session_id="s1"), "process:delete-session:s1"),
        (AwaitProcess(process_id="p1"), "process:await:p1"),
        (CancelProcess(process_id="p1", reason="enough"), "process:cancel:p1"),
        (SignalProcess(process_id="p1", signal_name="go", signal_id="x"), "process:signal:p1:signal.go:x"),
    ],
)
def test_effect_ids_are_those_of_the_seed(command: ProcessCommand, effect_id: str) -> None:
    assert command.effect_id == effect_id


NAMES = ["a", "a:signal.a", "signal.a", "a:live", "a/frame:a", "%3A", ":"]


def commands() -> Iterator[ProcessCommand]:
    for a in NAMES:
        yield StartProcess(process_id=a, registration=None)
        yield DeleteSessionEdges(session_id=a)
        yield AwaitProcess(process_id=a)
        yield CancelProcess(process_id=a)
    for a, b, c in product(NAMES, repeat=3):
        yield SignalProcess(process_id=a, signal_name=b, signal_id=c)
    scopes = [SessionScope(session_id=a, frame_id=b) for a in NAMES for b in ("", *NAMES)]
    for scope in scopes:
        yield ListProcesses(session_scope=scope)
        yield ListProcesses(session_scope=scope, mode="all")
    for one, other in product(scopes, repeat=2):
        yield TransferProcesses(from_scope=one, to_scope=other, process_ids=("p",))


def test_different_commands_never_share_an_effect_id() -> None:
    by_id: dict[str, ProcessCommand] = {}
    for command in commands():
        assert by_id.setdefault(command.effect_id, command) == command
    assert len(by_id) == 4 * 7 + 7**3 + 2 * 56 + 56**2


def test_a_signal_cannot_pass_for_another_process_signal() -> None:
    one = SignalProcess(process_id="p:signal.a", signal_name="b", signal_id="c")
    other = SignalProcess(process_id="p", signal_name="a:signal.b", signal_id="c")
    assert one.effect_id != other.effect_id
