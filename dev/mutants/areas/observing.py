"""Mutants of what others see."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "an attempt that broke off stands before the next one as if both were one answer",
        "observe/follow.py",
        "                    if outcome.reply is None and effect == self._effect and self._offset:",
        "                    if False:",
        "tests/scenarios/test_streaming.py -k 'breaks_off and sqlite'",
    ),
    Mutant(
        "what a model writes is told to its own process only",
        "runtime/live_texts.py",
        "            await self._channel.put(pieces, over=over, now=self._clock.wall_ms())\n",
        "            pass\n",
        "tests/scenarios/test_streaming.py -k 'another_process and sqlite'",
    ),
    Mutant(
        "an observer that comes back is shown again what it has seen",
        "observe/follow.py",
        "        if piece.end <= self._offset:\n            return\n        text",
        "        self._offset = min(self._offset, piece.start)\n        text",
        "tests/scenarios/test_streaming.py -k 'another_process and sqlite'",
    ),
    Mutant(
        "who watches a turn waits for ever when its session is deleted",
        "observe/follow.py",
        "if while_there and observer.seq == before and await sources.store.stream(stream) is None:",
        "if False:",
        "tests/scenarios/test_observing.py -k 'is_deleted and sqlite'",
    ),
    Mutant(
        "who waits for one turn looks whenever another goes on",
        "observe/movements.py",
        "still={stream for stream in before if stream in heads and heads[stream] == before[stream]}",
        "still=()",
        "tests/scenarios/test_waiting_for_others.py",
    ),
    Mutant(
        "who has just begun to wait for another process is not told",
        "observe/movements.py",
        "for stream in before if stream in heads and heads[stream] == before[stream]",
        "for stream in heads if heads[stream] == before.get(stream, heads[stream])",
        "tests/unit/observe/test_movements.py",
    ),
    Mutant(
        "a session that was deleted and made again is taken for the same",
        "observe/movements.py",
        "heads[stream] == before[stream]}",
        "heads[stream][-1] == (before[stream] or (0,))[-1]}",
        "tests/unit/observe/test_movements.py",
    ),
    Mutant(
        "after a look that took long nobody looks for longer still",
        "runtime/lifetime.py",
        "min(MAX_RESPITE_S, RESPITE * (loop.time() - began))",
        "RESPITE * (loop.time() - began)",
        "tests/scenarios/test_waiting_for_others.py -k nobody_is_deaf",
    ),
    Mutant(
        "who waits never learns what was not told",
        "runtime/lifetime.py",
        "if version != last or began > look_by:",
        "if version != last:",
        "tests/scenarios/test_waiting_for_others.py -k never_told",
    ),
    Mutant(
        "who could not look once at what others do never looks again",
        "runtime/lifetime.py",
        "            except Exception:  # who stops",
        "            except KeyError:  # who stops",
        "tests/scenarios/test_waiting_for_others.py -k looks_again",
    ),
    Mutant(
        "a worker that gets nothing of a long line never stops looking",
        "runtime/worker/worker.py",
        " or len(lines) > MOST_LINES",
        "",
        "tests/scenarios/test_queues.py -k gets_nothing",
    ),
]
