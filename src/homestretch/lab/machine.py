"""Facts of the machine that measures or serves: processor, memory, GPUs, who listens on a port, memory of a process tree."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil


def facts() -> dict[str, Any]:
    """What the contract keeps of this machine; nothing that names it (no host, account or address)."""
    memory = psutil.virtual_memory()
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 0,
        "memory_bytes": memory.total,
        "python": sys.version.split()[0],
    }
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.exists():
        found["governor"] = governor.read_text().strip()
    cards = graphics()
    if cards:
        found["gpus"] = cards
    return found


def processor() -> str:
    """The processor's name, as /proc/cpuinfo or the platform gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def graphics() -> list[dict[str, Any]]:
    """Name, memory and driver of each GPU that NVML knows; [] where it knows none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        cards = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = _text(pynvml.nvmlDeviceGetName(handle))
            try:
                total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            except pynvml.NVMLError:
                total = 0  # unified memory has no figure of its own
            cards.append({"name": name, "memory_bytes": total, "driver": driver})
        return cards
    except Exception:  # noqa: BLE001 - no driver, no library, no permission: all mean "no GPU"
        return []


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def used_bytes() -> int:
    """MemTotal - MemAvailable: what the page's memory test reads before and during a step."""
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it; [] when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_bytes(pid: int) -> int:
    """Memory of a process tree: PSS where the kernel tells it (shared pages count once), else resident size."""
    total = 0
    for process in tree(pid):
        try:
            info = process.memory_full_info() if sys.platform == "linux" else process.memory_info()
            total += int(getattr(info, "pss", 0) or info.rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def gpu_bytes(pids: Iterable[int]) -> int | None:
    """GPU memory that these processes hold; None where no GPU tells."""
    try:
        import pynvml

        pynvml.nvmlInit()
        wanted, total = set(pids), 0
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid in wanted and process.usedGpuMemory:
                    total += int(process.usedGpuMemory)
        return total
    except Exception:  # noqa: BLE001 - as above
        return None


def listener(port: int) -> int | None:
    """The process that listens on a local TCP port; None where none does or the system does not say."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port and connection.pid:
            return int(connection.pid)
    return None
