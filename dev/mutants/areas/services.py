"""Mutants of files, secrets and other services."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

FILES = "tests/scenarios/test_files.py"
FILE_LAWS = "tests/conformance/test_files.py"

MUTANTS = [
    Mutant(
        "what the clock says twice is due twice",
        "services/cron.py",
        "        if due > last:\n",
        "        if True:\n",
        "tests/unit/services/test_cron.py -k 'these_moments'",
    ),
    Mutant(
        "what was due while it was paused is made up for",
        "services/schedules.py",
        "return replace(state, paused=False, handled_until=max(state.handled_until, row.at))",
        "return replace(state, paused=False)",
        "tests/unit/services/test_schedules.py -k 'while_it_is_paused'",
    ),
    Mutant(
        "files: a change is written whatever was written since it was judged",
        "services/files/stored.py",
        'key=f"files:{seq}"',
        "key=None",
        f"{FILE_LAWS} -k 'compare_at_once and (TestMemory or TestSqlite)'",
    ),
    Mutant(
        "files: whoever compares does not look at what the file says now",
        "services/files/stored.py",
        "if node is None or (node.hash, node.encoding) != (expected, expected_encoding):",
        "if node is None:",
        f"{FILE_LAWS} -k 'TestMemory and otherwise_nothing'",
    ),
    Mutant(
        "files: bytes stay although no path has them",
        "services/files/stored.py",
        "drops=before.let_go(change.record, after),",
        "drops=(),",
        f"{FILES} -k 'no_file_has and memory'",
    ),
    Mutant(
        "files: bytes that another path has too are let go",
        "services/files/tree.py",
        "sorted(old - kept)",
        "sorted(old)",
        f"{FILES} -k 'no_file_has and memory'",
    ),
    Mutant(
        "files: a read-only one is written",
        "services/files/tree.py",
        "if old is not None and old.readonly:",
        "if False:",
        f"{FILE_LAWS} -k 'TestMemory and read_only'",
    ),
    Mutant(
        "files: a path may lead upwards",
        "services/files/paths.py",
        'if ".." in names:',
        "if False:",
        f"{FILE_LAWS} -k 'TestMemory and cannot_be_a_path'",
    ),
    Mutant(
        "files: a write in doubt is not looked for in their log",
        "services/files/stored.py",
        "return next(mine, None) if self.signature else None",
        "return None",
        "tests/crash/test_files.py -k 'changed_once and memory'",
    ),
    Mutant(
        "sub-agents: a number that was taken this moment counts as ours",
        "services/spawns.py",
        "            if noted.new:\n",
        "            if noted.row:\n",
        "tests/scenarios/test_subagents.py -k 'numbers_are_given_once and memory'",
    ),
    Mutant(
        "repetitions of a pattern do not multiply",
        "services/files/search.py",
        "last *= max(1,",
        "last += max(1,",
        "tests/conformance/test_files.py -k matched_safely",
    ),
]
