"""Evaluations in child processes: what a forked process has of them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, os
from perdure.services.budgeted import Evaluated, evaluate
from perdure.tools.json_schema import evaluated_mismatches

def check():
    schema = {"type": "object", "required": ["a"]}
    return asyncio.run(asyncio.wait_for(evaluate(evaluated_mismatches, schema, {}), 20))

async def both():
    await asyncio.gather(*(evaluate(evaluated_mismatches, {"type": "object"}, {}) for _ in range(4)))

asyncio.run(both())
if not (pid := os.fork()):
    raise SystemExit(0 if isinstance(check(), Evaluated) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), isinstance(check(), Evaluated))
"""


def test_forked_process_evaluates_with_children_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "0 True", "")
