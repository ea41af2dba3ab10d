"""The setup page's speed run against `fake`: 37 guarded steps, 60 requests for the cache check, every row of its three tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_fake import RETRY, serving

from homestretch.lab.fake.behaviour import Behaviour
from homestretch.lab.options import given
from homestretch.lab.progress import Progress
from homestretch.lab.records import RunFolder
from homestretch.lab.run import measure

PAGE = Behaviour(
    decode_tokens_per_s=4000.0,
    prefill_tokens_per_s=500_000.0,
    tokens_per_event=(1, 2, 3, 4),
    usage="every event",
    cache="reported",
    drafts=((295, 486), (296, 486), (295, 485), (296, 486)),
    draft_extras="speculative",
    window=131_072 + 512,
)
DEPTHS = {"2048": "2K", "8192": "8K", "32768": "32K"}
LONG = {"16384": "16K", "32768": "32K", "65536": "64K", "131072": "128K"}


def test_the_pages_run_fills_every_row(tmp_path: Path) -> None:
    with serving(fake=PAGE) as url:
        options = given(
            base_url=url,
            model="fake",
            output=tmp_path / "page",
            parts=("decode", "prefill", "conc", "ctx"),
            sampling={"temperature": 1.0, "top_p": 0.95, "min_p": 0.0},
            sampling_source="model card",
            allow_load=True,
        )
        done = measure(options, progress=Progress(quiet=True), retry=RETRY)
    folder = RunFolder.open(done.folder)
    assert done.exit_code == 0, done.failures
    plans = {"decode": 4, "prefill": 9, "conc": 8, "ctx": 16}
    steps = {part: [step for step in folder.steps_done(part) if not step.startswith("warmup")] for part in plans}
    assert {part: len(found) for part, found in steps.items()} == plans
    assert sum(plans.values()) == 37
    kept = [record for part in plans for record in folder.kept(part)]
    assert len(kept) == 60
    prefix = folder.contract().settings["cache.template_prefix_tokens"].value
    examined = [record.usage.cached_tokens for record in kept if record.usage and record.usage.cached_tokens is not None]
    assert len(examined) == 60
    assert max(examined) <= prefix
    rows = [
        "decode.tokens_per_s",
        "decode.words_per_s",
        "decode.characters_per_s",
        "decode.words_500_s",
        "decode.code.tokens_per_s",
        "decode.prose.tokens_per_s",
        "decode.spread_pct",
        "decode.code.spread_pct",
        "decode.prose.spread_pct",
        "decode.window1.tokens_per_s",
        "drafts.acceptance_pct",
        "drafts.mean_accepted_length",
        *[f"prefill.{depth}.{what}" for depth in DEPTHS for what in ("tokens_per_s", "ttft_s")],
        *[f"conc.{level}.{what}" for level in (1, 2, 4, 8) for what in ("total_tokens_per_s", "request_tokens_per_s")],
        *[f"ctx.{depth}.{what}" for depth in LONG for what in ("prefill.tokens_per_s", "ttft_s")],
        *[f"ctx.{depth}.decode.{prompt}.tokens_per_s" for depth in LONG for prompt in ("code", "prose")],
    ]
    numbers = done.result.numbers
    assert not [name for name in rows if name not in numbers or numbers[name].value is None]
    for record in folder.kept("ctx"):
        assert record.prompt_tokens == record.detail["depth"]
    measured = [record for record in folder.kept("decode") if not record.step.startswith("warmup")]
    accepted = sum(record.extras["drafts"]["accepted"] for record in measured)
    drafted = sum(record.extras["drafts"]["drafted"] for record in measured)
    assert numbers["drafts.acceptance_pct"].value == pytest.approx(100 * accepted / drafted)
    assert f"{numbers['drafts.acceptance_pct'].value:.1f}" == "60.8"
    assert f"{numbers['drafts.mean_accepted_length'].value:.1f}" == "2.4"
