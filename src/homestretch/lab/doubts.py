"""Named reasons not to trust a number, each with a hint; a refusing one keeps it out of every headline and ranking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """refuses: no headline, no rank. meaning: what was seen; hint: what to do about it."""

    refuses: bool
    meaning: str
    hint: str


SPREAD_LIMIT_PCT = 15.0
FEWEST_TOKENS = 64
FEWEST_EVENTS = 8
SHORT_RUN_TOKENS = 256
FEWEST_PREFILL_TOKENS = 512
INSTRUMENT_SHARE_PCT = 1.0

DOUBTS: dict[str, Doubt] = {
    "spread_over_limit": Doubt(
        refuses=True,
        meaning="The runs differ by more than 15 % (coefficient of variation, sample form), so no median stands for them.",
        hint="Look at the cause (a reply that copied its prompt is named; else load or heat), then repeat the part.",
    ),
    "short_run": Doubt(
        refuses=False,
        meaning="Replies of fewer than 256 tokens, or a single run: a figure to look at, not to compare.",
        hint="Measure with the default --max-tokens 512 and at least two runs.",
    ),
    "few_tokens": Doubt(
        refuses=True,
        meaning="A reply had under 64 tokens or 8 events (a prompt under 512 tokens): its ends weigh too much in the rate.",
        hint="Ask for longer replies, or use a prompt that the model answers at length.",
    ),
    "no_usage": Doubt(
        refuses=False,
        meaning="The server sends no token counts; they were counted by a tokenizer over the whole text.",
        hint="Switch usage on in the server, or give --tokenizer-json with the model's own tokenizer.",
    ),
    "first_event_unknown": Doubt(
        refuses=False,
        meaning="Nothing tells how many tokens the first event carried; low and high bound the figure.",
        hint="Use a server that sends counts with every event, or give --tokenizer-json.",
    ),
    "cached_tokens": Doubt(
        refuses=True,
        meaning="Part of the prompt was not read but taken from a cache, so the time to the first token is too good.",
        hint="Give --no-cache-prompt, or switch the server's prompt cache off.",
    ),
    "cache_unknown": Doubt(
        refuses=True,
        meaning="The server reports no cached tokens, and timing a fresh, another fresh and a repeated prompt did not settle it.",
        hint="Repeat on a quiet machine, or switch the server's prompt cache off and say so.",
    ),
    "queued": Doubt(
        refuses=False,
        meaning="More requests at once than the server has slots: some waited, which is inside the figure.",
        hint="Start the server with more slots, or leave the level out.",
    ),
    "disturbed": Doubt(
        refuses=True,
        meaning="Another program used more than a quarter of one core, and --allow-load let the step count.",
        hint="Stop the program that is named and measure without --allow-load.",
    ),
    "server_unguarded": Doubt(
        refuses=False,
        meaning="Foreign load beside the server was not judged: another machine, or a process hidden from this account.",
        hint="Run the lab on the machine that serves, under the server's account.",
    ),
    "ended_early": Doubt(
        refuses=True,
        meaning="Replies at once ended before their limit, so that fewer streams ran at the end of the round.",
        hint="Use a server that honours ignore_eos, or a prompt that the model answers at length.",
    ),
    "thinking_leaked": Doubt(
        refuses=True,
        meaning="Thinking was switched off in the request, and reasoning came back all the same.",
        hint="Correct the card's thinking.field, or start the server with thinking off.",
    ),
    "tokenizer_guessed": Doubt(
        refuses=False,
        meaning="Prompt lengths were found by sending text and reading the usage, not by the served tokenizer.",
        hint="Give --tokenizer-json, or use a server with /tokenize.",
    ),
    "settings_unknown": Doubt(
        refuses=False,
        meaning="A setting that shapes the figure is not known: sampling, window, slots or version have no source.",
        hint="Name it in the card, or by --sampling, --server-ctx, --server-slots or --engine-version-file.",
    ),
    "template_prefix": Doubt(
        refuses=False,
        meaning="The first tokens of the chat template are the same in each request and came from the cache; they are counted off.",
        hint="Nothing to do: the share is printed and too small to matter.",
    ),
    "memory_intruder": Doubt(
        refuses=False,
        meaning="Other programs took or gave back memory during the step, which is inside the rise of used memory.",
        hint="Close them and measure again.",
    ),
}


def refuses(doubts: Iterable[str]) -> bool:
    """Whether any of these doubts keeps a number out of headlines and rankings."""
    return any(DOUBTS[name].refuses for name in doubts)
