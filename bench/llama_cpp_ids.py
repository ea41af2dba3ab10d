"""Ids that llama.cpp gives for the tokenizer test's strings, under each split: compares them with ours and prints their digests.

    npm install node-llama-cpp@3.21.1 --prefix FOLDER && .venv/bin/python bench/llama_cpp_ids.py FOLDER

llama.cpp reads the vocabulary alone (`vocabOnly`), from copies of the embedded model's metadata with another `tokenizer.ggml.pre`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engine"))
from test_tokenizer import COMPOSED, digest

from homestretch.engine.checkpoint.gguf_header import Texts, read_header
from homestretch.engine.checkpoint.gguf_vocabulary import SPLITS, build_tokenizer
from homestretch.engine.store import pull
from homestretch.engine.tokenizer import Tokenizer

SCRIPT = """
import {getLlama} from "node-llama-cpp";
import fs from "fs";
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2], vocabOnly: true});
const texts = JSON.parse(fs.readFileSync(process.argv[3]));
fs.writeFileSync(process.argv[4], JSON.stringify([false, true].map(special => texts.map(text => model.tokenize(text, special)))));
process.exit(0);
"""


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> None:
    """A GGUF of this metadata and one tensor, which llama.cpp does not read."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for key, value in metadata.items():
        held = value.all() if isinstance(value, Texts) else value
        if key != "general.architecture":
            add[type(held)](key, held)
    writer.add_tensor("token_embd.weight", np.zeros((32, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    node = Path(sys.argv[1]).resolve()
    (node / "ids.mjs").write_text(SCRIPT)
    metadata = read_header(pull("smollm2-135m").path).metadata
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        texts, ids, model = (Path(folder) / name for name in ("texts.json", "ids.json", "vocabulary.gguf"))
        texts.write_text(json.dumps(COMPOSED))
        for pre in SPLITS:
            changed = {**metadata, "tokenizer.ggml.pre": pre}
            write_vocabulary(model, changed)
            done = subprocess.run(["node", "ids.mjs", model, texts, ids], cwd=node, capture_output=True, text=True, timeout=300)
            if done.returncode:
                print(f"{pre:18} llama.cpp does not know it: {done.stderr.strip().splitlines()[-1:]}")
                continue
            tokenizer = Tokenizer(build_tokenizer(changed, pre))
            for special, theirs in zip((False, True), json.loads(ids.read_text()), strict=True):
                ours = tokenizer.encode_batch(COMPOSED, special=special)
                unequal = sum(list(mine) != their for mine, their in zip(ours, theirs, strict=True))
                differ += unequal
                print(f"{pre:18} special={special!s:5} {unequal} of {len(COMPOSED)} differ  {digest(theirs)}", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
