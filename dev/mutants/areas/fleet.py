"""Mutants of workers: who owns what, what it serves, how much at once."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

APPROVALS = "tests/scenarios/test_approvals.py"
WHILE_PARKING = "tests/scenarios/test_answered_while_parking.py"
LEAVE = "tests/scenarios/test_leave_in_the_last_moment.py"
SLOW = "tests/scenarios/test_slow_answers.py"

MUTANTS = [
    Mutant(
        "who leaves before it has read a turn says that nobody must go on with it",
        "runtime/worker/held.py",
        "        if not self._loaded:\n            await self.let_go()\n            return\n",
        "",
        f"{SLOW} -k 'taken_over_by_who_leaves and memory'",
    ),
    Mutant(
        "what a worker is given when it has left stays with it",
        "runtime/worker/serving.py",
        "        if claim and self.closed:\n            self._free(claim)\n        elif claim:\n",
        "        if claim:\n",
        f"{SLOW} -k 'in_which_it_leaves and memory'",
    ),
    Mutant(
        "what a worker asked for before it left stays with it",
        "runtime/worker/serving.py",
        "            asked.add_done_callback(self._came_too_late)\n",
        "",
        f"{SLOW} -k 'is_given_when_it_has_left and memory'",
    ),
    Mutant(
        "a claim that was overtaken is believed",
        "runtime/worker/serving.py",
        "(admission.fence or 0) < self._newest.get(new.stream, 0)",
        "not admission",
        f"{SLOW} -k 'asks_its_model_once and memory'",
    ),
    Mutant(
        "who leaves stays in line for a seat",
        "runtime/worker/permits.py",
        "(set() if self.leaving else set(queues))",
        "set(queues)",
        f"{SLOW} -k 'no_seat_when_it_has_left and memory'",
    ),
    Mutant(
        "a session rests longer and longer because the store was away",
        "runtime/worker/serving.py",
        "_STORE_BACKOFF_S if problem is not None and problem.code in _STORE_AWAY else _LAST_BACKOFF_S",
        "_LAST_BACKOFF_S",
        "tests/scenarios/test_store_faults.py -k 'comes_back and memory'",
    ),
    Mutant(
        "nobody here hears of what was sent",
        "runtime/worker/owned.py",
        "            self._stir({",
        "            _ = ({",
        "tests/scenarios/test_sends.py -k 'begins_at_once and sqlite and new'",
    ),
    Mutant(
        "an import brings grants with it",
        "runtime/sessions/archive.py",
        "held = dict.fromkeys(made.grant for made in state.grants)",
        "held = ()",
        f"{APPROVALS} -k 'imported_session_has_no_grants and memory'",
    ),
    Mutant(
        "an owner whose parking meets an answer gives its stream up all the same",
        "runtime/worker/owned.py",
        "self._parked = plan.parked and not receipt.resolved",
        "self._parked = plan.parked",
        f"{WHILE_PARKING} -k 'not_lost and memory'",
    ),
    Mutant(
        "a worker takes whatever there is",
        "runtime/worker/serving.py",
        "return min(self.free, max(0, MAX_BEGINNING - len(self._found)))",
        "return self.free",
        "tests/scenarios/test_takeover.py::test_a_worker_takes_no_more_than_it_can_begin_with[sqlite]",
    ),
    Mutant(
        "suspects are taken like everything else",
        "runtime/worker/worker.py",
        "            if not await self._try_a_suspect(full):",
        "            if True:",
        "tests/scenarios/test_takeover.py::test_suspects_are_tried_one_at_a_time[sqlite]",
        also=Mutant(
            "", "runtime/worker/worker.py", "            suspects=suspects,", '            suspects="also",', ""
        ),
    ),
    Mutant(
        "a worker that left something running counts as dead when it retires",
        "runtime/lifetime.py",
        "await self._rt.store.retire(self._rt.worker_id, loose_ends=loose)",
        "await self._rt.store.retire(self._rt.worker_id)",
        "tests/scenarios/test_attacks.py -k goes_on_after_its_runtime",
    ),
    Mutant(
        "a revoked grant ends the ownership of its session",
        "runtime/worker/owned.py",
        "if plan is self._held and not self.error and _has_no_leave(problem, plan):",
        "if False:",
        f"{LEAVE} -k memory",
    ),
    Mutant(
        "something is handed over behind what is on trial",
        "runtime/worker/owned.py",
        "        if self._held is None:\n            self._send(",
        "        if True:\n            self._send(",
        f"{LEAVE} -k 'expires and sqlite'",
    ),
    Mutant(
        "who only waits keeps the seat that somebody else needs",
        "runtime/worker/serving.py",
        "        if self._shared.crowd.full:\n            self._shared.lounge.make_room()\n",
        "",
        "tests/scenarios/test_queues.py -k 'only_waits and memory'",
    ),
    Mutant(
        "who only waits keeps the seat of its queue",
        "runtime/worker/serving.py",
        "[stream for stream, queue in self._seats.items() if queue in full]",
        "()",
        "tests/scenarios/test_queues.py -k 'gives_it_the_seat and memory and queue'",
    ),
    Mutant(
        "a worker that had enough to begin with forgets that others may wait",
        "runtime/worker/worker.py",
        "                serving.more_waits = True  # enough",
        "                # enough",
        "tests/scenarios/test_takeover.py -k 'sqlite and looks_on_by_itself'",
    ),
    Mutant(
        "a session keeps its queue's seat as long as it has something to do",
        "runtime/worker/serving.py",
        "await resident.serve(once=stream in self._seats)",
        "await resident.serve()",
        "tests/scenarios/test_queues.py -k 'memory and others_of_its_full_queue'",
    ),
    Mutant(
        "a session that rests keeps its queue's seat",
        "runtime/worker/serving.py",
        "        left = stream not in self._refold and self._leave(stream)",
        "        left = not {stream} & {*self._refold, *self._resting} and self._leave(stream)",
        "tests/scenarios/test_queues.py -k 'memory and cannot_be_served_keeps_no_seat'",
    ),
    Mutant(
        "a seat is kept when the store did not answer",
        "runtime/worker/permits.py",
        "            self.leave(*streams)  # it may have happened, and nobody would know\n",
        "",
        "tests/scenarios/test_queues.py -k 'memory and nobody_knows'",
    ),
    Mutant(
        "a worker stays in line for a seat that nobody wants any more",
        "runtime/worker/worker.py",
        "            self._shared.permits.wait_only_for(full)\n",
        "            pass\n",
        "tests/scenarios/test_queues.py -k 'memory and no_more_sessions_under_way'",
    ),
    Mutant(
        "a turn waits for a permit that it holds itself",
        "runtime/worker/permits.py",
        "return self.in_line and not self._lent and not self._permits.leaving",
        "return self.in_line and not self._permits.leaving",
        "tests/scenarios/test_limits.py -k 'memory and holds_itself'",
    ),
    Mutant(
        "a worker that drains stays in line for permits",
        "runtime/worker/worker.py",
        "        self._shared.permits.leave_line()\n",
        "",
        "tests/scenarios/test_limits.py -k 'memory and drains_begins_nothing'",
    ),
    Mutant(
        "a call begins before it has its permit",
        "runtime/worker/permits.py",
        "        return self._asked[effect].granted\n",
        "        return True\n",
        "tests/scenarios/test_limits.py -k memory",
    ),
    Mutant(
        "a permit is not given back when its call is over",
        "runtime/worker/permits.py",
        "            task.add_done_callback(lambda _: self._permits.give_back(wanted))\n",
        "            pass\n",
        "tests/scenarios/test_limits.py -k memory",
    ),
    Mutant(
        "a full queue keeps everybody from working",
        "runtime/worker/worker.py",
        "            if len(full) == known and (taken or not self._line):\n                return\n",
        "            return\n",
        "tests/scenarios/test_queues.py -k 'memory and than_its_number'",
    ),
    Mutant(
        "what is submitted by who goes on at once is not handed over",
        "runtime/worker/owned.py",
        "            if at_once and not ticks:\n                self._tick()\n",
        "            self._scheduled = ticks\n",
        "tests/unit/runtime/test_owned.py",
    ),
    Mutant(
        "whoever is answered with others goes on before them",
        "runtime/worker/owned.py",
        "at_once=isinstance(future, Answer) and future.alone",
        "at_once=True",
        "tests/unit/runtime/test_owned.py",
    ),
    Mutant(
        "a task that went on at once is woken again",
        "runtime/worker/baton.py",
        "        self.remove_done_callback(go_on)\n",
        "",
        "tests/unit/runtime/test_baton.py",
    ),
]
