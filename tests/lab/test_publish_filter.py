"""The filter: nothing planted gets out, nothing harmless is held back, replies are never edited, and it fails closed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from homestretch.lab.publish import Filter
from homestretch.lab.publish.tree import write_run

USER, HOST, CITY = "petra.lindqvist", "kellerkind", "falkenstein7"
WHAT = Filter([USER, "lindqvist", HOST, CITY])

# Each line with what must not get out. Placeholders or a held file are both right.
PLANTED: list[tuple[str, str]] = [
    ("/home/petra.lindqvist/models/x.gguf", "petra"),
    ("loading /home/petra/models/llama.gguf", "petra"),
    ("/Users/petra/Library/Caches/hub", "petra"),
    ("C:\\Users\\Petra\\models\\x.gguf", "Petra"),
    ("C:/Users/Petra/models", "Petra"),
    ("path=/home/petra", "petra"),
    ("cd /root/secret-project && ls", "/root"),
    ("~petra/bin/serve", "petra"),
    ("/var/home/petra/run", "petra"),
    ("/home/petra\\nnext", "petra"),
    ("export PATH=/home/petra/bin:/usr/bin", "petra"),
    ("--tokenizer-json=/home/petra/tok/tokenizer.json", "petra"),
    ("file:///home/petra/page.html", "petra"),
    ("file:///D:/work/page.html", "D:/work"),
    ("/mnt/nas-berlin/weights/model.safetensors", "nas-berlin"),
    ("/media/petra/USB/x", "USB"),
    ("/data/projects/acme-merger/run.json", "acme-merger"),
    ("/srv/customers/bluebank/log.txt", "bluebank"),
    ("/scratch/grp42/tmp.bin", "grp42"),
    ("/Volumes/Backup2/models/a.gguf", "Backup2"),
    ("/tmp/tmpab12/petra-notes.txt", "tmpab12"),
    ("D:\\projekte\\geheim\\x.bin", "geheim"),
    ("\\\\fileserver\\share\\models", "fileserver"),
    ("petra@kellerkind:~/models$ ./serve", "kellerkind"),
    ("root@gpu-box-3:/opt# nvidia-smi", "gpu-box-3"),
    ("scp x petra@buildhost:/srv/x", "buildhost"),
    ("mail to petra.lindqvist@example.org", "example.org"),
    ("author: p.l@uni-kiel.de", "uni-kiel"),
    ("hostname: kellerkind", "kellerkind"),
    ("Hostname=workstation-9", "workstation-9"),
    ('"hostname": "node17"', "node17"),
    ("Linux kellerkind 6.8.0-45-generic #45-Ubuntu SMP", "kellerkind"),
    ("Linux dgx-lab-02 6.11.0-1016 aarch64", "dgx-lab-02"),
    ("Darwin petras-mbp 24.1.0", "petras-mbp"),
    ("host kellerkind.local is up", "kellerkind"),
    ("connecting to nas.lan", "nas.lan"),
    ("http://printer.fritz.box/status", "printer"),
    ("proxy.corp.internal:3128", "proxy.corp"),
    ("box.tail1234.ts.net", "tail1234"),
    ("user: lindqvist", "lindqvist"),
    ("USER=plindq", "plindq"),
    ("LOGNAME=plindq", "plindq"),
    ('"username": "plindq"', "plindq"),
    ("started by Petra.Lindqvist", "Lindqvist"),
    ("KELLERKIND ready", "KELLERKIND"),
    ("log-kellerkind-2026.txt", "kellerkind"),
    ("room falkenstein7", "falkenstein7"),
    ("server at 192.168.178.23:8080", "192.168.178.23"),
    ("peer 10.0.0.17", "10.0.0.17"),
    ("public 84.132.7.201 seen", "84.132.7.201"),
    ("172.16.4.9 - - [10/Nov/2026] GET /v1/models", "172.16.4.9"),
    ("addr=100.101.102.103", "100.101.102.103"),
    ("inet6 fe80::1a2b:3c4d:5e6f:7a8b%eth0", "1a2b:3c4d"),
    ("2001:db8:85a3::8a2e:370:7334", "8a2e:370"),
    ("fd12:3456:789a:1::1", "789a"),
    ("ether 3c:7c:3f:1b:22:9d", "3c:7c:3f"),
    ("HWaddr 3C-7C-3F-1B-22-9D", "3C-7C-3F"),
    ("Serial Number: 1423922041837", "1423922041837"),
    ("serial: PF3XK92L", "PF3XK92L"),
    ('"serial_number": "S6P7NX0T512345"', "S6P7NX0T512345"),
    ("S/N: 88AB12CD34", "88AB12CD34"),
    ("GPU 0: NVIDIA GB10 (UUID: GPU-8f1d7c2a-1b2c-3d4e-5f60-718293a4b5c6)", "8f1d7c2a"),
    ("machine-id: 5f2b8c0de1a94f3bb7c1", "5f2b8c0d"),
    ("system uuid: 4C4C4544-0044-3510-8054-B7C04F4E3732", "B7C04F4E3732"),
    ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx", "hf_AbCd"),
    ("using hf_ZyXwVuTsRqPoNmLkJiHgFeDc", "hf_ZyXw"),
    ("key sk-proj-abcdEFGH1234ijklMNOP", "sk-proj"),
    ("ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_0123"),
    ("github_pat_11AAAAAAA0abcdefghijklmnop", "github_pat_11"),
    ("glpat-ABCDEFGHIJKLMNOPQRST", "glpat-ABC"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOS"),
    ("xoxb-123456789012-abcdef", "xoxb-12"),
    ("nvapi-AbCdEfGhIjKlMnOpQrStUvWxYz", "nvapi-AbCd"),
    ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
    ("api_key: q8w7e6r5t4", "q8w7e6r5t4"),
    ("OPENAI_API_KEY=abcd1234efgh", "abcd1234efgh"),
    ("password = hunter22", "hunter22"),
    ("db_password: s3cr3t!", "s3cr3t"),
    ("token=Zk29dKw83hf7Ql", "Zk29dKw83hf7Ql"),
    ("https://petra:pa55word@hub.example/x", "pa55word"),
    ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6 petra@kellerkind", "AAAAC3Nza"),
    ("-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXktdjEA", "b3BlbnNz"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSM", "eyJzdWIi"),
    ("GPU power 61.3 W", "61.3 W"),
    ("power.draw [W], 61.30 W", "61.30 W"),
    ("power_draw: 58", "58"),
    ('"power_w": 57.2', "57.2"),
    ("avg 312 watts over the run", "312"),
    ("used 1.2 kWh today", "1.2 kWh"),
    ("limit 450W", "450W"),
    ("energy_j: 8123", "8123"),
    ("package energy 912 joules", "912 joules"),
    ("Der Server wird gestartet", "gestartet"),
    ("Fehler: Datei nicht gefunden", "Datei"),
    ("Modell ist geladen und bereit", "geladen"),
    ("warte auf den Server", "warte"),
    ("Messung läuft, bitte nicht stören", "Messung"),
    ("Die Anfrage konnte nicht beantwortet werden", "Anfrage"),
    ("Verbindung zum Rechner beendet", "Rechner"),
    ("beginne mit dem ersten Lauf", "Lauf"),
    ("Speicher voll, Lauf abgebrochen", "abgebrochen"),
    ("Le serveur est démarré sur le port", "serveur"),
    ("Erreur : fichier introuvable", "fichier"),
    ("chargement du modèle terminé", "chargement"),
    ("aucune réponse de la machine", "réponse"),
    ("la mémoire est pleine", "mémoire"),
    ("nous avons mesuré dans la nuit", "nous"),
    ("une requête pour chaque question", "requête"),
    ("le fichier est dans le dossier", "dossier"),
    ("сервер запущен и готов к работе", "запущен"),
    ("服务器已经启动完成", "启动"),
    ("home=\\/home\\/petra\\/x", "petra"),
    ("\\u002fhome\\u002fpetra\\u002fx", "petra"),
    ("%2Fhome%2Fpetra%2Fx", "petra"),
    ("&#47;home&#47;petra", "petra"),
    (base64.b64encode(b"/home/petra/models/x").decode(), base64.b64encode(b"/home/petra").decode()[:12]),
    ("h\\u006fstname: node17", "node17"),
    ("ip\\u003d10.1.2.3", "10.1.2.3"),
    ("\\x2fhome\\x2fpetra", "petra"),
    ("started in /workspace/petra-lab/run", "petra-lab"),
    ("ComputerName = DESKTOP-4F7K2", "DESKTOP-4F7K2"),
    ("owner: plindq", "plindq"),
    ("login: plindq", "plindq"),
]

HARMLESS = """
nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16
TensorFold/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-MLX-4bit @d9d758fb
meta-llama/Llama-3.1-8B-Instruct
Qwen/Qwen3-30B-A3B-Instruct-2507
mistralai/Mistral-Small-3.2-24B-Instruct-2506
HuggingFaceTB/SmolLM2-135M-Instruct
google/gemma-3-27b-it
deepseek-ai/DeepSeek-V3.2
SmolLM2-135M-Instruct.Q4_1.gguf
model-00001-of-00004.safetensors
TensorFold 1.2.5: nemotron-3.5-lightning on GB10, window 262144 tokens, 8 streams at once
homestretch 0.1.0: smollm2-135m on cpu, window 8192 tokens, 2 streams at once, drafts: none
llama.cpp build b6800 (a1b2c3d), gcc 12.2.0
vLLM 0.11.0, torch 2.13.0+cpu, CUDA 12.8
version 1.2.3.4 of the driver
torch==2.13.0
driver 580.95.05, compute capability 12.1
commit 1f6f0d2b3c4d5e6f708192a3b4c5d6e7f8091a2b
sha256 1a0192b28d6ab6ec2749f3ff25515379dba4895171e781b30f810afc971ae4f8
node-llama-cpp@3.21.1
git+https://github.com/ashhart/TensorFold@v1.2.5
https://github.com/ashhart/TensorFold/blob/v1.2.5/docs/recipes/nemotron-3.5.md
https://huggingface.co/TensorFold
http://127.0.0.1:8080/v1/chat/completions
listening on 0.0.0.0:8080
Uvicorn running on http://127.0.0.1:45541
http://localhost:8000/health
/v1/models
/usr/bin/python3
/usr/lib/x86_64-linux-gnu/libc.so.6
/bin/bash -c true
$HOME/models/x.gguf
$RUN/server.log
$LOCAL/tokenizer.json
2026-11-10T12:00:00.123Z INFO request finished in 3.61 s
12:00:30 step 4 of 37
[10/Nov/2026:12:00:30 +0000] "POST /v1/chat/completions HTTP/1.1" 200
decode 141.9 tok/s, prefill 7348.4 tok/s
60.8 % of 1,943 drafted tokens accepted
Traceback (most recent call last):
ValueError: too many values to unpack (expected 2)
KeyError: 'choices'
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
ConnectionResetError: [Errno 104] Connection reset by peer
HTTP 429 Too Many Requests, retry after 2 s
error: prompt has 9000 tokens, the window holds 8192
  File "server.py", line 120, in handle
    raise RuntimeError("stream closed")
def main() -> int:
for i in range(10): print(i)
int main(void) { return 0; }
std::vector<int> a; Face::add(a);
x = a[::2]; y = {"a": 1, "b": [1, 2]}
SELECT name FROM tasks WHERE level > 2;
<div class="tile"><b>12</b></div>
import numpy as np
let total = rows.map((row) => row.tokens).reduce((a, b) => a + b, 0);
if (user) { return user.name; }
user: str = Field(default="")
token: the next piece of text
tokens: 512
"max_tokens": 1024
"token_ids": [1, 2, 3]
completion_tokens=512 prompt_tokens=96
{"role": "user", "content": "Hello"}
role: user
"finish_reason": "length"
"seed": 42, "temperature": 1.0, "top_p": 0.95
"enable_thinking": false
chatcmpl-8f1d7c2a1b2c3d4e
system_fingerprint: fp_44709d6fcb
The answer is B.
the model answers 175 of 400 questions
The die was cast in the server room.
I am a language model.
A la carte
et al. 2024
de facto standard
Les Paul guitars and the Le Mans race
The Hague is in the Netherlands
Nous Hermes and Mistral are model names
bench: 3 runs, median 141.6, spread 2.3 %
guard: 828 samples, 0 steps discarded
NVIDIA GB10, 128 GB unified memory
GPU clock capped at 2200 MHz
clock 2200 MHz, 46 C
temperature: 1.0
cores: 20, threads: 2
memory 31.66 GiB
context 262,144 tokens
level 3, 15 s a loop
range 2: 0 of 5 hit
River ferry (puzzle, level 1)
Wins: 3, losses: 2
3 wins in a row
w = 5
5 w
top_k 20 of 40
weights 17.8 GB
what a 4-bit quant keeps
Windows 11, WSL2
macOS 15.1 on Apple M4 Max
Ubuntu 24.04.1 LTS
Debian 12 with kernel 6.1
Linux kernel 6.8
AVX512_VNNI AMX_INT8
RTX 5090, 32 GB
sm_121
port 8080
ssh key type ed25519
passwords are never logged
token bucket refilled
api keys are read from a file
secret santa
host memory pinned
hosts file not read
user message too long
hostname not recorded
owner name/repository
serial execution, parallel execution
serial: false
uuid: none
MAC and PC
e-mail addresses are replaced
α = 0.05, β ≈ 2, Δt
naïve café résumé
“quoted” — dash … ellipsis ≤ ≥ ± ×
emoji 🚴 and arrows →
""".strip("\n").split("\n")


def forms(line: str) -> dict[str, bytes]:
    """The line as it stands in the kinds of files a run has."""
    return {
        "log.txt": f"12:00 start\n{line}\n".encode(),
        "server.log": f"INFO {line}\n".encode(),
        "contract.json": json.dumps({"settings": {"note": {"value": line, "source": "card"}}}).encode(),
        "log.jsonl": (json.dumps({"at": "x", "text": line}, ensure_ascii=False) + "\n").encode(),
    }


def test_the_corpora_are_long_enough() -> None:
    assert len(PLANTED) >= 120
    assert len(HARMLESS) >= 120


@pytest.mark.parametrize(("line", "secret"), PLANTED, ids=range(len(PLANTED)))
def test_nothing_planted_gets_out(line: str, secret: str) -> None:
    for name, data in forms(line).items():
        judged = WHAT.judge(name, data)
        published = judged.data or b""
        for view in (
            published.decode(),
            json.loads(published)["settings"]["note"]["value"] if name == "contract.json" and published else "",
        ):
            assert secret.lower() not in view.lower(), (name, view)


@pytest.mark.parametrize("line", HARMLESS, ids=range(len(HARMLESS)))
def test_nothing_harmless_is_held_back_or_changed(line: str) -> None:
    for name, data in forms(line).items():
        judged = WHAT.judge(name, data)
        assert judged.entry.state == "published", (name, judged.entry.reason, judged.data)
        assert judged.data == data


def test_replies_are_published_whole_or_held_back_never_edited() -> None:
    row = {"id": "1", "text": "Der Server wird gestartet und ist bereit. 你好，世界"}
    data = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    assert WHAT.judge("replies-decode.jsonl", data).data == data, "the language rule is not for replies"
    for text in (f"ask {HOST} for it", "it drew 61.3 W", "see /home/petra/x"):
        judged = WHAT.judge("replies-ifeval.jsonl", (json.dumps({"id": "1", "text": text}) + "\n").encode())
        assert judged.entry.state == "held"
        assert judged.data is None
        assert judged.entry.reason


def test_both_hashes_are_kept_and_the_reason_names_the_line() -> None:
    judged = WHAT.judge("log.txt", b"fine\n/home/petra/x\n")
    assert (judged.entry.state, judged.entry.replaced) == ("changed", {"home folder": 1})
    assert judged.data == b"fine\n$HOME/x\n"
    assert judged.entry.sha256 != judged.entry.published_sha256
    assert judged.changes == [(2, "/home/petra/x", "$HOME/x")]
    assert WHAT.judge("log.txt", b"fine\nDatei nicht gefunden\n").entry.reason.startswith("line 2: ")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("log.txt", b"\xff\xfe\x00"),
        ("log.txt", b"a\x00b"),
        ("result.json", b"{broken"),
        ("requests-decode.jsonl", b'{"a": 1}\n{broken\n'),
        ("weights.bin", b"abc"),
        ("../evil.json", b"{}"),
        ("a/../../evil.json", b"{}"),
        ("name with space.txt", b"x"),
        ("x" * 300 + ".txt", b"x"),
        (f"{HOST}.txt", b"x"),
    ],
)
def test_what_it_cannot_read_it_holds_back(name: str, data: bytes) -> None:
    judged = WHAT.judge(name, data)
    assert judged.data is None
    assert judged.entry.state == "held"
    assert judged.entry.reason


def test_a_failing_filter_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Filter([HOST])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(broken, "_line", fail)
    judged = broken.judge("log.txt", b"x\n")
    assert (judged.data, judged.entry.state) == (None, "held")


def test_filtering_twice_changes_nothing_more_and_keeps_the_first_hashes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.txt").write_text("/home/petra/x\n")
    (run / "server.log").write_text("Datei nicht gefunden\n")
    first = write_run(run, tmp_path / "once", WHAT)
    second = write_run(tmp_path / "once", tmp_path / "twice", WHAT)
    assert first == second
    assert (tmp_path / "twice" / "log.txt").read_text() == "$HOME/x\n"
    assert not (tmp_path / "twice" / "server.log").exists()
