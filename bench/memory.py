"""Read bandwidth of this machine's memory: a sum over 512 MB, compiled on the spot, the best of several passes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

from homestretch.engine.backends.cpu import build

SOURCE = r"""
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
typedef uint64_t V __attribute__((vector_size(64)));
extern "C" double gb_s(int threads) {
    const size_t bytes = (size_t)512 << 20;
    char* p = (char*)aligned_alloc(1 << 21, bytes);
    memset(p, 1, bytes);
    double best = 0;
    for (int pass = 0; pass < 7; pass++) {
        auto started = std::chrono::steady_clock::now();
        std::vector<std::thread> all;
        for (int t = 0; t < threads; t++)
            all.emplace_back([=] {
                V s[4] = {};
                size_t from = bytes / 256 * t / threads * 256, to = bytes / 256 * (t + 1) / threads * 256;
                for (size_t i = from; i < to; i += 256)
                    for (int j = 0; j < 4; j++) s[j] += *(V*)(p + i + 64 * j);
                volatile uint64_t sink = (s[0] + s[1] + s[2] + s[3])[0];
                (void)sink;
            });
        for (auto& t : all) t.join();
        double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        if (bytes / s / 1e9 > best) best = bytes / s / 1e9;
    }
    free(p);
    return best;
}
"""


def bandwidth(threads: int) -> float:
    """GB/s that `threads` threads read together."""
    compiler = build.compiler() or "c++"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "read.cpp", Path(folder) / "read.so"
        source.write_text(SOURCE)
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-Wno-psabi", "-std=c++17"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).gb_s
        function.restype = ctypes.c_double
        return float(function(threads))
