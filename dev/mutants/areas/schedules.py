"""Mutants of schedules and triggers."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a run is recorded before its messages are sent",
        "runtime/schedules/schedule_host.py",
        "        self._owned.submit(*records, outbox=tuple(run.outbox for run in runs))\n",
        "        self._owned.submit(*records)\n        await self._owned.durable()\n"
        "        self._owned.submit(outbox=tuple(run.outbox for run in runs))\n",
        "tests/crash/test_schedules.py -k 'wherever_its_worker_dies and sqlite'",
    ),
    Mutant(
        "an occurrence is recorded before its processes are started",
        "runtime/triggers/trigger_host.py",
        "        self._owned.submit(record, consume=(row.id,), outbox=outbox)\n",
        "        self._owned.submit(record, consume=(row.id,))\n        self._late = outbox\n",
        "tests/crash/test_triggers.py -k 'gets_its_process_once'",
        also=Mutant(
            "and the recovery does not check the starts",
            "runtime/triggers/trigger_host.py",
            "        if self._taken_over:\n",
            "        if False:\n",
            "",
            also=Mutant(
                "and the starts use a separate append",
                "runtime/triggers/trigger_host.py",
                "        await self._owned.durable()  # otherwise the next read would return the same rows\n",
                "        await self._owned.durable()\n        self._owned.submit(outbox=getattr(self, '_late', ()))\n"
                "        self._late = ()\n        await self._owned.durable()\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a subscription removed during an occurrence still gets a process",
        "runtime/triggers/trigger_host.py",
        "self._owned.need((), tuple(revision_key(one.id, one.revision + 1) for one in wanted))",
        "pass",
        "tests/scenarios/test_triggers.py -k 'deleted_during_the_append and sqlite'",
    ),
    Mutant(
        "a failed start is lost with its worker",
        "runtime/triggers/trigger_host.py",
        "        if self._taken_over:\n",
        "        if False:\n",
        "tests/crash/test_triggers.py -k 'failed_start'",
    ),
    Mutant(
        "a run without capacity waits for its retry although capacity is free",
        "runtime/tasks/background.py",
        "            self.has_capacity()\n",
        "",
        "tests/scenarios/test_background_room.py -k 'run_without_a_slot and sqlite'",
    ),
    Mutant(
        "a parent is notified after the deletion of its sub-agent, not with it",
        "runtime/sessions/verbs.py",
        "deleted = await rt.store.delete(stream, beside=beside, edges=edges, outbox=told, audit=audit)",
        "deleted = await rt.store.delete(stream, beside=beside, edges=edges, audit=audit)\n"
        "    for one in told:\n        await rt.store.admit(one)",
        "tests/crash/test_subagents.py -k 'deletion_of_a_subagent and sqlite'",
    ),
    Mutant(
        "pruning loses a requested run",
        "services/schedules.py",
        "        asked=then.asked,\n",
        "",
        "tests/unit/services/test_schedules.py -k folds_to_the_same",
    ),
    Mutant(
        "pruning resets the run count of a schedule",
        "services/schedules.py",
        "        state = _without(fold(state, rows[0]), gone[1])\n",
        "        state = fold(state, rows[0])\n",
        "tests/scenarios/test_schedules.py -k 'long_log and memory'",
    ),
    Mutant(
        "the log of a schedule is never pruned",
        "runtime/schedules/schedule_host.py",
        "        self._may_be_long = oldest(rows) is not None\n",
        "",
        "tests/scenarios/test_schedules.py -k 'long_log and memory'",
    ),
    Mutant(
        "the last occurrence of a source is pruned",
        "processes/trigger_retention.py",
        "        if happened.occurrence == self.state.last:\n",
        "        if False:\n",
        "tests/scenarios/test_trigger_retention.py -k 'last_occurrence and sqlite'",
    ),
    Mutant(
        "an occurrence is pruned while its process runs",
        "processes/trigger_retention.py",
        "goes_on = any(one.process_id in self.running for one in happened.deliveries)",
        "goes_on = False",
        "tests/scenarios/test_trigger_retention.py -k 'stays_while_its_process_runs and sqlite'",
    ),
    Mutant(
        "pruning an occurrence keeps its key forever",
        "processes/trigger_retention.py",
        "                    keys.append(source_key(key))\n",
        "",
        "tests/scenarios/test_trigger_retention.py -k 'old_occurrence and sqlite'",
    ),
    Mutant(
        "the first record of a live subscription is pruned",
        "processes/trigger_retention.py",
        "then.revision in (1, now.revision)",
        "then.revision == now.revision",
        "tests/scenarios/test_trigger_retention.py -k 'only_what_was_between and sqlite'",
    ),
    Mutant(
        "pruned occurrences are not counted",
        "processes/triggers.py",
        "known=known, occurrences=occurrences, since=since",
        "known=known, since=since",
        "tests/scenarios/test_trigger_retention.py -k 'old_occurrence and sqlite'",
    ),
    Mutant(
        "a schedule whose last occurrence was pruned never runs again",
        "runtime/schedules/runs.py",
        "return False  # pruned",
        "return True  # pruned",
        "tests/scenarios/test_trigger_retention.py -k 'emitting_schedule and sqlite'",
    ),
    Mutant(
        "each attempt emits under a new key",
        "runtime/triggers/client.py",
        "chosen = join(self.by.key, name) if key is None else key",
        "chosen = key",
        "tests/scenarios/test_triggers.py -k 'runs_again_says_nothing and sqlite'",
    ),
    Mutant(
        "a process starts although that of the last run still runs",
        "runtime/schedules/runs.py",
        "return await _unfinished(store, tenant, last.process)",
        "return False",
        "tests/scenarios/test_schedules.py -k 'overlap_policy and sqlite'",
    ),
    Mutant(
        "a run is sent although the previous one has not ended",
        "runtime/schedules/schedule_host.py",
        'state.known.overlap == "skip" and await',
        "False and await",
        "tests/scenarios/test_schedules.py -k 'before_the_last_one_is_over and sqlite and skip'",
    ),
    Mutant(
        "concurrent creations exceed the schedule limit",
        "runtime/schedules/schedules.py",
        "        await self._stay_within_limits(handle, schedule.owner)\n",
        "",
        "tests/scenarios/test_schedules.py -k 'concurrent_schedules and sqlite'",
    ),
    Mutant(
        "a schedule outlives its session",
        "runtime/schedules/schedule_host.py",
        "if await self._owner_is_gone():",
        "if False:",
        "tests/scenarios/test_schedules.py -k 'owner_session and sqlite'",
    ),
    Mutant(
        "an unreadable schedule is stored",
        "runtime/schedules/schedules.py",
        '        check_readable(schedule, what="the schedule", code=Code.SCHEDULE_INVALID)\n',
        "",
        "tests/scenarios/test_unreadable.py -k 'schedule_of_other and memory'",
    ),
]
