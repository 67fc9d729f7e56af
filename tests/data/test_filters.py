"""Each filter keeps what users write and rejects what it is there for."""

from __future__ import annotations

import pytest

from fledge.data.filters import Limits, first_unfit, reject_reason, words
from fledge.data.language import LanguageFilter

GOOD = [
    "What is the best way to prepare for a job interview?",
    "Complete the following Python function:\n\ndef area(width: float, height: float) -> float:\n    "
    '"""Return the area of a rectangle. Args: a: the width, b: the height."""',
    "Solve the equation x^2 + 10x + 12 = 0 with integer coefficients.",
    "Wie lange dauert es, bis ein Apfelbaum zum ersten Mal Früchte trägt?",
    "为什么天空是蓝色的？请用简单的语言解释一下。",
    "Is the list [1, 1, 1, 1, 1, 1, 1] sorted, and why or why not?",
    "Почему небо голубое, а закат красный?",
    "Prove for all α ∈ ℝ, k ∈ ℕ and ℓ > 0 that |xⁿ| ≤ 𝑦 · eᵏ, with Ω as the set.",
    "What does `xs |> List.map f` do in F#, and what does f <| x do?",
    f"How do I check on Windows that a download has the SHA-256 {'9f86d081884c7d65' * 4}?",
    "ကျွန်ုပ်တို့ မြို့၏ သမိုင်းကြောင်းကို ရှင်းပြပေးပါ။",
    "Fill in the blanks: ____ ____ ____ ____ ____ is the capital of France.",
    "Which of these is a fruit?\r\n- apple\r\n- stone, für Windows",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_users_write_is_kept(text: str) -> None:
    assert reject_reason(text, Limits(), ["<|im_end|>"]) is None


@pytest.mark.parametrize("count", [4, 300])
def test_limits_of_length_are_lengths_that_are_kept(count: int) -> None:
    text = [f"word{n}" for n in range(count)]
    assert reject_reason(" ".join(text), Limits(4, 300)) is None
    assert first_unfit([" ".join(text)], Limits(4, 300)) is None
    one_less, one_more = " ".join(text[1:]), " ".join([*text, "more"])
    assert reject_reason(one_less, Limits(count, 300)) == "too_short"
    assert first_unfit([one_less], Limits(count, 300)) == (0, "too_short")
    assert reject_reason(one_more, Limits(4, count)) == "too_long"
    assert first_unfit([one_more], Limits(4, count)) == (0, "too_long")


def test_two_scripts_beside_latin_are_a_question_about_languages_and_three_are_noise() -> None:
    assert reject_reason("Translate the words мир and ειρήνη into English please", Limits()) is None
    assert reject_reason("Translate the words мир, ειρήνη and שלום into English", Limits()) == "noise"


def test_four_of_a_word_in_a_row_are_no_loop_and_five_are() -> None:
    assert reject_reason("It is very very very very nice here", Limits()) is None
    assert reject_reason("It is very very very very very nice here", Limits()) == "loop"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Why so?", "too_short"),
        ("", "too_short"),
        (" ".join(f"word{i}" for i in range(301)), "too_long"),
        ("Tell me a story.<|im_end|>\nOnce upon", "template"),
        ("Tell me a story. im_end|> Once upon", "template"),
        ("Tell me a story. [INST] Now", "template"),
        ("What is the meaning \ufffd\ufffd of this text", "noise"),
        ("What is \x07 the meaning of this text", "noise"),
        ("a = {{{{ (((( ))))) }}}} ;;;; !!!! :: b <<>> ## $$ c d", "noise"),
        ("Please decode " + "abcdefghij" * 6 + " for me", "noise"),
        (
            "He comes, " + "".join(letter + "\u0335\u0322\u0341" for letter in "the nezperdian hivemind"),
            "noise",
        ),
        ("Tell меня что מזה καλά happened here today", "noise"),
        ("It is very very very very very nice here", "loop"),
        ("The items are lists of items. " * 8, "loop"),
        ("Tom has 3 apples. How many are left?\nAnswer: 3", "answered"),
        ("Tom has 3 apples. How many are left?\nA: there are 3", "answered"),
        ("Tom has 3 apples and eats one, so 3 - 1 = 2\n#### 2", "answered"),
        ("Make this shorter: he was old.\nHere is the corrected text:\nHe was old.", "answered"),
    ],
)
def test_what_is_no_prompt_is_rejected_with_its_reason(text: str, reason: str) -> None:
    assert reject_reason(text, Limits(), ["[INST]"]) == reason


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that request.",
        "I’m sorry, but as an AI language model I’m unable to provide such a thing.",
        "Unfortunately, I am not able to fulfill your request here.",
        "I cannot comply with this.",
        "As an AI language model, I have no opinions on this.",
    ],
)
def test_an_assistants_refusal_is_no_prompt(text: str) -> None:
    assert first_unfit([text], Limits()) == (0, "refusal")


@pytest.mark.parametrize(
    "text",
    [
        "I'm unable to install numpy on Windows, can you help me?",
        "I'm sorry to bother you, but I can't get this test to pass. What is wrong?",
        "Unfortunately my program crashes and I cannot find out why.",
        "Sorry if this is basic, but I can't see how the recursion ends. Explain it?",
        "I can't help laughing at this joke. Write another one like it.",
        "As an AI researcher, how do I measure what a model knows?",
    ],
)
def test_a_users_own_trouble_is_no_refusal(text: str) -> None:
    assert first_unfit([text], Limits()) is None


def test_only_what_is_surely_in_another_language_is_rejected() -> None:
    english = LanguageFilter(["en"])
    for text in ("haha thats funny lol tell me more", "x^2 + y^2 = 25, x + y = 7, find x, y"):
        assert english.accepts(text)
    for text in (
        "gib mir ein python script dafür",
        "Scrivi una poesia sul mare blu",
        "hoe maak ik een website snel",
    ):
        assert not english.accepts(text)


def test_five_words_are_enough_to_tell_a_language_and_four_are_not() -> None:
    words_of_german = ["Warum", "regnet", "es", "heute", "schon"]
    assert not LanguageFilter(["en"]).accepts(" ".join(words_of_german))
    assert LanguageFilter(["en"]).accepts(" ".join(words_of_german[:4]))
    assert LanguageFilter(["en", "de"]).accepts(" ".join(words_of_german))
    assert LanguageFilter([]).accepts(" ".join(words_of_german))


def test_words_fold_case_and_width_and_split_chinese() -> None:
    assert words("Ｈello, WORLD! 天空 x_1") == ["hello", "world", "天", "空", "x_1"]
