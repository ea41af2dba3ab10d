"""Takes the thinking out of a reply before anything grades it; an unclosed block leaves an empty answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

# (opening, closing) as model families write them: most; Mistral; Command; Kimi; harmony's analysis channel.
TAGS = (
    (r"<(?:think|thinking|thought|reasoning|reflection)>", r"</(?:think|thinking|thought|reasoning|reflection)>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"◁think▷", r"◁/think▷"),
    (r"<\|channel\|>analysis<\|message\|>", r"<\|end\|>(?:<\|start\|>assistant)?(?:<\|channel\|>final<\|message\|>)?"),
)
MARKS = [(re.compile(opening, re.IGNORECASE), re.compile(closing, re.IGNORECASE)) for opening, closing in TAGS]


@dataclass(frozen=True, kw_only=True)
class Stripped:
    """answer: what is graded. thought: whether thinking stood in the text; unclosed: it never ended, so there is no answer."""

    answer: str
    thought: bool = False
    unclosed: bool = False


def strip_thinking(text: str) -> Stripped:
    """The text without its thinking blocks. A closing tag without an opening one ends a block that the prompt opened."""
    thought = False
    for opening, closing in MARKS:
        while (begin := opening.search(text)) or closing.search(text):
            thought = True
            ends = [end for end in closing.finditer(text) if begin is None or end.start() >= begin.end()]
            if begin is not None and (first := closing.search(text)) is not None and first.start() < begin.start():
                text = text[first.end() :]  # the prompt opened a block before this one
            elif begin is None:
                text = text[ends[-1].end() :]
            elif not ends:
                return Stripped(answer="", thought=True, unclosed=True)
            else:
                text = text[: begin.start()] + text[ends[0].end() :]
    return Stripped(answer=text.strip() if thought else text, thought=thought)
