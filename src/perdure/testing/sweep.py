"""`every_boundary`: crash an application everywhere it can crash, start it again, and see that every promise holds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Literal

from perdure.errors import Code, Error
from perdure.runtime.stores import POSTGRES
from perdure.testing.aftermath import Aftermath, Story, journal_lines, judge, look
from perdure.testing.children import check_portable, in_child
from perdure.testing.crash import Boundary, Place
from perdure.testing.life import App, Home, Lived, Played, Script, reader
from perdure.testing.simulated import run_apart, simulate
from perdure.testing.world import Ledger
from perdure.vocab.messages import Message

Mode = Literal["memory", "sqlite", "kill"]

_SHOWN = 3
"""Broken promises are often one mistake seen from many boundaries: so many are shown in full."""


@dataclass(frozen=True, slots=True)
class Crash:
    """One experiment: the application died at `boundary`, was started again, and its script was run to the end.

    `reached` is False if this time the run came to its end before that boundary; then nothing crashed. `world` is the
    ledger in the end, `at_crash` what it was when the process died. `folder` is where both lives kept what they have.
    """

    boundary: Boundary
    reached: bool
    world: Ledger
    at_crash: Ledger
    doubts: tuple[str, ...]
    stories: tuple[Story, ...]
    broken: tuple[str, ...]
    folder: Path

    def history(self, session: str) -> tuple[Message, ...]:
        """The conversation of a session in the end, as a model would be shown it.

        Raises:
            Error: `session_unknown`.
        """
        for story in self.stories:
            if story.session == session:
                return story.history
        known = ", ".join(story.session for story in self.stories)
        raise Error(Code.SESSION_UNKNOWN, f"there is no session {session!r}", because=f"there are: {known or 'none'}")

    def __str__(self) -> str:
        return "\n".join(self._report())

    def _report(self) -> Iterator[str]:
        b = self.boundary
        place = {"write": "write", "tool": "tool call", "world": "effect on the world"}[b.place]
        yield f"crashed {b.side} {place} {b.n}: {b.what}" + ("" if self.reached else " (not reached)")
        for problem in self.broken:
            yield f"  broken: {problem}"
        yield from _indented("the ledger when it died", str(self.at_crash).splitlines())
        yield from _indented("the ledger in the end", str(self.world).splitlines())
        if self.doubts:
            yield f"  in doubt: {', '.join(self.doubts)}"
        yield from _indented("the journal in the end", journal_lines(self.stories))


def _indented(title: str, lines: Iterator[str] | list[str]) -> Iterator[str]:
    yield f"  {title}:"
    for line in lines:
        yield f"    {line}"


def every_boundary(  # noqa: PLR0913 - what an experiment can be, by name
    app: App,
    script: Script,
    *,
    mode: Mode = "memory",
    check: Callable[[Crash], None] | None = None,
    folder: str | Path | None = None,
    timeout_s: float = 20.0,
    url: str | None = None,
    at: Sequence[str] | None = None,
) -> tuple[Crash, ...]:
    """Crash the application at each of its boundaries, one experiment each, and judge what becomes of it.

    First the application runs undisturbed, to learn its boundaries: before and after every write to the store, every
    tool call and every effect on the world. Then, for each of them: a new store and a new world, a run that dies there,
    and a second run of the same script with a fresh runtime. In the end every accepted input must be answered once, no
    `once` call dispatched twice, nothing done more often than undisturbed, nothing missing or in doubt except calls
    that were under way at the crash, and every log and conversation valid. `check` is asked about each crash besides.

    `mode="memory"` and `mode="sqlite"` simulate the crash in this process: nothing of the dead runtime reaches the
    store, a tool or the world any more. What they cannot show is the end of a process: tools that act on anything but
    the world go on until their next await, and threads do what they like. `mode="kill"` is a child process and a
    real SIGKILL; `app` and `script` must then be functions of a module. With `url`, the address of a Postgres database,
    such an experiment has a schema of its own there instead of a file, which is dropped when it is over.

    Where two write at once, the n-th write is another one in every run. What the undisturbed run wrote and no crash has
    met at its number is crashed at by its name besides, so that chance leaves nothing out.

    `at` names some crash points instead of all: `"before turn_ended"`, `"after effect_started c1.0.1"` is the first
    write of which that is a part. Where appends are grouped, as on a database server, the n-th write is another one in
    every run, and a fact is not. A run that does not come to one of them is a broken promise.

    Blocks until done, from a sync or an async test. Returns the experiments; `folder` keeps what they leave.

    Raises:
        AssertionError: a promise was broken; says where, what was expected, and what ledger and journal show.
        Error: `invalid_argument` for an application or a script that cannot be tested like this.
    """
    __tracebackhide__ = True
    if mode not in ("memory", "sqlite", "kill"):
        raise Error(Code.INVALID_ARGUMENT, f"mode={mode!r} does not exist", hint='use "memory", "sqlite" or "kill"')
    if url is not None and (mode != "kill" or not url.startswith(POSTGRES)):
        raise Error(
            Code.INVALID_ARGUMENT,
            "a sweep of this mode has a store of its own",
            because="only a process that really dies can leave a database server with what it had written",
            hint='every_boundary(..., mode="kill", url="postgresql://...")',
        )
    points = [_named(fact) for fact in at or ()]
    played = Played(app, script, timeout_s)
    if mode == "kill":
        check_portable(played)
    with tempfile.TemporaryDirectory(prefix="perdure-") as scratch:
        bench = _Bench(played, mode, Path(folder or scratch), url)
        crashes = tuple(bench.crashes(check) if at is None else bench.crashes_at(points, check))
    if failed := [crash for crash in crashes if crash.broken]:
        raise AssertionError(_verdict(failed, len(crashes)))
    return crashes


def _named(fact: str) -> Boundary:
    side, _, what = fact.partition(" ")
    if side not in ("before", "after") or not what.strip():
        raise Error(
            Code.INVALID_ARGUMENT,
            f"{fact!r} is no crash point",
            because="it says on which side of what",
            hint='at=["before turn_ended", "after effect_started c1.0.1"]',
        )
    return Boundary(0, side, what.strip())


def _missed(boundaries: Sequence[Boundary], met: Sequence[Boundary]) -> Iterator[Boundary]:
    """Crash points by name, for facts that no crash has met: which number a write has, two writers decide by racing."""
    facts = {Boundary(0, one.side, fact, one.place): None for one in boundaries for fact in _facts(one.what)}
    return (fact for fact in facts if not any(one.is_at(fact) for one in met))


def _facts(what: str) -> list[str]:
    """What is in one write. Which facts share an append is a matter of timing."""
    return what.removeprefix("append ").split(", ")


def _as_name(what: str) -> str:
    """Of a folder: of any length it may have, and as many as there are facts."""
    return f"{what[:60].replace('/', '_')}-{sha256(what.encode()).hexdigest()[:8]}"


def _verdict(failed: list[Crash], of: int) -> str:
    shown = "\n\n".join(str(crash) for crash in failed[:_SHOWN])
    rest = "".join(f"\n{crash.boundary}: {crash.broken[0]}" for crash in failed[_SHOWN:])
    return f"{len(failed)} of {of} crash points broke a promise\n\n{shown}" + (f"\n\nand:{rest}" if rest else "")


@dataclass(frozen=True, slots=True)
class _Bench:
    """Where the experiments of one sweep are made."""

    played: Played
    mode: Mode
    folder: Path
    url: str | None = None

    def _live(self, home: Home, kill_at: Boundary | None) -> Lived:
        return in_child(self.played, home, kill_at) if self.mode == "kill" else simulate(self.played, home, kill_at)

    def _home(self, name: str) -> Home:
        folder = self.folder / name
        if folder.exists():
            raise Error(
                Code.INVALID_ARGUMENT,
                "the folder holds an earlier sweep",
                because=f"{folder} exists",
                hint="give every sweep a folder of its own, such as pytest's tmp_path",
            )
        return Home.at(folder, in_memory=self.mode == "memory", url=self.url)

    def _look(self, home: Home) -> Aftermath:
        stories = run_apart(lambda: look(reader(self.played, home)))
        return Aftermath(stories, home.world().ledger, home.calls.ledger)

    def undisturbed(self) -> tuple[Aftermath, tuple[Boundary, ...]]:
        """The run that everything is compared with."""
        home = self._home("undisturbed")
        try:
            lived = self._live(home, None)
            if lived.failure:
                raise AssertionError(f"the application does not work even undisturbed:\n{lived.failure}")
            usual = self._look(home)
        finally:
            run_apart(home.clear)
        _check_script(usual, lived.passed)
        if broken := [problem for story in usual.stories for problem in story.problems]:
            raise AssertionError("the undisturbed run already breaks a promise:\n" + "\n".join(broken))
        return usual, lived.passed

    def crashes(self, check: Callable[[Crash], None] | None) -> Iterator[Crash]:
        """One crash after another: at every boundary of the undisturbed run, at those that other runs have more, and at
        every fact of the undisturbed run that these have missed.
        """
        usual, boundaries = self.undisturbed()
        met: list[Boundary] = []
        for crash in self._crashes_by_number(boundaries, usual, check):
            if crash.reached:
                met.append(crash.boundary)
            yield crash
        for fact in _missed(boundaries, met):
            crash = self.crash(fact, usual, check)
            if crash.reached:
                yield crash

    def _crashes_by_number(
        self, boundaries: Sequence[Boundary], usual: Aftermath, check: Callable[[Crash], None] | None
    ) -> Iterator[Crash]:
        for boundary in boundaries:
            yield self.crash(boundary, usual, check)
        places: list[Place] = sorted({boundary.place for boundary in boundaries})
        for place in places:
            last = max(boundary.n for boundary in boundaries if boundary.place == place)
            for n in count(last + 1):  # which facts share an append is a matter of timing
                before = self.crash(Boundary(n, "before", "", place), usual, check)
                if not before.reached:
                    break
                yield before
                yield self.crash(Boundary(n, "after", "", place), usual, check)

    def crashes_at(self, points: list[Boundary], check: Callable[[Crash], None] | None) -> Iterator[Crash]:
        """One crash at each of these, which must all be there."""
        usual, _ = self.undisturbed()
        for point in points:
            crash = self.crash(point, usual, check)
            missed = () if crash.reached else ("the run did not come to this crash point",)
            yield replace(crash, broken=(*missed, *crash.broken))

    def crash(self, boundary: Boundary, usual: Aftermath, check: Callable[[Crash], None] | None) -> Crash:
        """Die at the boundary, start again, judge."""
        home = self._home(f"{boundary.place}-{boundary.n or _as_name(boundary.what)}-{boundary.side}")
        first = self._live(home, boundary)
        try:
            crashed = self._look(home)
            second = self._live(home, None) if first.died else first
            end = self._look(home)
        finally:
            first.unwind()
            run_apart(home.clear)
        broken = list(judge(usual, crashed, end))
        if second.failure:
            broken.insert(0, f"the script did not come to its end after the restart:\n{second.failure}")
        met = next((one for one in reversed(first.passed) if one.is_at(boundary)), boundary)
        crash = Crash(met, first.died, end.world, crashed.world, end.doubts, end.stories, tuple(broken), home.folder)
        try:
            if check is not None:
                check(crash)
        except AssertionError as problem:
            said = str(problem) or "an assertion failed"
            return replace(crash, broken=(*broken, f"your check: {said}"))
        return crash


def _check_script(usual: Aftermath, passed: tuple[Boundary, ...]) -> None:
    keys = [taken.key for story in usual.stories for taken in story.inputs.values()]
    if not keys and any(boundary.what == "delete" for boundary in passed):
        raise Error(
            Code.INVALID_ARGUMENT,
            "the script deletes every session it sent something to",
            because="what becomes of an input is judged by the log of its session, and none is left",
            hint="leave the deletion out, or let the script use a session besides that it keeps",
        )
    if not keys:
        raise Error(
            Code.INVALID_ARGUMENT,
            "the script sent no input",
            because="without one there is nothing that a crash could break",
            hint='await (await rt.session("s", agent="...")).ask("...", key="...")',
        )
    if not all(keys):
        raise Error(
            Code.INVALID_ARGUMENT,
            "the script sent an input without a key",
            because="it is run again after a crash, and without a key that would be a second input",
            hint='session.send("...", key="webhook-991")',
        )
