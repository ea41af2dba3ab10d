"""A server of known speed and known answers: its own send stamps are the truth that the client is checked against."""

from homestretch.lab.fake.behaviour import PRESETS, Behaviour
from homestretch.lab.fake.server import FakeServer

__all__ = ["PRESETS", "Behaviour", "FakeServer"]
