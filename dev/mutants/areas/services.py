"""Mutants of files, secrets and other services."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

FILES = "tests/scenarios/test_files.py"
FILE_LAWS = "tests/conformance/test_files.py"

MUTANTS = [
    Mutant(
        "a handle reaches the schedules of another tenant",
        "runtime/schedules/schedules.py",
        "schedule_stream(runtime.tenant, id)",
        'schedule_stream("default", id)  # pyright: ignore',
        "tests/scenarios/test_tenant_matrix.py -k 'no_public_call and memory'",
    ),
    Mutant(
        "two spellings of an id name one stream",
        "ids.py",
        '    plain = ":".join(parts)',
        '    plain = ":".join(parts := tuple(map(__import__("unicodedata").normalize, ["NFC"] * len(parts), parts)))',
        "tests/scenarios/test_alike_ids.py -k memory",
    ),
    Mutant(
        "a secret in JSON, in a URL or in base64 is not redacted",
        "services/secrets.py",
        "        for form in forms_of(value):\n            if form in text:",
        "        for form in (value,):\n            if form in text:",
        "tests/unit/services/test_secrets.py -k 'every_form'",
    ),
    Mutant(
        "a secret that straddles two pieces of output is stored",
        "services/os_commands.py",
        "len(text) if complete else redactor.safe_end(text)",
        "len(text)",
        "tests/scenarios/test_commands.py -k 's10 and memory'",
    ),
    Mutant(
        "a secret object can be pickled",
        "services/secrets.py",
        '        raise TypeError("a Secret cannot be pickled or stored; pass its reference")',
        "        return (Secret, (self._value,))  # pyright: ignore",
        "tests/unit/services/test_secrets.py -k 'refused_by_every'",
    ),
    Mutant(
        "a log record shows a secret",
        "services/secrets.py",
        "        if not _revealed:\n",
        "        if True:\n",
        "tests/unit/services/test_secrets.py -k 'log_records'",
    ),
    Mutant(
        "a repeated hour is due twice",
        "services/cron.py",
        "        if due > last:\n",
        "        if True:\n",
        "tests/unit/services/test_cron.py -k 'expected_times'",
    ),
    Mutant(
        "runs due during a pause are made up for",
        "services/schedules.py",
        "return replace(state, paused=False, handled_until=max(state.handled_until, row.at))",
        "return replace(state, paused=False)",
        "tests/unit/services/test_schedules.py -k 'runs_due_during_a_pause'",
    ),
    Mutant(
        "files: a change is written over a concurrent one",
        "services/files/stored.py",
        'key=f"files:{seq}"',
        "key=None",
        f"{FILE_LAWS} -k 'concurrent_compare and (TestMemory or TestSqlite)'",
    ),
    Mutant(
        "files: compare-and-write ignores the current content",
        "services/files/stored.py",
        "if node is None or (node.hash, node.encoding) != (expected, expected_encoding):",
        "if node is None:",
        f"{FILE_LAWS} -k 'TestMemory and otherwise_nothing'",
    ),
    Mutant(
        "files: unreferenced bytes are kept",
        "services/files/stored.py",
        "drops=before.let_go(change.record, after),",
        "drops=(),",
        f"{FILES} -k 'no_file_has and memory'",
    ),
    Mutant(
        "files: bytes of another path are dropped",
        "services/files/tree.py",
        "sorted(old - kept)",
        "sorted(old)",
        f"{FILES} -k 'no_file_has and memory'",
    ),
    Mutant(
        "files: a read-only file is written",
        "services/files/tree.py",
        "if old is not None and old.readonly:",
        "if False:",
        f"{FILE_LAWS} -k 'TestMemory and read_only'",
    ),
    Mutant(
        "files: a path leaves the root",
        "services/files/paths.py",
        'if ".." in names:',
        "if False:",
        f"{FILE_LAWS} -k 'TestMemory and invalid_path'",
    ),
    Mutant(
        "files: the log is not searched for a write in doubt",
        "services/files/stored.py",
        "return next(mine, None) if self.signature else None",
        "return None",
        "tests/crash/test_files.py -k 'changed_once and memory'",
    ),
    Mutant(
        "sub-agents: a child number taken concurrently is used twice",
        "services/spawns.py",
        "            if noted.new:\n",
        "            if noted.row:\n",
        "tests/scenarios/test_subagents.py -k 'concurrent_claims and memory'",
    ),
    Mutant(
        "an evaluation has no budget of CPU time",
        "services/budgeted_child.py",
        'signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])',
        "pass",
        "tests/unit/services/test_file_search.py -k 't_tool_03_pattern'",
    ),
    Mutant(
        "repetitions of a pattern do not multiply",
        "services/files/search.py",
        "last *= max(1,",
        "last += max(1,",
        "tests/conformance/test_files.py -k matched_safely",
    ),
    Mutant(
        "a child is registered without the token of its claim",
        "services/spawns.py",
        "if claim is None or claim.token != claim_token:",
        "if claim is None:",
        "tests/scenarios/test_tenants.py -k 'd2 and memory'",
    ),
    Mutant(
        "a tool's services are those of the worker's tenant",
        "runtime/services.py",
        "core = core.of(tenant)",
        "pass",
        "tests/scenarios/test_tenants.py -k 's2_services and memory'",
    ),
    Mutant(
        "a claim is written into another tenant's session",
        "services/spawns.py",
        "!= {(self._tenant,)}:",
        "== set():",
        "tests/scenarios/test_tenant_matrix.py -k 'no_service and memory'",
    ),
]
