"""The setup page's own run renders with every figure, table and list of the original, digit by digit."""

from __future__ import annotations

import html
import re

import pagerun
import pytest

from homestretch.lab import site
from homestretch.lab.publish import Filter


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("page")
    pagerun.make(root / "setups")
    built = site.build(root / "setups", root / "out", what=Filter(["sparkhost"]))
    assert not built.refused
    return next(iter(built.pages.values())).read_text(encoding="utf-8")


def text_of(piece: str) -> str:
    piece = re.sub(r"<(?:title|desc)[^>]*>.*?</(?:title|desc)>", "", piece, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", piece)).split())


def rows_of(page: str, section: str) -> list[list[str]]:
    """Cells of every table row of a section, as read on the page."""
    body = re.search(rf'<section id="{section}".*?</section>', page, re.S)
    assert body is not None
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", body[0], re.S)
    ]


SPEED = {
    "Decode": "141.9 tok/s",
    "Words per second": "97.0 words/s",
    "Characters per second": "655.3 chars/s",
    "Decode, code prompt": "141.6 tok/s",
    "Decode, prose prompt": "142.2 tok/s",
    "Spread of the decode runs (CV)": "2.3 %",
    "Spread of the code runs (CV)": "2.3 %",
    "Spread of the prose runs (CV)": "1.2 %",
    "Decode, window 1": "139.5 tok/s",
    "Prefill at 2K": "6814.4 tok/s",
    "Prefill at 8K": "7348.4 tok/s",
    "Prefill at 32K": "6293.5 tok/s",
    "Time to first token at 2K": "0.3 s",
    "Time to first token at 8K": "1.1 s",
    "Time to first token at 32K": "5.2 s",
    "Draft acceptance rate": "60.8 %",
    "Mean accepted length": "2.4 tokens",
    "1 request at once (total)": "132.6 tok/s",
    "2 at once (total)": "154.8 tok/s",
    "4 at once (total)": "207.3 tok/s",
    "8 at once (total)": "248.0 tok/s",
    "1 request at once (per request)": "132.6 tok/s",
    "2 at once (per request)": "78.1 tok/s",
    "4 at once (per request)": "53.4 tok/s",
    "8 at once (per request)": "33.1 tok/s",
    "Server slots (the engine's default, up to 8 streams; the recipe sets no value)": "8 slots",
}
LONG = {
    "16K tokens": ["6961.7 tok/s", "2.4 s", "130.4 tok/s", "130.6 tok/s"],
    "32K tokens": ["6244.0 tok/s", "5.2 s", "132.6 tok/s", "130.1 tok/s"],
    "64K tokens": ["5233.6 tok/s", "12.5 s", "107.9 tok/s", "108.1 tok/s"],
    "128K tokens": ["3906.8 tok/s", "33.5 s", "86.9 tok/s", "88.5 tok/s"],
}
TILES = {
    "Decode": "141.9 tok/s",
    "Decode, code": "141.6 tok/s",
    "Decode, prose": "142.2 tok/s",
    "500 words": "≈ 5.2 s",
    "Prefill at 8K": "7348.4 tok/s",
    "First token at 2K": "0.3 s",
    "Largest size tested": "131,072 tokens",
    "Peak memory": "31.66 GiB",
    "Decode at that size": "not measured",
    "Finish time": "342.0 s",
    "Targets hit": "1 of 20",
    "Penalty loops": "19 (255.0 s)",
    "Thinking time": "6.2 s",
    "Buzzers": "0",
}
QUALITY = {
    "MMLU-Pro 400 fixed questions, letter only": ["43.8 %", "± 4.8 pts", "175 / 400", "0"],
    "GPQA Diamond 198 questions, letter only": ["40.9 %", "± 6.8 pts", "81 / 198", "0"],
    "IFEval 200 fixed prompts, strict": ["67.0 %", "± 6.5 pts", "134 / 200", "1"],
    "LiveCodeBench 40 newest tasks, the code runs": ["30.0 %", "± 13.7 pts", "12 / 40", "7"],
    "Long text 8K 4 tasks x 10 at 8192 tokens": ["70.0 %", "± 13.7 pts", "28 / 40", "0"],
    "Long text 32K 4 tasks x 10 at 32768 tokens": ["55.0 %", "± 14.7 pts", "22 / 40", "0"],
    "GPQA 30, thinking on 30 questions, limit 16,384 tokens": [
        "56.7 % median 6,873 tokens, 194.5 s per question", "± 16.7 pts", "17 / 30", "12",
    ],
}  # fmt: skip
MEMORY = {
    "4K 4,096 tokens": ["3,892", "95.0 %", "23.44 GiB", "answered (stop)"],
    "8K 8,192 tokens": ["7,782", "95.0 %", "23.46 GiB", "answered (stop)"],
    "16K 16,384 tokens": ["15,564", "95.0 %", "24.16 GiB", "answered (stop)"],
    "32K 32,768 tokens": ["31,129", "95.0 %", "25.11 GiB", "answered (stop)"],
    "64K 65,536 tokens": ["62,259", "95.0 %", "27.33 GiB", "answered (stop)"],
    "128K 131,072 tokens": ["124,518", "95.0 %", "31.66 GiB", "answered (stop)"],
}
RACE = {
    "River ferry puzzle, level 1": ["✕ ✕ ✕ ✕ ✕", "0 / 5", "2.2 s", "no", "5 (60.0 s)", "69.4 s"],
    "Painter code, level 2": ["✕ ✕ ✕ ✕ ✕", "0 / 5", "0.5 s", "no", "5 (60.0 s)", "67.7 s"],
    "Bench seating puzzle, level 3": ["✕ ✕ ✕ ✕ ●", "1 / 5", "0.4 s", "no", "4 (60.0 s)", "67.6 s"],
    "Snake code, level 4": ["✕ ✕ ✕ ✕ ✕", "0 / 5", "3.1 s", "no", "5 (75.0 s)", "85.3 s"],
}
SAID = [
    "128 GB · 1× DGX Spark (GB10)",
    "Ash's TensorFold recipe: NVIDIA Nemotron 3.5 Lightning 30B-A3B (MLX 4-bit + MTP drafts) on one DGX Spark",
    "1 NVIDIA DGX Spark (GB10, 128 GB unified memory), GPU clock capped at 2200 MHz; two identical DGX Sparks took part",
    "Ash Hart @ashxhart",
    "sha256 1a0192b28d6ab6ec2749f3ff25515379dba4895171e781b30f810afc971ae4f8",
    "commit TensorFold v1.2.5 (tag; release Nov 8, 2026 17:02 UTC)",
    "measured 2026-11-10",
    "independent check passed",
    "Specialist model. A specialist model: its model card says",
    "Method: code+prose; 2 run(s) each; 512 tokens; 1 warm-up(s); median;",
    "prompts of exactly 16K, 32K, 64K and 128K tokens (a filler log first",
    "2 runs per step, 512 output tokens",
    "decode = tokens after the first / time after the first token",
    "prefill = prompt tokens / time to first token of the same request, median over its requests",
    "requests at once: C1,C2,C4,C8 at once; 2 round(s) each; 512 tokens per request; prose prompt",
    "total = all tokens / wall time, per request = tokens / end-to-end time; median over the rounds. Measured 2026-11-10.",
    "Requests at once: the server has 8 slots (the engine's default, up to 8 streams; the recipe sets no value).",
    "The headline 141.9 tok/s is the mean of the code prompt (141.6) and the prose prompt (142.2), medians of two runs each.",
    "Thinking was off in every request.",
    "no cached prompt tokens in any of the 60 requests it examined",
    "at a rate of 60.8 % of the drafted tokens (1,182 of 1,943), 2.4 tokens per step on average",
    "1, 2, 4 and 8 requests ran together",
    "rises from 132.6 tok/s with 1 request to 248.0 tok/s with 8",
    "the speed of one request falls from 132.6 tok/s to 33.1 tok/s",
    "a sample every half second, 828 samples) discarded and repeated none of its 37 steps",
    "one sample every 10 seconds, 42 samples) saw at most 1.8 % of one core",
    "the quality tests, the memory test and the game test ran on the first DGX Spark",
    "the speed test ran on the second DGX Spark",
    "The server was started by Ash Hart’s recipe (docs/recipes/nemotron-3.5.md); the card names 4 differences from it.",
    "afc971ae4f8); tensorfold-native serve nemotron-lightning --port 8080 --name nemotron-3.5-lightning --context 262144",
    "is not used for any number on this page",
    "decoded at 132.4 and 399.2 tok/s, a spread of 71.0 % against the limit of 15 %",
    "281 of 490, 57.3 %; 475 of 492, 96.5 %",
    "Thinking off, except the last test. Seed 42. A cut-off answer counts as wrong. Measured 2026-11-10.",
    "8 requests ran at once",
    "temperature 1.0, top-p 0.95",
    "MMLU-Pro and GPQA Diamond ran with an answer limit of 1,024 tokens",
    "IFEval ran with an answer limit of 4,096 tokens",
    "LiveCodeBench ran with an answer limit of 32,768 tokens",
    "Long text 8K and Long text 32K ran with an answer limit of 128 tokens",
    "2 MMLU-Pro answers and 1 GPQA Diamond answer had no letter that could be read (they count as wrong)",
    "1 IFEval answer, 7 LiveCodeBench answers and 12 GPQA 30, thinking on answers were cut off at their limit",
    "multi-key retrieval 10 of 10 and 10 of 10",
    "common-word extraction 9 of 10 and 6 of 10",
    "multi-hop question answering 7 of 10 and 4 of 10",
    "variable tracking 2 of 10 and 2 of 10",
    "a limit of 16,384 tokens, 12 of the 30 answers were cut off",
    "median 6,873 tokens, 194.5 s per question",
    "(66 samples) at most 0.8 % of one core",
    "All 6 sizes (4K, 8K, 16K, 32K, 64K and 128K) answered.",
    "The largest size tested is 131,072 tokens (a prompt of 124,518 tokens)",
    "23.44 GiB with the 4K window and 31.66 GiB with the 128K window",
    "Unified memory, so GPU and CPU share it. Measured 2026-11-10.",
    "One solo race, season seed 21, one attempt, no help.",
    "Game rank as of 2026-11-10",
    "TensorFold/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-MLX-4bit @d9d758fb",
    "huggingface.co/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
    "github.com/ashhart/TensorFold/releases/tag/v1.2.5",
    "docs/recipes/nemotron-3.5.md · github.com/ashhart/TensorFold/blob/v1.2.5/docs/recipes/nemotron-3.5.md by Ash Hart",
    "Get the recipe, the engine and the model files from the list above.",
    "the server waits for requests on port 8080",
    "tensorfold-native serve nemotron-lightning \\ --port 8080 \\ --name nemotron-3.5-lightning \\ --context 262144",
    "--port 8080 the network port the server listens on",
    "--name nemotron-3.5-lightning the model ID the server advertises to clients",
    "A window of 262,144 tokens (--context 262144), the window of the checkpoint",
    "The streams: the recipe sets no --parallel",
    "Changes of the command that do not change the numbers",
    "The recipe page measures with greedy decoding (temperature 0)",
    "Window: 262,144 tokens (the window of the checkpoint (config.json), set with --context 262144)",
    "homestretch measure card.toml --label nea2-1110-speed-r0 --parts speed --prefill-depths 2048,8192,32768",
    "raw/v2/nemotron35-lightning-1spark-tensorfold-125-official-ash",
]
VALUES = (
    [*SPEED.values(), *TILES.values()]
    + [value for cells in (*LONG.values(), *QUALITY.values(), *MEMORY.values(), *RACE.values()) for value in cells]
    + SAID
)


def test_the_list_is_long_enough() -> None:
    assert len(VALUES) >= 150


@pytest.mark.parametrize("label", SPEED)
def test_speed_row(page: str, label: str) -> None:
    assert [label, SPEED[label]] in rows_of(page, "speed")


@pytest.mark.parametrize("label", LONG)
def test_long_prompt_row(page: str, label: str) -> None:
    assert [label, *LONG[label]] in rows_of(page, "speed")


@pytest.mark.parametrize("label", TILES)
def test_tile(page: str, label: str) -> None:
    tiles = [(text_of(term), text_of(value)) for term, value in re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", page, re.S)]
    assert (label, TILES[label]) in tiles


@pytest.mark.parametrize("label", QUALITY)
def test_quality_row(page: str, label: str) -> None:
    row = next(row for row in rows_of(page, "quality") if row[0] == label)
    assert [row[1], *row[3:6]] == QUALITY[label]


@pytest.mark.parametrize("label", MEMORY)
def test_memory_row(page: str, label: str) -> None:
    row = next(row for row in rows_of(page, "memory") if row[0] == label)
    assert [row[1], row[2], row[6], row[7]] == MEMORY[label]
    assert row[4:6] == ["—", "—"]


@pytest.mark.parametrize("label", RACE)
def test_race_row(page: str, label: str) -> None:
    row = next(row for row in rows_of(page, "game") if row[1] == label)
    assert [row[2].split(" hit ")[1], *row[3:]] == RACE[label]


@pytest.mark.parametrize("sentence", SAID)
def test_sentence(page: str, sentence: str) -> None:
    assert sentence in text_of(page)


def test_figures_link_to_the_raw_lines_they_were_counted_from(page: str) -> None:
    links = re.findall(r'<a class="n" href="([^"]+)" data-run="[^"]*" data-number="([^"]+)"', page)
    places = {name: href.rsplit("/", 1)[1] for href, name in links}
    assert places["decode.prose.tokens_per_s"] == "requests-decode.jsonl.html#L4"
    assert places["prefill.32768.ttft_s"] == "requests-prefill.jsonl.html#L7"
    assert places["conc.8.total_tokens_per_s"] == "requests-conc.jsonl.html#L15"
    assert places["ctx.131072.decode.prose.tokens_per_s"] == "requests-ctx.jsonl.html#L13"
    assert places["fit.8192.peak_gib"] == "memory-fit.jsonl.html#L2"
    assert places["gpqa.right_pct"] == "answers-gpqa.jsonl.html"


def test_charts_have_alternatives_and_tables(page: str) -> None:
    charts = re.findall(r"<figure.*?</figure>", page, re.S)
    assert len(charts) == 4
    for chart in charts:
        assert re.search(r"<desc[^>]*>[^<]{20,}</desc>", chart)
        assert "<table>" in chart
    first = next(chart for chart in charts if "Time to first token over prompt length" in chart)
    assert [text_of(cell) for cell in re.findall(r"<td>(.*?)</td>", first)] == ["2.4", "5.2", "12.5", "33.5"]
