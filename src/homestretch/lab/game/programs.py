"""Runs the programs of Painter and Snake in the lab's sandbox, with limits that are part of the game."""

from __future__ import annotations

from homestretch.lab import sandbox
from homestretch.lab.game.tasks import Outcome

WALL_S = 10.0
LIMITS = sandbox.Limits(wall_s=WALL_S, memory_bytes=1 << 30, output_bytes=1 << 20)
FAULTS = {"timeout": f"over {WALL_S:g} s", "flood": "prints over 1 MiB", "memory": "over 1 GiB of memory"}


def sandboxed(source: str, stdin: str) -> Outcome:
    """One case; a program over its time gets a second try, so that a busy machine does not cost a target."""
    for _ in range(2):
        done = sandbox.run_program(source, stdin, LIMITS)
        if done.status != "timeout":
            break
    fault = "" if done.ok else FAULTS.get(done.status, f"exit status {done.exit_code}")
    return Outcome(stdout=done.stdout.decode("utf-8", "replace"), fault=fault)
