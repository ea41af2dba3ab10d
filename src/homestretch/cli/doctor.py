"""`homestretch doctor`: this machine, its backends, and which of them computes each operation, with the reason."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from homestretch.engine.program import Attrs, Model

BUSY_CORES = 0.25
"""Foreign load, in cores, from which speeds are not what this machine can do."""


def doctor(
    model: Annotated[str, typer.Argument(help="Also say what would serve this model: anything that `serve` takes.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="Threads of the cpu backend; 0 = all that this process may use.")] = 0,
    device: Annotated[str, typer.Option(help="Device as `serve --device` takes it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line on stdout at the end.")] = False,
) -> None:
    """Say what this machine offers and what would run where."""
    try:
        found = examine(model, threads, device)
    except ModuleNotFoundError as error:
        print(f"homestretch doctor: {error.name} is missing: pip install 'homestretch[engine]'", file=sys.stderr)
        raise typer.Exit(1) from None
    print(as_text(found), file=sys.stderr if as_json or not sys.stdout.isatty() else sys.stdout)
    if as_json:
        print(json.dumps(found))
    if found["model"] and not found["model"]["backend"]:
        raise typer.Exit(1)


def examine(model: str, threads: int, device: str) -> dict[str, Any]:
    """Everything that doctor prints, as JSON."""
    from typing import get_args

    from homestretch.engine import backends
    from homestretch.engine.program import Attrs
    from homestretch.engine.server.start import BEST_FIRST

    order = [*(name for name in BEST_FIRST if name in backends.names()), *sorted(set(backends.names()) - set(BEST_FIRST))]
    works: dict[str, str | None] = {}
    for name in order:
        try:
            works[name] = backends.find(name).refusal(device)
        except ImportError as error:
            works[name] = str(error)
    operations = []
    for kind in get_args(Attrs):
        cells = {name: works[name] or backends.find(name).lacks(one_operation(kind)) for name in order}
        chosen = next((name for name in order if cells[name] is None), None)
        better = order[: order.index(chosen)] if chosen else order
        why = "; ".join(f"no {name} here" if works[name] else f"{name}: {cells[name]}" for name in better) or "the fastest has it"
        operations.append({"operation": kind.__name__, "backends": cells, "chosen": chosen, "why": why})
    return {
        "machine": machine(threads, compiled=works.get("cpu", "") is None),
        "backends": works,
        "operations": operations,
        "model": of_model(model, device) if model else None,
    }


def one_operation(kind: type[Attrs]) -> Model:
    """A model of a single operation of this kind, for asking a backend whether it has it."""
    from dataclasses import fields

    from homestretch.engine.program import Model, Op, Program

    plain: dict[str, Any] = {"int": 1, "float": 1.0, "bool": False, "tuple[int, ...]": (1,)}
    attrs = kind(**{field.name: plain[str(field.type)] for field in fields(kind)})
    program = Program(inputs=("tokens",), ops=(Op(attrs=attrs, ins=(0,), outs=(1,)),), slots=(), outputs={})
    return Model(name="", family="", vocab=1, hidden=1, window=1, main=program, head=None, weights={})


def machine(threads: int, *, compiled: bool) -> dict[str, Any]:
    """Processor, cores, memory, foreign load over half a second, and what the cpu kernels use."""
    import psutil

    from homestretch.engine.backends.cpu import build, native
    from homestretch.engine.backends.cpu import threads as all_threads

    busy = psutil.cpu_percent(interval=0.5) / 100 * (psutil.cpu_count() or 1)
    found: dict[str, Any] = {
        "processor": processor_name(),
        "cores": psutil.cpu_count(),
        "threads": threads or all_threads(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "free_gib": round(psutil.virtual_memory().available / (1 << 30), 1),
        "foreign_cores": round(busy, 2),
        "compiler": build.compiler(),
    }
    if compiled:
        library = native.load(build.library())
        found["rows"] = f"{library.hs_form().decode()}, 16-bit integer activations"
        found["prompts"] = f"{library.hs_prompt_form().decode()} products"
    return found


def processor_name() -> str:
    """The model name that the system gives, else the machine type."""
    import platform
    from pathlib import Path

    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def of_model(name: str, device: str) -> dict[str, Any]:
    """Which backend `serve` would take for a model, or why none."""
    from homestretch.engine.checkpoint.opening import open_checkpoint
    from homestretch.engine.errors import CheckpointError, SetupError
    from homestretch.engine.families import build_model
    from homestretch.engine.server.start import choose_backend
    from homestretch.engine.store import pull

    try:
        model = build_model(open_checkpoint(pull(name).path))
        return {"name": name, "family": model.family, "backend": choose_backend("", device, model).name, "why": ""}
    except (SetupError, CheckpointError) as error:
        return {"name": name, "family": "", "backend": None, "why": str(error)}


def as_text(found: dict[str, Any]) -> str:
    """The same for people."""
    m = found["machine"]
    lines = [
        f"{m['processor']}, {m['cores']} cores, {m['free_gib']} of {m['memory_gib']} GiB free",
        f"cpu backend: {m['threads']} threads, compiler: {m['compiler'] or 'none'}",
    ]
    if "rows" in m:
        lines.append(f"cpu kernels: rows by {m['rows']}; prompts by {m['prompts']}")
    if m["foreign_cores"] > BUSY_CORES:
        lines.append(
            f"BUSY: other processes use {m['foreign_cores']:.1f} of {m['cores']} cores; everything measured now is too slow"
        )
    lines.append("")
    lines += [f"{name:12}{'works' if reason is None else reason}" for name, reason in found["backends"].items()]
    names = list(found["backends"])
    lines += ["", f"{'operation':12}" + "".join(f"{name:12}" for name in names) + f"{'chosen':12}why"]
    for row in found["operations"]:
        marks = "".join(f"{'yes' if row['backends'][name] is None else 'no':12}" for name in names)
        lines.append(f"{row['operation']:12}{marks}{row['chosen'] or 'none':12}{row['why']}")
    if found["model"]:
        lines += ["", f"{found['model']['name']}: {found['model']['backend'] or found['model']['why']}"]
    return "\n".join(lines)
