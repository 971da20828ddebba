"""Choice of the mutants that a change must run: those that the change affects, and a tenth of all."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from dev.mutants import areas
from dev.mutants.mutant import ROOT, Mutant

LAWS = "src/perdure/testing/laws"
AREAS = str(Path(areas.__path__[0]).relative_to(ROOT))
RECENT = 10  # commits; about one landing
AT_MOST = 50  # affected mutants of one change; bounds the time of large changes


def of_change(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants that the checked-out change must run, in the order of the list."""
    base, commit = base_of(ROOT), _git(ROOT, "rev-parse", "HEAD")
    paths, rewritten = changed(ROOT), _rewritten(base)
    tenth = [mutant for mutant in mutants if in_tenth(mutant, commit)]
    affected = [mutant for mutant in mutants if mutant.name in rewritten or files(mutant) & paths]
    affected.sort(key=lambda mutant: (mutant.name not in rewritten, _hash(mutant.name + commit)))
    run = {mutant.name for mutant in [*affected[:AT_MOST], *tenth]}
    left_out = sum(mutant.name not in run for mutant in affected)
    print(f"{len(affected)} mutants are affected since {base[:12]}, {left_out} of them left out; {len(run)} run")
    return [mutant for mutant in mutants if mutant.name in run]


def files(mutant: Mutant) -> set[str]:
    """Return the paths of the sources that a mutant changes and of the test that must fail."""
    path, _, name = mutant.test.partition(" -k ")[0].partition("::")
    test = name.partition("[")[0].rpartition("::")[2]
    laws = {str(law.relative_to(ROOT)) for law in (ROOT / LAWS).glob("*.py") if f"def {test}(" in law.read_text()}
    return {f"src/perdure/{part.file}" for part in mutant.parts} | {path} | laws


def in_tenth(mutant: Mutant, commit: str) -> bool:
    """Return True if a mutant belongs to the tenth that the hash of a commit selects."""
    return (_hash(mutant.name) + _hash(commit)) % 10 == 0


def base_of(folder: Path) -> str:
    """Return the commit with which the checked-out commit is compared.

    On a branch: the merge base with `origin/main`. On `main` itself, or without a remote, the clone does not show the
    end of the last landing; the base is then `RECENT` commits back. A shallow clone has fewer: its oldest commit.
    """
    head = _git(folder, "rev-parse", "HEAD")
    base = _git(folder, "merge-base", "HEAD", "origin/main", check=False)
    if base and base != head:
        return base
    return _git(folder, "rev-list", "--first-parent", f"--max-count={RECENT + 1}", "HEAD").split()[-1]


def changed(folder: Path) -> set[str]:
    """Return the paths that differ from the base, uncommitted changes included."""
    return set(_git(folder, "diff", "--name-only", base_of(folder)).splitlines())


def _rewritten(base: str) -> set[str]:
    """Return the names of the mutants that the base does not define, or defines otherwise."""
    old: set[str] = set()
    for path in _git(ROOT, "ls-tree", "--name-only", base, f"{AREAS}/").splitlines():
        old |= set(_definitions(_git(ROOT, "show", f"{base}:{path}")))
    new: dict[str, str] = {}
    for path in Path(ROOT, AREAS).glob("*.py"):
        new |= _definitions(path.read_text())
    return {name for definition, name in new.items() if definition not in old}


def _definitions(source: str) -> dict[str, str]:
    """Return the name of each mutant of a module by its definition."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return {ast.dump(call): str(ast.literal_eval(call.args[0])) for call in calls if ast.unparse(call.func) == "Mutant"}


def _hash(text: str) -> int:
    return int(sha256(text.encode()).hexdigest(), 16)


def _git(folder: Path, *command: str, check: bool = True) -> str:
    return subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=check).stdout.strip()
