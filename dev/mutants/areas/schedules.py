"""Mutants of schedules and triggers."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a run is recorded, and what it says is not sent with it",
        "runtime/schedules/resident.py",
        "        self._owned.submit(*records, sends=tuple(run.sends for run in runs))\n",
        "        self._owned.submit(*records)\n        await self._owned.durable()\n"
        "        self._owned.submit(sends=tuple(run.sends for run in runs))\n",
        "tests/crash/test_schedules.py -k 'wherever_its_worker_dies and sqlite'",
    ),
    Mutant(
        "an occurrence is recorded, and its processes are started after that",
        "runtime/triggers/resident.py",
        "        self._owned.submit(record, consume=(row.id,), sends=sends)\n",
        "        self._owned.submit(record, consume=(row.id,))\n        self._late = sends\n",
        "tests/crash/test_triggers.py -k 'gets_its_process_once'",
        also=Mutant(
            "and nobody looks whether they were",
            "runtime/triggers/resident.py",
            "        if self._taken_over:\n",
            "        if False:\n",
            "",
            also=Mutant(
                "but in an append of their own",
                "runtime/triggers/resident.py",
                "        await self._owned.durable()  # or the same rows would be seen again\n",
                "        await self._owned.durable()\n        self._owned.submit(sends=getattr(self, '_late', ()))\n"
                "        self._late = ()\n        await self._owned.durable()\n",
                "",
            ),
        ),
    ),
    Mutant(
        "whoever left while an occurrence was taken in gets a process",
        "runtime/triggers/resident.py",
        "self._owned.need((), tuple(revision_key(one.id, one.revision + 1) for one in wanted))",
        "pass",
        "tests/scenarios/test_triggers.py -k 'in_the_last_moment and sqlite'",
    ),
    Mutant(
        "a start that failed is forgotten with the worker that saw it",
        "runtime/triggers/resident.py",
        "        if self._taken_over:\n",
        "        if False:\n",
        "tests/crash/test_triggers.py -k 'is_said_by_whoever_takes_over'",
    ),
    Mutant(
        "a run that found no room waits for its next try, although there is room",
        "runtime/tasks/background.py",
        "            self.has_room()\n",
        "",
        "tests/scenarios/test_background_room.py -k 'as_soon_as_there_is_some and sqlite'",
    ),
    Mutant(
        "a parent is told that its sub-agent was deleted only after that",
        "runtime/sessions/verbs.py",
        "deleted = await rt.store.delete(stream, beside=beside, edges=edges, sends=told)",
        "deleted = await rt.store.delete(stream, beside=beside, edges=edges)\n"
        "    for one in told:\n        await rt.store.admit(one)",
        "tests/crash/test_subagents.py -k 'was_deleted_wherever and sqlite'",
    ),
    Mutant(
        "a run that was asked for is forgotten with the record that asked for it",
        "services/schedules.py",
        "        asked=then.asked,\n",
        "",
        "tests/unit/services/test_schedules.py -k folds_to_the_same",
    ),
    Mutant(
        "a schedule whose oldest runs are gone begins to count anew",
        "services/schedules.py",
        "        state = _without(fold(state, rows[0]), gone[1])\n",
        "        state = fold(state, rows[0])\n",
        "tests/scenarios/test_schedules.py -k 'long_log and memory'",
    ),
    Mutant(
        "the log of a schedule grows for ever",
        "runtime/schedules/resident.py",
        "        self._may_be_long = oldest(rows) is not None\n",
        "",
        "tests/scenarios/test_schedules.py -k 'long_log and memory'",
    ),
    Mutant(
        "what happened last at a source is pruned",
        "processes/trigger_retention.py",
        "        if happened.occurrence == self.state.last:\n",
        "        if False:\n",
        "tests/scenarios/test_trigger_retention.py -k 'happened_last_stays and sqlite'",
    ),
    Mutant(
        "an occurrence is pruned while its process goes on",
        "processes/trigger_retention.py",
        "goes_on = any(one.process_id in self.running for one in happened.deliveries)",
        "goes_on = False",
        "tests/scenarios/test_trigger_retention.py -k 'as_long_as_that_goes_on and sqlite'",
    ),
    Mutant(
        "an occurrence is pruned and its key remembered for ever",
        "processes/trigger_retention.py",
        "                    keys.append(source_key(key))\n",
        "",
        "tests/scenarios/test_trigger_retention.py -k 'goes_with_its_key and sqlite'",
    ),
    Mutant(
        "of a living subscription the first record is pruned, and its place in the order is lost",
        "processes/trigger_retention.py",
        "then.revision in (1, now.revision)",
        "then.revision == now.revision",
        "tests/scenarios/test_trigger_retention.py -k 'only_what_was_between and sqlite'",
    ),
    Mutant(
        "what was pruned is not counted any more",
        "processes/triggers.py",
        "known=known, occurrences=occurrences, since=since",
        "known=known, since=since",
        "tests/scenarios/test_trigger_retention.py -k 'still_counted and sqlite'",
    ),
    Mutant(
        "a schedule whose last occurrence was pruned never runs again",
        "runtime/schedules/runs.py",
        "return False  # pruned",
        "return True  # pruned",
        "tests/scenarios/test_trigger_retention.py -k 'a_schedule_that_says and sqlite'",
    ),
    Mutant(
        "what an attempt emits has a key of its own each time",
        "runtime/triggers/client.py",
        "chosen = join(self.by.key, name) if key is None else key",
        "chosen = key",
        "tests/scenarios/test_triggers.py -k 'runs_again_says_nothing and sqlite'",
    ),
    Mutant(
        "a process is started although the one of the last run goes on",
        "runtime/schedules/runs.py",
        "return await _unfinished(store, tenant, last.process)",
        "return False",
        "tests/scenarios/test_schedules.py -k 'unless_that_is_allowed and sqlite'",
    ),
    Mutant(
        "a run goes out although the last one is not over",
        "runtime/schedules/resident.py",
        'state.known.overlap == "skip" and await',
        "False and await",
        "tests/scenarios/test_schedules.py -k 'before_the_last_one_is_over and sqlite and skip'",
    ),
    Mutant(
        "schedules that are made at once pass the limit",
        "runtime/schedules/schedules.py",
        "        await self._stay_within_limits(handle, schedule.owner)\n",
        "",
        "tests/scenarios/test_schedules.py -k 'five_and_no_more and sqlite'",
    ),
    Mutant(
        "a schedule outlives its session",
        "runtime/schedules/resident.py",
        "if await self._owner_is_gone():",
        "if False:",
        "tests/scenarios/test_schedules.py -k 'belongs_to and sqlite'",
    ),
    Mutant(
        "a schedule that nobody can read is kept",
        "runtime/schedules/schedules.py",
        '        check_readable(schedule, what="the schedule", code=Code.SCHEDULE_INVALID)\n',
        "",
        "tests/scenarios/test_unreadable.py -k 'schedule_of_other and memory'",
    ),
]
