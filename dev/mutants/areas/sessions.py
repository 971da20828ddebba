"""Mutants of driving the turns of a session."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

SWEEP = "tests/crash/test_sweep.py"
ORDER = "tests/scenarios/test_order_of_durability.py"
SURFACE = "tests/scenarios/test_tool_surface.py"
LAST_MOMENT = "tests/scenarios/test_cancelling_in_the_last_moment.py"
EDITED = "tests/scenarios/test_edited_calls.py"
BODIES = "tests/scenarios/test_bodies.py"
PROMISES = "tests/scenarios/test_promises.py"
WHILE_PARKING = "tests/scenarios/test_answered_while_parking.py"
CLIENTS = "tests/scenarios/test_client_side.py"
STEER = "tests/scenarios/test_steering.py"
INTERRUPT = "tests/scenarios/test_interrupting.py"
PAUSE = "tests/scenarios/test_pausing.py"
SECRETS = "tests/scenarios/test_secrets.py"
LEAVE = "tests/scenarios/test_leave_in_the_last_moment.py"
FILES = "tests/scenarios/test_files.py"
CODE = "tests/scenarios/test_code_mode.py"
IMPORTS = "tests/scenarios/test_import_bounds.py"

MUTANTS = [
    Mutant(
        "an import accepts an effect id that this version cannot give",
        "runtime/sessions/archive.py",
        "if ref.id != effect or not all(0 <= (n or 0) <= MAX_RECORDS for n in numbers):",
        "if False:",
        "tests/scenarios/test_import_bounds.py -k 's23_import_refuses'",
    ),
    Mutant(
        "an imported past chooses its agent",
        "runtime/sessions/archive.py",
        "for record in (*_closing(rows), SessionImported(agent=owner))]",
        "for record in _closing(rows)]",
        f"{IMPORTS} -k 'requested_agent and memory'",
    ),
    Mutant(
        "negative usage of a model gives budget back",
        "vocab/usage.py",
        "min(max(n, 0), MAX_COUNT) if type(n) is int else 0",
        "n",
        f"{IMPORTS} -k 'budget_back and memory'",
    ),
    Mutant(
        "an approval for a program's call is not consumed",
        "runtime/calls/child_leave.py",
        "self.owned.need(() if decision.grant else (key.key_id,), unless, provisional=True)",
        "pass",
        f"{CODE} -k 'parked_or_not and memory'",
    ),
    Mutant(
        "edited arguments of a child call are ignored",
        "runtime/calls/child_leave.py",
        "allowed = call if decision.args is None else replace(call, args=decision.args)",
        "allowed = call",
        f"{CODE} -k 'parked_or_not and memory'",
    ),
    Mutant(
        "a tool's prompt is not redacted",
        "runtime/calls/reading.py",
        "model.stream(await without_secrets(request))",
        "model.stream(request)",
        f"{SECRETS} -k 'nowhere_else and memory'",
    ),
    Mutant(
        "external work is cancelled although the tool says ignore",
        "runtime/turns/cancelling.py",
        'telling = call.pending.pending.on_cancel == "cancel_external_work"',
        "telling = True",
        f"{PROMISES} -k 'cancelled_call and memory'",
    ),
    Mutant(
        "a concurrent cancel drops the outcome of a call",
        "runtime/turns/loop.py",
        "in owed(replace(self.turn, cancel=None)) if",
        "in owed(self.turn) if not isinstance(item, EndTurn) and",
        f"{LAST_MOMENT} -k 'memory'",
    ),
    Mutant(
        "the outcome of a call that is being stopped is ignored",
        "runtime/turns/cancelling.py",
        "driver.settle_completed()  # results that arrived during the halt",
        "pass  #",
        f"{LAST_MOMENT} -k 'result_returned and memory'",
    ),
    Mutant(
        "a doubt request shows the model's arguments, not the edited ones",
        "runtime/turns/envelopes.py",
        "wait), about=prepared or _as_made(call))",
        "wait), about=_as_made(call))",
        f"{EDITED} -k 'doubt_about_an_edited_call and memory'",
    ),
    Mutant(
        "a second attempt skips the approval although the first never began",
        "runtime/turns/starts.py",
        "return any(driver.controller.journal.started(ref.id) for ref in refs)",
        "return item.ref.attempt > 1 or any(driver.controller.journal.started(ref.id) for ref in refs)",
        f"{EDITED} -k 'first_preparation_failed and memory'",
    ),
    Mutant(
        "a turn is parked without its promises",
        "runtime/turns/loop.py",
        "        return await self.owned.park(promises, due_at)",
        "        return await self.owned.park((), due_at)",
        f"{WHILE_PARKING} -k 'not_lost and memory'",
    ),
    Mutant(
        "a cancel during parking is lost",
        "runtime/turns/loop.py",
        "return False  # arrived meanwhile, and the wake that announced it is consumed",
        "pass",
        f"{PROMISES} -k 'cancel_during_parking and memory'",
    ),
    Mutant(
        "a client-side call is dispatched by the worker",
        "runtime/turns/starts.py",
        "if ready.prepared.contract.client_side:",
        "if False:",
        f"{CLIENTS} -k 'never_run and memory'",
        also=Mutant(
            "and is executed",
            "tools/door.py",
            "if prepared.contract.client_side:",
            "if False:",
            "",
        ),
    ),
    Mutant(
        "the default answer on timeout is ignored",
        "runtime/worker/waits.py",
        "ending = TimedOut() if silence is None else Ok(value=silence)",
        "ending = TimedOut()",
        f"{CLIENTS} -k 'silence and memory'",
    ),
    Mutant(
        "a resumed turn ignores settled effects",
        "runtime/turns/opening.py",
        "enumerate(records[records.index(start) + 1 :], 1):",
        "enumerate((), 1):",
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
        "any session reads any attachment",
        "runtime/turns/environment.py",
        "store.blob(ref.hash, stream=self._stream)",
        "store.blob(ref.hash)",
        "tests/scenarios/test_clients.py::test_bytes_are_kept_with_the_outcome_and_only_their_session_reads_them",
    ),
    Mutant(
        "a once tool runs as the child of a body that records nothing",
        "runtime/calls/children.py",
        'if effect != "pure" and (self._origin.body is None or (effect == "resumable" and not alone)):',
        'if effect == "resumable" and not alone:',
        "tests/scenarios/test_clients.py::test_children_answer_in_source_order_and_what_cannot_run_is_answered_too",
    ),
    Mutant(
        "children of a resumable body are not recorded",
        "runtime/calls/children.py",
        "(self._attempt(child) if self._origin.body is None else self._step(child))",
        "self._attempt(child)",
        "tests/scenarios/test_children.py::test_child_calls_of_a_body_run_once_despite_reentry",
    ),
    Mutant(
        "bytes of a step are stored only at the end of its call",
        "runtime/calls/clients.py",
        "        if self._keep is not None:\n",
        "        if False:\n",
        "tests/scenarios/test_children.py::test_attachment_of_a_step_is_readable_after_reentry",
    ),
    Mutant(
        "a turn is parked although a step has begun",
        "runtime/turns/loop.py",
        "return self._idle_policy.left_s(self.flights.values(), evicting=True) == 0.0",
        "return True",
        f"{BODIES}::test_step_concurrent_with_a_wait_prevents_parking[memory]",
    ),
    Mutant(
        "the turn resets a sleep's due time",
        "runtime/turns/starts.py",
        "due_at = item.due_at if item.due_at is not None else",
        "due_at = (item.due_at or 0) + 3_600_000 if item.due_at is not None else",
        f"{ORDER}::test_a_sleep_keeps_its_original_moment_through_a_restart",
    ),
    Mutant(
        "an accepted input is consumed without its record",
        "runtime/turns/opening.py",
        "self._owned.submit(said, record, consume=consume)",
        "self._owned.submit(consume=consume); self._owned.flush(); self._owned.submit(said, record)",
        f"{SWEEP}::test_killed_at_a_durable_boundary[one_once-2:after]",
    ),
    Mutant(
        "a resumed turn is not marked as unfinished",
        "runtime/turns/session_host.py",
        "        self._owned.active = self.state.open_turn is not None\n",
        "",
        f"{SWEEP} -k turn_resumes_on_a_fresh_worker",
    ),
    Mutant(
        "late outcomes are dropped",
        "runtime/worker/orphans.py",
        "await self._store.admit(late)",
        "pass",
        "tests/crash/test_zombie.py::test_a_thawed_worker_writes_nothing_and_its_late_outcome_reaches_the_log",
    ),
    Mutant(
        "results are shown before they are durable",
        "runtime/turns/loop.py",
        "                await self.durable()\n                return self.turn.ended",
        "                return self.turn.ended",
        f"{ORDER}::test_result_and_event_are_published_after_their_records_commit",
    ),
    Mutant(
        "tool output is published before earlier facts are durable",
        "runtime/turns/live_pieces.py",
        "        if self._owned.settled:\n            self._publish(piece)",
        "        if True:\n            self._publish(piece)",
        f"{SURFACE} -k tool_progress",
    ),
    Mutant(
        "pictures are referenced but not stored",
        "runtime/calls/perform.py",
        "return stored, (*pictures, ",
        "return stored, (*(), ",
        f"{SURFACE} -k pictures_are_stored",
    ),
    Mutant(
        "any session reads stored results of another",
        "runtime/services.py",
        "ref = await self._kept(call)",
        "ref = await StoredResults(self.store, StreamId('default:session:mine'), self.durable)._kept(call)",
        f"{SURFACE} -k reading_on_is_confined",
        also=Mutant(
            "", "runtime/services.py", "self.store.blob(ref.hash, stream=self.stream)", "self.store.blob(ref.hash)", ""
        ),
    ),
    Mutant(
        "a withdrawn record stays in the journal",
        "runtime/turns/loop.py",
        "            self.controller.journal.unfold(record)\n",
        "",
        f"{LEAVE} -k 'revoked and memory'",
    ),
    Mutant(
        "an approval refused as expired is retried forever",
        "runtime/turns/loop.py",
        "            self._lapse(*leave)\n",
        "            pass\n",
        f"{LEAVE} -k 'expires_by_the_store_clock and memory'",
    ),
    Mutant(
        "a resolution during the first poll is noticed only at parking",
        "runtime/worker/waits.py",
        "            if key and (known := await self._look_first(owner, key)):\n                return known\n",
        "            self._open.pop(wait)\n            if key and (known := await self._look_first(owner, key)):\n"
        "                return known\n            self._open[wait] = None\n",
        f"{WHILE_PARKING} -k 'between_first_poll_and_wait and sqlite'",
    ),
    Mutant(
        "a step abandoned by its body has no outcome",
        "runtime/turns/loop.py",
        "        self.controller.doubt_unsettled_steps(LEFT_BEHIND, body=body)\n",
        "",
        "tests/scenarios/test_left_behind.py -k 'memory and beside_a_failure'",
    ),
    Mutant(
        "a started body is reported as not run",
        "runtime/turns/starts.py",
        "told = with_steps(ready, driver.controller.journal.steps(body_of(item)))",
        "told = ready",
        "tests/scenarios/test_left_behind.py -k 'memory and removed_tool'",
    ),
    Mutant(
        "bytes stored by a call belong to no record",
        "runtime/turns/loop.py",
        "            self.submit(kept)\n",
        "",
        "tests/scenarios/test_clients.py -k 'memory and stored_attachment'",
    ),
    Mutant(
        "a turn after a handoff resumes with the first agent",
        "runtime/turns/opening.py",
        "turn = taken_over(turn, record, await compositions.get(kept))",
        "turn = taken_over(turn, record, turn.composition)",
        "tests/scenarios/test_handing_over.py -k 'wherever_the_process_dies and sqlite'",
    ),
    Mutant(
        "a session keeps its slot while others wait",
        "runtime/turns/session_host.py",
        "and not (once or self._shared.crowd.waiting):",
        "and not once:",
        "tests/scenarios/test_queues.py -k 'memory and (much_to_say or busy_session)'",
    ),
    Mutant(
        "a steered input stays in the inbox",
        "runtime/turns/starts.py",
        "driver.owned.submit(one.said, consume=(one.row,))",
        "driver.owned.submit(one.said)",
        f"{STEER} -k 'next_model_call and memory'",
    ),
    Mutant(
        "steering waits for the next turn",
        "runtime/turns/starts.py",
        "                _take_in(driver)\n",
        "",
        f"{STEER} -k 'next_model_call and memory'",
    ),
    Mutant(
        "a waiter of an input that joined another turn is not notified",
        "runtime/turns/session_host.py",
        "                self._shared.results.leave(instead)",
        "                pass",
        f"{STEER} -k 'parked and sqlite'",
    ),
    Mutant(
        "a turn that began concurrently with the send is not interrupted",
        "runtime/turns/session_host.py",
        "            self.driver.interrupt(request)",
        "            pass",
        f"{INTERRUPT} -k 'turn_started and memory'",
    ),
    Mutant(
        "a paused turn continues",
        "runtime/turns/loop.py",
        "                elif self._paused:\n                    continue\n",
        "",
        f"{PAUSE} -k 'running_turn and memory'",
    ),
    Mutant(
        "files: the files of a deleted session stay",
        "runtime/sessions/verbs.py",
        "store.delete(stream, beside=beside, edges=edges, outbox=told, audit=audit)",
        "store.delete(stream, edges=edges, outbox=told, audit=audit)",
        f"{FILES} -k 'go_with_their_session and memory'",
    ),
    Mutant(
        "sub-agents: a turn parks although a child's end has arrived",
        "runtime/turns/loop.py",
        "if self.turn.cancel or heard or self._heard:",
        "if self.turn.cancel:",
        "tests/scenarios/test_subagents.py -k 'goes_on_with_its_answer and memory'",
    ),
    Mutant(
        "sub-agents: the end of a turn does not cancel its children",
        "runtime/turns/subagents.py",
        "    yield from let_go(stream, facts, at)\n",
        "",
        "tests/scenarios/test_subagents.py -k 'cancels_its_child and memory'",
    ),
    Mutant(
        "sub-agents: the end of a turn cancels background children",
        "runtime/turns/subagents.py",
        'if not order.background and part_beside(id, "answer") not in settled:',
        'if part_beside(id, "answer") not in settled:',
        "tests/scenarios/test_subagents.py -k 'cancels_its_child and memory'",
    ),
    Mutant(
        "sub-agents: a child's usage is not reported to the root",
        "runtime/turns/subagents.py",
        "for to in dict.fromkeys((parent.stream, parent.root)):",
        "for to in (parent.stream,):",
        "tests/scenarios/test_subagents.py -k 'depth_limit and memory'",
    ),
    Mutant(
        "the visibility entries of a deleted session pass to its namesake",
        "runtime/sessions/verbs.py",
        "beside=beside, edges=edges, outbox=told, audit=audit)",
        "beside=beside, outbox=told, audit=audit)",
        "tests/scenarios/test_process_visibility.py -k 'takes_its_edges and memory'",
    ),
    Mutant(
        "people: a blank turn id cancels the running turn",
        "runtime/sessions/session.py",
        """        if turn is not None:  # a blank id is an error""",
        """        if turn_id:  # a blank id is an error""",
        "tests/scenarios/test_bad_input.py -k 'slip_never and memory'",
    ),
    Mutant(
        "random verbs: a steered input stays in the inbox",
        "runtime/turns/starts.py",
        "driver.owned.submit(one.said, consume=(one.row,))",
        "driver.owned.submit(one.said)",
        "tests/scenarios/test_verbs_at_random.py -k memory",
    ),
]
