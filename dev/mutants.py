"""Mutation proof: break the code on purpose, one way at a time, and see the test that guards it go red.

A mutant that survives is a missing law. The sources are copied, so nothing here can be left broken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 90
AT_ONCE = 2
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    """One way to break a promise: what is replaced where, and the test that must notice."""

    name: str
    file: str
    before: str
    after: str
    test: str
    also: Mutant | None = None
    """A promise that is kept twice must be broken twice."""

    def apply(self, sources: Path) -> bool:
        """Break the sources; False if the code no longer says what the mutant replaces."""
        target = sources / self.file
        text = target.read_text()
        if self.before not in text:
            return False
        target.write_text(text.replace(self.before, self.after))
        return self.also is None or self.also.apply(sources)


SWEEP = "tests/crash/test_sweep.py"
STORES = "tests/conformance/test_stores.py"
ORDER = "tests/scenarios/test_order_of_durability.py"
KIT = "tests/scenarios/test_kit_sweep.py"
SURFACE = "tests/scenarios/test_tool_surface.py"
LAST_MOMENT = "tests/scenarios/test_cancelling_in_the_last_moment.py"
EDITED = "tests/scenarios/test_edited_calls.py"
BODIES = "tests/scenarios/test_bodies.py"
APPROVALS = "tests/scenarios/test_approvals.py"
PROMISES = "tests/scenarios/test_promises.py"
WHILE_PARKING = "tests/scenarios/test_answered_while_parking.py"
CLIENTS = "tests/scenarios/test_client_side.py"
STEER = "tests/scenarios/test_steering.py"
INTERRUPT = "tests/scenarios/test_interrupting.py"
PAUSE = "tests/scenarios/test_pausing.py"
QUEUE = "tests/scenarios/test_queueing.py"
SECRETS = "tests/scenarios/test_secrets.py"
LEAVE = "tests/scenarios/test_leave_in_the_last_moment.py"
FILES = "tests/scenarios/test_files.py"
BACKGROUND = "tests/scenarios/test_background.py"
COMMANDS = "tests/scenarios/test_commands.py"
FILE_LAWS = "tests/conformance/test_files.py"

NO_FENCE = (
    """    if state is None or plan.fence > state.fence:
        return Refuse(lease_lost(plan.stream))
    if plan.fence < state.fence or plan.n <= state.n:
        return AlreadyApplied()  # or never: the rows decide, see `recall`
    if state.owner != plan.worker:
        return Refuse(lease_lost(plan.stream))
    if plan.n != state.n + 1:""",
    """    if state is None:
        return Refuse(lease_lost(plan.stream))
    if False:""",
)

MUTANTS = [
    Mutant(
        "another registration under a used id passes for the first one",
        "processes/registration.py",
        "        content=hash,\n",
        '        content="",\n',
        "tests/scenarios/test_processes.py -k 'same_start_again and memory'",
    ),
    Mutant(
        "the latest signal is received first",
        "processes/record.py",
        "came.pop(0)",
        "came.pop()",
        "tests/scenarios/test_process_signals.py -k 'signals_are_kept and memory'",
    ),
    Mutant(
        "a signal that was taken comes again",
        "processes/record.py",
        "        self._came[key.wait.name].remove(payload)\n",
        "",
        "tests/scenarios/test_process_signals.py -k 'signals_are_kept and memory'",
    ),
    Mutant(
        "a once step that was under way is forgotten",
        "runtime/process_driver.py",
        'self._controller.doubt_unsettled_steps(InDoubt(reason="drained", message="the worker was stopped"))',
        "pass",
        "tests/scenarios/test_processes.py -k 'undecided_once and memory'",
        also=Mutant(
            "",
            "runtime/process_driver.py",
            'self._controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))',
            "pass",
            "",
        ),
    ),
    Mutant(
        "a cancelled process may not clean up",
        "tools/body.py",
        "if self._stopping and not self._stopped and",
        "if self._stopping and",
        "tests/scenarios/test_process_signals.py -k 'cleans_up and memory'",
    ),
    Mutant(
        "a cancel before the first start is not heard",
        "processes/machine.py",
        "        if record.cancel is not None:\n            return End(cancelled(record))\n",
        "",
        "tests/scenarios/test_process_signals.py -k 'never_begins and memory'",
    ),
    Mutant(
        "nobody is told that a process has ended",
        "runtime/process_resident.py",
        "await store.resolve(promise, end, now=self._shared.clock.wall_ms())",
        "pass",
        "tests/scenarios/test_process_children.py -k 'starts_a_child and memory'",
    ),
    Mutant(
        "an event that wakes is taken in and tells nobody",
        "runtime/process_resident.py",
        "consume=tuple(row.id for row in new), sends=sends",
        "consume=tuple(row.id for row in new)",
        "tests/scenarios/test_process_events.py -k 'wakes_reaches and memory'",
    ),
    Mutant(
        "an event is appended whatever it carries",
        "runtime/process_events.py",
        "    if problems:\n",
        "    if False:\n",
        "tests/scenarios/test_process_events.py -k 'do_not_fit and memory'",
    ),
    Mutant(
        "what is run here may be ended from outside",
        "runtime/process_handle.py",
        'if registration.recovery != "externally_owned" or command_of(registration) is not None:',
        "if False:",
        "tests/scenarios/test_process_events.py -k 'cannot_be_ended and memory'",
    ),
    Mutant(
        "what a tool says passes no veil",
        "tools/execute.py",
        "_veiled(output, beside, ctx.services.veil)",
        "output",
        f"{SECRETS} -k 'nowhere_else and memory'",
    ),
    Mutant(
        "what a step returns passes no veil",
        "tools/body.py",
        "value=self._veil.json(kept.value)",
        "value=kept.value",
        f"{SECRETS} -k 'nowhere_else and memory'",
    ),
    Mutant(
        "a prompt of a tool's own passes no veil",
        "runtime/clients.py",
        "_veiled(_messages(asked.messages), self._veil)",
        "_messages(asked.messages)",
        f"{SECRETS} -k 'nowhere_else and memory'",
    ),
    Mutant(
        "a secret is kept as it is",
        "runtime/keeping.py",
        "sealed = _cipher(key).encode(value.encode(), self._context(reference))",
        "sealed = value.encode()",
        f"{SECRETS} -k 'after_a_restart and memory'",
    ),
    Mutant(
        "a key has more than one spelling",
        "vocab/promises.py",
        "if key.text != text:",
        "if False:",
        f"{PROMISES}::test_there_is_one_spelling_of_a_key",
    ),
    Mutant(
        "a key that is logged is a key",
        "vocab/promises.py",
        'return f"AwaitEventKey({self.key_id!r})"',
        'return f"AwaitEventKey({self.key_id!r}, {self.signature!r})"',
        f"{PROMISES}::test_a_key_that_is_printed_is_worth_nothing",
    ),
    Mutant(
        "a revoked key answers",
        "runtime/answers.py",
        "if revoked is not None and revoked.resolution is not None:",
        "if False:",
        f"{PROMISES} -k 'revoked_foreign and memory'",
    ),
    Mutant(
        "an approval is not used up",
        "store/sqlite/appends.py",
        'tx.run("promise_use", (now, promise))',
        "pass",
        f"{STORES} -k 'used_up and Sqlite'",
    ),
    Mutant(
        "an approval that has expired still holds",
        "commit/plan.py",
        "if state.deadline_at is not None and state.deadline_at <= now:",
        "if False:",
        f"{STORES} -k 'expired_allows_nothing'",
    ),
    Mutant(
        "a decision counts after the deadline",
        "store/sqlite/queries.sql",
        " AND (deadline_at IS NULL OR deadline_at > ?)",
        " AND (1 OR deadline_at > ?)",
        f"{STORES} -k 'after_the_deadline_is_none and Sqlite'",
    ),
    Mutant(
        "what a plan sends is written after its commit",
        "store/postgres/appends.py",
        "        if sending and moved:\n            await _send_all(",
        "    if sending and moved:\n        await _send_all(",
        "tests/unit/store/test_postgres_loss.py -k 'sends_survive'",
    ),
    Mutant(
        "what a plan sends is written before the rest of it",
        "store/sqlite/appends.py",
        "    sent = _send(tx, plan, stream) if plan.sends else ()\n",
        "    sent = _send(tx, plan, stream) if plan.sends else ()\n"
        "    for sql in ('COMMIT', 'BEGIN IMMEDIATE') if plan.sends else ():\n        tx.connection.execute(sql)\n",
        "tests/crash/test_sends.py -k 'all_there_or_not and sqlite'",
    ),
    Mutant(
        "a verdict is not kept for the same plan again",
        "store/sqlite/appends.py",
        '        if one.verdict != "accepted":\n',
        "        if False:\n",
        f"{STORES} -k 'tells_the_same_and_sends_nothing and TestSqlite'",
    ),
    Mutant(
        "what is sent to nobody refuses the plan",
        "store/memory/store.py",
        '            return Sent("discarded", refusal.code)',
        "            raise refusal",
        f"{STORES} -k 'sent_to_nobody_is_discarded and Memory'",
    ),
    Mutant(
        "a codec leaves in the clear what a plan sends",
        "store/encoded.py",
        "sends=tuple(self._send(new) for new in plan.sends),",
        "sends=plan.sends,",
        f"{STORES} -k 'delivers_to_other_streams and Encoded'",
    ),
    Mutant(
        "nobody here hears of what was sent",
        "runtime/owned.py",
        "            self._stir({",
        "            _ = ({",
        "tests/scenarios/test_sends.py -k 'begins_at_once and sqlite and new'",
    ),
    Mutant(
        "a run is recorded, and what it says is not sent with it",
        "runtime/schedule_resident.py",
        "        self._owned.submit(*records, sends=tuple(run.sends for run in runs))\n",
        "        self._owned.submit(*records)\n        await self._owned.durable()\n"
        "        self._owned.submit(sends=tuple(run.sends for run in runs))\n",
        "tests/crash/test_schedules.py -k 'wherever_its_worker_dies and sqlite'",
    ),
    Mutant(
        "an occurrence is recorded, and its processes are started after that",
        "runtime/trigger_resident.py",
        "        self._owned.submit(record, consume=(row.id,), sends=sends)\n",
        "        self._owned.submit(record, consume=(row.id,))\n        self._late = sends\n",
        "tests/crash/test_triggers.py -k 'gets_its_process_once'",
        also=Mutant(
            "and nobody looks whether they were",
            "runtime/trigger_resident.py",
            "        if self._taken_over:\n",
            "        if False:\n",
            "",
            also=Mutant(
                "but in an append of their own",
                "runtime/trigger_resident.py",
                "        await self._owned.durable()  # or the same rows would be seen again\n",
                "        await self._owned.durable()\n        self._owned.submit(sends=getattr(self, '_late', ()))\n"
                "        self._late = ()\n        await self._owned.durable()\n",
                "",
            ),
        ),
    ),
    Mutant(
        "whoever left while an occurrence was taken in gets a process",
        "runtime/trigger_resident.py",
        "self._owned.need((), tuple(revision_key(one.id, one.revision + 1) for one in wanted))",
        "pass",
        "tests/scenarios/test_triggers.py -k 'in_the_last_moment and sqlite'",
    ),
    Mutant(
        "a start that failed is forgotten with the worker that saw it",
        "runtime/trigger_resident.py",
        "        if self._taken_over:\n",
        "        if False:\n",
        "tests/crash/test_triggers.py -k 'is_said_by_whoever_takes_over'",
    ),
    Mutant(
        "what an attempt emits has a key of its own each time",
        "runtime/trigger_client.py",
        "chosen = join(self.by.key, name) if key is None else key",
        "chosen = key",
        "tests/scenarios/test_triggers.py -k 'runs_again_says_nothing and sqlite'",
    ),
    Mutant(
        "what the clock says twice is due twice",
        "services/cron.py",
        "        if due > last:\n",
        "        if True:\n",
        "tests/unit/services/test_cron.py -k 'these_moments'",
    ),
    Mutant(
        "a process is started although the one of the last run goes on",
        "runtime/schedule_runs.py",
        "return await _unfinished(store, tenant, last.process)",
        "return False",
        "tests/scenarios/test_schedules.py -k 'unless_that_is_allowed and sqlite'",
    ),
    Mutant(
        "a run goes out although the last one is not over",
        "runtime/schedule_resident.py",
        'state.known.overlap == "skip" and await',
        "False and await",
        "tests/scenarios/test_schedules.py -k 'before_the_last_one_is_over and sqlite and skip'",
    ),
    Mutant(
        "what was due while it was paused is made up for",
        "services/schedules.py",
        "return replace(state, paused=False, handled_until=max(state.handled_until, row.at))",
        "return replace(state, paused=False)",
        "tests/unit/services/test_schedules.py -k 'while_it_is_paused'",
    ),
    Mutant(
        "schedules that are made at once pass the limit",
        "runtime/schedules.py",
        "        await self._stay_within_limits(handle, schedule.owner)\n",
        "",
        "tests/scenarios/test_schedules.py -k 'five_and_no_more and sqlite'",
    ),
    Mutant(
        "a schedule outlives its session",
        "runtime/schedule_resident.py",
        "if await self._owner_is_gone():",
        "if False:",
        "tests/scenarios/test_schedules.py -k 'belongs_to and sqlite'",
    ),
    Mutant(
        "an approval is not bound to the arguments",
        "vocab/approvals.py",
        "arguments=digest(args))",
        'arguments="any")',
        f"{APPROVALS} -k 'other_arguments_are_another_question'",
    ),
    Mutant(
        "silence approves",
        "vocab/approvals.py",
        "    decision = decision_of(resolution)\n    return decision if decision is not None and decision.verdict",
        "    decision = decision_of(resolution) or Decision(verdict='approve', by='nobody', at=0)\n"
        "    return decision if decision is not None and decision.verdict",
        "tests/unit/vocab/test_approvals.py -k 'silence'",
    ),
    Mutant(
        "a predicate that cannot tell lets the call run",
        "runtime/consent.py",
        "return answer is not False",
        "return answer is True",
        f"{APPROVALS} -k 'cannot_tell_asks and memory'",
    ),
    Mutant(
        "a revoked grant still covers calls",
        "session/fold.py",
        "kept = tuple(grant for grant in state.grants if grant.grant != revoked)",
        "kept = state.grants",
        f"{APPROVALS} -k 'covers_later and memory'",
    ),
    Mutant(
        "a deploy inside a turn takes a predicate away, and the call runs",
        "tools/toolbox.py",
        "gone = self.contract.predicate and not self.has_predicate",
        "gone = False",
        f"{APPROVALS} -k 'deploy_inside and predicate-none and memory'",
    ),
    Mutant(
        "a deploy inside a turn asks for leave, and the call runs",
        "tools/toolbox.py",
        " or self.tool.contract.always_asks",
        "",
        f"{APPROVALS} -k 'deploy_inside and none-always and memory'",
    ),
    Mutant(
        "an import brings grants with it",
        "runtime/archive.py",
        "held = dict.fromkeys(made.grant for made in state.grants)",
        "held = ()",
        f"{APPROVALS} -k 'imported_session_has_no_grants and memory'",
    ),
    Mutant(
        "a batch approved for the session leaves grants behind when one is revoked",
        "session/fold.py",
        "case GrantMade(tool=tool) if grant_for(state, tool) is None:",
        "case GrantMade(tool=tool):",
        f"{APPROVALS} -k 'revoked_at_once and memory'",
    ),
    Mutant(
        "a person's word sends a call out again while its worker lives",
        "runtime/approvals.py",
        "if not await self._host.store.is_dead(worker):",
        "if False:",
        f"{APPROVALS} -k 'says_what_became and memory'",
    ),
    Mutant(
        "a key of a deleted session answers its namesake",
        "runtime/answers.py",
        "if scope.tenant != rt.tenant or not await _exists(rt.store, scope):",
        "if scope.tenant != rt.tenant:",
        f"{PROMISES} -k 'namesake and memory'",
    ),
    Mutant(
        "whoever works on a cancelled call is told although the tool says ignore",
        "runtime/turns.py",
        'telling = call.pending.pending.on_cancel == "cancel_external_work"',
        "telling = True",
        f"{PROMISES} -k 'says_ignore and memory'",
    ),
    Mutant(
        "how a call ended is forgotten if the turn is cancelled in the same moment",
        "runtime/turns.py",
        "in owed(replace(self.turn, cancel=None)) if",
        "in owed(self.turn) if not isinstance(item, EndTurn) and",
        f"{LAST_MOMENT} -k 'memory'",
    ),
    Mutant(
        "what a call says while it is being stopped is not looked at",
        "runtime/turns.py",
        "self._settle_landed()  # what came while it was halted",
        "pass  #",
        f"{LAST_MOMENT} -k 'being_stopped and memory'",
    ),
    Mutant(
        "what became of a call is asked about the model's arguments",
        "runtime/envelopes.py",
        "wait), about=prepared or _as_made(call))",
        "wait), about=_as_made(call))",
        f"{EDITED} -k 'asked_about and memory'",
    ),
    Mutant(
        "a call with a person's arguments is not prepared anew",
        "runtime/preparing.py",
        "sealed, edited = None, self._edited(item, item.decision.args)",
        "sealed, edited = self._edited(item, item.decision.args), None",
        f"{EDITED} -k 'prepared_anew and memory'",
    ),
    Mutant(
        "a hook may change what a person approved",
        "runtime/preparing.py",
        "if edited is not None and digest(answer.args) != digest(edited.args):",
        "if False:",
        f"{EDITED} -k 'changes_what_was_approved and memory'",
    ),
    Mutant(
        "a second attempt needs nobody's leave, although the first never began",
        "runtime/turns.py",
        "return any(self._controller.journal.started(ref.id) for ref in refs)",
        "return item.ref.attempt > 1 or any(self._controller.journal.started(ref.id) for ref in refs)",
        f"{EDITED} -k 'first_preparation_failed and memory'",
    ),
    Mutant(
        "an owner whose parking meets an answer gives its stream up all the same",
        "runtime/owned.py",
        "self._parked = plan.parked and not receipt.resolved",
        "self._parked = plan.parked",
        f"{WHILE_PARKING} -k 'not_lost and memory'",
    ),
    Mutant(
        "a turn is parked without a word about what it waits for",
        "runtime/turns.py",
        "        return await self._owned.park(promises, due_at)",
        "        return await self._owned.park((), due_at)",
        f"{WHILE_PARKING} -k 'not_lost and memory'",
    ),
    Mutant(
        "a cancel that comes while a turn is being parked is lost",
        "runtime/turns.py",
        "return False  # learned meanwhile, and what would have woken the stream is used up",
        "pass",
        f"{PROMISES} -k 'while_the_turn_is_being_parked and memory'",
    ),
    Mutant(
        "the client is asked before what is run here is done",
        "turn/machine.py",
        "if elsewhere and len(elsewhere) == len(waiting):",
        "if elsewhere:",
        f"{CLIENTS} -k 'before_the_client_is_asked and memory'",
    ),
    Mutant(
        "a call of the client is dispatched here",
        "runtime/turns.py",
        "if ready.prepared.contract.client_side:",
        "if False:",
        f"{CLIENTS} -k 'never_run and memory'",
        also=Mutant(
            "and run",
            "tools/execute.py",
            "if prepared.contract.client_side:",
            "if False:",
            "",
        ),
    ),
    Mutant(
        "a result that does not fit is taken",
        "runtime/posting.py",
        "if problems := misfits(contract.returns, value):",
        "if (problems := misfits(contract.returns, value)) and False:",
        f"{CLIENTS} -k 'does_not_fit and memory'",
    ),
    Mutant(
        "silence means nothing",
        "runtime/waits.py",
        "ending = TimedOut() if silence is None else Ok(value=silence)",
        "ending = TimedOut()",
        f"{CLIENTS} -k 'silence and memory'",
    ),
    Mutant(
        "a stale fence writes on a database server",
        "store/postgres/queries.sql",
        "WHERE s.stream = $1 AND s.fence = $2 AND s.n = $3 - 1 AND s.owner = $5",
        "WHERE s.stream = $1",
        f"{STORES}::TestPostgres::test_a_stale_fence_writes_nothing",
    ),
    Mutant(
        "an append whose reply was lost is written again",
        "store/postgres/queries.sql",
        "AND s.n = $3 - 1 AND s.owner = $5",
        "AND s.owner = $5",
        "tests/unit/store/test_postgres_loss.py::test_appends_survive_a_cut_at_every_statement",
    ),
    Mutant(
        "a worker of another machine is called dead",
        "store/postgres/leases.py",
        "        if not row.lock or row.boot != self.boot or self.locks is None:\n            return False",
        "        if not row.lock or row.boot != self.boot or self.locks is None:\n            return True",
        "tests/unit/store/test_postgres_work.py::test_nobody_is_called_dead_whose_process_cannot_be_seen",
    ),
    Mutant(
        "what is taken under a lapsed lease is taken away at once on a database server",
        "store/postgres/store.py",
        "        await self._be_alive(worker)\n        return",
        "        return",
        f"{STORES}::TestPostgres::test_what_is_taken_under_a_lapsed_lease_is_not_taken_away_at_once",
    ),
    Mutant(
        "a release that a migration has left behind works on a file",
        "store/sqlite/migrate.py",
        "        if works_from > len(known):",
        "        if False:",
        "tests/compat/test_rolling_upgrade.py::"
        "test_after_the_contraction_the_old_release_is_refused_and_the_one_between_is_not[sqlite]",
    ),
    Mutant(
        "a worker takes whatever there is",
        "runtime/serving.py",
        "return min(self.free, max(0, MAX_BEGINNING - len(self._found)))",
        "return self.free",
        "tests/scenarios/test_takeover.py::test_a_worker_takes_no_more_than_it_can_begin_with[sqlite]",
    ),
    Mutant(
        "a turn that was parked counts as one that kills",
        "store/postgres/queries.sql",
        "    takeovers = CASE WHEN o.previous IS NULL THEN 0 ELSE s.takeovers END",
        "    takeovers = s.takeovers",
        f"{STORES}::TestPostgres::test_a_stream_that_was_given_back_is_not_taken_over",
    ),
    Mutant(
        "what was given back and claimed with a look counts on",
        "store/postgres/queries.sql",
        "n = 0, takeovers = 0 FROM picked AS p",
        "n = 0 FROM picked AS p",
        f"{STORES}::TestPostgres::test_what_was_given_back_and_is_claimed_by_the_way_counts_anew",
    ),
    Mutant(
        "a worker takes what it cannot read on a database server",
        "store/postgres/queries.sql",
        "s.paused_at IS NULL AND s.format <= $2",
        "s.paused_at IS NULL AND s.format <= $2 + 1000",
        "tests/compat/test_rolling_upgrade.py -k 'waits_for_it and postgres'",
    ),
    Mutant(
        "a wrong password is an unknown failure",
        "store/postgres/failures.py",
        '"28P01"',
        '"28P99"',
        "tests/unit/store/test_postgres_setups.py::test_a_wrong_password",
    ),
    Mutant(
        "two appends of a stream are under way at once",
        "store/postgres/store.py",
        "appends.take(queue, self._busy)",
        "appends.take(queue)",
        "tests/unit/store/test_postgres_work.py -k while_a_batch_waits",
    ),
    Mutant(
        "a text is taken for the end of a column",
        "store/postgres/columns.py",
        """.replace('"', '\\\\"')""",
        "",
        "tests/unit/store/test_postgres_work.py::test_text_arrives_as_it_was",
    ),
    Mutant(
        "who looks for some on a database server is given any",
        "store/postgres/claims.py",
        "    if serves.only is None:",
        "    if True:",
        f"{STORES}::TestPostgres::test_who_looks_for_some_finds_them_for_whatever_there_is_to_do",
    ),
    Mutant(
        "a look for work goes through all sessions",
        "store/sqlite/queries.sql",
        "AS k CROSS JOIN streams AS s",
        "AS k JOIN streams AS s",
        "tests/unit/store/test_sqlite_files.py -k does_not_go_through",
    ),
    Mutant(
        "of a few streams only those that were told something are found",
        "store/sqlite/queries.sql",
        "WHERE p.stream IN (SELECT value FROM json_each(:only)) AND t.due_at <= :now",
        "WHERE p.stream IN (SELECT value FROM json_each(:only)) AND t.due_at <= -1",
        f"{STORES}::TestSqlite::test_who_looks_for_some_finds_them_for_whatever_there_is_to_do",
    ),
    Mutant(
        "suspects are taken like everything else",
        "runtime/worker.py",
        "            if not await self._try_a_suspect(full):",
        "            if True:",
        "tests/scenarios/test_takeover.py::test_suspects_are_tried_one_at_a_time[sqlite]",
        also=Mutant("", "runtime/worker.py", "            suspects=suspects,", '            suspects="also",', ""),
    ),
    Mutant(
        "a trial keeps nobody from beginning",
        "runtime/trials.py",
        "self._suspect, self._waits_since, self._crowd.trial = stream, None, True",
        "self._suspect, self._waits_since, self._crowd.trial = None, None, True",
        "tests/scenarios/test_takeover.py::test_suspects_are_tried_one_at_a_time[sqlite]",
    ),
    Mutant(
        "who comes back first takes it all",
        "store/postgres/leases.py",
        "(row.lapsed and not self.patient(by))",
        "row.lapsed",
        "tests/unit/store/test_postgres_work.py::test_who_was_away_itself_leaves_the_others_a_lease_to_come_back",
    ),
    Mutant(
        "who comes when the server comes takes it all",
        "store/postgres/leases.py",
        "return self.lease_left <= 0 and not self.excused",
        "return self.lease_left <= 0",
        "tests/unit/store/test_postgres_work.py -k newcomer",
    ),
    Mutant(
        "the dead keep what they held idle",
        "store/sqlite/claims.py",
        '        tx.run("worker_let_go", (other.id,))\n',
        "",
        f"{STORES}::TestSqlite::test_the_dead_are_forgotten_with_what_they_held_idle_when_another_worker_starts",
    ),
    Mutant(
        "the dead lose what they may have begun",
        "store/postgres/queries.sql",
        "        AND NOT EXISTS (SELECT 1 FROM perdure.inbox AS i WHERE i.stream = s.id)\n",
        "",
        f"{STORES}::TestPostgres::test_the_dead_are_remembered_while_something_of_theirs_may_be_under_way",
    ),
    Mutant(
        "what is ours and not served is passed over",
        "store/postgres/queries.sql",
        "            s.owner IS NULL OR s.owner <> ALL ($4::text[])",
        "            s.owner IS NULL OR (s.owner <> ALL ($4::text[]) AND s.owner <> $3)",
        f"{STORES}::TestPostgres::test_a_worker_is_offered_the_turn_it_holds_and_does_not_drive",
    ),
    Mutant(
        "whoever got further is a suspect",
        "store/sqlite/queries.sql",
        "AND s.takeovers > 0 AND s.stuck_seq =",
        "AND s.takeovers > 0 AND 0 <>",
        f"{STORES}::TestSqlite::test_a_suspect_is_what_more_than_one_owner_left_behind_without_a_record",
    ),
    Mutant(
        "an idle session is its holder's for ever",
        "store/sqlite/queries.sql",
        "            OR (k.waited AND s.active = 0",
        "            OR (0 AND s.active = 0",
        f"{STORES}::TestSqlite::test_what_an_idle_owner_leaves_waiting_is_ready_for_others",
    ),
    Mutant(
        "who begins is disturbed on a database server",
        "store/postgres/queries.sql",
        "AND NOT s.parked AND s.n > 0",
        "AND NOT s.parked",
        f"{STORES}::TestPostgres::test_an_owner_that_is_at_work_or_begins_or_waits_is_not_disturbed",
    ),
    Mutant(
        "what is taken from an idle owner counts as taken over",
        "store/sqlite/claims.py",
        "takeovers = 0 if alive or owner is None else",
        "takeovers = 0 if owner is None else",
        f"{STORES}::TestSqlite::test_what_an_idle_owner_leaves_waiting_is_ready_for_others",
    ),
    Mutant(
        "a title sends a session to the end of the line",
        "store/postgres/queries.sql",
        "greatest(s.served_at, min(k.at)) AS since",
        "greatest(s.updated_at, min(k.at)) AS since",
        f"{STORES}::TestPostgres::test_who_is_ready_does_not_wait_longer_because_of_an_annotation",
    ),
    Mutant(
        "a live worker's stream is taken on a database server",
        "store/postgres/claims.py",
        "other if other and not leases.is_gone(await find_worker(on, other), worker) else None",
        "None",
        f"{STORES}::TestPostgres::test_a_stream_that_a_live_worker_holds_is_held",
        also=Mutant(
            "",
            "store/postgres/claims.py",
            "if row[0] != worker and not waiting and not leases.is_gone(WorkerRow(*row), worker):",
            "if False:",
            "",
        ),
    ),
    Mutant(
        "parking does not keep answers out: a wake is lost",
        "store/postgres/queries.sql",
        "WHERE q.resolution IS NOT NULL\n), plan",
        "WHERE false\n), plan",
        f"{STORES}::TestPostgres::test_an_answer_that_came_first_is_in_the_receipt",
    ),
    Mutant(
        "no journal lookup: a resumed turn forgets what was settled",
        "runtime/resident.py",
        "for record in records[records.index(start) + 1 :]:",
        "for record in ():",
        f"{SWEEP}::test_killed_at_a_durable_boundary[one_once-5:before]",
        also=Mutant(
            "",
            "effects/journal.py",
            "        if settled:\n            return AlreadySettled",
            "        if False:\n            return AlreadySettled",
            "",
        ),
    ),
    Mutant(
        "the payload is not sealed: a hook is asked again for every attempt",
        "runtime/preparing.py",
        "if started and isinstance(started.command, CallTool):",
        "if False:",
        "tests/scenarios/test_providers.py::test_a_call_that_runs_again_elsewhere_gets_the_payload_that_was_sealed_first",
    ),
    Mutant(
        "any session reads any attachment",
        "runtime/resident.py",
        "store.blob(ref.hash, stream=self.stream)",
        "store.blob(ref.hash)",
        "tests/scenarios/test_clients.py::test_bytes_are_kept_with_the_outcome_and_only_their_session_reads_them",
    ),
    Mutant(
        "a once tool runs as the child of a body that records nothing",
        "runtime/children.py",
        '(effect != "pure" and self._parent.body is None)',
        "False",
        "tests/scenarios/test_clients.py::test_children_answer_in_source_order_and_what_cannot_run_is_answered_too",
    ),
    Mutant(
        "children of a resumable body are not recorded",
        "runtime/children.py",
        "(self._attempt(child) if self._parent.body is None else self._step(child))",
        "self._attempt(child)",
        "tests/scenarios/test_children.py::"
        "test_children_of_a_resumable_body_are_steps_and_run_once_however_often_it_is_entered",
    ),
    Mutant(
        "bytes that a step refers to wait for the end of its call",
        "runtime/clients.py",
        "        if self._keep is not None:\n",
        "        if False:\n",
        "tests/scenarios/test_children.py::test_bytes_that_a_step_refers_to_are_there_when_the_body_is_entered_again",
    ),
    Mutant(
        "a step that died with its worker is run again",
        "effects/controller.py",
        'case AlreadyRunning(started) if started.effect == "once":',
        "case AlreadyRunning(started) if False:",
        "tests/crash/test_bodies.py::test_killed_inside_a_step_right_after_its_outside_effect[sqlite-render]",
        also=Mutant(
            "",
            "effects/controller.py",
            'if started.effect == "once" and started.kind is EffectKind.DURABLE_STEP and',
            "if False and",
            "",
        ),
    ),
    Mutant(
        "an input makes workers claim a parked turn",
        "store/sqlite/queries.sql",
        "WHERE i.news OR NOT p.parked",
        "WHERE 1",
        f"{STORES} -k 'test_an_input_queues_behind_a_parked_turn and sqlite'",
    ),
    Mutant(
        "however an unwound body ends is its outcome",
        "tools/execute.py",
        "        if ctx.body.parked:\n            raise Parked\n",
        "",
        f"{BODIES}::test_what_a_body_returns_when_its_turn_is_cancelled_is_no_outcome[memory]",
    ),
    Mutant(
        "a turn is parked although a step has begun meanwhile",
        "runtime/turns.py",
        "return self._patience.left_s(self.flights.values(), hurried=True) == 0.0",
        "return True",
        f"{BODIES}::test_a_step_that_begins_beside_a_wait_keeps_the_turn_from_being_parked[memory]",
    ),
    Mutant(
        "a body goes on after a mismatch that it caught",
        "tools/body.py",
        "            self.broken = problem\n",
        "            pass\n",
        f"{BODIES}::test_changed_input_of_a_finished_step_ends_the_call_and_not_the_session[memory]",
    ),
    Mutant(
        "a forged key is as good as a real one",
        "effects/promises.py",
        "if not (ours and expected.key_id == key.key_id):",
        "if False:",
        f"{BODIES}::test_a_key_works_from_anywhere_and_a_forged_one_nowhere[memory]",
    ),
    Mutant(
        "a call whose key is out is doubted after a crash",
        "turn/machine.py",
        "    match call.completion:\n",
        "    match None:\n",
        "tests/crash/test_bodies.py::test_a_call_that_handed_its_key_out_is_pending_after_a_crash_and_not_in_doubt",
    ),
    Mutant(
        "a sleep begins anew after a restart",
        "effects/controller.py",
        "care = Care(effect=care.effect, due_at=started.due_at, record_start=care.record_start, leave=care.leave)",
        "pass",
        f"{BODIES}::test_a_sleep_keeps_its_moment[memory]",
    ),
    Mutant(
        "no intent before a once call",
        "effects/controller.py",
        'return self.record_start or self.leave or self.effect in ("once", "resumable")',
        "return self.record_start or self.leave",
        f"{SWEEP}::test_killed_inside[one_once-charge]",
    ),
    Mutant(
        "dispatch before the reply is durable",
        "effects/controller.py",
        'return self.leave or self.effect != "pure"',
        "return False",
        f"{ORDER}::test_only_a_pure_call_is_dispatched_before_the_reply_that_names_it_is_durable",
    ),
    Mutant(
        "no lease check before dispatch",
        "effects/controller.py",
        "while not self.ledger.lease_live():",
        "while False:",
        "tests/crash/test_zombie.py::test_a_worker_stopped_between_intent_and_dispatch_does_not_dispatch",
        also=Mutant("", "runtime/runners.py", "not (pure or self._driven.lease_live())", "False", ""),
    ),
    Mutant("no fence", "commit/plan.py", *NO_FENCE, f"{STORES} -k stale_fence"),
    Mutant(
        "no fence, seen from a thawed worker",
        "commit/plan.py",
        *NO_FENCE,
        "tests/crash/test_zombie.py::test_a_thawed_worker_writes_nothing_and_its_late_outcome_reaches_the_log",
    ),
    Mutant(
        "receipt ignored",
        "commit/plan.py",
        "        return AlreadyApplied()  # or never: the rows decide, see `recall`\n",
        "        return Apply(Seq(state.last_seq + 1))\n",
        f"{STORES} -k the_same_plan_again_returns_the_first_receipt",
    ),
    Mutant(
        "timer reset in the store",
        "store/sqlite/queries.sql",
        "INSERT INTO timers (stream, name, due_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        "INSERT OR REPLACE INTO timers (stream, name, due_at) VALUES (?, ?, ?)",
        f"{STORES} -k a_timer_keeps_its_original_moment",
    ),
    Mutant(
        "snapshot trusted after a format change",
        "store/sqlite/queries.sql",
        "WHERE s.stream = ? AND p.code = ?",
        "WHERE s.stream = ? AND p.code <> ?",
        f"{STORES} -k a_snapshot_of_another_code_version_is_passed_over",
    ),
    Mutant(
        "first resolution does not win",
        "store/memory/store.py",
        "        if known.resolution is not None:",
        "        if False:",
        f"{STORES} -k the_first_answer_stands",
    ),
    Mutant(
        "timer reset in the turn",
        "runtime/turns.py",
        "due_at = item.due_at if item.due_at is not None else",
        "due_at = (item.due_at or 0) + 3_600_000 if item.due_at is not None else",
        f"{ORDER}::test_a_sleep_keeps_its_original_moment_through_a_restart",
    ),
    Mutant(
        "doubt forgotten: a recovered once call simply runs again",
        "turn/machine.py",
        'call.started and call.started.effect == "once"\n    )',
        "False\n    )",
        f"{SWEEP}::test_killed_at_a_durable_boundary[one_once-4:before]",
    ),
    Mutant(
        "did-not-happen believed of a worker that may still be alive",
        "runtime/runners.py",
        "certain = await self._nobody_can_still_do_it(item)",
        "certain = True",
        "tests/crash/test_zombie.py::test_a_worker_stopped_between_intent_and_dispatch_does_not_dispatch[sqlite-zombie_probed]",
    ),
    Mutant(
        "a frozen worker taken for one that does nothing any more",
        "runtime/runners.py",
        "return item.worker != self._driven.worker and await self._around.is_dead(item.worker)",
        "return item.worker != self._driven.worker",
        "tests/crash/test_zombie.py -k frozen_call",
    ),
    Mutant(
        "a worker that left something running counts as dead when it retires",
        "runtime/runtime.py",
        "await self.store.retire(self.worker_id, loose_ends=loose)",
        "await self.store.retire(self.worker_id)",
        "tests/scenarios/test_attacks.py -k goes_on_after_its_runtime",
    ),
    Mutant(
        "an accepted input is consumed without its record",
        "runtime/resident.py",
        "self._owned.submit(said, record, consume=consume)",
        "self._owned.submit(consume=consume); self._owned.flush(); self._owned.submit(said, record)",
        f"{SWEEP}::test_killed_at_a_durable_boundary[one_once-2:after]",
    ),
    Mutant(
        "a resumed turn is no longer marked as unfinished",
        "runtime/resident.py",
        "        self._owned.active = self.state.open_turn is not None\n",
        "",
        f"{SWEEP} -k died_twice",
    ),
    Mutant(
        "late outcomes dropped",
        "runtime/orphans.py",
        "await self._store.admit(late)",
        "pass",
        "tests/crash/test_zombie.py::test_a_thawed_worker_writes_nothing_and_its_late_outcome_reaches_the_log",
    ),
    Mutant(
        "the cancel gate is not a gate",
        "vocab/records.py",
        'end_key(it.turn) if it.reason == "cancelled" else gate_key(it.turn)',
        'end_key(it.turn) if it.reason == "cancelled" else None',
        "tests/scenarios/test_turns.py::test_a_finished_turn_cannot_be_cancelled",
    ),
    Mutant(
        "results are shown before they are durable",
        "runtime/turns.py",
        "                await self.durable()\n                return self.turn.ended",
        "                return self.turn.ended",
        f"{ORDER}::test_a_result_and_an_event_leave_only_when_everything_before_them_is_durable",
    ),
    Mutant(
        "what a tool says leaves before the facts before it are durable",
        "runtime/resident.py",
        "        if self._owned.settled:\n            self._shared.hub.publish(self.stream, piece)",
        "        if True:\n            self._shared.hub.publish(self.stream, piece)",
        f"{SURFACE} -k what_a_tool_says_leaves_only",
    ),
    Mutant(
        "an internal error is told to the model",
        "tools/execute.py",
        'message=INTERNAL_ERROR, failure_class="internal", error_type=kind',
        'message=error.message, failure_class="internal", error_type=kind',
        f"{SURFACE} -k each_way_to_end",
    ),
    Mutant(
        "pictures are referred to and not stored",
        "runtime/perform.py",
        "return stored, (*pictures, ",
        "return stored, (*(), ",
        f"{SURFACE} -k pictures_are_stored",
    ),
    Mutant(
        "what is shown of a long result ignores how JSON writes it",
        "tools/ceiling.py",
        'head_of(whole[start : start + _HEAD_BYTES].decode(errors="ignore"), _HEAD_BYTES)',
        'whole[start : start + _HEAD_BYTES].decode(errors="ignore")',
        "tests/unit/tools/test_ceiling.py -k pages_fit",
    ),
    Mutant(
        "anybody reads on in anybody's results",
        "runtime/services.py",
        "ref = await self._kept(call)",
        "ref = await StoredResults(self.store, StreamId('default:session:mine'), self.durable)._kept(call)",
        f"{SURFACE} -k reading_on_is_confined",
        also=Mutant(
            "", "runtime/services.py", "self.store.blob(ref.hash, stream=self.stream)", "self.store.blob(ref.hash)", ""
        ),
    ),
    Mutant(
        "the kit does not look at the ledger",
        "testing/aftermath.py",
        "*_ledger(usual, end), ",
        "",
        f"{KIT}::test_a_broken_application_is_found_out -k not_idempotent-memory",
    ),
    Mutant(
        "the kit does not count dispatches",
        "testing/aftermath.py",
        "        if times > 1:\n",
        "        if False:\n",
        f"{KIT}::test_a_broken_application_is_found_out -k forgetful",
    ),
    Mutant(
        "memory: of several results those are taken that can be",
        "store/memory/store.py",
        "        answered = answers if not closed else ()\n",
        "        answered = [one for one in answers if one[0].id not in closed]\n",
        f"{STORES}::TestMemory::test_several_answers_are_taken_together_or_not_at_all",
    ),
    Mutant(
        "sqlite: of several results those are taken that can be",
        "store/sqlite/admissions.py",
        "    for made, resolution in answers if not closed else ():\n",
        "    for made, resolution in [one for one in answers if one[0].id not in closed]:\n",
        f"{STORES}::TestSqlite::test_several_answers_are_taken_together_or_not_at_all",
    ),
    Mutant(
        "postgres: of several results those are taken that can be",
        "store/postgres/admissions.py",
        "                raise _Closed\n",
        "                pass\n",
        f"{STORES}::TestPostgres::test_several_answers_are_taken_together_or_not_at_all",
    ),
    Mutant(
        "a revoked grant ends the ownership of its session",
        "runtime/owned.py",
        "if plan is self._held and not self.error and _has_no_leave(problem, plan):",
        "if False:",
        f"{LEAVE} -k memory",
    ),
    Mutant(
        "something is handed over behind what is on trial",
        "runtime/owned.py",
        "        if self._held is None:\n            self._send(",
        "        if True:\n            self._send(",
        f"{LEAVE} -k 'expires and sqlite'",
    ),
    Mutant(
        "what was withdrawn is still in the journal",
        "runtime/turns.py",
        "            self._controller.journal.unfold(record)\n",
        "",
        f"{LEAVE} -k 'revoked and memory'",
    ),
    Mutant(
        "an approval that the store finds expired is tried again and again",
        "runtime/turns.py",
        "            self._lapse(*leave)\n",
        "            pass\n",
        f"{LEAVE} -k 'stores_clock and memory'",
    ),
    Mutant(
        "what is answered while a wait looks first is noticed when it parks",
        "runtime/waits.py",
        "            if key and (known := await self._look_first(owner, key)):\n                return known\n",
        "            self._open.pop(wait)\n            if key and (known := await self._look_first(owner, key)):\n"
        "                return known\n            self._open[wait] = None\n",
        f"{WHILE_PARKING} -k 'first_look and sqlite'",
    ),
    Mutant(
        "postgres: who brings something while the stream is deleted is told that the store failed",
        "store/postgres/admissions.py",
        "        with suppress(ForeignKeyViolationError):\n",
        "        with suppress():\n",
        f"{STORES}::TestPostgres::test_who_brings_something_while_the_stream_is_deleted_is_told_clearly",
    ),
    Mutant(
        "who watches a turn waits for ever when its session is deleted",
        "observe/follow.py",
        "if while_there and seq == before and await store.stream(stream) is None:",
        "if False:",
        "tests/scenarios/test_observing.py -k 'is_deleted and sqlite'",
    ),
    Mutant(
        "the kit's children are not killed",
        "testing/crash.py",
        "        if kill_at and boundary.is_at(kill_at):\n            die()",
        "        if kill_at and boundary.is_at(kill_at):\n            pass",
        f"{KIT} -k killed_for_real",
    ),
    Mutant(
        "a crash point that a run does not come to is passed over",
        "testing/sweep.py",
        'missed = () if crash.reached else ("the run did not come to this crash point",)',
        "missed = ()",
        f"{KIT}::test_a_crash_point_that_is_not_there_is_told",
    ),
    Mutant(
        "what is written behind a crash point by name survives it",
        "testing/crash.py",
        "                self._held = True\n",
        "                self._held = boundary.n > 0 and self._last.n > 0\n",
        "tests/unit/testing/test_crash.py",
    ),
    Mutant(
        "no intent before a once call, seen by the kit",
        "effects/controller.py",
        'return self.record_start or self.leave or self.effect in ("once", "resumable")',
        "return self.record_start or self.leave",
        f"{KIT}::test_a_once_tool_at_every_boundary",
    ),
    Mutant(
        "a step of a body forgets its outcome, seen by the kit",
        "effects/journal.py",
        "        if settled:\n            return AlreadySettled",
        "        if False:\n            return AlreadySettled",
        "tests/scenarios/test_kit_bodies.py -k memory-parking",
    ),
    Mutant(
        "a tenant with many sessions is served first and last",
        "store/memory/store.py",
        "order.append(((-place.priority, rounds[place.priority, tenant], lately), stream, place))",
        "order.append(((-place.priority, 0, 0), stream, place))",
        f"{STORES} -k 'TestMemory and tenants_take_turns'",
    ),
    Mutant(
        "on SQLite a tenant with many sessions keeps out the others",
        "store/sqlite/queries.sql",
        "ORDER BY r.priority DESC, r.round, coalesce(",
        "ORDER BY r.priority DESC, r.since, coalesce(",
        f"{STORES} -k 'TestSqlite and (ten_thousand or take_turns)'",
    ),
    Mutant(
        "whoever was just served is first again",
        "store/sqlite/queries.sql",
        "max(s.served_at, min(k.at)) AS since",
        "min(k.at) AS since",
        f"{STORES} -k 'TestSqlite and goes_behind'",
    ),
    Mutant(
        "a claim by the way takes what a dead worker held, and counts nothing",
        "store/sqlite/claims.py",
        "    if owner is not None or active or parked or paused_at is not None or format > tx.leases.format:",
        "    if active or parked or paused_at is not None or format > tx.leases.format:",
        f"{STORES} -k 'TestSqlite and a_sender'",
    ),
    Mutant(
        "permits go to whoever asks first after one is free",
        "store/permits.py",
        "row.name == name and (row.granted or at < place)",
        "row.name == name and row.granted",
        f"{STORES} -k 'TestMemory and waits_for_longest'",
    ),
    Mutant(
        "a worker has a permit through what another holds",
        "store/permits.py",
        "if (row.holder, row.worker) == (ask.holder, worker)}",
        "if row.holder == ask.holder}",
        f"{STORES} -k 'TestMemory and another_worker_holds_is_taken'",
    ),
    Mutant(
        "a step that its body went on without stays without an outcome",
        "runtime/turns.py",
        '        self._controller.doubt_unsettled_steps(LEFT_BEHIND, body=f"{body}/")\n',
        "",
        "tests/scenarios/test_left_behind.py -k 'memory and beside_a_failure'",
    ),
    Mutant(
        "a body that had begun is said not to have been run",
        "runtime/turns.py",
        "told = with_steps(ready, self._controller.journal.steps(_body(item)))",
        "told = ready",
        "tests/scenarios/test_left_behind.py -k 'memory and whose_tool_is_gone'",
    ),
    Mutant(
        "a step may give whatever size it likes",
        "tools/body.py",
        "        if kept.size > MAX_STEP_BYTES:",
        "        if False:",
        f"{BODIES} -k 'memory and too_large'",
    ),
    Mutant(
        "a map runs everything at once",
        "tools/durable.py",
        "        gate = asyncio.Semaphore(limit)",
        "        gate = asyncio.Semaphore(10**6)",
        f"{BODIES} -k 'memory and no_more_at_once'",
    ),
    Mutant(
        "bytes that a call keeps belong to no record",
        "runtime/turns.py",
        "            self.submit(kept)\n",
        "",
        "tests/scenarios/test_clients.py -k 'memory and can_be_redacted'",
    ),
    Mutant(
        "whoever has handed a conversation over is asked again",
        "turn/machine.py",
        "    if (turn.cancel and not turn.ended) or turn.changes_hands:",
        "    if turn.cancel and not turn.ended:",
        "tests/scenarios/test_handing_over.py -k 'memory and in_the_same_turn'",
    ),
    Mutant(
        "a turn that has changed hands is resumed with what it began with",
        "runtime/resident.py",
        "turn = taken_over(turn, record, await self._shared.compositions.get(record.composition))",
        "turn = taken_over(turn, record, turn.composition)",
        "tests/scenarios/test_handing_over.py -k 'wherever_the_process_dies and sqlite'",
    ),
    Mutant(
        "a worker that had enough to begin with forgets that others may wait",
        "runtime/worker.py",
        "                serving.more_waits = True  # enough",
        "                # enough",
        "tests/scenarios/test_takeover.py -k 'sqlite and looks_on_by_itself'",
    ),
    Mutant(
        "a store that is just being made is looked at in pieces",
        "store/sqlite/migrate.py",
        '    connection.execute("BEGIN")\n',
        "",
        "tests/unit/store/test_sqlite_files.py -k just_making",
    ),
    Mutant(
        "a session keeps its queue's seat as long as it has something to do",
        "runtime/serving.py",
        "await resident.serve(once=stream in self._seats)",
        "await resident.serve()",
        "tests/scenarios/test_queues.py -k 'memory and others_of_its_full_queue'",
    ),
    Mutant(
        "a session that rests keeps its queue's seat",
        "runtime/serving.py",
        "        left = stream not in self._refold and self._leave(stream)",
        "        left = not {stream} & {*self._refold, *self._resting} and self._leave(stream)",
        "tests/scenarios/test_queues.py -k 'memory and cannot_be_served_keeps_no_seat'",
    ),
    Mutant(
        "a seat is kept when the store did not answer",
        "runtime/permits.py",
        "            self.leave(*streams)  # it may have happened, and nobody would know\n",
        "",
        "tests/scenarios/test_queues.py -k 'memory and nobody_knows'",
    ),
    Mutant(
        "a worker that takes no more work stays in line",
        "runtime/worker.py",
        "            self._shared.permits.wait_only_for(full)\n",
        "            pass\n",
        "tests/scenarios/test_queues.py -k 'memory and takes_no_more_work'",
    ),
    Mutant(
        "a turn waits for a permit that it holds itself",
        "runtime/permits.py",
        "return self.in_line and not self._lent and not self._permits.leaving",
        "return self.in_line and not self._permits.leaving",
        "tests/scenarios/test_limits.py -k 'memory and holds_itself'",
    ),
    Mutant(
        "a worker that drains stays in line for permits",
        "runtime/worker.py",
        "        self._shared.permits.leave_line()\n",
        "",
        "tests/scenarios/test_limits.py -k 'memory and drains_begins_nothing'",
    ),
    Mutant(
        "the permits of the dead count for ever",
        "store/permits.py",
        "    rows = [permit for permit in known if permit.alive]",
        "    rows = list(known)",
        f"{STORES} -k 'TestSqlite and permits_of_a_dead_worker'",
    ),
    Mutant(
        "permits are counted without holding their names still",
        "store/postgres/claims.py",
        """        await on.all("permits_lock", names)\n""",
        "",
        f"{STORES} -k 'TestPostgres and a_hundred_who_ask'",
    ),
    Mutant(
        "a call begins before it has its permit",
        "runtime/permits.py",
        "        return self._asked[effect].granted\n",
        "        return True\n",
        "tests/scenarios/test_limits.py -k memory",
    ),
    Mutant(
        "a permit is not given back when its call is over",
        "runtime/permits.py",
        "            task.add_done_callback(lambda _: self._permits.give_back(wanted))\n",
        "            pass\n",
        "tests/scenarios/test_limits.py -k memory",
    ),
    Mutant(
        "a session keeps its seat while others wait",
        "runtime/resident.py",
        "and not (once or self._shared.crowd.waiting):",
        "and not once:",
        "tests/scenarios/test_queues.py -k 'memory and much_to_say'",
    ),
    Mutant(
        "a full queue keeps everybody from working",
        "runtime/worker.py",
        "            if len(full) == known and (taken or not self._line):\n                return\n",
        "            return\n",
        "tests/scenarios/test_queues.py -k 'memory and than_its_number'",
    ),
    Mutant(
        "what is steered stays in the inbox",
        "runtime/turns.py",
        "self._owned.submit(one.said, consume=(one.row,))",
        "self._owned.submit(one.said)",
        f"{STEER} -k 'next_model_call and memory'",
    ),
    Mutant(
        "steering waits for the next turn",
        "runtime/turns.py",
        "                    self._take_in()\n",
        "",
        f"{STEER} -k 'next_model_call and memory'",
    ),
    Mutant(
        "whoever waits for an input that joined another turn is not told",
        "runtime/resident.py",
        "                self._shared.results.leave(instead)",
        "                pass",
        f"{STEER} -k 'parked and sqlite'",
    ),
    Mutant(
        "an interruption does not wake a parked turn",
        "inbox/admit.py",
        'return not isinstance(item, Input) or item.mode == "interrupt"',
        "return not isinstance(item, Input)",
        f"{INTERRUPT} -k 'no_worker and sqlite'",
    ),
    Mutant(
        "a turn that began behind the sender's back is not interrupted",
        "runtime/resident.py",
        "            self.driver.interrupt(request)",
        "            pass",
        f"{INTERRUPT} -k 'behind_the_senders_back and memory'",
    ),
    Mutant(
        "the same interruption again ends another turn",
        "store/memory/store.py",
        "            return Intervened(done=False, admission=admission)",
        "            pass",
        f"{INTERRUPT} -k 'ends_nothing_more and memory'",
    ),
    Mutant(
        "a cancel request wakes nobody by itself",
        "runtime/verbs.py",
        "Intervention(session.stream, delivery=wake, notes=(Entry.of(request, at=now),))",
        "Intervention(session.stream, notes=(Entry.of(request, at=now),))",
        f"{INTERRUPT} -k 'dies_right_after and sqlite'",
    ),
    Mutant(
        "a paused turn goes on",
        "runtime/turns.py",
        "                elif self._paused:\n                    continue\n",
        "",
        f"{PAUSE} -k 'running_turn and memory'",
    ),
    Mutant(
        "a paused stream is claimed (SQLite)",
        "store/sqlite/queries.sql",
        "WHERE s.paused_at IS NULL AND s.format",
        "WHERE s.format",
        f"{STORES} -k 'Sqlite and paused_stream'",
    ),
    Mutant(
        "pausing leaves an idle stream to its owner (SQLite)",
        "store/sqlite/admissions.py",
        '        tx.run("stream_take_back", (stream,))',
        "        pass",
        f"{STORES} -k 'Sqlite and idle_stream_from_its_owner'",
    ),
    Mutant(
        "inputs are taken back one by one (SQLite)",
        "store/sqlite/admissions.py",
        '        if tx.run("inbox_consume", (row, stream)).rowcount != 1:\n            raise stream_moved(name)',
        '        tx.run("inbox_consume", (row, stream))',
        f"{STORES} -k 'Sqlite and withdrawn_together'",
    ),
    Mutant(
        "a merge key leaves what waits",
        "runtime/verbs.py",
        "withdraw=tuple(row.id for row, _ in same)",
        "withdraw=()",
        f"{QUEUE} -k 'takes_the_place and memory'",
    ),
    Mutant(
        "steering is shown in front of the results that were there",
        "session/view.py",
        "    return [*messages, *asked_again]",
        "    return [*asked_again, *messages]",
        "tests/unit/session/test_view.py -k behind_the_results",
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
        "files: they stay when their session is deleted",
        "runtime/session.py",
        "store.delete(self.stream, beside=beside, edges=edges)",
        "store.delete(self.stream, edges=edges)",
        f"{FILES} -k 'go_with_their_session and memory'",
    ),
    Mutant(
        "files: they may be begun beside a session that is gone",
        "store/sqlite/admissions.py",
        'if new.beside is not None and tx.one("stream_target", (new.beside,)) is None:',
        "if False:",
        f"{STORES} -k 'TestSqlite and needs_that_stream'",
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
        "files: paths are stored in the clear",
        "store/encoded.py",
        "entry=self._entry(stream, amendment.entry),",
        "entry=amendment.entry,",
        f"{FILES} -k 'neither_words_nor_names'",
    ),
    Mutant(
        "files: initial ones come back after a restart",
        "runtime/files.py",
        "if await self.store.stream(stream) is None and (seeds := await self.seeds(session_id)):",
        "if seeds := await self.seeds(session_id):",
        f"{FILES} -k 'seeded_once and memory'",
    ),
    Mutant(
        "tasks: what is added after the end is not kept",
        "runtime/tasks.py",
        "after_end=task.is_over",
        "after_end=False",
        "tests/scenarios/test_ended_tasks.py -k 'memory'",
    ),
    Mutant(
        "commands: one begins before that is written",
        "services/command_supervisor.py",
        'if os.read(may_begin, 1) == b"1":',
        "if True:",
        "tests/unit/services/test_os_commands.py -k 'cannot_be_written'",
    ),
    Mutant(
        "commands: a supervisor that comes too late begins it",
        "services/command_supervisor.py",
        '"by": "supervisor"}, once=True)',
        '"by": "supervisor"})',
        f"{COMMANDS} -k 'too_late and memory'",
    ),
    Mutant(
        "commands: it is spawned before it is said",
        "runtime/commands.py",
        "        await self._note(spawning(new))\n",
        "        folder.wait(folder.spawn())\n        await self._note(spawning(new))\n",
        "tests/crash/test_commands.py -k 'runs_once and sqlite and spawning'",
    ),
    Mutant(
        "commands: a process that has its number is taken for it",
        "services/os_commands.py",
        "supervisor.start_of(pid) == start",
        "supervisor.start_of(pid) > 0",
        f"{COMMANDS} -k 'its_number and memory'",
    ),
    Mutant(
        "commands: what nobody saw the end of is run again",
        "services/os_commands.py",
        'return Gone("it is not there any more, and nobody saw how it ended")',
        "return NotBegun()",
        f"{COMMANDS} -k 'nobody_saw and memory'",
    ),
    Mutant(
        "commands: what was printed is taken twice",
        "runtime/commands.py",
        "self._state.taken.get(stream, 0), self._state.command.keep_bytes",
        "0, self._state.command.keep_bytes",
        f"{COMMANDS} -k 'another_worker_goes_on and memory'",
    ),
    Mutant(
        "commands: a signal that was only said is not sent",
        "processes/commands.py",
        "if asked is None or asked.by != worker:",
        "if asked is None:",
        "tests/crash/test_commands.py -k 'carried_out and sqlite'",
    ),
    Mutant(
        "commands: another machine adopts it",
        "runtime/commands.py",
        'return (f"{DEFINITION}{self.host}",)',
        'return (f"{DEFINITION}here", f"{DEFINITION}there")',
        f"{COMMANDS} -k 'another_machine and memory'",
    ),
    Mutant(
        "background: what may run once is begun again",
        "runtime/background.py",
        "if again and not reattachable:",
        "if False:",
        "tests/crash/test_background.py -k 'begun_once'",
        also=Mutant(
            "",
            "runtime/tasks.py",
            'recovery="rerunnable" if reattachable else "owner_bound",',
            'recovery="rerunnable",',
            "",
        ),
    ),
    Mutant(
        "background: an orphan is never told of",
        "runtime/process_resident.py",
        "if await self._is_orphan():",
        "if False:",
        "tests/crash/test_background.py -k 'first_second and sqlite'",
    ),
    Mutant(
        "background: the message of the end is forgotten",
        "runtime/process_driver.py",
        "self._owned.submit(*self._unused(ended), end, sends=sends)",
        "self._owned.submit(*self._unused(ended), end)",
        f"{BACKGROUND} -k 'executes_and_signals and memory'",
    ),
    Mutant(
        "background: whoever is quick gets past the limit of a session",
        "runtime/tasks.py",
        "if len(open_runs) - len(over) >= MAX_ACTIVE_PER_SESSION:",
        "if False:",
        f"{BACKGROUND} -k 'limit_reached and memory'",
    ),
    Mutant(
        "background: a task that has ended ends otherwise",
        "services/tasks.py",
        "if task.is_over and update.state not in (None, task.state):",
        "if False:",
        "tests/unit/services/test_tasks.py -k 'stays_as_it_ended'",
    ),
    Mutant(
        "background: another session's task is shown",
        "runtime/tasks.py",
        "if task is None or task.session_id != session_id:",
        "if task is None:",
        f"{BACKGROUND} -k 'another_session and memory'",
    ),
    Mutant(
        "sub-agents: a turn parks although a child has told its end",
        "runtime/turns.py",
        "if self.turn.cancel or heard or self._heard:",
        "if self.turn.cancel:",
        "tests/scenarios/test_subagents.py -k 'goes_on_with_its_answer and memory'",
    ),
    Mutant(
        "sub-agents: a turn that ends lets nobody go",
        "runtime/subagents.py",
        "    yield from let_go(stream, facts, at)\n",
        "",
        "tests/scenarios/test_subagents.py -k 'cancels_its_child and memory'",
    ),
    Mutant(
        "sub-agents: children in the background are let go too",
        "runtime/subagents.py",
        'if not order.background and part_beside(id, "answer") not in settled:',
        'if part_beside(id, "answer") not in settled:',
        "tests/scenarios/test_subagents.py -k 'cancels_its_child and memory'",
    ),
    Mutant(
        "sub-agents: a number that was taken this moment counts as ours",
        "services/spawns.py",
        "            if noted.new:\n",
        "            if noted.row:\n",
        "tests/scenarios/test_subagents.py -k 'numbers_are_given_once and memory'",
    ),
    Mutant(
        "sub-agents: what a child used is not told to its root",
        "runtime/subagents.py",
        "for to in dict.fromkeys((parent.stream, parent.root)):",
        "for to in (parent.stream,):",
        "tests/scenarios/test_subagents.py -k 'depth_limit and memory'",
    ),
    Mutant(
        "a process that has ended stays in the list of live ones (SQLite)",
        "store/sqlite/log.py",
        "    if ends(entries):",
        "    if False and ends(entries):",
        "tests/conformance/test_stores.py -k 'whatever_ends_a_stream and Sqlite'",
    ),
    Mutant(
        "a process that has ended stays in the list of live ones (Postgres)",
        "store/postgres/appends.py",
        "            if ends(plan.entries):\n                self.ended",
        "            if False and ends(plan.entries):\n                self.ended",
        "tests/conformance/test_stores.py -k 'whatever_ends_a_stream and Postgres'",
    ),
    Mutant(
        "a tool reaches processes that its session does not see",
        "runtime/process_edges.py",
        "if info is None or seen_from(scope) not in info.tags:",
        "if info is None:",
        "tests/scenarios/test_process_visibility.py -k 'reaches_only and memory'",
    ),
    Mutant(
        "a deleted session leaves its edges to a namesake",
        "runtime/session.py",
        "beside=beside, edges=edges)",
        "beside=beside)",
        "tests/scenarios/test_process_visibility.py -k 'takes_its_edges and memory'",
    ),
    Mutant(
        "a signal that is said again after the end is refused",
        "runtime/process_handle.py",
        "known = await store.find(self.stream, event_key(new.event, new.replay)) or ended",
        "known = ended",
        "tests/scenarios/test_process_visibility.py -k 'attempt_that and memory'",
    ),
    Mutant(
        "the commands of a tool are not recorded with its call",
        "runtime/process_client.py",
        "            if self._body is None:\n                return await perform()\n            nth",
        "            return await perform()\n            nth",
        "tests/scenarios/test_process_visibility.py -k 'starts_signals_and_awaits and memory'",
    ),
    Mutant(
        "the id of a deleted process is used again (SQLite)",
        "store/sqlite/admissions.py",
        "    if opening and new.once and",
        "    if False and opening and new.once and",
        "tests/conformance/test_stores.py -k 'name_that_is_used_once and Sqlite'",
    ),
    Mutant(
        "an abandoned process keeps its sub-agent at work",
        "runtime/process_resident.py",
        "sends=(*farewell(self._shared, self._tenant, self.record, event), *gone))",
        "sends=farewell(self._shared, self._tenant, self.record, event))",
        "tests/scenarios/test_process_ends.py -k 'lets_go and memory'",
    ),
    Mutant(
        "an edge makes a process live again",
        "store/sqlite/queries.sql",
        "WHERE NOT (:tag >= 'live:'",
        "WHERE NOT (:tag < '' AND :tag >= 'live:'",
        "tests/conformance/test_stores.py -k 'ended_gets_no_live_tag and Sqlite'",
    ),
    Mutant(
        "a page of processes is found by an index that does not begin with its tag (Postgres)",
        "store/postgres/queries.sql",
        "AND wanted.tag >= $3 AND (wanted.tag, wanted.stream) < ($3, $4)",
        "AND wanted.tag = $3 AND wanted.stream < $4",
        "tests/unit/store/test_many_processes.py -k 'page_and_a_look'",
    ),
]


def main() -> int:
    """Run every mutant, or those whose name contains an argument; the number that survived is the exit code."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if only in mutant.name]
    survivors = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, verdict in zip(chosen, pool.map(_run, chosen), strict=True):
            survivors += verdict != "killed"
            print(f"{verdict:9} {mutant.name}\n          {mutant.test}", flush=True)
    print(f"{len(chosen) - survivors} passed, {survivors} failed")
    return survivors if chosen else 1


def _run(mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "dev", "pyproject.toml"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        if not mutant.apply(copy / "src" / "perdure"):
            return "STALE"
        return _verdict(copy, mutant)


def _verdict(copy: Path, mutant: Mutant) -> str:
    arguments = _split(mutant.test)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=30", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "killed"  # it hangs, which no test would let pass
    if done.returncode == 1:
        return "killed"
    if done.returncode == 0:
        return "SURVIVED"
    print(done.stdout[-2000:], done.stderr[-2000:])
    return "BROKEN"


def _split(test: str) -> list[str]:
    path, _, expression = test.partition(" -k ")
    return [path, "-k", expression.strip("'")] if expression else [path]


if __name__ == "__main__":
    sys.exit(main())
