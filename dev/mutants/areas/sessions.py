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

MUTANTS = [
    Mutant(
        "a program's call is allowed by an approval that it does not use up",
        "runtime/calls/child_leave.py",
        "self.owned.need(() if decision.grant else (key.key_id,), unless, on_trial=True)",
        "pass",
        f"{CODE} -k 'parked_or_not and memory'",
    ),
    Mutant(
        "what a person makes of a child call is ignored",
        "runtime/calls/child_leave.py",
        "allowed = call if decision.args is None else replace(call, args=decision.args)",
        "allowed = call",
        f"{CODE} -k 'parked_or_not and memory'",
    ),
    Mutant(
        "a prompt of a tool's own passes no veil",
        "runtime/calls/completions.py",
        "_veiled(_messages(asked.messages), self._veil)",
        "_messages(asked.messages)",
        f"{SECRETS} -k 'nowhere_else and memory'",
    ),
    Mutant(
        "whoever works on a cancelled call is told although the tool says ignore",
        "runtime/turns/cancelling.py",
        'telling = call.pending.pending.on_cancel == "cancel_external_work"',
        "telling = True",
        f"{PROMISES} -k 'says_ignore and memory'",
    ),
    Mutant(
        "how a call ended is forgotten if the turn is cancelled in the same moment",
        "runtime/turns/loop.py",
        "in owed(replace(self.turn, cancel=None)) if",
        "in owed(self.turn) if not isinstance(item, EndTurn) and",
        f"{LAST_MOMENT} -k 'memory'",
    ),
    Mutant(
        "what a call says while it is being stopped is not looked at",
        "runtime/turns/cancelling.py",
        "driver.settle_landed()  # what came while it was halted",
        "pass  #",
        f"{LAST_MOMENT} -k 'being_stopped and memory'",
    ),
    Mutant(
        "what became of a call is asked about the model's arguments",
        "runtime/turns/envelopes.py",
        "wait), about=prepared or _as_made(call))",
        "wait), about=_as_made(call))",
        f"{EDITED} -k 'asked_about and memory'",
    ),
    Mutant(
        "a second attempt needs nobody's leave, although the first never began",
        "runtime/turns/starts.py",
        "return any(driver.controller.journal.started(ref.id) for ref in refs)",
        "return item.ref.attempt > 1 or any(driver.controller.journal.started(ref.id) for ref in refs)",
        f"{EDITED} -k 'first_preparation_failed and memory'",
    ),
    Mutant(
        "a turn is parked without a word about what it waits for",
        "runtime/turns/loop.py",
        "        return await self.owned.park(promises, due_at)",
        "        return await self.owned.park((), due_at)",
        f"{WHILE_PARKING} -k 'not_lost and memory'",
    ),
    Mutant(
        "a cancel that comes while a turn is being parked is lost",
        "runtime/turns/loop.py",
        "return False  # learned meanwhile, and what would have woken the stream is used up",
        "pass",
        f"{PROMISES} -k 'while_the_turn_is_being_parked and memory'",
    ),
    Mutant(
        "a call of the client is dispatched here",
        "runtime/turns/starts.py",
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
        "silence means nothing",
        "runtime/worker/waits.py",
        "ending = TimedOut() if silence is None else Ok(value=silence)",
        "ending = TimedOut()",
        f"{CLIENTS} -k 'silence and memory'",
    ),
    Mutant(
        "no journal lookup: a resumed turn forgets what was settled",
        "runtime/turns/beginnings.py",
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
        "any session reads any attachment",
        "runtime/turns/world.py",
        "store.blob(ref.hash, stream=self._stream)",
        "store.blob(ref.hash)",
        "tests/scenarios/test_clients.py::test_bytes_are_kept_with_the_outcome_and_only_their_session_reads_them",
    ),
    Mutant(
        "a once tool runs as the child of a body that records nothing",
        "runtime/calls/children.py",
        'if effect != "pure" and (self._parent.body is None or (effect == "resumable" and not alone)):',
        'if effect == "resumable" and not alone:',
        "tests/scenarios/test_clients.py::test_children_answer_in_source_order_and_what_cannot_run_is_answered_too",
    ),
    Mutant(
        "children of a resumable body are not recorded",
        "runtime/calls/children.py",
        "(self._attempt(child) if self._parent.body is None else self._step(child))",
        "self._attempt(child)",
        "tests/scenarios/test_children.py::"
        "test_children_of_a_resumable_body_are_steps_and_run_once_however_often_it_is_entered",
    ),
    Mutant(
        "bytes that a step refers to wait for the end of its call",
        "runtime/calls/clients.py",
        "        if self._keep is not None:\n",
        "        if False:\n",
        "tests/scenarios/test_children.py::test_bytes_that_a_step_refers_to_are_there_when_the_body_is_entered_again",
    ),
    Mutant(
        "a turn is parked although a step has begun meanwhile",
        "runtime/turns/loop.py",
        "return self._patience.left_s(self.flights.values(), hurried=True) == 0.0",
        "return True",
        f"{BODIES}::test_a_step_that_begins_beside_a_wait_keeps_the_turn_from_being_parked[memory]",
    ),
    Mutant(
        "timer reset in the turn",
        "runtime/turns/starts.py",
        "due_at = item.due_at if item.due_at is not None else",
        "due_at = (item.due_at or 0) + 3_600_000 if item.due_at is not None else",
        f"{ORDER}::test_a_sleep_keeps_its_original_moment_through_a_restart",
    ),
    Mutant(
        "an accepted input is consumed without its record",
        "runtime/turns/beginnings.py",
        "self._owned.submit(said, record, consume=consume)",
        "self._owned.submit(consume=consume); self._owned.flush(); self._owned.submit(said, record)",
        f"{SWEEP}::test_killed_at_a_durable_boundary[one_once-2:after]",
    ),
    Mutant(
        "a resumed turn is no longer marked as unfinished",
        "runtime/turns/resident.py",
        "        self._owned.active = self.state.open_turn is not None\n",
        "",
        f"{SWEEP} -k died_twice",
    ),
    Mutant(
        "late outcomes dropped",
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
        f"{ORDER}::test_a_result_and_an_event_leave_only_when_everything_before_them_is_durable",
    ),
    Mutant(
        "what a tool says leaves before the facts before it are durable",
        "runtime/turns/live_pieces.py",
        "        if self._owned.settled:\n            self._publish(piece)",
        "        if True:\n            self._publish(piece)",
        f"{SURFACE} -k what_a_tool_says_leaves_only",
    ),
    Mutant(
        "pictures are referred to and not stored",
        "runtime/calls/perform.py",
        "return stored, (*pictures, ",
        "return stored, (*(), ",
        f"{SURFACE} -k pictures_are_stored",
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
        "what was withdrawn is still in the journal",
        "runtime/turns/loop.py",
        "            self.controller.journal.unfold(record)\n",
        "",
        f"{LEAVE} -k 'revoked and memory'",
    ),
    Mutant(
        "an approval that the store finds expired is tried again and again",
        "runtime/turns/loop.py",
        "            self._lapse(*leave)\n",
        "            pass\n",
        f"{LEAVE} -k 'stores_clock and memory'",
    ),
    Mutant(
        "what is answered while a wait looks first is noticed when it parks",
        "runtime/worker/waits.py",
        "            if key and (known := await self._look_first(owner, key)):\n                return known\n",
        "            self._open.pop(wait)\n            if key and (known := await self._look_first(owner, key)):\n"
        "                return known\n            self._open[wait] = None\n",
        f"{WHILE_PARKING} -k 'first_look and sqlite'",
    ),
    Mutant(
        "a step that its body went on without stays without an outcome",
        "runtime/turns/loop.py",
        "        self.controller.doubt_unsettled_steps(LEFT_BEHIND, body=body)\n",
        "",
        "tests/scenarios/test_left_behind.py -k 'memory and beside_a_failure'",
    ),
    Mutant(
        "a body that had begun is said not to have been run",
        "runtime/turns/starts.py",
        "told = with_steps(ready, driver.controller.journal.steps(body_of(item)))",
        "told = ready",
        "tests/scenarios/test_left_behind.py -k 'memory and whose_tool_is_gone'",
    ),
    Mutant(
        "bytes that a call keeps belong to no record",
        "runtime/turns/loop.py",
        "            self.submit(kept)\n",
        "",
        "tests/scenarios/test_clients.py -k 'memory and can_be_redacted'",
    ),
    Mutant(
        "a turn that has changed hands is resumed with what it began with",
        "runtime/turns/beginnings.py",
        "turn = taken_over(turn, record, await compositions.get(kept))",
        "turn = taken_over(turn, record, turn.composition)",
        "tests/scenarios/test_handing_over.py -k 'wherever_the_process_dies and sqlite'",
    ),
    Mutant(
        "a session keeps its seat while others wait",
        "runtime/turns/resident.py",
        "and not (once or self._shared.crowd.waiting):",
        "and not once:",
        "tests/scenarios/test_queues.py -k 'memory and much_to_say'",
    ),
    Mutant(
        "what is steered stays in the inbox",
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
        "whoever waits for an input that joined another turn is not told",
        "runtime/turns/resident.py",
        "                self._shared.results.leave(instead)",
        "                pass",
        f"{STEER} -k 'parked and sqlite'",
    ),
    Mutant(
        "a turn that began behind the sender's back is not interrupted",
        "runtime/turns/resident.py",
        "            self.driver.interrupt(request)",
        "            pass",
        f"{INTERRUPT} -k 'behind_the_senders_back and memory'",
    ),
    Mutant(
        "a paused turn goes on",
        "runtime/turns/loop.py",
        "                elif self._paused:\n                    continue\n",
        "",
        f"{PAUSE} -k 'running_turn and memory'",
    ),
    Mutant(
        "files: they stay when their session is deleted",
        "runtime/sessions/verbs.py",
        "store.delete(stream, beside=beside, edges=edges, sends=told)",
        "store.delete(stream, edges=edges, sends=told)",
        f"{FILES} -k 'go_with_their_session and memory'",
    ),
    Mutant(
        "sub-agents: a turn parks although a child has told its end",
        "runtime/turns/loop.py",
        "if self.turn.cancel or heard or self._heard:",
        "if self.turn.cancel:",
        "tests/scenarios/test_subagents.py -k 'goes_on_with_its_answer and memory'",
    ),
    Mutant(
        "sub-agents: a turn that ends lets nobody go",
        "runtime/turns/subagents.py",
        "    yield from let_go(stream, facts, at)\n",
        "",
        "tests/scenarios/test_subagents.py -k 'cancels_its_child and memory'",
    ),
    Mutant(
        "sub-agents: children in the background are let go too",
        "runtime/turns/subagents.py",
        'if not order.background and part_beside(id, "answer") not in settled:',
        'if part_beside(id, "answer") not in settled:',
        "tests/scenarios/test_subagents.py -k 'cancels_its_child and memory'",
    ),
    Mutant(
        "sub-agents: what a child used is not told to its root",
        "runtime/turns/subagents.py",
        "for to in dict.fromkeys((parent.stream, parent.root)):",
        "for to in (parent.stream,):",
        "tests/scenarios/test_subagents.py -k 'depth_limit and memory'",
    ),
    Mutant(
        "a deleted session leaves its edges to a namesake",
        "runtime/sessions/verbs.py",
        "beside=beside, edges=edges, sends=told)",
        "beside=beside, sends=told)",
        "tests/scenarios/test_process_visibility.py -k 'takes_its_edges and memory'",
    ),
    Mutant(
        "people: a blank turn is the one that runs",
        "runtime/sessions/session.py",
        """        if turn is not None:  # a blank one is a slip""",
        """        if turn:  # a blank one is a slip""",
        "tests/scenarios/test_bad_input.py -k 'slip_never and memory'",
    ),
    Mutant(
        "people: what somebody says in any order is seen: a steered input stays in the inbox",
        "runtime/turns/starts.py",
        "driver.owned.submit(one.said, consume=(one.row,))",
        "driver.owned.submit(one.said)",
        "tests/scenarios/test_verbs_at_random.py -k memory",
    ),
]
