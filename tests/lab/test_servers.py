"""Reading what servers say of themselves: start lines, logs, API answers, draft counters; on recorded and documented output."""

from __future__ import annotations

from pathlib import Path

import pytest

from homestretch.lab import draftcount, servers
from homestretch.lab.client import Target
from homestretch.lab.errors import WrongUse
from homestretch.lab.servers import Facts

OURS = (
    "loading smollm2-135m (SmolLM2-135M-Instruct.Q4_1.gguf) on the cpu backend ...\nloaded in 2.0 s\n"
    "homestretch 0.1.0: smollm2-135m on cpu, window 8,192 tokens, 8 streams at once, drafts: copies, model 0.09 GiB, "
    "0.18 GiB a stream, 17.00 GiB left, prompt cache 1.00 GiB\nready: http://127.0.0.1:18124/v1 (stop with Ctrl-C)\n"
)
TENSORFOLD = "tensorfold-native 1.2.5\nmodel ready: window 262,144 tokens, 8 streams at once, drafts: MTP + copies, port 8080\n"
LLAMA = (
    "0.02.148.877 I cmn          init: llama threadpool init, n_threads = 2\n"
    "0.02.9 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'true'\n"
    "0.03.0 I srv  llama_server: server is listening on http://127.0.0.1:18123\n"
)
VLLM = (
    "(APIServer pid=1) INFO 11-10 10:00:00 [api_server.py:1839] vLLM API server version 0.11.0\n"
    "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='m', max_seq_len=32768, max_num_seqs=8\n"
    "INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.40, Accepted: 281 tokens, Drafted: 490 tokens\n"
    "INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 4.10, Accepted: 475 tokens, Drafted: 492 tokens\n"
)
VLLM_METRICS = (
    "# TYPE vllm:spec_decode_num_draft_tokens_total counter\n"
    'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 1943.0\n'
    'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1.182e+03\n'
)
SGLANG = (
    "[2026-11-10] sglang==0.5.4 launching\n"
    "[2026-11-10] max_total_num_tokens=412345, chunked_prefill_size=8192, max_running_requests=8, context_len=32768\n"
    "[2026-11-10] The server is fired up and ready to roll!\n"
)
OLLAMA = (
    'time=… level=INFO msg="server config" env="map[OLLAMA_CONTEXT_LENGTH:8192 OLLAMA_NUM_PARALLEL:4]"\n'
    'time=… level=INFO msg="Listening on 127.0.0.1:11434 (version 0.12.3)"\n'
)


@pytest.mark.parametrize(
    ("kind", "log", "version", "slots", "window", "drafts"),
    [
        ("ours", OURS, "homestretch 0.1.0", 8, 8192, "copies"),
        ("tensorfold", TENSORFOLD, "TensorFold 1.2.5", 8, 262144, "MTP + copies"),
        ("llama_cpp", LLAMA, "", 4, 8192, ""),
        ("vllm", VLLM, "vLLM 0.11.0", 8, 32768, ""),
        ("sglang", SGLANG, "SGLang 0.5.4", 8, 32768, ""),
        ("ollama", OLLAMA, "", 4, None, ""),
    ],
)
def test_logs(kind: str, log: str, version: str, slots: int, window: int | None, drafts: str) -> None:
    facts = servers.load(kind).read_log(log)
    assert (facts.version, facts.slots, facts.window, facts.drafts) == (version, slots, window, drafts)
    assert facts.start_line
    assert "server" in facts.slots_source


@pytest.mark.parametrize("kind", servers.names())
def test_an_empty_log_tells_nothing(kind: str) -> None:
    assert servers.load(kind).read_log("") == Facts()


def test_drafts_in_logs_and_metrics() -> None:
    llama = "slot print_timing: id 0 | task 5 | draft acceptance = 0.57347 (  281 accepted /   490 generated), mean len =  2.40\n"
    assert servers.load("llama_cpp").drafts_in_log(llama + llama) == (562, 980)
    assert servers.load("llama_cpp").drafts_in_log("draft acceptance rate = 0.57576 (   19 accepted /    33 generated)") == (19, 33)
    assert servers.load("vllm").drafts_in_log(VLLM) == (756, 982)
    assert servers.load("vllm").drafts_in_metrics(VLLM_METRICS) == (1182.0, 1943.0)
    assert servers.load("vllm").drafts_in_metrics("# nothing") is None
    assert servers.load("tensorfold").drafts_in_log("request 4: accepted 281 of 490 drafts") == (281, 490)
    assert servers.load("ours").drafts_in_log(OURS) is None


def test_api_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "//props": {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 1, "build_info": "b6500-abc1234"},
        "//version": {"version": "0.11.0"},
        "/models": {"data": [{"id": "m", "max_model_len": 32768}]},
        "//get_server_info": {"version": "0.5.4", "context_length": 32768, "max_running_requests": 8, "internal_states": [{}]},
        "//api/version": {"version": "0.12.3"},
        "//api/ps": {"models": [{"name": "m", "context_length": 8192}]},
        "/chat/completions": {"system_fingerprint": "0.32.0-0.32.0-Linux-x86_64"},
    }
    for module in ("llama_cpp", "vllm", "sglang", "ollama", "mlx_lm"):
        monkeypatch.setattr(f"homestretch.lab.servers.{module}.try_json", lambda target, path, *rest, **more: answers.get(path))
    monkeypatch.setattr("homestretch.lab.servers.try_json", lambda target, path, *rest, **more: answers.get(path))
    target = Target(url="http://127.0.0.1:1/v1")
    told = {name: servers.load(name).ask(target, "m") for name in ("llama_cpp", "vllm", "sglang", "ollama", "mlx_lm", "attach")}
    assert (told["llama_cpp"].version, told["llama_cpp"].slots, told["llama_cpp"].window) == ("llama.cpp b6500-abc1234", 1, 8192)
    assert (told["vllm"].version, told["vllm"].window) == ("vLLM 0.11.0", 32768)
    assert (told["sglang"].version, told["sglang"].slots, told["sglang"].window) == ("SGLang 0.5.4", 8, 32768)
    assert (told["ollama"].version, told["ollama"].window) == ("Ollama 0.12.3", 8192)
    assert told["mlx_lm"].version == "mlx-lm 0.32.0"
    assert told["attach"].window == 32768


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(WrongUse, match="llama_cpp"):
        servers.load("lamacpp")


def test_weights_are_compared_with_the_hubs_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    from homestretch.lab import hub

    entries = [
        {"path": "a/model.safetensors", "lfs": {"oid": "11"}},
        {"path": "config.json"},
        {"path": "head.safetensors", "lfs": {"oid": "22"}},
    ]
    asked: list[str] = []
    monkeypatch.setattr("homestretch.lab.hub.try_json", lambda target, path, **more: asked.append(path) or entries)
    equal = {"weights/model.safetensors": "11", "weights/mine.gguf": "33", "prompts": "44"}
    assert hub.verdict(equal, "org/name", "d9d758fb") == "1 of 2 files equal the hub's listing of org/name"
    assert asked == ["/models/org/name/tree/d9d758fb?recursive=1"]
    assert "differ" in hub.verdict({"weights/head.safetensors": "99"}, "org/name", "")
    assert "none of these" in hub.verdict({"weights/mine.gguf": "33"}, "org/name", "")
    assert "not compared" in hub.verdict({"prompts": "44"}, "org/name", "")
    monkeypatch.setattr("homestretch.lab.hub.try_json", lambda target, path, **more: None)
    assert "could not be read" in hub.verdict(equal, "org/name", "")


def test_drafts_are_counted_between_two_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, log = servers.load("llama_cpp"), tmp_path / "server.log"
    log.write_text("draft acceptance = 0.5 (    5 accepted /    10 generated)\n")
    from_log = draftcount.source(kind, Target(url="http://127.0.0.1:9/v1"), log)
    assert from_log is not None
    mark = from_log.mark()
    with log.open("a") as file:
        file.write("draft acceptance = 0.57347 (  281 accepted /   490 generated), mean len =  2.40\n")
    assert from_log.since(mark) == {"drafted": 490, "accepted": 281, "source": "the server's log"}
    texts = iter([VLLM_METRICS, VLLM_METRICS, VLLM_METRICS.replace("1943.0", "2435.0").replace("1.182e+03", "1657")])
    monkeypatch.setattr("homestretch.lab.draftcount.metrics", lambda target: next(texts))
    from_metrics = draftcount.source(servers.load("vllm"), Target(url="http://127.0.0.1:9/v1"), None)
    assert from_metrics is not None
    assert from_metrics.since(from_metrics.mark()) == {"drafted": 492, "accepted": 475, "source": "the server's metrics"}
