"""Mutants of the rules without I/O: turns, sessions, inbox, commits, effects."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

SWEEP = "tests/crash/test_sweep.py"
STORES = "tests/conformance/test_stores.py"
ORDER = "tests/scenarios/test_order_of_durability.py"
KIT = "tests/scenarios/test_kit_sweep.py"
BODIES = "tests/scenarios/test_bodies.py"
APPROVALS = "tests/scenarios/test_approvals.py"
PROMISES = "tests/scenarios/test_promises.py"
CLIENTS = "tests/scenarios/test_client_side.py"
GRANTS = "tests/scenarios/test_grants.py"
INTERRUPT = "tests/scenarios/test_interrupting.py"
NO_FENCE = (
    """    if state is None or plan.fence > state.fence:
        return Refuse(lease_lost(plan.stream))
    if plan.fence < state.fence or plan.n <= state.n:
        return AlreadyApplied()  # or never applied: `recall` decides from the rows
    if state.owner != plan.worker:
        return Refuse(lease_lost(plan.stream))
    if plan.n != state.n + 1:""",
    """    if state is None:
        return Refuse(lease_lost(plan.stream))
    if False:""",
)

MUTANTS = [
    Mutant(
        "a lost model call is repeated without a limit",
        "turn/machine.py",
        "if again.lost >= MAX_LOST_REPLIES:",
        "if again.lost < 0:",
        "tests/unit/turn/test_machine.py -k 's4_five_lost'",
    ),
    Mutant(
        "a turn that fails unexpectedly is repeated without a limit",
        "runtime/turns/session_host.py",
        "self._shared.breakages[turn.id] += 1",
        "pass",
        "tests/scenarios/test_rebuying.py -k 'breaks_each_time and memory'",
    ),
    Mutant(
        "a reply may make any number of calls",
        "turn/machine.py",
        "if index >= limits.calls_per_reply:",
        "if False:",
        "tests/scenarios/test_bounds.py -k 'ask_again and memory'",
    ),
    Mutant(
        "the calls of earlier replies do not count",
        "turn/machine.py",
        "elif before + index >= limits.calls_per_turn:",
        "elif index >= limits.calls_per_turn:",
        "tests/scenarios/test_bounds.py -k 'across and memory'",
    ),
    Mutant(
        "a queue takes inputs without end",
        "inbox/admit.py",
        "    if room is None or not isinstance(new.item, Input):",
        "    if True:",
        "tests/scenarios/test_bounds.py -k 'loses_none and sqlite'",
    ),
    Mutant(
        "the waiting bytes do not count",
        "inbox/admit.py",
        " or waiting.bytes + new.input_bytes > room.bytes:",
        ":",
        "tests/scenarios/test_bounds.py -k 'waiting_bytes and sqlite'",
    ),
    Mutant(
        "a session goes on by itself without end",
        "runtime/turns/session_host.py",
        "if item.by_session and self.state.own_turns >= most:",
        "if False:",
        "tests/scenarios/test_bounds.py -k 'own_work and memory'",
    ),
    Mutant(
        "an input of a person does not reset the count of own turns",
        "session/fold.py",
        "        return 0\n    begins =",
        "        return state.own_turns\n    begins =",
        "tests/scenarios/test_bounds.py -k 'caused_by_the_session and memory'",
    ),
    Mutant(
        "a key has more than one spelling",
        "vocab/promises.py",
        "if key.text != text:",
        "if False:",
        f"{PROMISES}::test_there_is_one_spelling_of_a_key",
    ),
    Mutant(
        "a logged key contains its signature",
        "vocab/promises.py",
        'return f"EventKey({self.key_id!r})"',
        'return f"EventKey({self.key_id!r}, {self.signature!r})"',
        f"{PROMISES}::test_a_key_that_is_printed_is_worth_nothing",
    ),
    Mutant(
        "an approval that has expired still holds",
        "commit/plan.py",
        "if state.deadline_at is not None and state.deadline_at <= now:",
        "if False:",
        f"{STORES} -k 'expired_allows_nothing'",
    ),
    Mutant(
        "an approval is not bound to the arguments",
        "vocab/approvals.py",
        "arguments=digest(args))",
        'arguments="any")',
        f"{APPROVALS} -k 'other_arguments_are_another_question'",
    ),
    Mutant(
        "a request without an answer counts as approved",
        "vocab/approvals.py",
        "    decision = decision_of(resolution)\n    return decision if decision is not None and decision.verdict",
        "    decision = decision_of(resolution) or Decision(verdict='approve', by='nobody', at=0)\n"
        "    return decision if decision is not None and decision.verdict",
        "tests/unit/vocab/test_approvals.py -k 'silence'",
    ),
    Mutant(
        "a revoked grant still covers calls",
        "session/fold.py",
        "kept = tuple(grant for grant in state.grants if grant.grant != revoked)",
        "kept = state.grants",
        f"{APPROVALS} -k 'covers_later and memory'",
    ),
    Mutant(
        "a batch approved for the session leaves grants behind when one is revoked",
        "session/fold.py",
        "    if before is None:\n        return (*grants, made)",
        "    if before is None or True:\n        return (*grants, made)",
        f"{APPROVALS} -k 'revoked_at_once and memory'",
    ),
    Mutant(
        "a grant covers a tool of the same name of another agent",
        "session/fold.py",
        "(one.agent, one.tool) == (agent, contract.name)",
        "one.tool == contract.name",
        f"{GRANTS} -k 'another_agent and memory'",
    ),
    Mutant(
        "a grant covers a contract that a deploy has changed",
        "session/fold.py",
        "return known if known is not None and known.contract == contract.digest else None",
        "return known",
        f"{GRANTS} -k 'deploy_changed and memory'",
    ),
    Mutant(
        "a grant covers a contract deployed during the turn",
        "runtime/turns/environment.py",
        "        if not prepared.is_as_captured:\n            return None\n",
        "",
        f"{GRANTS} -k 'deployed_during and memory'",
    ),
    Mutant(
        "the client is asked before local calls have ended",
        "turn/machine.py",
        "if elsewhere and len(elsewhere) == len(waiting):",
        "if elsewhere:",
        f"{CLIENTS} -k 'local_calls and memory'",
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
            'step = started.effect == "once" and started.kind is EffectKind.DURABLE_STEP',
            "step = False",
            "",
        ),
    ),
    Mutant(
        "a forged key is accepted",
        "effects/promises.py",
        "if not (ours and expected.key_id == key.key_id):",
        "if False:",
        f"{BODIES}::test_a_key_works_from_anywhere_and_a_forged_one_nowhere[memory]",
    ),
    Mutant(
        "a call with an issued completion key is in doubt after a crash",
        "turn/machine.py",
        "    match call.completion:\n",
        "    match None:\n",
        "tests/crash/test_bodies.py::test_call_with_external_key_is_pending_after_a_crash",
    ),
    Mutant(
        "a sleep restarts after a restart of the process",
        "effects/controller.py",
        "                    due_at=started.due_at,\n",
        "                    due_at=policy.due_at,\n",
        f"{BODIES}::test_a_sleep_keeps_its_moment[memory]",
    ),
    Mutant(
        "a once call is dispatched without an intent",
        "effects/controller.py",
        'return self.record_start or self.needs_approval or self.effect in ("once", "resumable")',
        "return self.record_start or self.needs_approval",
        f"{SWEEP}::test_killed_inside[one_once-charge]",
    ),
    Mutant(
        "a call is dispatched before its reply is durable",
        "effects/controller.py",
        'return self.needs_approval or self.effect != "pure"',
        "return False",
        f"{ORDER}::test_only_pure_calls_start_before_their_reply_is_durable",
    ),
    Mutant(
        "a call is dispatched without a lease check",
        "effects/controller.py",
        "while not self.ledger.lease_live():",
        "while False:",
        "tests/crash/test_zombie.py::test_a_worker_stopped_between_intent_and_dispatch_does_not_dispatch",
        also=Mutant("", "runtime/calls/runners.py", "not (pure or self._driven.lease_live())", "False", ""),
    ),
    Mutant("appends ignore the fence", "commit/plan.py", *NO_FENCE, f"{STORES} -k stale_fence"),
    Mutant(
        "appends ignore the fence, seen from a thawed worker",
        "commit/plan.py",
        *NO_FENCE,
        "tests/crash/test_zombie.py::test_a_thawed_worker_writes_nothing_and_its_late_outcome_reaches_the_log",
    ),
    Mutant(
        "the receipt of a repeated plan is ignored",
        "commit/plan.py",
        "        return AlreadyApplied()  # or never applied: `recall` decides from the rows\n",
        "        return Apply(Seq(state.last_seq + 1))\n",
        f"{STORES} -k the_same_plan_again_returns_the_first_receipt",
    ),
    Mutant(
        "a once call in doubt runs again after recovery",
        "turn/machine.py",
        'call.started and call.started.effect == "once"\n    )',
        "False\n    )",
        f"{SWEEP}::test_killed_at_a_durable_boundary[one_once-4:before]",
    ),
    Mutant(
        "completion and cancellation share no gate key",
        "vocab/log_keys.py",
        'end_key(it.turn) if it.reason == "cancelled" else gate_key(it.turn)',
        'end_key(it.turn) if it.reason == "cancelled" else None',
        "tests/scenarios/test_turns.py::test_a_finished_turn_cannot_be_cancelled",
    ),
    Mutant(
        "a once call is dispatched without an intent, seen by the kit",
        "effects/controller.py",
        'return self.record_start or self.needs_approval or self.effect in ("once", "resumable")',
        "return self.record_start or self.needs_approval",
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
        "an agent that handed the conversation over is called again",
        "turn/machine.py",
        "    if (turn.cancel and not turn.ended) or turn.changes_hands:",
        "    if turn.cancel and not turn.ended:",
        "tests/scenarios/test_handing_over.py -k 'memory and in_the_same_turn'",
    ),
    Mutant(
        "an interruption does not wake a parked turn",
        "inbox/admit.py",
        'return not isinstance(item, Input) or item.mode == "interrupt"',
        "return not isinstance(item, Input)",
        f"{INTERRUPT} -k 'runtime_without_worker and sqlite'",
    ),
    Mutant(
        "steering is shown before the results that preceded it",
        "session/view.py",
        "    return [*messages, *asked_again]",
        "    return [*asked_again, *messages]",
        "tests/unit/session/test_view.py -k behind_the_results",
    ),
    Mutant(
        "a model call starts although the limit is reached",
        "turn/machine.py",
        """    if reached := turn.spent_up:
        return replace(turn, phase=Concluding("limit_reached", reached))
    return replace(turn, phase=AwaitingReply(tool_choice=tool_choice))""",
        "    return replace(turn, phase=AwaitingReply(tool_choice=tool_choice))",
        "tests/unit/turn/test_spending.py",
    ),
    Mutant(
        "a turn with a cost limit spends at an unknown price",
        "turn/spending.py",
        "if used.priced < used.calls:",
        "if False:",
        "tests/scenarios/test_spending.py -k 'blindly and memory'",
    ),
]
