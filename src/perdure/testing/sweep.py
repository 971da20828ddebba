"""`every_boundary`: crashes an application at every boundary, restarts it, and checks that every guarantee holds."""

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
from perdure.testing.children import check_portable, in_child
from perdure.testing.crash import Boundary, Place
from perdure.testing.life import App, Home, Lived, Played, Script, reader
from perdure.testing.recovery_report import RecoveryReport, Story, journal_lines, judge, look
from perdure.testing.simulated import run_apart, simulate
from perdure.testing.world import Ledger
from perdure.vocab.messages import Message

Mode = Literal["memory", "sqlite", "kill"]

_SHOWN = 3
"""Number of failed crashes shown in full. Many failures often have one cause."""


@dataclass(frozen=True, slots=True)
class CrashReport:
    """One experiment: the application died at `boundary` and was restarted, and its script ran to the end.

    `reached` is False if this run ended before the boundary; then nothing crashed. `world` is the final ledger,
    `at_crash` the ledger at the crash. `folder` holds the files of both runs.
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
        """Return a session's final conversation, in the form a model receives.

        Raises:
            Error: `session_unknown`.
        """
        for story in self.stories:
            if story.session == session:
                return story.history
        known = ", ".join(story.session for story in self.stories)
        raise Error(
            Code.SESSION_UNKNOWN, f"unknown session {session!r}", because=f"the sessions are: {known or 'none'}"
        )

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
    check: Callable[[CrashReport], None] | None = None,
    folder: str | Path | None = None,
    timeout_s: float = 20.0,
    url: str | None = None,
    at: Sequence[str] | None = None,
) -> tuple[CrashReport, ...]:
    """Crash the application at each of its boundaries, one experiment each, and judge the result.

    First the application runs undisturbed, which gives its boundaries: before and after every write to the store, every
    tool call and every effect on the world. Each boundary then gets a new store, a new world, a run that dies there,
    and a second run of the same script with a fresh runtime. The checks: every accepted input is answered once. No
    `once` call is dispatched twice. No effect happens more often than in the undisturbed run. Only calls under way at
    the crash may be missing or in doubt. Every log and conversation is valid. `check` is called for each crash in
    addition.

    `mode="memory"` and `mode="sqlite"` simulate the crash in this process: nothing of the dead runtime reaches the
    store, a tool or the world any more. A simulation does not end the process: tools that act on anything but the world
    continue until their next await, and threads are not stopped. `mode="kill"` uses a child process and a real SIGKILL;
    `app` and `script` must then be importable functions. With `url`, the address of a Postgres database, each
    experiment uses a separate schema there instead of a file and drops it at the end.

    Concurrent writers make the n-th write differ between runs. A fact of the undisturbed run that no numbered crash hit
    is therefore crashed by name as well.

    `at` names some crash points instead of all: `"before turn_ended"`, `"after effect_started c1.0.1"` is the first
    write that includes this fact. On a database server, where appends are grouped, facts are stable and numbers are
    not. A run that does not reach a named point fails the sweep.

    Blocks until done, from a sync or an async test. Returns the experiments; `folder` keeps their files.

    Raises:
        AssertionError: a guarantee was broken; names the boundary, the expectation, the ledger and the journal.
        Error: `invalid_argument` for an application or a script that cannot be tested like this.
    """
    __tracebackhide__ = True
    if mode not in ("memory", "sqlite", "kill"):
        raise Error(Code.INVALID_ARGUMENT, f"unknown mode {mode!r}", hint='use "memory", "sqlite" or "kill"')
    if url is not None and (mode != "kill" or not url.startswith(POSTGRES)):
        raise Error(
            Code.INVALID_ARGUMENT,
            'url= needs mode="kill" and a Postgres address',
            because="only a killed process leaves its writes on a database server",
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
            f"invalid crash point {fact!r}",
            because="expected a side and a fact",
            hint='at=["before turn_ended", "after effect_started c1.0.1"]',
        )
    return Boundary(0, side, what.strip())


def _missed(boundaries: Sequence[Boundary], met: Sequence[Boundary]) -> Iterator[Boundary]:
    """Return crash points by name for facts that no crash has hit. Concurrent writers race for a write's number."""
    facts = {Boundary(0, one.side, fact, one.place): None for one in boundaries for fact in _facts(one.what)}
    return (fact for fact in facts if not any(one.is_at(fact) for one in met))


def _facts(what: str) -> list[str]:
    """Return the facts of one write. Timing decides which facts share an append."""
    return what.removeprefix("append ").split(", ")


def _as_name(what: str) -> str:
    """Return a folder name for a fact, short and unique."""
    return f"{what[:60].replace('/', '_')}-{sha256(what.encode()).hexdigest()[:8]}"


def _verdict(failed: list[CrashReport], of: int) -> str:
    shown = "\n\n".join(str(crash) for crash in failed[:_SHOWN])
    rest = "".join(f"\n{crash.boundary}: {crash.broken[0]}" for crash in failed[_SHOWN:])
    return f"{len(failed)} of {of} crash points broke a guarantee\n\n{shown}" + (f"\n\nand:{rest}" if rest else "")


@dataclass(frozen=True, slots=True)
class _Bench:
    """The workspace of one sweep."""

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
                hint="every_boundary(..., folder=tmp_path)",
            )
        return Home.at(folder, in_memory=self.mode == "memory", url=self.url)

    def _look(self, home: Home) -> RecoveryReport:
        stories = run_apart(lambda: look(reader(self.played, home)))
        return RecoveryReport(stories, home.world().ledger, home.calls.ledger)

    def undisturbed(self) -> tuple[RecoveryReport, tuple[Boundary, ...]]:
        """Run the application without a crash. All crashes are compared with this run."""
        home = self._home("undisturbed")
        try:
            lived = self._live(home, None)
            if lived.failure:
                raise AssertionError(f"the application fails without a crash:\n{lived.failure}")
            usual = self._look(home)
        finally:
            run_apart(home.clear)
        _check_script(usual, lived.passed)
        if broken := [problem for story in usual.stories for problem in story.problems]:
            raise AssertionError("the undisturbed run already breaks a guarantee:\n" + "\n".join(broken))
        return usual, lived.passed

    def crashes(self, check: Callable[[CrashReport], None] | None) -> Iterator[CrashReport]:
        """Crash at every boundary of the undisturbed run, at extra boundaries of other runs, and at facts missed."""
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
        self, boundaries: Sequence[Boundary], usual: RecoveryReport, check: Callable[[CrashReport], None] | None
    ) -> Iterator[CrashReport]:
        for boundary in boundaries:
            yield self.crash(boundary, usual, check)
        places: list[Place] = sorted({boundary.place for boundary in boundaries})
        for place in places:
            last = max(boundary.n for boundary in boundaries if boundary.place == place)
            for n in count(last + 1):  # timing decides which facts share an append
                before = self.crash(Boundary(n, "before", "", place), usual, check)
                if not before.reached:
                    break
                yield before
                yield self.crash(Boundary(n, "after", "", place), usual, check)

    def crashes_at(self, points: list[Boundary], check: Callable[[CrashReport], None] | None) -> Iterator[CrashReport]:
        """Crash once at each of these points. A point that the run does not reach is a failure."""
        usual, _ = self.undisturbed()
        for point in points:
            crash = self.crash(point, usual, check)
            missed = () if crash.reached else ("the run did not come to this crash point",)
            yield replace(crash, broken=(*missed, *crash.broken))

    def crash(
        self, boundary: Boundary, usual: RecoveryReport, check: Callable[[CrashReport], None] | None
    ) -> CrashReport:
        """Die at the boundary, restart, and judge."""
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
            broken.insert(0, f"the script failed after the restart:\n{second.failure}")
        met = next((one for one in reversed(first.passed) if one.is_at(boundary)), boundary)
        crash = CrashReport(
            met, first.died, end.world, crashed.world, end.doubts, end.stories, tuple(broken), home.folder
        )
        try:
            if check is not None:
                check(crash)
        except AssertionError as problem:
            said = str(problem) or "an assertion failed"
            return replace(crash, broken=(*broken, f"your check: {said}"))
        return crash


def _check_script(usual: RecoveryReport, passed: tuple[Boundary, ...]) -> None:
    keys = [taken.key for story in usual.stories for taken in story.inputs.values()]
    if not keys and any(boundary.what == "delete" for boundary in passed):
        raise Error(
            Code.INVALID_ARGUMENT,
            "the script deletes every session that received an input",
            because="inputs are judged by the log of their session, and no log is left",
            hint="use one more session that the script does not delete",
        )
    if not keys:
        raise Error(
            Code.INVALID_ARGUMENT,
            "the script sent no input",
            because="without an input a crash can break nothing",
            hint='await (await rt.session("s", agent="...")).ask("...", key="...")',
        )
    if not all(keys):
        raise Error(
            Code.INVALID_ARGUMENT,
            "the script sent an input without a key",
            because="the script runs again after a crash, and would send a second input",
            hint='session.send("...", key="webhook-991")',
        )
