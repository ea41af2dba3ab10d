"""Sends the events of all streams on time from one thread: sleeps until shortly before, then spins; stamps each send."""

from __future__ import annotations

import heapq
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

SPIN_S = 0.002


@dataclass(kw_only=True)
class Sending:
    """One stream. plan: (due perf_counter, chunk); sent: the stamps of what has left, taken just before each send."""

    socket: socket.socket
    plan: list[tuple[float, bytes]]
    sent: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    broken: bool = False


class Sender:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sending]] = []
        self._wake = threading.Condition()
        self._number = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fake-sender", daemon=True)
        sys.setswitchinterval(0.0005)
        self._thread.start()

    def send(self, sending: Sending) -> None:
        """Send the plan and wait for its end."""
        if sending.plan:
            with self._wake:
                self._push(sending, 0)
                self._wake.notify()
            sending.ended.wait()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout=5)

    def _push(self, sending: Sending, index: int) -> None:
        self._number += 1
        heapq.heappush(self._heap, (sending.plan[index][0], self._number, sending))

    def _run(self) -> None:
        clock = time.perf_counter
        while True:
            with self._wake:
                while not self._closed and (not self._heap or self._heap[0][0] - clock() > SPIN_S):
                    self._wake.wait(self._heap[0][0] - clock() - SPIN_S / 2 if self._heap else None)
                if self._closed:
                    for _, _, sending in self._heap:
                        sending.ended.set()
                    return
                due, _, sending = heapq.heappop(self._heap)
            while clock() < due:
                pass
            index = len(sending.sent)
            sending.sent.append(clock())
            try:
                sending.socket.sendall(sending.plan[index][1])
            except OSError:
                sending.broken = True
            if sending.broken or index + 1 == len(sending.plan):
                sending.ended.set()
                continue
            with self._wake:
                self._push(sending, index + 1)
