"""Questions over given texts: reading the published schemas, and the field's two ways to compare answers.

Normalisation is SQuAD's (Rajpurkar et al. 2016), which HotpotQA, NQ-open and 2WikiMultihopQA share: lower case,
no ASCII punctuation, no articles, single spaces. Deviation: an answer of which that leaves nothing ("A", "!") is
compared as it is, since an empty string would equal an empty answer and be part of every text.

`nq_context`: Natural Questions with a short answer, each with the passage that holds it, in MRQA's edition (Fisch
et al. 2019, arXiv:1910.09753; CC BY-SA 3.0; the rows of its subset NaturalQuestionsShort). `two_wiki_context`:
2WikiMultihopQA (Ho et al. 2020, arXiv:2011.01060; Apache-2.0), each question with its ten paragraphs, two to four of
which are needed. Both ask for exact match; any accepted answer counts.
"""

import hashlib
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hubmerge.evaluation.tasks.base import Row, Rows, Task
from hubmerge.evaluation.tasks.generated_code import without_thoughts

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_LEAD = re.compile(r"^\W*(?:the\s+)?(?:final\s+)?answer\s*(?:is\b\s*:?|:)\s*", re.IGNORECASE)
_MARKUP = re.compile(r"</?(?:P|Li|Ul|Ol|Table|Tr|Td|Th|Dl|Dd|Dt)>", re.IGNORECASE)


@dataclass(frozen=True)
class Paragraph:
    title: str
    text: str


def normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def short_answer(text: str) -> str:
    """The answer alone: what is tagged or boxed as one, else the first line without "Answer:" before it."""
    text = without_thoughts(text)
    marked = _TAGGED.findall(text) or _BOXED.findall(text)
    if marked:
        return str(marked[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _LEAD.sub("", lines[0]).strip() if lines else ""


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the short answer, or all of the answer, is one of the gold answers, both normalised."""
    return _equal_to_any(short_answer(answer), golds) or _equal_to_any(without_thoughts(answer), golds)


def _equal_to_any(answer: str, golds: Iterable[str]) -> bool:
    return any(
        normalized(answer) == normalized(gold) if normalized(gold) else answer.strip().lower() == gold.strip().lower()
        for gold in golds
    )


def contains_answer(answer: str, golds: Sequence[str]) -> bool:
    """Whether a gold answer is part of the answer, both normalised (RULER's measure for questions).

    Deviation: "yes" and "no" must be words of the answer, since "no" is a part of "know" and "another".
    """
    said = normalized(without_thoughts(answer))
    for gold in golds:
        wanted = normalized(gold)
        if not wanted:
            found = exact_match(answer, (gold,))
        elif wanted in ("yes", "no"):
            found = wanted in said.split()
        else:
            found = wanted in said
        if found:
            return True
    return False


def identity(row: Row) -> str:
    """The row's id in its dataset; a digest of the question where it has none."""
    for key in ("id", "_id", "qid"):
        if row.get(key):
            return str(row[key])
    return hashlib.sha256(str(row["question"]).encode()).hexdigest()


def golds(row: Row) -> list[str]:
    """Every accepted answer, the first one first, whatever the schema calls them."""
    found: list[str] = []
    for key in ("answer", "answers", "golden_answers", "detected_answers", "answer_aliases", "aliases"):
        value = row.get(key)
        if isinstance(value, dict):  # SQuAD's and MRQA's lists of spans
            value = value.get("text")
        values = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
        found += [str(text) for text in values if str(text).strip()]
    return list(dict.fromkeys(found))


def paragraphs(row: Row) -> list[Paragraph]:
    """The row's own texts: HotpotQA's titles and sentences, in columns or in pairs, or one text as in SQuAD."""
    context: Any = row["context"]
    if isinstance(context, str):
        return [Paragraph(str(row.get("title") or ""), _plain(context))]
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    return [Paragraph(str(title), _plain(" ".join(s.strip() for s in sentences))) for title, sentences in pairs]


def supporting(row: Row) -> list[Paragraph]:
    """The paragraphs that hold the answer; all of them where the row does not say."""
    facts: Any = row.get("supporting_facts")
    own = paragraphs(row)
    if not facts:
        return own
    titles = set(facts["title"]) if isinstance(facts, dict) else {title for title, _ in facts}
    return [paragraph for paragraph in own if paragraph.title in titles] or own


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def numbered(texts: Iterable[Paragraph]) -> str:
    """Paragraphs as they stand in a prompt."""
    return "\n\n".join(shown(number, text) for number, text in enumerate(texts, 1))


def shown(number: int, paragraph: Paragraph) -> str:
    head = f"Document {number}: {paragraph.title}".rstrip().removesuffix(":")
    return f"{head}\n{paragraph.text}"


# --- the tasks of search ---------------------------------------------------------------------------------

_NQ = "NaturalQuestionsShort"


def _prompt(row: Row) -> str:
    return (
        "Read the documents and answer the question. Reply with the answer alone, as short as possible, "
        f"without any other words.\n\n{numbered(paragraphs(row))}\n\nQuestion: {str(row['question']).strip()}\nAnswer:"
    )


def _answerable(rows: Sequence[Row]) -> Sequence[Row]:
    return [row for row in rows if golds(row)]


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
        lambda rows: _answerable([row for row in rows if row.get("subset", _NQ) == _NQ]),
    ),
    _task(
        "two_wiki_context",
        "2WikiMultihopQA with given paragraphs",
        Rows("framolfese/2WikiMultihopQA", split="validation"),
        _answerable,
    ),
)
