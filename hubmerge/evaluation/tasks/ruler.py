"""RULER's question answering at a chosen length: the answer stands somewhere among very many other documents.

After Hsieh et al. 2024 (RULER, arXiv:2404.06654), whose two question tasks these are, at the lengths that memory
agents report: 7K to 896K tokens, K = 1024. `single` asks SQuAD, where one paragraph holds the answer; `multi` asks
HotpotQA, where two must be combined; the prompt brings the row's own paragraphs and as many of other rows as fit.
Both are under CC BY-SA 4.0.
`ruler_facts_*` asks `zoo/facts` (CC0) at 1K, which needs no network. A substring counts, both sides normalised.

Which questions are asked, which documents stand around them and in what order follows from the ids and the texts
alone (BLAKE2b), not from the order of the rows or a stream of random numbers: question q takes the documents at
start(q), start(q) + step(q), … of the pool sorted by digest. So a longer context holds all the documents of a shorter
one, and a set of texts that is too small for the length is used again from its start, as RULER does.

**Length.** A task knows no tokenizer, and a model's score must not depend on its own. Counted is the larger of
words × 4/3 and UTF-8 bytes / 4, rounded up, which is on the safe side for English prose and today's vocabularies.
The whole prompt counts, the answer does not.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from hubmerge.evaluation.tasks import qa
from hubmerge.evaluation.tasks.base import Row, Rows, Task

LENGTHS = {f"{7 * 2**n}k": 7 * 2**n * 1024 for n in range(8)}
QUESTIONS = 128  # per length; RULER's papers ask 100 to 500
_HEAD = (
    "Answer the question from the documents below. Reply with the answer alone, without any other words.\n\n"
    "The documents:\n\n"
)
_TAIL = "\n\nAnswer the question from the documents above. Reply with the answer alone.\n\nQuestion: {}\nAnswer:"


@dataclass(frozen=True)
class _Size:
    words: int
    bytes: int

    def __add__(self, other: "_Size") -> "_Size":
        return _Size(self.words + other.words, self.bytes + other.bytes)

    @property
    def tokens(self) -> int:
        return max(math.ceil(self.words * 4 / 3), math.ceil(self.bytes / 4))


def size_of(text: str) -> _Size:
    return _Size(len(text.split()), len(text.encode()))


def _number(*parts: object) -> int:
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def long_contexts(rows: Sequence[Row], *, tokens: int) -> Iterator[Row]:
    """The rows that are asked, each built when it is taken, since it may have megabytes."""
    unique = {paragraph for row in rows for paragraph in qa.paragraphs(row)}
    pool = sorted(unique, key=lambda p: (_number(p.title, p.text), p.title, p.text))
    answerable = [row for row in rows if qa.golds(row)]
    for row in sorted(answerable, key=lambda row: (_number("asked", qa.identity(row)), qa.identity(row)))[:QUESTIONS]:
        yield _long_row(row, pool, tokens)


def _around(pool: Sequence[qa.Paragraph], key: str) -> Iterator[qa.Paragraph]:
    """All of the pool, over and over, in the order of the question `key`."""
    count = len(pool)
    start, step = _number("start", key) % count, 1 + _number("step", key) % count
    while math.gcd(step, count) != 1:
        step += 1
    while True:
        yield pool[start]
        start = (start + step) % count


def _long_row(row: Row, pool: Sequence[qa.Paragraph], tokens: int) -> dict[str, Any]:
    """The row with a context of at most `tokens` estimated tokens; what supports its answer is always in it."""
    key, question = qa.identity(row), str(row["question"]).strip()
    needed = qa.supporting(row)
    size = sum((_shown_size(paragraph) for paragraph in needed), size_of(_HEAD) + size_of(_TAIL.format(question)))
    chosen = list(needed)
    for paragraph in _others(row, needed, pool, key):
        size += _shown_size(paragraph)
        if size.tokens > tokens:
            break
        chosen.append(paragraph)
    order = sorted(range(len(chosen)), key=lambda i: _number("place", key, i, chosen[i].title, chosen[i].text))
    return {
        "id": key,
        "question": question,
        "answers": qa.golds(row),
        "context": qa.numbered(chosen[i] for i in order),
        "documents": len(chosen),
    }


def _others(row: Row, needed: Sequence[qa.Paragraph], pool: Sequence[qa.Paragraph], key: str) -> Iterator[qa.Paragraph]:
    """Paragraphs to put around the needed ones: the row's own distractors, then other rows' without end."""
    own = qa.paragraphs(row)
    yield from (paragraph for paragraph in own if paragraph not in needed)
    mine = set(own)
    if len(pool) > len(mine):
        yield from (paragraph for paragraph in _around(pool, key) if paragraph not in mine)


def _shown_size(paragraph: qa.Paragraph) -> _Size:
    """With the widest number and the blank line after it."""
    return size_of(qa.shown(99_999, paragraph)) + _Size(0, 2)


def _prompt(row: Row) -> str:
    return f"{_HEAD}{row['context']}{_TAIL.format(row['question'])}"


def _task(name: str, title: str, rows: Rows, tokens: int) -> Task:
    return Task(
        name=name,
        title=title,
        domain="memory",
        rows=rows,
        metric="substring_match",
        prompt=_prompt,
        reference=qa.golds,
        score=qa.contains_answer,
        max_new_tokens=512,
        blank={"context": "{documents}", "question": "{question}"},
        expand=partial(long_contexts, tokens=tokens),
    )


_SINGLE = Rows("rajpurkar/squad", subset="plain_text", split="validation")
_MULTI = Rows("hotpotqa/hotpot_qa", subset="distractor", split="validation")

TASKS = (
    *(_task(f"ruler_single_{k}", f"RULER, one-hop recall over {k.upper()}", _SINGLE, n) for k, n in LENGTHS.items()),
    *(_task(f"ruler_multi_{k}", f"RULER, two-hop recall over {k.upper()}", _MULTI, n) for k, n in LENGTHS.items()),
    *(
        _task(
            f"ruler_facts_{hops}_1k",
            f"Invented facts, {title} recall over 1K",
            Rows("zoo/facts", subset=hops, split="validation"),
            1024,
        )
        for hops, title in (("single", "one-hop"), ("multi", "two-hop"))
    ),
)
