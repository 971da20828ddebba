"""Mutants of background work: commands, tasks, files."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

FILES = "tests/scenarios/test_files.py"
BACKGROUND = "tests/scenarios/test_background.py"
COMMANDS = "tests/scenarios/test_commands.py"

MUTANTS = [
    Mutant(
        "a command inherits the worker's whole environment",
        "services/os_commands.py",
        'if name in listed or name.startswith("LC_")\n',
        "\n",
        "tests/scenarios/test_commands.py -k 's12 and memory'",
    ),
    Mutant(
        "the output of a command on disk has no limit",
        "services/command_supervisor.py",
        "        kept = data[: self.left]\n",
        "        kept = data\n",
        "tests/unit/services/test_os_commands.py -k s18",
    ),
    Mutant(
        "a cancelled command leaves a child that called setsid",
        "services/command_supervisor.py",
        "    adopt_orphans()  #",
        "    pass  #",
        "tests/scenarios/test_commands.py -k 's18_child and memory'",
    ),
    Mutant(
        "a field of a notification may break its line",
        "vocab/notifications.py",
        "return one_line_json(encode(value[:limit]).decode()) + cut",
        "return value",
        "tests/unit/vocab/test_notifications.py",
    ),
    Mutant(
        "a probe's did-not-happen counts although the worker may be alive",
        "runtime/calls/runners.py",
        "certain = await self._nobody_can_still_do_it(item)",
        "certain = True",
        "tests/crash/test_zombie.py::test_a_worker_stopped_between_intent_and_dispatch_does_not_dispatch[sqlite-zombie_probed]",
    ),
    Mutant(
        "a frozen worker counts as dead",
        "runtime/calls/runners.py",
        "return item.worker != self._driven.worker and await self._around.is_dead(item.worker)",
        "return item.worker != self._driven.worker",
        "tests/crash/test_zombie.py -k frozen_call",
    ),
    Mutant(
        "files: initial files return after a restart",
        "runtime/files.py",
        "if await self.store.stream(stream) is None and (seeds := await self.seeds(session_id)):",
        "if seeds := await self.seeds(session_id):",
        f"{FILES} -k 'seeded_once and memory'",
    ),
    Mutant(
        "tasks: an addition after the end is dropped",
        "runtime/tasks/tasks.py",
        "after_end=task.is_over",
        "after_end=False",
        "tests/scenarios/test_ended_tasks.py -k 'memory'",
    ),
    Mutant(
        "commands: a command starts before the claim file is written",
        "services/command_supervisor.py",
        'if os.read(may_begin, 1) == b"1":',
        "if True:",
        "tests/unit/services/test_os_commands.py -k 'not_start'",
    ),
    Mutant(
        "commands: a late supervisor starts a command that was given up",
        "services/command_supervisor.py",
        '"by": "supervisor"}, once=True)',
        '"by": "supervisor"})',
        f"{COMMANDS} -k 'too_late and memory'",
    ),
    Mutant(
        "commands: a command is spawned before the record of its start",
        "runtime/tasks/commands.py",
        "        await self._note(spawning(new))\n",
        "        folder.wait(folder.spawn())\n        await self._note(spawning(new))\n",
        "tests/crash/test_commands.py -k 'runs_once and sqlite and spawning'",
    ),
    Mutant(
        "commands: another process with the same pid passes for the command",
        "services/os_commands.py",
        "supervisor.start_of(pid) == start",
        "supervisor.start_of(pid) > 0",
        f"{COMMANDS} -k 'reused_pid and memory'",
    ),
    Mutant(
        "commands: a command that vanished without an exit status runs again",
        "services/os_commands.py",
        'return Gone("the process is gone without a recorded exit")',
        "return NotBegun()",
        f"{COMMANDS} -k 'command_without_known_end and memory'",
    ),
    Mutant(
        "commands: printed output is recorded twice",
        "runtime/tasks/commands.py",
        "self._state.taken.get(stream, 0), self._state.command.keep_bytes",
        "0, self._state.command.keep_bytes",
        f"{COMMANDS} -k 'another_worker_goes_on and memory'",
    ),
    Mutant(
        "commands: a worker on another machine adopts a command",
        "runtime/tasks/commands.py",
        'return (f"{DEFINITION}{self.host}",)',
        'return (f"{DEFINITION}here", f"{DEFINITION}there")',
        f"{COMMANDS} -k 'another_machine and memory'",
    ),
    Mutant(
        "background: quick spawns exceed the limit of a session",
        "runtime/tasks/tasks.py",
        "if len(open_runs) - len(over) >= MAX_ACTIVE_PER_SESSION:",
        "if False:",
        f"{BACKGROUND} -k 'limit_reached and memory'",
    ),
    Mutant(
        "background: an ended task changes its end state",
        "services/tasks.py",
        "if task.is_over and update.state not in (None, task.state):",
        "if False:",
        "tests/unit/services/test_tasks.py -k 'ended_task'",
    ),
    Mutant(
        "background: a run about to start does not count toward the worker's limit",
        "runtime/tasks/tasks.py",
        "with rt.background.coming(process_stream(rt.tenant, id)) if rt.wants_worker else nullcontext():",
        "with nullcontext():",
        "tests/scenarios/test_background_room.py -k 'concurrent_spawns and memory'",
    ),
    Mutant(
        "tasks: the end of a task sends no message",
        "runtime/tasks/tasks.py",
        "outbox=() if task.is_over else self._news(task, changed, replay, now),",
        "outbox=(),",
        "tests/crash/test_tasks.py -k told_once",
    ),
    Mutant(
        "commands: the limit of concurrent commands is ignored",
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
