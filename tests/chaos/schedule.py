"""Fault schedule: a seed and a length always give the same one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

WORKERS = 4
SKEWS_MS = (0, 30_000, -30_000, 0)
"""How wrong the wall clock of each worker is."""

Kind = Literal["kill", "freeze", "cut", "restart"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, `at_s` seconds into the load."""

    at_s: float
    kind: Kind
    worker: int = 0
    for_s: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        match self.kind:
            case "kill":
                what = f"worker {self.worker} is killed"
            case "freeze":
                what = f"worker {self.worker} stands still for {self.for_s:.1f} s"
            case "cut":
                what = f"{self.share:.0%} of the connections are cut"
            case "restart":
                what = f"the server crashes and is back after {self.for_s:.1f} s"
        return f"{self.at_s:6.2f} s  {what}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything a run does to itself."""

    seed: int
    seconds: float
    lease_s: float
    faults: tuple[Fault, ...]


def schedule(seed: int, seconds: float, *, lease_s: float = 2.0, server: bool = True) -> Schedule:
    """A kill every second, a worker that stands still past its lease every six, cuts every four, three restarts.

    Those of the server are drawn last, so that the others are the same without one.
    """
    dice = random.Random(seed)
    faults = [Fault(second + dice.random(), "kill", dice.randrange(WORKERS)) for second in range(1, int(seconds))]
    for at_s in range(2, int(seconds) - 1, 6):
        for_s = lease_s * dice.uniform(1.2, 2.5)
        faults.append(Fault(at_s + 3 * dice.random(), "freeze", dice.randrange(WORKERS), for_s))
    if server:
        faults += [Fault(at_s + dice.random(), "cut", share=dice.random()) for at_s in range(3, int(seconds), 4)]
        for third in range(3):
            at_s = seconds * (third + dice.uniform(0.3, 0.7)) / 3
            faults.append(Fault(at_s, "restart", for_s=dice.choice((0.0, 0.5, 1.5))))
    return Schedule(seed, seconds, lease_s, tuple(sorted(faults, key=lambda fault: fault.at_s)))
