"""The `homestretch` command: one file here per command, found by its name, each with a function of the same name."""

from __future__ import annotations

import importlib
import pkgutil

import typer

ORDER = (
    "demo",
    "pull",
    "serve",
    "measure",
    "score",
    "check",
    "compare",
    "repeat",
    "publish",
    "site",
    "play",
    "fake",
    "doctor",
)


def build() -> typer.Typer:
    """The application with every command that is present; `site.py` holds a sub-application named `app`."""
    app = typer.Typer(
        name="homestretch",
        help="Serve a language model on your own machine, measure it honestly, publish a page that anyone can recount.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.callback()(_group)
    present = {info.name for info in pkgutil.iter_modules(__path__)}
    for name in ORDER:
        if name not in present:
            continue
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name=name)(getattr(module, name))
    return app


def _group() -> None:
    """Keeps every command under its name, even while there is only one."""


def main() -> None:
    """Entry point. Exit codes: 0 done or kept, 1 failed or broken, 2 wrong use, 3 undecided."""
    build()()
