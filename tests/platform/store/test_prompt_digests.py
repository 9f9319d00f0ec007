"""Prompts that are one question have a digest in common; others have none."""

import pytest

from hud_platform.store.prompt_digests import MOST_DIGESTS, question_digests, trained_digests

QUESTION = "Which of the seven colours of the list is the brightest one?"


def asked(*messages, template="say", slug="held"):
    return question_digests({slug: [messages]}, {slug: template})


def is_found(trained, *messages):
    return bool(trained_digests(trained) & set(asked(*messages)))


@pytest.mark.parametrize(
    "trained",
    [
        [QUESTION],
        ["You help.", QUESTION, "the answer is red"],
        [QUESTION.upper()],
        [f"  {QUESTION.replace(' ', '   ')} \n\n"],
        [QUESTION.rstrip("?")],
        [QUESTION.replace("colours", "colo\u200burs")],
        [QUESTION.replace("list", "\uff4c\uff49\uff53\uff54")],
        ["user\n" + QUESTION + "\n"],
        [f"User: {QUESTION}\nAssistant: red\n"],
        [f"Think first.\n\n{QUESTION}\n\nEnd with a word."],
        [f"**{QUESTION}**"],
        [f"Think first. {QUESTION} End with a word."],
        [QUESTION.replace(" of the", "\nof the")],
        [f"> {QUESTION}"],
        [f"Tasks:\n1. {QUESTION}\n2. another one"],
        [f'{{"question": "{QUESTION}", "answer": "red"}}'],
        [f"Think first.\\n{QUESTION}"],
        [f"<b>{QUESTION}</b>"],
        ["\n".join([*(f"line {place}" for place in range(300)), QUESTION])],
        ["\n".join([QUESTION, *(f"line {place}" for place in range(300))])],
        [*(f"message {place}" for place in range(100)), QUESTION],
    ],
)
def test_a_question_is_found_in_other_forms_and_under_other_words(trained):
    assert is_found(trained, QUESTION)


@pytest.mark.parametrize(
    "trained",
    [
        [QUESTION.replace("seven", "eight")],
        [QUESTION.split(" of ")[0]],
        ["red", "user"],
        [""],
        ["-5 + 3"],
    ],
)
def test_another_question_is_not_found(trained):
    assert not is_found(trained, QUESTION)
    assert not is_found(trained, "5 + 3")


def test_words_around_the_questions_of_a_template_are_no_part_of_them():
    """A file has the bare questions, the tasks an instruction around them."""
    words = {"red": "Which word is the opposite of red?", "wine": "Which word rhymes with wine?"}
    prompts = {slug: [[f"Think first.\n{text}\nThen say it."]] for slug, text in words.items()}
    digests = question_digests(prompts, dict.fromkeys(words, "say"))
    matched = {slug for key in trained_digests([words["wine"]]) for slug in digests.get(key, ())}
    assert matched == {"wine"}
    assert not set(digests) & trained_digests(["Think first.\nThen say it."])


def test_a_last_message_that_all_tasks_share_is_no_question():
    prompts = {word: [[f"Which word rhymes with {word}?", "Begin."]] for word in ("red", "wine")}
    digests = question_digests(prompts, dict.fromkeys(prompts, "say"))
    matched = {slug for key in trained_digests(["Begin."]) for slug in digests.get(key, ())}
    assert not matched
    assert trained_digests(["Which word rhymes with red?"]) & set(digests)


def test_a_short_part_of_a_prompt_is_no_question_of_its_own():
    prompts = {level: [[f"Play the game.\nLevel: {level}"]] for level in ("7", "8")}
    digests = question_digests(prompts, dict.fromkeys(prompts, "play"))
    assert not set(digests) & trained_digests(["Leave the maze.\nLevel: 7"])
    assert set(digests) & trained_digests(["Play the game.\nLevel: 7"])


def test_the_digests_of_a_sequence_are_bounded():
    text = "\n".join(f"line {place} of a long text of many words" for place in range(5_000))
    assert len(trained_digests([text, QUESTION])) <= MOST_DIGESTS
    assert is_found([text, QUESTION], QUESTION)
