"""Search and recall: answers are compared as published, contexts are built deterministically and to length."""

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from task_helpers import own_task, scored

from hubmerge.evaluation.tasks import qa
from hubmerge.evaluation.tasks.ruler import LENGTHS, QUESTIONS, long_contexts, size_of

FACTS = Path(__file__).resolve().parents[2] / "examples" / "datasets" / "facts"

# hand-written, in the published schemas
NQ_ROWS: list[dict[str, Any]] = [
    {
        "subset": "NaturalQuestionsShort",
        "qid": "q1",
        "question": "who built the first lighthouse of the harbour",
        "context": "<P> The first lighthouse was built by Ada B. Stone in 1821 , others say by A. B. Stone . </P>",
        "detected_answers": {"text": ["Ada B. Stone"], "char_spans": [], "token_spans": []},
        "answers": ["Ada B. Stone", "A. B. Stone"],
    },
    {"subset": "TriviaQA-web", "qid": "q2", "question": "Of another subset?", "context": "Yes.", "answers": ["yes"]},
]
TWO_WIKI_ROWS: list[dict[str, Any]] = [
    {
        "id": "w1",
        "question": "Who is the mother of the director of the film The Long Ferry?",
        "answer": "Marta Oll",
        "supporting_facts": {"title": ["The Long Ferry", "Per Oll"], "sent_id": [0, 1]},
        "context": {
            "title": ["The Long Ferry", "Per Oll", "Ferry"],
            "sentences": [
                ["The Long Ferry is a film by Per Oll."],
                ["Per Oll is a director.", " His mother is Marta Oll."],
                ["A ferry is a ship."],
            ],
        },
    },
    {
        "_id": "w2",
        "question": "Are both films from the same year?",
        "answer": "no",
        "answer_aliases": ["not the same"],
        "supporting_facts": [["A", 0], ["B", 0]],
        "context": [["A", ["A is from 1901."]], ["B", ["B is from 1902."]], ["C", ["C is no film."]]],
    },
]


def facts(hops: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTS / f"{hops}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_normalisation_is_squads_and_an_answer_of_which_it_leaves_nothing_equals_and_contains_only_itself():
    assert qa.normalized("The  Cat's, a dog; AN ox!") == "cats dog ox"
    assert qa.normalized("theatre") == "theatre"
    assert qa.exact_match("the Beatles.", ["Beatles"])
    assert not qa.exact_match("The Beatles and others", ["Beatles"])
    for gold in ("A", "the", "!"):
        for compare in (qa.exact_match, qa.contains_answer):
            assert compare(gold, [gold])
            assert not compare("", [gold])
            assert not compare("something else", [gold])


@pytest.mark.parametrize(
    ("answer", "short"),
    [
        ("Paris", "Paris"),
        ("\n\n Paris \nbecause it is", "Paris"),
        ("Answer: Paris", "Paris"),
        ("**Answer:** Paris", "** Paris"),
        ("The final answer is: Paris", "Paris"),
        ("<think>London?</think>\n<answer> Rome </answer> then <answer>Paris</answer>", "Paris"),
        ("so \\boxed{Paris} it is", "Paris"),
        ("Answering machines", "Answering machines"),
        ("", ""),
    ],
)
def test_the_short_answer_is_found(answer, short):
    assert qa.short_answer(answer) == short


def test_containment_is_of_substrings_but_for_yes_and_no():
    assert qa.contains_answer("It was built in the 1990s.", ["1990"])
    assert qa.contains_answer("I think: New  York, of course", ["new york"])
    assert qa.contains_answer("Answer: no.", ["no"])
    assert not qa.contains_answer("I know nothing about another one", ["no"])
    assert not qa.contains_answer("<think>New York?</think> Boston", ["New York"])
    assert qa.contains_answer("B", ["A1", "b"])
    assert not qa.contains_answer("anything", [])


def test_gold_answers_of_the_search_tasks_count_and_others_do_not():
    nq, wiki = own_task("nq_context"), own_task("two_wiki_context")
    assert nq.expand is not None
    asked = list(nq.expand(NQ_ROWS))
    assert [row["qid"] for row in asked] == ["q1"]
    for task, rows in ((nq, asked), (wiki, TWO_WIKI_ROWS)):
        for row in rows:
            for gold in qa.golds(row):
                assert scored(task, row, gold) == 1.0
                assert scored(task, row, f"Answer: {gold.upper()}.") == 1.0
                assert scored(task, row, f"not {gold}") == 0.0
                assert scored(task, row, gold[:-1]) == 0.0
            assert scored(task, row, "") == 0.0
    assert qa.golds(NQ_ROWS[0]) == ["Ada B. Stone", "A. B. Stone"]
    assert qa.golds(TWO_WIKI_ROWS[1]) == ["no", "not the same"]


def test_the_prompt_of_a_search_task_holds_texts_and_question_only():
    assert own_task("nq_context").prompt(NQ_ROWS[0]).split("\n\n", 1)[1] == (
        "Document 1\nThe first lighthouse was built by Ada B. Stone in 1821 , others say by A. B. Stone .\n\n"
        "Question: who built the first lighthouse of the harbour\nAnswer:"
    )
    prompt = own_task("two_wiki_context").prompt(TWO_WIKI_ROWS[0])
    assert "Document 2: Per Oll\nPer Oll is a director. His mother is Marta Oll.\n\nDocument 3: Ferry\n" in prompt
    assert [p.title for p in qa.paragraphs(TWO_WIKI_ROWS[1])] == ["A", "B", "C"]
    assert [p.title for p in qa.supporting(TWO_WIKI_ROWS[1])] == ["A", "B"]


HOPS = ("single", "multi")


@pytest.mark.parametrize("hops", HOPS)
@pytest.mark.parametrize("length", ["7k", "56k", "896k"])
def test_a_context_is_filled_to_its_length_and_not_beyond(hops, length):
    task = own_task(f"ruler_{hops}_{length}")
    assert task.expand is not None
    tokens = LENGTHS[length]
    assert tokens == int(length[:-1]) * 1024
    for row in islice(task.expand(facts(hops)), 1 if length == "896k" else 10):
        prompt = task.prompt(row)
        # less than one more document of these is missing; numbers are counted at their widest
        assert 0.97 * tokens <= size_of(prompt).tokens <= tokens
        assert prompt.count("\nDocument ") == row["documents"]
        assert prompt.rstrip().endswith(f"Question: {row['question']}\nAnswer:")


@pytest.mark.parametrize("name", [f"ruler_{hops}_14k" for hops in HOPS] + [f"ruler_facts_{hops}_1k" for hops in HOPS])
def test_gold_answers_of_every_recall_question_count_and_damaged_ones_do_not(name):
    task = own_task(name)
    assert task.expand is not None
    originals = {row["id"]: row for row in facts(name.split("_")[-2])}
    asked = list(task.expand(list(originals.values())))
    assert len(asked) == len(originals)
    for row in asked:
        gold = originals[row["id"]]["answer"]
        assert qa.golds(row) == [gold]
        assert scored(task, row, gold) == 1.0
        assert scored(task, row, f"It must have been {gold.lower()}, I believe.") == 1.0
        assert scored(task, row, gold[1:]) == 0.0
        assert scored(task, row, "") == 0.0
        for paragraph in qa.supporting(originals[row["id"]]):
            assert f": {paragraph.title}\n{paragraph.text}" in row["context"]


def test_a_longer_context_holds_the_documents_of_a_shorter_one():
    rows = facts("single")

    def documents(tokens: int) -> set[str]:
        context: str = next(long_contexts(rows, tokens=tokens))["context"]
        return {text.partition("\n")[2] for text in context.split("\n\n")}

    assert documents(1024) < documents(4096) < documents(8192)


def test_supporting_documents_stand_anywhere_in_the_context():
    rows = {row["id"]: row for row in facts("single")}
    places = []
    for row in long_contexts(list(rows.values()), tokens=4096):
        wanted = qa.supporting(rows[row["id"]])[0].text
        places.append(row["context"].index(wanted) / len(row["context"]))
    # 120 uniform draws: each quarter gets 30 ± 4.7; five standard deviations around it
    quarters = [sum(q / 4 <= place < (q + 1) / 4 for place in places) for q in range(4)]
    assert all(6 < count < 54 for count in quarters), quarters


def test_at_most_so_many_questions_are_asked_and_always_the_same_ones():
    rows = [
        {"id": f"r{i}", "title": f"T{i}", "context": f"Fact {i}.", "question": f"Q{i}?", "answers": {"text": [str(i)]}}
        for i in range(500)
    ]
    asked = [row["id"] for row in long_contexts(rows, tokens=512)]
    assert len(asked) == QUESTIONS
    assert [row["id"] for row in long_contexts(rows[::-1], tokens=512)] == asked


def test_a_single_row_and_one_that_is_too_long_still_make_a_context():
    row = {"id": "1", "title": "T", "context": "word " * 900, "question": "Q?", "answers": {"text": ["word"]}}
    (long,) = long_contexts([row], tokens=100)
    assert long["documents"] == 1
    other = {"id": "2", "title": "U", "context": "x", "question": "Q2?", "answers": {"text": []}}
    assert [r["id"] for r in long_contexts([row, other], tokens=100)] == ["1"]


@pytest.mark.parametrize("hops", HOPS)
def test_the_answer_of_every_invented_question_is_in_its_supporting_paragraphs(hops):
    rows = facts(hops)
    assert len({row["question"] for row in rows}) == len(rows) == 120
    for row in rows:
        texts = qa.supporting(row)
        assert len(texts) == (1 if hops == "single" else 2)
        assert any(row["answer"] in f"{p.title} {p.text}" for p in texts)
        if row["type"] == "bridge":
            # one paragraph alone does not do: where the question's name stands, the answer does not
            asked = next(p for p in texts if p.title in row["question"])
            other = next(p for p in texts if p is not asked)
            assert row["answer"] not in f"{asked.title} {asked.text}"
            assert other.title in asked.text


def test_the_invented_facts_are_made_by_their_program(tmp_path):
    subprocess.run([sys.executable, str(FACTS.with_name("make_facts.py")), str(tmp_path / "new")], check=True)
    for hops in HOPS:
        assert (tmp_path / "new" / f"{hops}.jsonl").read_bytes() == (FACTS / f"{hops}.jsonl").read_bytes()


def test_contexts_do_not_depend_on_the_order_of_rows_or_on_a_global_seed():
    rows = facts("multi")
    task = own_task("ruler_multi_7k")
    assert task.expand is not None
    random.seed(1)
    first = [dict(row) for row in task.expand(rows)]
    random.seed(2)
    shuffled = rows[:]
    random.shuffle(shuffled)
    assert [dict(row) for row in task.expand(shuffled)] == first


def test_the_count_of_tokens_takes_the_larger_of_words_and_bytes():
    assert [size_of(text).tokens for text in ("a b c", "x" * 41, "漢" * 8, "")] == [4, 11, 6, 0]
