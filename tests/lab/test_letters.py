"""What each shape of reply to a lettered question is read as; None = no letter, which counts as unparsed."""

from __future__ import annotations

import time

import pytest

from homestretch.lab.graders.letters import LETTERS, read_letter
from homestretch.lab.graders.thinking import strip_thinking

# (reply, options, expected letter)
TABLE: list[tuple[str, int, str | None]] = [
    # one letter, bare or marked
    ("B", 4, "B"),
    ("b", 4, "B"),
    (" B ", 4, "B"),
    ("B\n", 4, "B"),
    ("\n\nB", 4, "B"),
    ("B.", 4, "B"),
    ("B)", 4, "B"),
    ("(B)", 4, "B"),
    ("[B]", 4, "B"),
    ("{B}", 4, "B"),
    ("<B>", 4, "B"),
    ("**B**", 4, "B"),
    ("*B*", 4, "B"),
    ("__B__", 4, "B"),
    ("_B_", 4, "B"),
    ("`B`", 4, "B"),
    ("```\nB\n```", 4, "B"),
    ("**B.**", 4, "B"),
    ("**(B)**", 4, "B"),
    ("(**B**)", 4, "B"),
    ('"B"', 4, "B"),
    ("'B'", 4, "B"),
    ("“B”", 4, "B"),
    ("$B$", 4, "B"),
    ("$$B$$", 4, "B"),
    (r"\(B\)", 4, "B"),
    (r"\[B\]", 4, "B"),
    ("B!", 4, "B"),
    ("# B", 4, "B"),
    ("- B", 4, "B"),
    ("> B", 4, "B"),
    ("~B~", 4, "B"),
    ("B,", 4, "B"),
    ("B;", 4, "B"),
    ("B:", 4, "B"),
    ("(b)", 4, "B"),
    ("Option B", 4, "B"),
    ("option b", 4, "B"),
    ("Choice C", 4, "C"),
    ("Letter D", 4, "D"),
    ("B B", 4, "B"),
    ("B\n\nB", 4, "B"),
    ("A", 4, "A"),
    ("I", 9, "I"),
    ("a", 4, "A"),
    ("J", 10, "J"),
    ("j", 10, "J"),
    ("✅ B", 4, "B"),
    ("→ B", 4, "B"),
    ("🅱", 4, None),
    # LaTeX
    (r"\boxed{B}", 4, "B"),
    (r"$\boxed{B}$", 4, "B"),
    (r"\boxed{\text{B}}", 4, "B"),
    (r"$\boxed{\textbf{(B)}}$", 4, "B"),
    (r"\boxed{(B)}", 4, "B"),
    (r"\boxed{ B }", 4, "B"),
    (r"\boxed{\mathrm{B}}", 4, "B"),
    (r"\text{B}", 4, "B"),
    (r"\textbf{B}", 4, "B"),
    (r"\fbox{C}", 4, "C"),
    (r"$\mathbf{C}$", 4, "C"),
    (r"So we get \boxed{C}.", 4, "C"),
    (r"First \boxed{A}, no, \boxed{D}.", 4, "D"),
    (r"Thus $x = 3$, so \boxed{\text{(D) } 3}", 4, "D"),
    (r"\boxed{Because}", 4, None),
    (r"\boxed{3}", 4, None),
    (r"\boxed{}", 4, None),
    # said in words
    ("The answer is B", 4, "B"),
    ("The answer is B.", 4, "B"),
    ("The answer is (B).", 4, "B"),
    ("the answer is b", 4, "B"),
    ("the answer is b.", 4, "B"),
    ("The answer is **B**.", 4, "B"),
    ("The answer is: B", 4, "B"),
    ("Answer: B", 4, "B"),
    ("Answer:B", 4, "B"),
    ("Answer : B", 4, "B"),
    ("ANSWER: B", 4, "B"),
    ("**Answer:** B", 4, "B"),
    ("**Answer: B**", 4, "B"),
    ("**Answer**: B", 4, "B"),
    ("Answer = B", 4, "B"),
    ("Answer: (B) Paris", 4, "B"),
    ("Answer: B) Paris", 4, "B"),
    ("Answer: B. Paris", 4, "B"),
    ("Answer: $B$", 4, "B"),
    (r"Answer: \boxed{B}", 4, "B"),
    ("Final answer: B", 4, "B"),
    ("### Final Answer\n\n**B**", 4, "B"),
    ("The correct answer is B.", 4, "B"),
    ("The correct option is C.", 4, "C"),
    ("The right choice is D", 4, "D"),
    ("The best answer would be B.", 4, "B"),
    ("The answer should be option C.", 4, "C"),
    ("The answer is option (C)", 4, "C"),
    ("The answer is choice C, copper.", 4, "C"),
    ("The answer is most likely C.", 4, "C"),
    ("The answer is therefore C.", 4, "C"),
    ("Therefore, the answer must be C.", 4, "C"),
    ("The answer to this question is C.", 4, "C"),
    ("The answer is C because copper conducts.", 4, "C"),
    ("The answer is A because it floats.", 4, "A"),
    ("The answer is A.", 4, "A"),
    ("The answer is A", 4, "A"),
    ("The answer is A, since it floats.", 4, "A"),
    ("Answer: A", 4, "A"),
    ("Answer: I", 9, "I"),
    ("The answer is I.", 9, "I"),
    ("The answer is (I)", 10, "I"),
    ("The answer is **A** and nothing else.", 4, "A"),
    ("Answer: C\n\nCopper conducts best.", 4, "C"),
    ("Copper conducts best.\n\nAnswer: C", 4, "C"),
    ("Answer: C (copper)", 4, "C"),
    ("The answer letter is C.", 4, "C"),
    ("Correct answer: D", 4, "D"),
    ("My answer is D.", 4, "D"),
    ("Answer -> D", 4, "D"),
    ("Answer: → D", 4, None),
    # the last saying counts
    ("Answer: A? No. Answer: B", 4, "B"),
    ("The answer is A. Wait, the answer is C.", 4, "C"),
    ("Answer: B\nLet me check.\nAnswer: D", 4, "D"),
    ("At first the answer is B, but the correct answer is D.", 4, "D"),
    (r"The answer is A. \boxed{B}", 4, "B"),
    (r"\boxed{A} and so the answer is B.", 4, "B"),
    # a first or last line that is a letter
    ("B\n\nExplanation: it is the capital.", 4, "B"),
    ("**B**\n\nIt is the capital.", 4, "B"),
    ("It is the capital.\n\nB", 4, "B"),
    ("Let me think about it.\n(C)", 4, "C"),
    ("Reasoning first, then:\n\n**C**", 4, "C"),
    ("B\nbecause A is wrong", 4, "B"),
    ("A\nis what I say\nC", 4, None),
    # a label with its option
    ("B) Paris", 4, "B"),
    ("B. Paris", 4, "B"),
    ("(B) Paris", 4, "B"),
    ("B: Paris", 4, "B"),
    ("**B) Paris**", 4, "B"),
    ("**B. Paris**", 4, "B"),
    ("A. Paris", 4, "A"),
    ("A) O(n)\n\nThe running time is linear.", 4, "A"),
    ("B) y (x)", 4, "B"),
    ("The answer is B, y is free.", 4, "B"),
    ("I. Iron", 10, "I"),
    ("b) Paris", 4, "B"),
    ("b. paris", 4, None),
    ("C) 3.5 m/s", 4, "C"),
    ("[C] copper", 4, "C"),
    ("A) Rome\nB) Paris\nC) Bonn", 4, None),
    ("A. Rome is wrong.\nB. Paris is right.", 4, None),
    # several letters
    ("A or B", 4, None),
    ("A and B", 4, None),
    ("A, B", 4, None),
    ("A/B", 4, None),
    ("AB", 4, None),
    ("B, C", 4, None),
    ("A B C D", 4, None),
    ("The answer is A or B.", 4, None),
    ("The answer is B or C.", 4, None),
    ("The answer is B and C.", 4, None),
    ("Answer: A, B", 4, None),
    ("Answer: B/D", 4, None),
    ("Both B and C are right.", 4, None),
    ("B\nC", 4, None),
    ("(A) and (B)", 4, None),
    ("Answer: (A), (C)", 4, None),
    # prose "I" and "A", words that begin with a letter
    ("I think it is Paris.", 4, None),
    ("I", 4, None),
    ("I am not sure.", 10, None),
    ("A large dog.", 4, None),
    ("A good question!", 4, None),
    ("The answer is a large dog.", 4, None),
    ("The answer is A large dog", 4, None),
    ("The answer is I think unclear.", 10, None),
    ("Answer seems hard to find.", 4, None),
    ("The answer seems to be hidden.", 4, None),
    ("The answer is Because", 4, None),
    ("Answer: Copper", 4, None),
    ("Answer: a", 4, "A"),
    ("The answer is an apple.", 4, None),
    ("The answer is I'm afraid unknown.", 10, None),
    ("Answer: A-level physics", 4, None),
    ("A is for apple.", 4, None),
    ("Vitamin C", 4, None),
    ("Plan B it is", 4, None),
    ("Be careful.", 4, None),
    ("Decide for yourself.", 4, None),
    ("answering: Because of gravity", 4, None),
    ("answers B", 4, None),
    ("I choose to abstain.", 10, None),
    ("In the end, a or b?", 4, None),
    ("Grade A", 4, None),
    ("the options are A to D", 4, None),
    # denials and refusals
    ("I cannot answer that.", 4, None),
    ("I'm sorry, but I can't help with that.", 4, None),
    ("None of the above.", 4, None),
    ("N/A", 4, None),
    ("not B", 4, None),
    ("≠ B", 4, None),
    ("❌ B", 4, None),
    ("The answer is not B.", 4, None),
    ("The answer isn't B.", 4, None),
    ("There is no correct answer.", 4, None),
    ("?", 4, None),
    ("...", 4, None),
    ("42", 4, None),
    ("1", 4, None),
    ("Paris", 4, None),
    # letters without an option
    ("E", 4, None),
    ("D", 3, None),
    ("J", 9, None),
    ("Z", 10, None),
    ("The answer is F.", 5, None),
    (r"\boxed{H}", 4, None),
    ("The answer is K", 10, None),
    # other scripts and languages
    ("Ｂ", 4, "B"),
    ("（Ｂ）", 4, "B"),
    ("Ⓑ", 4, "B"),
    ("答案是B", 4, "B"),
    ("答案：B", 4, "B"),
    ("正确答案是（B）。", 4, "B"),
    ("答案为 **C**", 4, "C"),
    ("答えはBです", 4, "B"),
    ("정답은 B입니다", 4, "B"),
    ("정답: C", 4, "C"),
    ("Die Antwort ist B.", 4, "B"),
    ("Antwort: C", 4, "C"),
    ("La réponse est B.", 4, "B"),
    ("Réponse : C", 4, "C"),
    ("La respuesta correcta es D.", 4, "D"),
    ("La risposta è B.", 4, "B"),
    ("A resposta é C.", 4, "C"),
    ("Ответ: B", 4, "B"),
    ("В", 4, None),
    ("Β", 4, None),
    ("С", 4, None),
    ("مرحبا", 4, None),
    ("甲", 4, None),
    # nothing
    ("", 4, None),
    ("   \n ", 4, None),
    ("**", 4, None),
    ("()", 4, None),
    ("$$", 4, None),
]


@pytest.mark.parametrize(("reply", "options", "expected"), TABLE, ids=[repr(row[0])[:40] + f"/{row[1]}" for row in TABLE])
def test_shape(reply: str, options: int, expected: str | None) -> None:
    reading = read_letter(strip_thinking(reply).answer, options)
    assert reading.letter == expected, reading.how


def test_the_table_is_large_and_covers_every_number_of_options() -> None:
    assert len({(reply, options) for reply, options, _ in TABLE}) >= 150


@pytest.mark.parametrize("options", range(3, 11))
def test_each_number_of_options_takes_its_letters_and_no_more(options: int) -> None:
    for number, letter in enumerate(LETTERS):
        expected = letter if number < options else None
        for shape in (
            "{}",
            "**{}**",
            "({})",
            r"\boxed{{{}}}",
            "The answer is {}.",
            "Answer: {}",
            "answer: {}\n",
            "{}) this one",
            "Ｘ".replace("Ｘ", "[{}]"),
        ):
            assert read_letter(shape.format(letter), options).letter == expected, shape
        assert read_letter(letter.lower(), options).letter == expected


THINKING: list[tuple[str, str | None]] = [
    ("<think>Maybe A.</think>B", "B"),
    ("<think>\nThe answer is A.\n</think>\n\nB", "B"),
    ("<think></think>B", "B"),
    ("<think>The answer is B.", None),
    ("<think>\nThe answer is B.\n", None),
    ("The answer is A.</think>B", "B"),
    ("The answer is A.</think>", None),
    ("thought </think> more </think> C", "C"),
    ("<thinking>A</thinking> The answer is C.", "C"),
    ("<THINK>A</THINK>C", "C"),
    ("[THINK]The answer is A[/THINK]D", "D"),
    ("[THINK]The answer is A", None),
    ("◁think▷A◁/think▷B", "B"),
    ("<|START_THINKING|>A<|END_THINKING|>B", "B"),
    ("<|channel|>analysis<|message|>It is A<|end|><|start|>assistant<|channel|>final<|message|>B", "B"),
    ("<think>A</think>B<think>The answer is C", None),
    ("<think>A</think>The answer is B.<think>C</think>", "B"),
    ("Sure. <think>The answer is A.</think> B", None),
    ("I think it is B", None),
]


@pytest.mark.parametrize(("reply", "expected"), THINKING)
def test_thinking_is_never_graded(reply: str, expected: str | None) -> None:
    assert read_letter(strip_thinking(reply).answer, 4).letter == expected


def test_text_without_thinking_is_left_exactly_as_it_is() -> None:
    for text in ("  B \n", "a < b", "think hard", "</p>", ""):
        stripped = strip_thinking(text)
        assert (stripped.answer, stripped.thought, stripped.unclosed) == (text, False, False)
    assert strip_thinking("<think>x").unclosed


@pytest.mark.parametrize(
    "reply",
    [
        "The answer is " + r"\text " * 400,
        "answer is " * 2000,
        "answer: " + "(" * 20_000,
        "*" * 20_000,
        "Answer to the " + "word " * 5000,
        r"\boxed{" * 2000,
        "<think>" * 5000,
        "</think>" * 5000,
        "A, " * 5000,
        "\n" * 20_000,
        "答案是" * 5000,
    ],
    ids=lambda reply: repr(reply[:12]),
)
def test_a_reply_that_repeats_itself_is_read_in_no_time(reply: str) -> None:
    started = time.process_time()
    assert read_letter(strip_thinking(reply).answer, 10).letter is None
    assert time.process_time() - started < 1.0
