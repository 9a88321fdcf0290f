"""Asks a model in batches and scores its answers: journal, progress and resume around lighteval's generation.

lighteval's pipeline generates everything in one call, reports no progress and keeps nothing when it is stopped. Here
each task's questions are sorted by the length of their prompts and cut into batches, always the same ones on a machine;
a batch in the journal is not generated again. Generation is lighteval's `greedy_until`.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lighteval.data import GenerativeTaskDataset
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc
from lighteval.utils.utils import remove_reasoning_tags

from hubmerge.errors import EvaluationError, InternalError
from hubmerge.evaluation.journal import AnswerJournal, answer_key
from hubmerge.evaluation.lighteval_tasks import Scorer, loaded, reference_of
from hubmerge.evaluation.models import RenderedPrompts, require_room_for
from hubmerge.evaluation.result import MAX_TRUNCATED
from hubmerge.evaluation.suites import RULES
from hubmerge.evaluation.tasks import BuiltinTask, Task
from hubmerge.evaluation.tasks.generated_code import without_thoughts
from hubmerge.isolation.in_child import Reporter

_DETAILS = pa.schema([*((name, pa.string()) for name in ("prompt", "answer", "reference")), ("score", pa.float64())])
MAX_TEXT = 16_000  # characters of a kept prompt or answer; its middle is left out above


@dataclass(frozen=True)
class Sample:
    prompt: str
    answer: str
    reference: str  # JSON
    score: float


@dataclass(frozen=True)
class Asked:
    """A task's questions as the model sees them."""

    definition: Task | BuiltinTask
    docs: Sequence[Doc]  # in the order of their rows
    scores: Scorer
    manager: RenderedPrompts
    tokens: Mapping[str, int]  # by the question's id


def batches(asked: Asked, longest: int, most: int, budget: int | None) -> Iterator[list[Doc]]:
    """Batches of at most `most` prompts and `budget` tokens, but at least one prompt; the longest prompts come first.

    A prompt counts as many tokens as the longest of its batch, since it is padded to them, and the longest answer;
    together never more than the model's `longest`. What the longest prompt leaves of these is room for every answer
    of its batch, so a prompt that would leave more than a tenth beyond it begins the next one.
    """

    def room(doc: Doc) -> int:
        return min(doc.generation_size or longest, max(1, longest - asked.tokens[doc.id]))

    ordered = sorted(asked.docs, key=lambda d: (-asked.tokens[d.id], int(d.id)))
    start = 0
    while start < len(ordered):
        first = ordered[start]
        each = min(longest, asked.tokens[first.id] + (first.generation_size or longest))
        size = most if budget is None else max(1, min(most, budget // each))
        end = start + 1
        while end < min(start + size, len(ordered)) and 0.9 * room(ordered[end]) <= room(first):
            end += 1
        yield ordered[start:end]
        start = end


class JournaledPipeline:
    def __init__(self, model: Any, spec: Mapping[str, Any], reporter: Reporter) -> None:
        # lighteval's order is by characters, and it cuts every prompt to the first one's tokens and its longest answer
        GenerativeTaskDataset._sorting_criteria = lambda _, doc: (doc.num_samples, 0)
        random.seed(1234)  # as lighteval's pipeline does
        model._cache = None  # keyed by the model's name; the journal is keyed by its commit
        self.model = model
        self._spec = spec
        self._reporter = reporter
        self.truncated: dict[str, int] = {}  # task → prompts that were cut

    def scored(self) -> dict[str, list[Sample]]:
        """Generate and score; the samples of every task in the order of its rows."""
        self._reporter.stage("generate")
        tasks = [self._asked(task) for task in self._spec["tasks"]]
        for asked in tasks:  # all of them before anything is generated
            self._refuse_what_is_cut(asked)
            longest = max(asked.tokens[d.id] + (d.generation_size or 1) for d in asked.docs)
            require_room_for(min(longest, self.model.max_length), self.model, self._spec, asked.definition.name)
        total, done = sum(len(asked.docs) for asked in tasks), 0
        responses: list[list[ModelResponse]] = []
        for asked in tasks:
            texts: dict[str, list[str]] = {}
            for batch, answers in self._answers(asked):
                texts |= {doc.id: answer for doc, answer in zip(batch, answers, strict=True)}
                done += len(batch)
                self._reporter.progress("generate", done, total, "prompts")
            responses.append([ModelResponse(text=texts[doc.id]) for doc in asked.docs])
        self.model.cleanup()
        self._refuse_silence([response for found in responses for response in found])
        self._reporter.stage("score")
        return {asked.definition.name: _samples(asked, found) for asked, found in zip(tasks, responses, strict=True)}

    def _asked(self, spec: Mapping[str, Any]) -> Asked:
        definition, docs, scores = loaded(spec)
        # the task decides on the chat template; in lighteval the model does
        has_template = getattr(self.model.tokenizer, "chat_template", None) is not None
        manager = RenderedPrompts(self.model, chat=has_template and definition.chat)
        tokens = {
            id: len(self.model.tokenizer(text, add_special_tokens=not manager.use_chat_template)["input_ids"])
            for id, text in manager.prepare_prompts(docs).items()
        }
        return Asked(definition, docs, scores, manager, tokens)

    def _answers(self, asked: Asked) -> Any:
        """Every batch of a task with its answers, generated or from the journal."""
        definition = asked.definition
        self.model.prompt_manager = asked.manager
        self.model.use_chat_template = asked.manager.use_chat_template
        # a template writes the special tokens itself; a second BOS before its own is another prompt
        self.model._add_special_tokens = not asked.manager.use_chat_template
        journal = AnswerJournal(Path(self._spec["generations"]) / f"{_file_name(definition.name)}.jsonl")
        for batch in batches(asked, self.model.max_length, self._spec["batch_size"], self._spec["batch_tokens"]):
            keys = [answer_key(self._identity(definition, doc, asked.manager.prepare_prompt(doc))) for doc in batch]
            if not journal.holds(keys):
                room = max(1, self.model.max_length - asked.tokens[batch[0].id])
                for doc in batch:  # of a task without a longest answer; lighteval would ask for no token, and fail
                    doc.generation_size = doc.generation_size or room
                responses = self.model.greedy_until(batch)
                journal.add(keys, [[_cut(text, definition) for text in r.text] for r in responses])
            yield batch, [journal[key] for key in keys]

    def _refuse_what_is_cut(self, asked: Asked) -> None:
        """Count the prompts whose start lighteval cuts to leave room for an answer, and refuse a task with too many.
        lighteval itself only logs it."""
        longest, name, of = self.model.max_length, asked.definition.name, len(asked.docs)
        size = min(asked.docs[0].generation_size or 1, longest)
        cut = self.truncated[name] = sum(tokens >= longest for tokens in asked.tokens.values())
        if cut > MAX_TRUNCATED * of:
            raise EvaluationError(
                "the model cannot read the prompts of a task",
                where=name,
                expected=f"at most {MAX_TRUNCATED:.0%} of the prompts longer than its {longest} positions take",
                got=f"{cut} of {of}",
                next_step="What it could not read would count as wrong; choose a suite of shorter prompts.",
            )
        short = sum(longest - size < tokens for tokens in asked.tokens.values())
        if cut or short:
            self._reporter.warning(
                f"{name}: of {of} prompts {cut} are cut at the start, and {short} leave less of the model's {longest} "
                f"positions than an answer may have ({size} tokens)"
            )

    def _identity(self, definition: Task | BuiltinTask, doc: Doc, prompt: str) -> Mapping[str, Any]:
        return {
            "model": self._spec["identity"],
            "rules": RULES,
            "backend": "transformers",
            "dtype": self._spec["dtype"],
            "device": self._spec["device"],
            "max_model_len": self._spec["max_model_len"],
            "task": [definition.name, definition.version],
            "prompt": prompt,
            "chat": self.model.use_chat_template,
            "generation_size": doc.generation_size,
            "stop": list(doc.stop_sequences or ()),
        }

    def _refuse_silence(self, responses: Sequence[ModelResponse]) -> None:
        if not any(text.strip() for response in responses for text in response.text):
            raise EvaluationError(
                "the model generates nothing",
                expected="an answer to at least one prompt",
                got=f"{len(responses)} empty answers",
                next_step="A score of 0 would say that it was measured; check its end-of-sequence token and weights.",
            )


def _samples(asked: Asked, responses: Sequence[ModelResponse]) -> list[Sample]:
    for response in responses:  # lighteval keeps what a chat template's own <think> began
        plain = (remove_reasoning_tags(text, [("<think>", "</think>")]) for text in response.text)
        response.text_post_processed = [without_thoughts(text) for text in plain]
    samples = []
    for doc, response, score in zip(asked.docs, responses, asked.scores(asked.docs, responses), strict=True):
        if not 0.0 <= score <= 1.0:
            what = f"a score of {asked.definition.name} out of its range"
            raise InternalError(what, expected="0 … 1", got=str(score))
        prompt, answer = asked.manager.prepare_prompt(doc), response.final_text[0]
        samples.append(Sample(prompt, answer, reference_of(doc), score))
    return samples


def _file_name(task: str) -> str:
    return task.replace(":", "_")


def _cut(text: str, definition: Task | BuiltinTask) -> str:
    """An answer cut at its first stop sequence, since lighteval ignores these with a chat template."""
    for stop in definition.stop:
        text = text.split(stop)[0]
    return text


def mean(samples: Sequence[Sample]) -> tuple[float, float | None]:
    """The mean score and its standard error (None for a single sample)."""
    scores = [sample.score for sample in samples]
    return fmean(scores), math.sqrt(variance(scores) / len(scores)) if len(scores) > 1 else None


def write_details(folder: Path, task: str, samples: Sequence[Sample]) -> None:
    """The samples of a task as parquet: prompt, answer, reference, score."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(_shown(s.prompt), _shown(s.answer), _shown(s.reference), s.score) for s in samples]
    table = pa.table(list(zip(*rows, strict=True)), _DETAILS)
    path = folder / f"{_file_name(task)}.parquet"
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial)
    partial.replace(path)


def _shown(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate is no text
    if len(text) <= MAX_TEXT:
        return text
    left_out = len(text) - MAX_TEXT
    return f"{text[: MAX_TEXT // 2]}\n[… {left_out} characters left out …]\n{text[-MAX_TEXT // 2 :]}"
