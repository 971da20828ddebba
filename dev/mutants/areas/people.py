"""Mutants of what people say and decide."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

EDITED = "tests/scenarios/test_edited_calls.py"
APPROVALS = "tests/scenarios/test_approvals.py"
PROMISES = "tests/scenarios/test_promises.py"
CLIENTS = "tests/scenarios/test_client_side.py"
INTERRUPT = "tests/scenarios/test_interrupting.py"
QUEUE = "tests/scenarios/test_queueing.py"
SECRETS = "tests/scenarios/test_secrets.py"

MUTANTS = [
    Mutant(
        "a secret is kept as it is",
        "runtime/keeping.py",
        "sealed = _cipher(key).encode(value.encode(), self._context(reference))",
        "sealed = value.encode()",
        f"{SECRETS} -k 'after_a_restart and memory'",
    ),
    Mutant(
        "a revoked key answers",
        "runtime/sessions/answers.py",
        "if revoked is not None and revoked.resolution is not None:",
        "if False:",
        f"{PROMISES} -k 'revoked_foreign and memory'",
    ),
    Mutant(
        "a predicate that cannot tell lets the call run",
        "runtime/turns/consent.py",
        "return answer is not False",
        "return answer is True",
        f"{APPROVALS} -k 'cannot_tell_asks and memory'",
    ),
    Mutant(
        "a person's word sends a call out again while its worker lives",
        "runtime/sessions/approvals.py",
        "if not await self._host.store.is_dead(worker):",
        "if False:",
        f"{APPROVALS} -k 'says_what_became and memory'",
    ),
    Mutant(
        "a key of a deleted session answers its namesake",
        "runtime/sessions/answers.py",
        "if scope.tenant != rt.tenant or not await _exists(rt.store, scope):",
        "if scope.tenant != rt.tenant:",
        f"{PROMISES} -k 'namesake and memory'",
    ),
    Mutant(
        "a call with a person's arguments is not prepared anew",
        "runtime/turns/preparing.py",
        "sealed, edited = None, self._edited(item, item.decision.args)",
        "sealed, edited = self._edited(item, item.decision.args), None",
        f"{EDITED} -k 'prepared_anew and memory'",
    ),
    Mutant(
        "a hook may change what a person approved",
        "runtime/turns/preparing.py",
        "if edited is not None and digest(answer.args) != digest(edited.args):",
        "if False:",
        f"{EDITED} -k 'changes_what_was_approved and memory'",
    ),
    Mutant(
        "a result that does not fit is taken",
        "runtime/sessions/posting.py",
        "if problems := misfits(contract.returns, value):",
        "if (problems := misfits(contract.returns, value)) and False:",
        f"{CLIENTS} -k 'does_not_fit and memory'",
    ),
    Mutant(
        "a trial keeps nobody from beginning",
        "runtime/worker/trials.py",
        "self._suspect, self._waits_since, self._crowd.trial = stream, None, True",
        "self._suspect, self._waits_since, self._crowd.trial = None, None, True",
        "tests/scenarios/test_takeover.py::test_suspects_are_tried_one_at_a_time[sqlite]",
    ),
    Mutant(
        "the payload is not sealed: a hook is asked again for every attempt",
        "runtime/turns/preparing.py",
        "if started and isinstance(started.command, CallTool):",
        "if False:",
        "tests/scenarios/test_providers.py::test_a_call_that_runs_again_elsewhere_gets_the_payload_that_was_sealed_first",
    ),
    Mutant(
        "a cancel request wakes nobody by itself",
        "runtime/sessions/verbs.py",
        "Intervention(session.stream, delivery=wake, notes=(Entry.of(request, at=now),))",
        "Intervention(session.stream, notes=(Entry.of(request, at=now),))",
        f"{INTERRUPT} -k 'dies_right_after and sqlite'",
    ),
    Mutant(
        "a merge key leaves what waits",
        "runtime/sessions/verbs.py",
        "withdraw=tuple(row.id for row, _ in same)",
        "withdraw=()",
        f"{QUEUE} -k 'takes_the_place and memory'",
    ),
    Mutant(
        "people: a merge key brings back what was cancelled",
        "runtime/sessions/verbs.py",
        "            and await store.find(session.stream, gate_key(old.turn)) is None\n",
        "",
        f"{QUEUE} -k 'bring_back and memory'",
    ),
    Mutant(
        "people: an input that is drained together overtakes one that cannot be",
        "runtime/turns/waiting.py",
        "alike = takewhile(",
        "alike = filter(",
        f"{QUEUE} -k 'none_overtakes and memory'",
    ),
    Mutant(
        "people: what somebody says in any order is seen: nobody is asked",
        "runtime/turns/consent.py",
        """        if ready.prepared.always_asks:
            return True
""",
        "",
        "tests/scenarios/test_verbs_at_random.py -k memory",
    ),
]
