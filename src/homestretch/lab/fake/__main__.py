"""`python -m homestretch.lab.fake [JSON]`: serves in a process of its own until its standard input ends; says its port first."""

from __future__ import annotations

import sys

import msgspec

from homestretch.lab.fake.behaviour import Behaviour
from homestretch.lab.fake.server import FakeServer


def main() -> None:
    behaviours = msgspec.json.decode(sys.argv[1].encode(), type=dict[str, Behaviour]) if len(sys.argv) > 1 else None
    fake = FakeServer(behaviours)
    sys.stdout.write(f"{fake.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    fake.close()


main()
