"""Mutants of what runs in the background: commands, tasks, files."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

FILES = "tests/scenarios/test_files.py"
BACKGROUND = "tests/scenarios/test_background.py"
COMMANDS = "tests/scenarios/test_commands.py"

MUTANTS = [
    Mutant(
        "did-not-happen believed of a worker that may still be alive",
        "runtime/calls/runners.py",
        "certain = await self._nobody_can_still_do_it(item)",
        "certain = True",
        "tests/crash/test_zombie.py::test_a_worker_stopped_between_intent_and_dispatch_does_not_dispatch[sqlite-zombie_probed]",
    ),
    Mutant(
        "a frozen worker taken for one that does nothing any more",
        "runtime/calls/runners.py",
        "return item.worker != self._driven.worker and await self._around.is_dead(item.worker)",
        "return item.worker != self._driven.worker",
        "tests/crash/test_zombie.py -k frozen_call",
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
        "runtime/tasks/tasks.py",
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
        "runtime/tasks/commands.py",
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
        "runtime/tasks/commands.py",
        "self._state.taken.get(stream, 0), self._state.command.keep_bytes",
        "0, self._state.command.keep_bytes",
        f"{COMMANDS} -k 'another_worker_goes_on and memory'",
    ),
    Mutant(
        "commands: another machine adopts it",
        "runtime/tasks/commands.py",
        'return (f"{DEFINITION}{self.host}",)',
        'return (f"{DEFINITION}here", f"{DEFINITION}there")',
        f"{COMMANDS} -k 'another_machine and memory'",
    ),
    Mutant(
        "background: whoever is quick gets past the limit of a session",
        "runtime/tasks/tasks.py",
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
        "background: whoever is about to begin does not count in its worker",
        "runtime/tasks/tasks.py",
        "with rt.background.coming(process_stream(rt.tenant, id)) if runs_here else nullcontext():",
        "with nullcontext():",
        "tests/scenarios/test_background_room.py -k 'storm and memory'",
    ),
    Mutant(
        "tasks: the end is not told",
        "runtime/tasks/tasks.py",
        "sends=() if task.is_over else self._news(task, changed, replay, now),",
        "sends=(),",
        "tests/crash/test_tasks.py -k told_once",
    ),
    Mutant(
        "commands: as many as are asked for run at once",
        "runtime/tasks/commands.py",
        "if stream not in self.running and len(self.running) >= self.limit:",
        "if False:",
        f"{COMMANDS} -k 'so_many_at_once and memory'",
    ),
    Mutant(
        "background: another session's task is shown",
        "runtime/tasks/tasks.py",
        "if task is None or task.session_id != session_id:",
        "if task is None:",
        f"{BACKGROUND} -k 'another_session and memory'",
    ),
]
