"""The core: one thread that owns every stream, reads prompts between rounds, drafts, steps, and decides which rows stand."""

from homestretch.engine.core.loop import Core
from homestretch.engine.core.options import Counters, Options

__all__ = ["Core", "Counters", "Options"]
