"""lighteval's pipeline in batches: journal, progress and resume around its own generation and scoring.

lighteval generates everything in one call, reports no progress and keeps nothing when it is stopped. Here each task's
questions are sorted by the length of their prompts and cut into batches, always the same ones on a machine; a batch in
the journal is not generated again. Generation is lighteval's `greedy_until`, scoring its `_compute_metrics`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lighteval.data import GenerativeTaskDataset
from lighteval.logging.evaluation_tracker import EvaluationTracker
from lighteval.models.model_output import ModelResponse
from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
from lighteval.tasks.requests import Doc, SamplingMethod

from hubmerge.errors import EvaluationError, InternalError
from hubmerge.evaluation.journal import AnswerJournal, answer_key
from hubmerge.evaluation.lighteval_tasks import reference_of
from hubmerge.evaluation.models import RenderedPrompts, require_room_for
from hubmerge.evaluation.result import MAX_TRUNCATED
from hubmerge.evaluation.suites import RULES
from hubmerge.evaluation.tasks import BuiltinTask, Task, registry
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
    docs: Sequence[Doc]
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


class JournaledPipeline(Pipeline):  # type: ignore[misc]  # lighteval has no types
    def __init__(self, names: str, model: Any, spec: Mapping[str, Any], reporter: Reporter) -> None:
        super().__init__(
            tasks=names,
            pipeline_parameters=PipelineParameters(launcher_type=ParallelismManager.NONE, bootstrap_iters=0),
            evaluation_tracker=EvaluationTracker(output_dir=str(Path(spec["cache"]) / "tracker")),
            model=model,
        )
        # lighteval's order is by characters, and it cuts every prompt to the first one's tokens and its longest answer
        GenerativeTaskDataset._sorting_criteria = lambda _, doc: (doc.num_samples, 0)
        model._cache = None  # keyed by the model's name; the journal is keyed by its commit
        self._spec = spec
        self._reporter = reporter
        self._prompts: dict[str, RenderedPrompts] = {}
        self.truncated: dict[str, int] = {}  # task → prompts that were cut

    def scored(self) -> dict[str, list[Sample]]:
        """Generate and score; the samples of every task in the order of its rows."""
        self._reporter.stage("generate")
        outputs = self._run_model()
        self._refuse_silence(outputs[SamplingMethod.GENERATIVE])
        self._reporter.stage("score")
        self._post_process_outputs(outputs)
        for response in outputs[SamplingMethod.GENERATIVE]:  # lighteval keeps what a chat template's own <think> began
            response.text_post_processed = [without_thoughts(text) for text in response.final_text]
        self._compute_metrics(outputs)
        return {task["name"]: self._samples(task) for task in self._spec["tasks"]}

    def _run_model_sync(self) -> dict[SamplingMethod, list[ModelResponse]]:
        docs = self.sampling_docs[SamplingMethod.GENERATIVE]
        total, done = len(docs), 0
        texts: dict[tuple[str, str], list[str]] = {}
        asked = [
            self._asked(task, sorted((d for d in docs if d.task_name == _full_name(task)), key=lambda d: int(d.id)))
            for task in self._spec["tasks"]
        ]
        for each in asked:  # all of them before anything is generated
            self._refuse_what_is_cut(each)
            longest = max(each.tokens[d.id] + (d.generation_size or 1) for d in each.docs)
            require_room_for(min(longest, self.model.max_length), self.model, self._spec, each.definition.name)
        for each in asked:
            for batch, answers in self._answers(each):
                texts |= {(d.task_name, d.id): answer for d, answer in zip(batch, answers, strict=True)}
                done += len(batch)
                self._reporter.progress("generate", done, total, "prompts")
        return {SamplingMethod.GENERATIVE: [ModelResponse(text=texts[d.task_name, d.id]) for d in docs]}

    def _asked(self, task: Mapping[str, Any], docs: Sequence[Doc]) -> Asked:
        definition = registry()[task["name"]]
        # the task decides on the chat template; in lighteval the model does
        has_template = getattr(self.model.tokenizer, "chat_template", None) is not None
        manager = self._prompts[task["name"]] = RenderedPrompts(self.model, chat=has_template and definition.chat)
        tokens = {
            id: len(self.model.tokenizer(text, add_special_tokens=not manager.use_chat_template)["input_ids"])
            for id, text in manager.prepare_prompts(docs).items()
        }
        return Asked(definition, docs, manager, tokens)

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

    def _samples(self, task: Mapping[str, Any]) -> list[Sample]:
        definition = registry()[task["name"]]
        details = self.evaluation_tracker.details_logger.details[_full_name(task)]
        prompts = self._prompts[task["name"]]
        samples = []
        for detail in sorted(details, key=lambda d: int(d.doc.id)):
            score = float(detail.metric[definition.metric])
            if not 0.0 <= score <= 1.0:
                raise InternalError(f"a score of {definition.name} out of its range", expected="0 … 1", got=str(score))
            answer = detail.model_response.final_text[0]
            samples.append(Sample(prompts.prepare_prompt(detail.doc), answer, reference_of(detail.doc), score))
        return samples


def _full_name(task: Mapping[str, Any]) -> str:
    return f"{task['name']}|{task['few_shot']}"


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
