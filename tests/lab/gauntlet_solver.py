"""A reference racer: solves every task from its statement alone, by code of its own. The proof that the statements suffice."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any


def solve(task: str, statement: str) -> str:
    """A reply that hits five of five."""
    return {"ferry": ferry, "seating": seating, "painter": painter, "snake": snake}[task](statement)


def fenced(body: str, mark: str) -> str:
    return f"Here is my answer.\n\n```{mark}\n{body}\n```\n"


# --- ferry: iterative deepening over trips, not the breadth-first search of the task


def split(text: str) -> list[str]:
    return [name.strip() for name in text.replace(" and ", ", ").split(",")]


def ferry(statement: str) -> str:
    answer = {}
    for number, text in re.findall(r"Puzzle (\d)\n(.*?)(?=\n\nPuzzle|\n\nAnswer)", statement, re.S):
        west = set(split(re.search(r"West bank at the start: (.*)\.", text)[1]))  # type: ignore[index]
        found = re.search(r"East bank at the start: (.*)\.", text)
        east = set(split(found[1])) if found else set()
        many = re.search(r"up to (\d) animals", text)
        quarrels = [tuple(pair.split(" and ")) for pair in re.search(r"quarrel: (.*)\.", text)[1].split("; ")]  # type: ignore[index]
        kilos = re.search(r"at most (\d+) kg", text)
        weights = {name: int(kg) for name, kg in re.findall(r"(\w+) (\d+) kg(?=[,.])", text.partition("Weights:")[2])}
        limit = int(re.search(r"with (\d+) trips", text)[1])  # type: ignore[index]
        answer[number] = cross(
            west, east, int(many[1]) if many else 1, quarrels, weights, int(kilos[1]) if kilos else 10**9, limit, {}
        )
    return fenced(json.dumps(answer), "json")


def cross(
    west: set[str], east: set[str], places: int, quarrels: Any, weights: Any, kilos: int, limit: int, dead: dict[Any, int]
) -> list[list[str]] | None:
    start_west, start_east = frozenset(west), frozenset(east)

    def search(here: frozenset[str], there: frozenset[str], trips: int) -> list[list[str]] | None:
        at_west = (limit - trips) % 2 == 0
        if (here if at_west else there) == start_east and (there if at_west else here) == start_west:
            return []
        if trips == 0 or dead.get((here, at_west), -1) >= trips:
            return None
        for size in range(places, -1, -1):
            for load in itertools.combinations(sorted(here), size):
                left = here - set(load)
                if any(a in left and b in left for a, b in quarrels) or sum(weights.get(name, 0) for name in load) > kilos:
                    continue
                rest = search(there | set(load), left, trips - 1)
                if rest is not None:
                    return [list(load), *rest]
        dead[here, at_west] = trips
        return None

    return search(start_west, start_east, limit)


# --- seating: backtracking over the sentences as they are printed

SENTENCES = [
    (r"(\w+) sits somewhere to the left of (\w+)", lambda s, a, b: s[a] < s[b]),
    (r"(\w+) and (\w+) sit side by side", lambda s, a, b: abs(s[a] - s[b]) == 1),
    (r"(\w+) and (\w+) do not sit side by side", lambda s, a, b: abs(s[a] - s[b]) != 1),
    (r"exactly (\d) (?:person sits|people sit) between (\w+) and (\w+)", lambda s, k, a, b: abs(s[a] - s[b]) == int(k) + 1),
    (r"(\w+) sits somewhere between (\w+) and (\w+)", lambda s, a, b, c: s[b] < s[a] < s[c] or s[c] < s[a] < s[b]),
    (
        r"fewer people sit between (\w+) and (\w+) than between (\w+) and (\w+)",
        lambda s, a, b, c, d: abs(s[a] - s[b]) < abs(s[c] - s[d]),
    ),
    (r"(\w+)'s seat has an odd number", lambda s, a: s[a] % 2),
    (r"(\w+)'s seat has an even number", lambda s, a: s[a] % 2 == 0),
    (r"(\w+) does not sit at an end of the bench", lambda s, a: s[a] not in (1, len(s))),
]


def true(text: str, seats: dict[str, int]) -> bool:
    both = re.fullmatch(r"Exactly one of these two statements is true: \(i\) (.*); \(ii\) (.*)\.", text)
    if both:
        return true(both[1] + ".", seats) != true(both[2] + ".", seats)
    for pattern, test in SENTENCES:
        found = re.fullmatch(pattern + r"\.", text, re.IGNORECASE)
        if found:
            return bool(test(seats, *found.groups()))
    raise ValueError(text)


def seating(statement: str) -> str:
    answer = {}
    for number, people, clues in re.findall(r"Bench (\d): \d seats for (.*)\.\n((?:\d+\. .*\n)+)", statement):
        sentences = re.findall(r"\d+\. (.*)\n", clues)
        fits = [
            list(order)
            for order in itertools.permutations(split(people))
            if all(true(text, {name: seat for seat, name in enumerate(order, 1)}) for text in sentences)
        ]
        if len(fits) != 1:
            raise ValueError(f"bench {number} has {len(fits)} orders")
        answer[number] = fits[0]
    return fenced(json.dumps(answer), "json")


# --- painter: a dictionary of points, not rows of cells

PAINTER = """
import sys
B, FIRST, UP, WRAP, DIAG, IDLE = {rules}
W, H = map(int, input().split())
pic = dict()
for y in range(H):
    for x in range(W):
        pic[x, y] = B
def put(x, y, c):
    p = place(x, y)
    if p: pic[p] = c
def place(x, y):
    x -= FIRST; y -= FIRST
    if UP: y = H - 1 - y
    if WRAP: return x % W, y % H
    return (x, y) if 0 <= x < W and 0 <= y < H else None
def sign(v): return 0 if v == 0 else v // abs(v)
def line(x, y, x2, y2, c):
    put(x, y, c)
    while (x, y) != (x2, y2):
        x += sign(x2 - x); y += sign(y2 - y); put(x, y, c)
past = []
for _ in range(int(input())):
    op, *a = input().split()
    if op == "UNDO":
        if past: pic = past.pop()
        continue
    old = dict(pic)
    n = [int(v) if v.lstrip("-").isdigit() else v for v in a]
    if op == "DOT": put(*n)
    elif op == "LINE": line(*n)
    elif op == "RECT":
        x1, y1, x2, y2, c = n
        for x in range(min(x1, x2), max(x1, x2) + 1): put(x, y1, c); put(x, y2, c)
        for y in range(min(y1, y2), max(y1, y2) + 1): put(x1, y, c); put(x2, y, c)
    elif op == "FILL":
        p = place(n[0], n[1]); was = pic[p]; seen = {{p}}; edge = [p]
        while edge:
            x, y = edge.pop()
            for dx in (-1, 0, 1):
                for dy in (-1, 0, 1):
                    q = (x + dx, y + dy)
                    if (DIAG or not (dx and dy)) and pic.get(q) == was and q not in seen:
                        seen.add(q); edge.append(q)
        for q in seen: pic[q] = n[2]
    elif op == "SWAP":
        pic = {{k: a[1] if v == a[0] else a[0] if v == a[1] else v for k, v in pic.items()}}
    elif op == "MIRROR": pic = {{(W - 1 - x, y): v for (x, y), v in pic.items()}}
    elif op == "TURN": pic = {{(W - 1 - x, H - 1 - y): v for (x, y), v in pic.items()}}
    elif op == "SHIFT": pic = {{((x + n[0]) % W, (y + n[1]) % H): v for (x, y), v in pic.items()}}
    if IDLE or pic != old: past.append(old)
for y in range(H): print("".join(pic[x, y] for x in range(W)))
"""


def painter(statement: str) -> str:
    first, rows = re.search(r"numbered from (\d) at the left, rows\s+from \d at\s+the (\w+)", statement).groups()  # type: ignore[union-attr]
    rules = (
        re.search(r'All cells start as "(.)"', statement)[1],  # type: ignore[index]
        int(first),
        rows == "bottom",
        "wrap around" in statement,
        "eight neighbours" in statement,
        "also when it changed nothing" in statement,
    )
    return fenced(PAINTER.format(rules=rules), "python")


# --- snake: sets of (cell, time) and recursion-free flood fills over a list of body cells

SNAKE = '''
import sys
t = sys.stdin.read().split("\\n")
W, H, mode, G, LIMIT = t[0].split(); W, H, G = int(W), int(H), int(G); wrap = mode == "WRAP"
wall = {(x, y) for y in range(H) for x in range(W) if t[1 + y][x] == "#"}
at = 1 + H; n = int(t[at]); body = [tuple(map(int, l.split())) for l in t[at + 1: at + 1 + n]]
at += 1 + n; m = int(t[at]); foods = [tuple(map(int, l.split())) for l in t[at + 1: at + 1 + m]]
D = {"U": (0, -1), "D": (0, 1), "L": (-1, 0), "R": (1, 0)}
def go(c, d):
    x, y = c[0] + D[d][0], c[1] + D[d][1]
    if wrap: x %= W; y %= H
    return None if (x, y) in wall or not (0 <= x < W and 0 <= y < H) else (x, y)
def step(s, d):
    body, debt, k = s
    c = go(body[0], d)
    if c is None or k >= m: return None
    if c == foods[k]: debt += G; k += 1
    if debt: debt -= 1
    else: body = body[:-1]
    return None if c in body else ([c] + body, debt, k)
def tail_ok(s):
    body, debt, k = s
    if k >= m: return True
    solid = set(body[:-1]); tail = body[-1]; seen = {body[0]}; todo = [body[0]]
    while todo:
        c = todo.pop()
        for d in D:
            q = go(c, d)
            if q == tail and not (c == body[0] and debt): return True
            if q and q not in seen and q not in solid: seen.add(q); todo.append(q)
    return False
def lives(s, n):
    return s[2] >= m or tail_ok(s) and (n == 0 or any((r := step(s, d)) and lives(r, n - 1) for d in D))
def alive(s): return lives(s, s[1] + 4)
def search(s, strict, width=600, deep=60):
    """Real states breadth first, so that the way itself may free a cell; one state a (head, length of way)."""
    layer = [("", s)]; seen = set()
    for depth in range(deep):
        after = []
        for way, st in layer:
            for d in D:
                r = step(st, d)
                if not r: continue
                if r[2] > s[2]:
                    if alive(r): return way + d, r
                    continue
                key = (r[0][0], depth // 4, r[0][1] if len(r[0]) > 1 else 0)
                if key in seen or strict and not tail_ok(r): continue
                seen.add(key); after.append((way + d, r))
        layer = after[:width]
        if not layer: return None
    return None
def race():
    s = (body, 0, 0); out = ""
    while s[2] < m and len(out) <= int(LIMIT):
        found = search(s, False) or search(s, True)
        if not found:
            fx, fy = foods[s[2]]
            steps = [(d, r) for d in D if (r := step(s, d)) and alive(r)]
            found = max(steps, key=lambda p: (abs(p[1][0][0][0] - fx) + abs(p[1][0][0][1] - fy), p[0]), default=None)
        if not found: break
        out += found[0]; s = found[1]
    return s[2] == m and len(out) <= int(LIMIT), out
for turn in ("UDLR", "RLDU", "LURD", "DRUL", "ULDR", "RDLU"):
    D = {d: D[d] for d in turn}
    won, out = race()
    if won: break
print(out)
'''


def snake(statement: str) -> str:
    return fenced(SNAKE, "python")
