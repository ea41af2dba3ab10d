"""Long texts: the same bytes everywhere, every reference where it should stand, filled but never over; scores by hand."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from homestretch.lab.data import draws, world
from homestretch.lab.data.longtext import KINDS, LongText, QuestionRow, fill, maker
from homestretch.lab.data.words import words
from homestretch.lab.errors import LabError
from homestretch.lab.graders.ruler import Found, score


def pieces(text: str) -> int:
    """A stand-in for a tokenizer: words are cut into pieces of four letters, marks stand alone."""
    return sum(-(-len(word) // 4) for word in re.findall(r"\w+|[^\w\s]", text))


@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192, 32768])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_fill_the_length_within_two_percent_and_never_beyond(kind: str, length: int) -> None:
    limit = length - 128
    for index in range(3 if length < 32768 else 1):
        made, tokens = fill(maker(kind, 42, index, length), limit, pieces)
        assert pieces(made.text) == tokens
        assert 0.98 * limit <= tokens <= limit


def test_the_search_for_a_length_asks_the_tokenizer_few_times() -> None:
    asked = []
    for kind in KINDS:
        fill(maker(kind, 42, 0, 8192), 8064, lambda text: asked.append(1) or pieces(text))  # type: ignore[func-returns-value]
    assert len(asked) <= 8 * len(KINDS)


def test_a_length_that_cannot_hold_the_task_is_refused() -> None:
    with pytest.raises(LabError, match="a text of 50 tokens cannot hold this task, which needs"):
        fill(maker("common_words", 42, 0, 1024), 50, pieces)
    with pytest.raises(LabError, match="no long text is called 'poems'"):
        maker("poems", 42, 0, 1024)
    with pytest.raises(LabError, match="the word list has"):
        maker("common_words", 42, 0, 8192)(10_000)


def test_retrieval_hides_one_asked_number_among_unlike_keys_and_values() -> None:
    places = []
    for index in range(10):
        made = maker("multikey", 42, index, 8192)(300)
        needles = re.findall(r"One of the special magic numbers for (\S+) is: (\d{7})\.", made.text)
        assert len(needles) == 304
        assert len({key for key, _ in needles}) == len({value for _, value in needles}) == 304
        asked = re.search(r"special magic number for (\S+) in the text above", made.text)
        assert asked is not None
        assert [value for key, value in needles if key == asked[1]] == list(made.references)
        places.append([key for key, _ in needles].index(asked[1]))
    assert len(set(places)) >= 8
    assert min(places) < 100
    assert max(places) > 200


def test_common_words_stand_thirty_times_and_the_others_three() -> None:
    made = maker("common_words", 42, 3, 8192)(100)
    body = made.text.rsplit("Find the ten most common words.\n", 1)[1].split("\nWhich ten", 1)[0]
    counts = Counter(re.findall(r"\d+\. (\w+)", body))
    assert {word for word, count in counts.items() if count == 30} == set(made.references)
    assert len(made.references) == 10
    assert Counter(counts.values()) == {30: 10, 3: 100}
    shown, task = made.text.split("\n\n")
    assert not set(shown.splitlines()[-1].split()) & set(made.references)
    assert re.findall(r"(\d+)\.", body) == [str(number) for number in range(1, 601)]
    assert "Reply with the ten words only." in task


def test_variables_are_one_chain_of_five_in_order() -> None:
    made = maker("variables", 42, 5, 8192)(200)
    assert made.text.count("Find all variables") == 2
    body = made.text.split("Reply with the five names only.\n", 1)[1]
    value = re.search(r"hold the value (\d{5})", body)
    assert value is not None
    chain = re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", body)
    assert [name for name, _ in chain] == list(made.references)
    assert [source for _, source in chain] == [value[1], *made.references[:-1]]
    assert not set(re.findall(r"VAR ([A-Z]{5})", made.text.split("Reply with")[0])) & set(made.references)


def test_questions_need_two_documents_and_no_other_holds_the_answer() -> None:
    kinds = set()
    for index in range(10):
        made = maker("multihop_qa", 42, index, 4096)(1500)
        documents = made.text.split("\n\nAnswer the question", 1)[0].split("\n\n")[1:]
        person = re.search(r"in which (\w+ \w+) was born\?", made.text)
        assert person is not None
        about = [document for document in documents if person[1] in document]
        assert len(about) == 1
        town = re.search(r"Born in (\w+) in", about[0])
        assert town is not None
        place = [document for document in documents if f"{town[1]} is a town" in document]
        assert len(place) == 1
        assert [document for document in documents if made.references[0] in document] == place
        kinds.add(made.text.rsplit("Question: ", 1)[1].split()[2])
        assert [int(re.findall(r"^Document (\d+)", document)[0]) for document in documents] == list(range(1, len(documents) + 1))
    assert kinds == {"year", "river"}


def test_questions_of_a_set_keep_their_documents_and_borrow_others() -> None:
    rows = [
        QuestionRow(
            id=str(number),
            question=f"Question {number}?",
            answers=(f"answer {number}", f"other {number}"),
            needed=tuple(world.Document(title=f"needed {number} {part}", text=f"it holds answer {number} here") for part in "ab"),
            others=tuple(world.Document(title=f"other {number} {part}", text="some words " * 20) for part in "cdef"),
        )
        for number in range(5)
    ]
    made = maker("multihop_qa", 42, 3, 1024, rows)(300)
    assert made.references == ("answer 3", "other 3")
    assert made.every is False
    assert "needed 3 a" in made.text
    assert "needed 3 b" in made.text
    assert "Question: Question 3?" in made.text
    with pytest.raises(LabError, match="too few documents"):
        maker("multihop_qa", 42, 3, 1024, rows)(3000)


# The bytes on every machine: made once, by this code, and never to change under this generator version.
DIGESTS = {
    "multikey": "1503d7090a5192ed",
    "common_words": "32878739014143b8",
    "multihop_qa": "25544f8d206d17c9",
    "variables": "c3ce33cfbeb5e11d",
}
ELSEWHERE = """
import hashlib, json
from homestretch.lab.data.longtext import KINDS, maker
print(json.dumps({kind: hashlib.sha256(maker(kind, 42, 7, 8192)(120).text.encode()).hexdigest() for kind in KINDS}))
"""


def test_the_same_bytes_on_every_machine() -> None:
    here = {kind: hashlib.sha256(maker(kind, 42, 7, 8192)(120).text.encode()).hexdigest() for kind in KINDS}
    assert {kind: digest[:16] for kind, digest in here.items()} == DIGESTS
    said = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, timeout=60
    )
    assert json.loads(said.stdout) == here


def test_draws_are_sha256_and_nothing_else() -> None:
    source = draws.Draws("key")
    block = hashlib.sha256(b"key/0").digest()
    assert [source.bits() for _ in range(4)] == [int.from_bytes(block[at : at + 8], "big") for at in (0, 8, 16, 24)]
    assert source.bits() == int.from_bytes(hashlib.sha256(b"key/1").digest()[:8], "big")
    counts = Counter(draws.Draws(f"even/{number}").below(6) for number in range(6000))
    assert all(850 < counts[value] < 1150 for value in range(6))
    mixed = draws.Draws("mix").shuffled(range(50))
    assert sorted(mixed) == list(range(50))
    assert mixed != list(range(50))
    assert all(0 <= draws.Draws(f"share/{number}").share() < 1 for number in range(100))


def test_a_fixed_choice_depends_on_ids_alone() -> None:
    rows = [str(number) for number in range(1000)]
    chosen = draws.fixed(rows, 40, "test")
    assert len(chosen) == 40
    assert sorted(chosen, key=int) == chosen
    assert set(draws.fixed(rows[::-1], 40, "test")) == set(chosen)
    assert set(draws.fixed(rows, 20, "test")) < set(chosen)
    assert set(draws.fixed(rows, 40, "other")) != set(chosen)


def test_word_lists_are_refused_when_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(words("noun")) > 6000
    assert len(words("adjective")) > 800
    words.cache_clear()
    monkeypatch.setitem(__import__("homestretch.lab.data.words", fromlist=["PINNED"]).PINNED, "nounlist.txt", "0" * 64)
    with pytest.raises(LabError, match="the generators are made for 0000"):
        words("noun")
    words.cache_clear()


@pytest.mark.parametrize(
    ("answer", "references", "every", "expected"),
    [
        ("The number is 1234567.", ["1234567"], True, Found(right=True, share=1.0)),
        ("1234568", ["1234567"], True, Found(right=False, share=0.0)),
        ("Apple, PEAR and plum", ["apple", "pear", "plum", "fig"], True, Found(right=False, share=0.75)),
        ("apple pear plum fig", ["apple", "pear", "plum", "fig"], True, Found(right=True, share=1.0)),
        ("In Paris, of course", ["London", "paris"], False, Found(right=True, share=1.0)),
        ("In Rome", ["London", "paris"], False, Found(right=False, share=0.0)),
        ("", ["a"], True, Found(right=False, share=0.0)),
        ("ABCDE FGHIJ", ["ABCDE", "FGHIJ", "KLMNO", "PQRST", "UVWXY"], True, Found(right=False, share=0.4)),
        ("STRASSE", ["Straße"], True, Found(right=True, share=1.0)),
    ],
)
def test_scores(answer: str, references: list[str], every: bool, expected: Found) -> None:
    assert score(answer, references, every) == expected


def test_a_perfect_reply_is_right_for_every_kind() -> None:
    for kind in KINDS:
        made: LongText = maker(kind, 42, 0, 2048)(20)
        assert score(", ".join(made.references), made.references, made.every).right
        assert not score("I do not know.", made.references, made.every).right
