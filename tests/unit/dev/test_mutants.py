"""Tests of the list of mutants and of the choice that a change makes among them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from dev.mutants import MUTANTS, choice
from dev.mutants.mutant import ROOT, Mutant

LAWS = "\n".join(path.read_text() for path in (ROOT / choice.LAWS).glob("*.py"))
"""Tests that the tests of every store inherit."""
OTHER = Mutant("other", "b.py", "b", "", "tests/test_b.py")


def test_mutants_match_the_code() -> None:
    failures: list[str] = []
    for mutant in MUTANTS:
        failures += [
            f"{mutant.name}: {part.file} no longer contains {part.before!r}"
            for part in mutant.parts
            if part.before not in (ROOT / "src" / "perdure" / part.file).read_text()
        ]
        path, _, name = mutant.test.partition(" -k ")[0].partition("::")
        source = (ROOT / path).read_text() + LAWS
        failures += [
            f"{mutant.name}: {path} has no {part}"
            for part in filter(None, name.partition("[")[0].split("::"))
            if not re.search(rf"(def|class) {part}\b", source)
        ]
    assert failures == []


@pytest.mark.parametrize(
    ("mutant", "changed"),
    [
        pytest.param(Mutant("m", "a.py", "a", "", "tests/test_a.py::test_a"), "src/perdure/a.py", id="source"),
        pytest.param(Mutant("m", "b.py", "b", "", "t.py", OTHER), "src/perdure/b.py", id="second source"),
        pytest.param(Mutant("m", "a.py", "a", "", "tests/test_a.py -k 'a and b'"), "tests/test_a.py", id="test"),
        pytest.param(
            Mutant("m", "a.py", "a", "", "tests/test_s.py::TestS::test_a_plan_delivers_to_other_streams[x]"),
            "src/perdure/testing/laws/sends.py",
            id="law",
        ),
    ],
)
def test_mutant_is_affected_by_its_files(mutant: Mutant, changed: str) -> None:
    assert changed in choice.files(mutant)
    assert not choice.files(OTHER) & {"src/perdure/a.py", "tests/test_a.py"}


def test_every_mutant_is_in_the_tenth_of_some_commits() -> None:
    commits = [f"{n:040x}" for n in range(200)]
    tenths = [[mutant for mutant in MUTANTS if choice.in_tenth(mutant, commit)] for commit in commits]
    assert {mutant.name for tenth in tenths for mutant in tenth} == {mutant.name for mutant in MUTANTS}
    assert sum(map(len, tenths)) / len(commits) == pytest.approx(len(MUTANTS) / 10, rel=0.2)


class Repository:
    """A repository with a few commits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *command: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always"]
        return subprocess.run(
            ["git", *identity, *command], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    def commit(self, name: str) -> str:
        (self.folder / name).write_text(name)
        self.git("add", ".")
        self.git("commit", "-q", "-m", name)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "upstream")
    for n in range(choice.RECENT + 3):
        repository.commit(f"{n}.txt")
    return repository


def cloned(upstream: Repository, *options: str) -> Repository:
    clone = Repository(upstream.folder.parent / "clone")
    clone.folder.joinpath(".git").rename(clone.folder.parent / "unused")
    clone.git("clone", "-q", *options, upstream.folder.as_uri(), ".")
    return clone


def test_change_of_a_branch_is_what_upstream_lacks(upstream: Repository) -> None:
    clone = cloned(upstream)
    clone.git("checkout", "-q", "-b", "topic")
    clone.commit("new.txt")
    assert choice.changed(clone.folder) == {"new.txt"}
    (clone.folder / "0.txt").write_text("not committed")
    assert choice.changed(clone.folder) == {"new.txt", "0.txt"}


def test_change_of_a_landed_commit_is_the_recent_commits(upstream: Repository) -> None:
    recent = {f"{n}.txt" for n in range(3, choice.RECENT + 3)}
    assert choice.changed(cloned(upstream).folder) == recent
    assert choice.changed(upstream.folder) == recent  # a repository without a remote


@pytest.mark.parametrize("depth", [1, 3])
def test_change_in_a_shallow_clone_is_what_the_clone_has(upstream: Repository, depth: int) -> None:
    clone = cloned(upstream, "--depth", str(depth))
    assert choice.changed(clone.folder) == {f"{choice.RECENT + 2 - n}.txt" for n in range(depth - 1)}
