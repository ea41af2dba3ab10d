"""The template environment: escaping, the filter on every printed text, safe links, sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from homestretch.lab.publish.filter import Filter
from homestretch.lab.site.figures import size

TEMPLATES = Path(__file__).parent / "templates"
ASSETS = Path(__file__).parent / "assets"


def web(url: str) -> str:
    """A link that a page may carry: http and https only, "" for everything else (script, data, file, spaces)."""
    text = url.strip()
    safe = text.startswith(("https://", "http://")) and not any(char.isspace() or char in "\"'<>\\`" for char in text)
    return text if safe else ""


def plain(url: str) -> str:
    """A link as text, without its scheme."""
    return url.split("://", 1)[-1].rstrip("/")


def safe(name: str, what: Filter) -> str:
    """A run's name as a folder of the site and as pages print it."""
    text = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "-" for char in what.scrub(name))
    return text.strip(".-") or "run"


def environment(what: Filter) -> Environment:
    """Jinja2 with autoescape; every text that a template prints passes the filter, so nothing private can slip past a field."""

    def finalize(value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, Markup):
            return what.scrub(value)
        return "" if value is None else value

    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
        auto_reload=False,
    )
    env.filters |= {"web": web, "plain": plain, "size": size, "runname": lambda name: safe(name, what)}
    return env
