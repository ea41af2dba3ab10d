"""The core's counters in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping

from homestretch.engine.core import Counters

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(counters: Counters) -> str:
    """One sample a line, each family with its help and type (Prometheus exposition format 0.0.4)."""
    lines: list[str] = []

    def family(name: str, kind: str, help: str, values: Mapping[str, float]) -> None:
        lines.append(f"# HELP homestretch_{name} {help}")
        lines.append(f"# TYPE homestretch_{name} {kind}")
        lines.extend(
            f"homestretch_{name}{labels} {value:g}" if value < 1e6 else f"homestretch_{name}{labels} {value:.17g}"
            for labels, value in values.items()
        )

    c = counters
    family("requests_running", "gauge", "Requests that hold a stream.", {"": c.running})
    family("requests_waiting", "gauge", "Requests that wait for a stream.", {"": c.waiting})
    family(
        "requests_total",
        "counter",
        "Requests that ended, by reason.",
        {f'{{finish="{k}"}}': v for k, v in sorted(c.finished.items())},
    )
    family("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.", {"": c.prompt_tokens})
    family("cached_tokens_total", "counter", "Prompt tokens that a kept prompt state saved.", {"": c.cached_tokens})
    family("reply_tokens_total", "counter", "Reply tokens sent.", {"": c.reply_tokens})
    family("prompt_seconds_total", "counter", "Seconds spent reading prompts.", {"": c.prompt_s})
    family("step_seconds_total", "counter", "Seconds spent in steps.", {"": c.step_s})
    family("steps_total", "counter", "Steps of the model, each for all running replies.", {"": c.steps})
    family("step_rows_total", "counter", "Rows of all steps.", {"": c.step_rows})
    family("rounds_total", "counter", "Windows that were settled.", {"": c.rounds})
    family(
        "drafted_tokens_total",
        "counter",
        "Tokens drafted, by source.",
        {f'{{source="{k}"}}': v for k, v in sorted(c.drafted.items())},
    )
    family(
        "accepted_tokens_total",
        "counter",
        "Drafts that stood, by source.",
        {f'{{source="{k}"}}': v for k, v in sorted(c.accepted.items())},
    )
    family("restarts_total", "counter", "Requests that gave their place up and began again.", {"": c.restarts})
    family("kept_prompts", "gauge", "Prompt states kept.", {"": c.kept_marks})
    family("kept_prompt_bytes", "gauge", "Bytes of kept prompt states.", {"": c.kept_bytes})
    family("free_bytes", "gauge", "Bytes left for streams and kept prompt states.", {"": c.free_bytes})
    return "\n".join(lines) + "\n"
