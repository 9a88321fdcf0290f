"""Search: short answers from given texts, exact match after SQuAD's normalisation, any accepted answer counts.

`nq_context`: Natural Questions with a short answer, each with the passage that holds it, in MRQA's edition (Fisch
et al. 2019, arXiv:1910.09753; CC BY-SA 3.0; the rows of its subset NaturalQuestionsShort). `two_wiki_context`:
2WikiMultihopQA (Ho et al. 2020, arXiv:2011.01060; Apache-2.0), each question with its ten paragraphs, two to four of
which are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hubmerge.evaluation.tasks.base import Row, Rows, Task
from hubmerge.evaluation.tasks.qa import exact_match, golds, numbered, paragraphs

_NQ = "NaturalQuestionsShort"


def _prompt(row: Row) -> str:
    return (
        "Read the documents and answer the question. Reply with the answer alone, as short as possible, "
        f"without any other words.\n\n{numbered(paragraphs(row))}\n\nQuestion: {str(row['question']).strip()}\nAnswer:"
    )


def _answerable(rows: Sequence[Row]) -> Sequence[Row]:
    return [row for row in rows if golds(row)]


def _natural_questions(rows: Sequence[Row]) -> Sequence[Row]:
    return _answerable([row for row in rows if row.get("subset", _NQ) == _NQ])


def _task(name: str, title: str, rows: Rows, expand: Callable[[Sequence[Row]], Sequence[Row]]) -> Task:
    return Task(
        name=name,
        title=title,
        domain="search",
        rows=rows,
        metric="exact_match",
        prompt=_prompt,
        reference=golds,
        score=exact_match,
        max_new_tokens=512,
        blank={"context": "{text}", "title": "{title}", "question": "{question}"},
        expand=expand,
    )


TASKS = (
    _task(
        "nq_context",
        "Natural Questions with a given passage",
        Rows("mrqa-workshop/mrqa", subset="plain_text", split="validation"),
        _natural_questions,
    ),
    _task(
        "two_wiki_context",
        "2WikiMultihopQA with given paragraphs",
        Rows("framolfese/2WikiMultihopQA", split="validation"),
        _answerable,
    ),
)
