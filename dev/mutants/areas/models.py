"""Mutants of models and their providers."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

FAULTS = "tests/providers/test_faults.py"
REQUESTS = "tests/providers/test_requests.py"
SHAPES = "tests/providers/test_shapes.py"

MUTANTS = [
    Mutant(
        "what a provider gave us goes to another route",
        "models/providers/outgoing.py",
        "            case Thinking() if part.route == self._route:",
        "            case Thinking():",
        f"{REQUESTS} -k 'same_route_only and anthropic'",
    ),
    Mutant(
        "the SDK of a provider tries again by itself",
        "models/providers/outgoing.py",
        'once = {} if self._model.system == "bedrock" else {"max_retries": 0}',
        "once = {}",
        f"{FAULTS} -k 'rate_limit and anthropic'",
    ),
    Mutant(
        "a stream that ends without its end is a reply",
        "models/providers/incoming.py",
        'response.state != "complete" or said is None',
        'response.state != "complete"',
        f"{FAULTS} -k 'without_its_end and google'",
    ),
    Mutant(
        "an id that a server uses twice names two calls",
        "models/providers/outgoing.py",
        "provider_id and provider_id not in self._used and ",
        "provider_id and ",
        f"{REQUESTS} -k told_apart",
    ),
    Mutant(
        "arguments that broke off are made an object, and run",
        "models/providers/incoming.py",
        'return part.args or "" if isinstance(part.args, str | None) else part.args_as_json_str()',
        "return part.args_as_json_str()",
        f"{SHAPES} -k broke_off",
    ),
    Mutant(
        "a signature without words is dropped",
        "session/view.py",
        "not part.text.strip() and part.state is None",
        "not part.text.strip()",
        f"{SHAPES} -k survives_the_log",
    ),
    Mutant(
        "what a provider wants back with a picture is forgotten",
        "models/providers/outgoing.py",
        "**(own | self._state(part)))",
        "**own)",
        f"{SHAPES} -k picture",
    ),
    Mutant(
        "of a job that is heard in two pieces the second is the reply",
        "models/providers/provided.py",
        "if same and not (rest and heard_until is not None):",
        "if same:",
        "tests/providers/test_jobs.py -k heard_to_its_end",
    ),
    Mutant(
        "the library does not see a conversation before it is sent",
        "models/providers/provided.py",
        "self._messages = self._model.prepare_messages(self._messages, self._parameters)",
        "pass",
        f"{SHAPES} -k mistral_takes",
    ),
    Mutant(
        "tokens that a server tells with every piece are added up",
        "models/providers/counting.py",
        "cumulative=cumulative or reported",
        "cumulative=cumulative",
        f"{SHAPES} -k counted_once",
    ),
    Mutant(
        "what a cut stream had cost is forgotten",
        "models/providers/provided.py",
        "self.spent = usage_of(partial, self._model.model_name) if partial.usage.has_values() else Usage()",
        "self.spent = Usage()",
        "tests/providers/test_turns.py -k cut_stream_had_cost",
    ),
    Mutant(
        "the arguments of a call do not break a model's silence",
        "runtime/reading.py",
        """                        if chars:
                            silence.broken()""",
        """                        if chars:
                            pass""",
        "tests/unit/runtime/test_reading.py -k breaks_its_silence",
    ),
    Mutant(
        "empty pieces break a model's silence",
        "runtime/reading.py",
        "                        if text := halves[thinking].joined(text):",
        "                        text = halves[thinking].joined(text)\n                        if True:",
        "tests/unit/runtime/test_reading.py -k empty_pieces",
    ),
    Mutant(
        "a provider's job is found by nobody after a kill",
        "turn/machine.py",
        "            return replace(turn, phase=replace(asking, job=begun.job))",
        "            return turn",
        "tests/crash/test_jobs.py -k 'sqlite and stream'",
    ),
    Mutant(
        "a job that is lost is asked for again",
        "turn/machine.py",
        'job = None if error.kind == "job_lost" else asking.job',
        "job = asking.job",
        "tests/unit/turn/test_machine.py -k until_it_is_lost",
    ),
    Mutant(
        "a cancelled turn leaves the provider's job running",
        "runtime/cancelling.py",
        "    await _cancel_job(driver)\n",
        "",
        "tests/providers/test_jobs.py -k cancelling",
    ),
    Mutant(
        "what a lost attempt bought is in no ledger",
        "runtime/lost.py",
        "    return LlmCallOutcome(error=error, text_streamed=streamed, spent=spent)",
        "    return LlmCallOutcome(error=error, text_streamed=streamed)",
        "tests/crash/test_streaming.py -k counts_against",
    ),
    Mutant(
        "what a cancelled call bought is in no ledger",
        "runtime/cancelling.py",
        "        driver.controller.record(await driver.lost_reply(asking))\n",
        "        pass\n",
        "tests/crash/test_cancelled_calls.py -k 'sqlite and after-cancel'",
    ),
    Mutant(
        "what a reply cost that lost the race for the gate is estimated",
        "runtime/lost.py",
        "return self._known.pop((stream, turn, effect), None)",
        "return None",
        "tests/scenarios/test_unanswered_calls.py -k 'gate and memory'",
    ),
    Mutant(
        "a worker that leaves does not count what it has bought",
        "runtime/turns.py",
        "        await self._hand_over_reply()\n",
        "",
        "tests/scenarios/test_unanswered_calls.py -k 'is_kept and memory'",
    ),
    Mutant(
        "half a character is told to others",
        "runtime/reading.py",
        "            text, self._half = text[:-1], text[-1]",
        "            pass",
        "tests/scenarios/test_streaming.py -k 'middle_of_a_character and memory'",
    ),
    Mutant(
        "what a cancelled tool has asked is in no ledger",
        "runtime/turns.py",
        "            flight.shut()\n            self._end_what_it_asked(flight)\n",
        "            flight.shut()\n",
        "tests/scenarios/test_unanswered_calls.py -k 'before_its_price and memory and once'",
    ),
    Mutant(
        "a model is asked although the turn was cancelled",
        "runtime/runners.py",
        "            if self._driven.turn.cancel:\n                return LlmCallOutcome(error=NOT_WANTED)\n",
        "",
        "tests/scenarios/test_unanswered_calls.py -k 'never_asked and memory'",
    ),
    Mutant(
        "noting a lost attempt is taken for progress",
        "runtime/turns.py",
        "            self.owned.recover()\n            self.controller.record(lost)\n",
        "            self.controller.record(lost)\n",
        "tests/crash/test_no_progress.py -k 'third_takeover and sqlite'",
    ),
    Mutant(
        "that a tool asks a model again is taken for progress",
        "runtime/turns.py",
        "            self._stands_still = self._stands_still and _is_asking(record)\n",
        "            self._stands_still = False\n",
        "tests/crash/test_no_progress.py -k 'tool_whose and sqlite'",
    ),
    Mutant(
        "what a tool had asked when its worker was killed is in no ledger",
        "runtime/turns.py",
        "        for started in asked:\n",
        "        for started in asked[:0]:\n",
        "tests/crash/test_completions.py -k 'counted_once and sqlite and resumable'",
    ),
    Mutant(
        "a job that was begun for a tool is bought again",
        "runtime/completions.py",
        "        controller.record(ModelJobBegun(id=effect, job=job))\n",
        "",
        "tests/crash/test_completions.py -k 'waited_for and sqlite'",
    ),
    Mutant(
        "a text before a call that was begun stands as the reply",
        "runtime/perform.py",
        " and not said.hidden\n",
        "\n",
        "tests/scenarios/test_streaming.py -k 'no_reply and memory'",
    ),
    Mutant(
        "what a deleted sub-agent bought is forgotten",
        "runtime/accounts.py",
        "if child in self._exists or at < (self._question.since_ms or 0) or not ended.usage.calls:",
        "if True:",
        "tests/scenarios/test_accounts.py -k 'deleted and memory'",
    ),
    Mutant(
        "what the running turn has bought is counted when it is over",
        "runtime/accounts.py",
        "if state.open_turn and row.seq >= state.turn_seq)",
        "if False)",
        "tests/scenarios/test_accounts.py -k 'still_runs and memory'",
    ),
]
