"""Mutants of user requests: secrets, approvals, client results, inputs."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

EDITED = "tests/scenarios/test_edited_calls.py"
APPROVALS = "tests/scenarios/test_approvals.py"
PROMISES = "tests/scenarios/test_promises.py"
CLIENTS = "tests/scenarios/test_client_side.py"
INTERRUPT = "tests/scenarios/test_interrupting.py"
QUEUE = "tests/scenarios/test_queueing.py"
SECRETS = "tests/scenarios/test_secrets.py"
AUDIT = "tests/scenarios/test_audit.py"
AUDIT_LAWS = "tests/conformance/test_stores.py"

MUTANTS = [
    Mutant(
        "an audited act commits without its entry",
        "store/sqlite/changes.py",
        "for note in audit:  # threat",
        "for note in ():  # threat",
        "tests/crash/test_audit.py -k 'session_deleted-sqlite'",
    ),
    Mutant(
        "a decision that came too late has an entry as if it were made",
        "store/sqlite/store.py",
        "changes.put_audit(tx, audit if isinstance(resolved, Accepted) else ())",
        "changes.put_audit(tx, audit)",
        f"{AUDIT} -k 'second_decision and sqlite'",
    ),
    Mutant(
        "a control write whose note was left out has an audit entry",
        "store/sqlite/changes.py",
        "intervention.audit if all(one.new for one in noted) else ()",
        "intervention.audit",
        f"{AUDIT_LAWS} -k 'TestSqlite and change_without_effect and intervene'",
    ),
    Mutant(
        "a field of an audit entry has any length",
        "runtime/audit.py",
        'return text if len(text) <= MAX_FIELD_CHARS else f"{text[: MAX_FIELD_CHARS - 1]}…"',
        "return text",
        f"{AUDIT} -k 't_aud_02 and memory'",
    ),
    Mutant(
        "a key that was passed as a name is in the audit log",
        "runtime/audit.py",
        "return _bounded(without_keys(text))",
        "return _bounded(text)",
        f"{AUDIT} -k 'without_signatures and memory'",
    ),
    Mutant(
        "an export is recorded after its bytes were read",
        "runtime/sessions/session.py",
        'await rt.audit_log.record(self._ref.tenant, act("session_exported", who, session=self.id))\n'
        "        return await export(rt.store, info, now=rt.clock.wall_ms())",
        "data = await export(rt.store, info, now=rt.clock.wall_ms())\n"
        '        await rt.audit_log.record(self._ref.tenant, act("session_exported", who, session=self.id))\n'
        "        return data",
        f"{AUDIT} -k 'before_the_first_byte and memory'",
    ),
    Mutant(
        "forged keys fill the audit log",
        "runtime/audit.py",
        "if count > MAX_REFUSALS:",
        "if False:",
        f"{AUDIT} -k 'flood'",
    ),
    Mutant(
        "the audit log of another tenant is listed",
        "runtime/audit.py",
        "await months(self._host.store, self._host.tenant)",
        'await months(self._host.store, "default")',
        "tests/scenarios/test_tenant_matrix.py -k 'no_public_call and memory'",
    ),
    Mutant(
        "one wrong clock deletes the audit log",
        "runtime/audit.py",
        "oldest = min(await self._store.now(), self._clock.wall_ms())",
        "oldest = self._clock.wall_ms()",
        f"{AUDIT} -k 'clock_of_one_worker'",
    ),
    Mutant(
        "a prefix of an approval's id decides it",
        "runtime/sessions/approvals.py",
        "or asked[0].id != id:",
        "or False:",
        "tests/scenarios/test_approvals.py -k 's17_approval and memory'",
    ),
    Mutant(
        "a secret is stored in the clear",
        "runtime/secret_store.py",
        "encrypted = _cipher(key).encode(value.encode(), _context(self.stream, reference))",
        "encrypted = value.encode()",
        f"{SECRETS} -k 'after_a_restart and memory'",
    ),
    Mutant(
        "a revoked key is accepted",
        "runtime/sessions/answers.py",
        "if revoked is not None and revoked.resolution is not None:",
        "if False:",
        f"{PROMISES} -k 'revoked_foreign and memory'",
    ),
    Mutant(
        "an undecided predicate lets the call run",
        "runtime/turns/approval_policy.py",
        "return answer is not False",
        "return answer is True",
        f"{APPROVALS} -k 'cannot_tell_asks and memory'",
    ),
    Mutant(
        "a person's did-not-happen redispatches a call of a live worker",
        "runtime/sessions/approvals.py",
        "if not await self._host.store.is_dead(worker):",
        "if False:",
        f"{APPROVALS} -k 'says_what_became and memory'",
    ),
    Mutant(
        "a key of a deleted session resolves a wait of its namesake",
        "runtime/sessions/answers.py",
        "if scope.tenant != rt.tenant or not await _exists(rt.store, scope):",
        "if scope.tenant != rt.tenant:",
        f"{PROMISES} -k 'namesake and memory'",
    ),
    Mutant(
        "a call with edited arguments is not prepared again",
        "runtime/turns/preparing.py",
        "captured, edited = None, self._edited(item, item.decision.args)",
        "captured, edited = self._edited(item, item.decision.args), None",
        f"{EDITED} -k 'new_arguments and memory'",
    ),
    Mutant(
        "a hook changes approved arguments",
        "runtime/turns/preparing.py",
        "if edited is not None and digest(answer.args) != digest(edited.args):",
        "if False:",
        f"{EDITED} -k 'changes_what_was_approved and memory'",
    ),
    Mutant(
        "a result that violates its schema is accepted",
        "runtime/sessions/posting.py",
        "if problems := await misfits(contract.returns, value):",
        "if (problems := misfits(contract.returns, value)) and False:",
        f"{CLIENTS} -k 'invalid_client and memory'",
    ),
    Mutant(
        "a quarantined turn runs beside other work",
        "runtime/worker/quarantine.py",
        "self._suspect, self._waits_since, self._crowd.quarantine = stream, None, True",
        "self._suspect, self._waits_since, self._crowd.quarantine = None, None, True",
        "tests/scenarios/test_takeover.py::test_suspects_are_tried_one_at_a_time[sqlite]",
    ),
    Mutant(
        "the captured payload is ignored: hooks run for every attempt",
        "runtime/turns/preparing.py",
        "if started and isinstance(started.command, CallTool):",
        "if False:",
        "tests/scenarios/test_providers.py::test_repeated_call_receives_the_first_prepared_payload",
    ),
    Mutant(
        "a cancel request does not wake the session",
        "runtime/sessions/verbs.py",
        "Intervention(session.stream, delivery=wake, notes=(Entry.of(request, at=now),), audit=audit)",
        "Intervention(session.stream, notes=(Entry.of(request, at=now),), audit=audit)",
        f"{INTERRUPT} -k 'cancel_of_a_parked_turn and sqlite'",
    ),
    Mutant(
        "a merge key does not replace the queued input",
        "runtime/sessions/verbs.py",
        "withdraw=tuple(row.id for row, _ in same)",
        "withdraw=()",
        f"{QUEUE} -k 'replaces_a_queued_one and memory'",
    ),
    Mutant(
        "people: a merge key revives a cancelled input",
        "runtime/sessions/verbs.py",
        "            and await store.find(session.stream, gate_key(old.turn)) is None\n",
        "",
        f"{QUEUE} -k 'bring_back and memory'",
    ),
    Mutant(
        "people: a drained input overtakes one that must wait",
        "runtime/turns/waiting.py",
        "alike = takewhile(",
        "alike = filter(",
        f"{QUEUE} -k 'equal_requests and memory'",
    ),
    Mutant(
        "random verbs: a required approval is skipped",
        "runtime/turns/approval_policy.py",
        """        if ready.prepared.always_asks:
            return True
""",
        "",
        "tests/scenarios/test_verbs_at_random.py -k memory",
    ),
]
