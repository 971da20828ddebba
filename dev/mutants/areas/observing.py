"""Mutants of observers."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a failed attempt is not superseded in the stream",
        "observe/follow.py",
        "                    if outcome.reply is None and effect == self._effect and self._offset:",
        "                    if False:",
        "tests/scenarios/test_streaming.py -k 'breaks_off and sqlite'",
    ),
    Mutant(
        "deltas do not reach other processes",
        "runtime/live_texts.py",
        "            await self._channel.put(pieces, over=over, now=self._clock.wall_ms())\n",
        "            pass\n",
        "tests/scenarios/test_streaming.py -k 'another_process and sqlite'",
    ),
    Mutant(
        "a returning observer sees deltas again",
        "observe/follow.py",
        "        if piece.end <= self._offset:\n            return\n        text",
        "        self._offset = min(self._offset, piece.start)\n        text",
        "tests/scenarios/test_streaming.py -k 'another_process and sqlite'",
    ),
    Mutant(
        "an observer waits forever when its session is deleted",
        "observe/follow.py",
        "if while_there and observer.seq == before and await sources.store.stream(stream) is None:",
        "if False:",
        "tests/scenarios/test_observing.py -k 'is_deleted and sqlite'",
    ),
    Mutant(
        "an observer polls whenever another stream moves",
        "observe/head_poller.py",
        "still={stream for stream in before if stream in heads and heads[stream] == before[stream]}",
        "still=()",
        "tests/scenarios/test_waiting_for_others.py",
    ),
    Mutant(
        "a stream that moves right after registration is missed",
        "observe/head_poller.py",
        "for stream in before if stream in heads and heads[stream] == before[stream]",
        "for stream in heads if heads[stream] == before.get(stream, heads[stream])",
        "tests/unit/observe/test_movements.py",
    ),
    Mutant(
        "a recreated session passes for the deleted one",
        "observe/head_poller.py",
        "heads[stream] == before[stream]}",
        "heads[stream][-1] == (before[stream] or (0,))[-1]}",
        "tests/unit/observe/test_movements.py",
    ),
    Mutant(
        "the pause after a slow poll has no upper bound",
        "runtime/lifetime.py",
        "min(MAX_RESPITE_S, RESPITE * (loop.time() - began))",
        "RESPITE * (loop.time() - began)",
        "tests/scenarios/test_waiting_for_others.py -k slow_poll",
    ),
    Mutant(
        "a waiter without a notification never polls",
        "runtime/lifetime.py",
        "if version != last or began > look_by:",
        "if version != last:",
        "tests/scenarios/test_waiting_for_others.py -k waiter_sees",
    ),
    Mutant(
        "a failed poll ends the polling",
        "runtime/lifetime.py",
        "            except Exception:  # an ended watch",
        "            except KeyError:  # an ended watch",
        "tests/scenarios/test_waiting_for_others.py -k failed_poll",
    ),
    Mutant(
        "a worker rescans a long queue without limit",
        "runtime/worker/worker.py",
        " or len(lines) > MOST_LINES",
        "",
        "tests/scenarios/test_queues.py -k gets_nothing",
    ),
]
