"""The vocabulary in a GGUF's metadata as a `tokenizers.Tokenizer`: byte-level BPE, split by the rule that the file names."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from homestretch.engine.checkpoint import TextDefaults
from homestretch.engine.checkpoint.gguf_header import Texts
from homestretch.engine.checkpoint.keys import short
from homestretch.engine.errors import CheckpointError

GGML = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts text into words (Radford et al. 2019), which most byte-level vocabularies were trained with."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3, QWEN2 = _WORDS % r"\p{N}{1,3}", _WORDS % r"\p{N}"

SPLITS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (r"\p{N}", GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), (QWEN2,)),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""The regular expressions of `tokenizer.ggml.pre`, applied one after the other: each cuts the pieces that the one before left."""

WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3"})
"""Vocabularies that take a word they hold as it is, before any merge; they also put BOS first unless the file says not to."""

COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Vocabularies whose text is put into Unicode form C first."""

ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|eot|>", "<end_of_turn>", "</s>")
)
"""Control tokens that end a reply wherever they are; files often name only one of them."""


def build_tokenizer(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer that the metadata describes. CheckpointError: another kind of vocabulary, an unknown split, damaged lists."""
    pre = split_of(metadata, where)
    tokens = texts(metadata, "tokens", where)
    kinds = _kinds(metadata, len(tokens), where)
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(tokens):
        vocabulary.setdefault(token, number)
    merges = _pairs(texts(metadata, "merges", where), where)
    try:
        tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in WHOLE_WORDS))
    except Exception as error:  # noqa: BLE001 - the binding raises bare Exception
        raise CheckpointError(f"{where}: {GGML}merges do not fit {GGML}tokens: {short(str(error))}") from None
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in SPLITS[pre]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if pre in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    named = {metadata.get(f"{GGML}{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    control = [token for number, token in enumerate(tokens) if token and (kinds[number] in (UNKNOWN, CONTROL) or number in named)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    known = set(control)
    user = [token for number, token in enumerate(tokens) if token and kinds[number] == USER_DEFINED and token not in known]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    around = _around(metadata, tokens, pre, where)
    if around != "$A:0":
        parts = {token: vocabulary[token] for token in tokens if f"{token}:0" in around.split(" ")}
        tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=list(parts.items()))
    return tokenizer


def split_of(metadata: Mapping[str, Any], where: str) -> str:
    """The name of the file's split. CheckpointError: another kind of vocabulary, or a split that is not known."""
    model, pre = metadata.get(f"{GGML}model"), metadata.get(f"{GGML}pre", "default")
    if model != "gpt2":
        raise CheckpointError(f"{where}: {GGML}model = {short(model)} is not supported; allowed: 'gpt2' (byte-level BPE)")
    if not isinstance(pre, str) or pre not in SPLITS:
        raise CheckpointError(f"{where}: {GGML}pre = {short(pre)} is not supported; allowed: {', '.join(sorted(SPLITS))}")
    return pre


def text_defaults(metadata: Mapping[str, Any], where: str) -> TextDefaults:
    """End tokens by id and by name, the sampling of `general.sampling.*`, the chat template, the texts of BOS and EOS."""
    held = metadata.get(f"{GGML}tokens")
    tokens = list(held.raw()) if isinstance(held, Texts) else []
    kinds = _kinds(metadata, len(tokens), where)
    names = {text.encode() for text in ENDS}
    ends = {number for number, token in enumerate(tokens) if kinds[number] in (UNKNOWN, CONTROL) and token in names}
    ends |= {number for name in ("eos", "eot", "eom") if (number := _token_id(metadata, name, len(tokens), where)) is not None}
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{where}: tokenizer.chat_template is no text")
    bos, eos = _token_id(metadata, "bos", len(tokens), where), _token_id(metadata, "eos", len(tokens), where)
    sampling = {name: metadata[f"general.sampling.{name}"] for name in SAMPLING if f"general.sampling.{name}" in metadata}
    for name, value in sampling.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise CheckpointError(f"{where}: general.sampling.{name} = {short(value)}; a number from 0 up is wanted")
    return TextDefaults(
        ends=frozenset(ends),
        temperature=sampling.get("temp"),
        top_p=sampling.get("top_p"),
        top_k=sampling.get("top_k"),
        min_p=sampling.get("min_p"),
        chat_template=template,
        bos_token=None if bos is None else tokens[bos].decode("utf-8", "replace"),
        eos_token=None if eos is None else tokens[eos].decode("utf-8", "replace"),
        source="general.sampling in the GGUF" if sampling else "",
    )


SAMPLING = ("temp", "top_p", "top_k", "min_p")


def texts(metadata: Mapping[str, Any], name: str, where: str) -> list[str]:
    """A list of strings of the vocabulary."""
    found = metadata.get(f"{GGML}{name}")
    if not isinstance(found, Texts):
        raise CheckpointError(f"{where}: {GGML}{name} is missing or no list of texts: the file holds no usable vocabulary")
    return found.all()


def _pairs(merges: list[str], where: str) -> list[tuple[str, str]]:
    made = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for index, (left, right) in enumerate(made):
        if not left or not right:
            raise CheckpointError(f"{where}: {GGML}merges[{index}] = {short(merges[index])} is no pair of tokens")
    return made


def _kinds(metadata: Mapping[str, Any], count: int, where: str) -> list[int]:
    kinds = metadata.get(f"{GGML}token_type", [1] * count)
    if not isinstance(kinds, list) or len(kinds) != count:
        raise CheckpointError(f"{where}: {GGML}token_type does not hold one type for each of the {count:,} tokens")
    return kinds


def _token_id(metadata: Mapping[str, Any], name: str, count: int, where: str) -> int | None:
    value = metadata.get(f"{GGML}{name}_token_id")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count):
        raise CheckpointError(f"{where}: {GGML}{name}_token_id = {short(value)} is none of the {count:,} tokens")
    return value


def _around(metadata: Mapping[str, Any], tokens: list[str], pre: str, where: str) -> str:
    """What goes around a plain prompt, as a template of the post-processor."""
    made = "$A:0"
    for name, default, place in (("bos", pre in WHOLE_WORDS, "{token}:0 {made}"), ("eos", False, "{made} {token}:0")):
        if metadata.get(f"{GGML}add_{name}_token", default):
            number = _token_id(metadata, name, len(tokens), where)
            if number is None:
                raise CheckpointError(f"{where}: {GGML}add_{name}_token is set, but {GGML}{name}_token_id is missing")
            made = place.format(token=tokens[number], made=made)
    return made
