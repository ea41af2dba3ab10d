"""Messages to a prompt, and a reply's tokens to content, reasoning and tool calls."""

from homestretch.engine.chat.grammar import JsonGrammar, JsonVocabulary
from homestretch.engine.chat.reply import Delta, Reply, ToolCall, text_stream
from homestretch.engine.chat.stops import StopText, StopWatch
from homestretch.engine.chat.template import Prompt, Template

__all__ = [
    "Delta",
    "JsonGrammar",
    "JsonVocabulary",
    "Prompt",
    "Reply",
    "StopText",
    "StopWatch",
    "Template",
    "ToolCall",
    "text_stream",
]
