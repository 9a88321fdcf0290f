"""Calibration data: question and answer pairs, chosen by what they say, in an order of their own, and as tokens.

A pair's key is sha256(seed, prompt, answer). The `max_pairs` smallest keys are taken, in the order of their keys:
which pairs are chosen, and in which order their squared gradients are added, depends neither on the order of the
rows nor on rows that were not chosen. A row that stands twice in the data counts twice.

The texts are used as they stand. Nothing is put between prompt and answer and no chat template is applied, so a
column for an agent that was trained with one holds the rendered prompt. Prompt and answer are tokenized apart, so that
the boundary between them is exact. The prompt gets what the tokenizer puts in front (a BOS, unless the prompt begins
with one), the answer nothing. An EOS is appended when the tokenizer has one and the answer does not end with it:
stopping is part of the answer. The likelihood is that of the answer and the EOS; prompt tokens are no part of it.

`data` is a JSONL file when it starts with `.`, `/` or `~`, has more than one `/`, or ends in `.jsonl`; otherwise
the id of a dataset on the Hub, which the datasets library reads. What a text means does not depend on which files
exist.
"""

import errno
import hashlib
import heapq
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubmerge.errors import DiskError, FormatError, HubmergeError, Problem, SensitivityError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.hub.names import is_hub_id
from hubmerge.isolation.in_child import first_line
from hubmerge.machine.disk_errors import of_disk
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.sources.base import Model
from hubmerge.sources.companions import makes_tokenizer
from hubmerge.sources.config import quantized
from hubmerge.sources.dataset_rows import load_split
from hubmerge.sources.staged import stage_settings

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_ROWS = 10_000_000
LOADERS = ("torch", "transformers", "psutil")  # what gradients need
PROBLEMS_AT_MOST = 10  # rows spelled out; one slip tends to repeat on every row


@dataclass(frozen=True)
class Pair:
    """One question and its answer; `row` (from 1) says where it stood, for messages alone."""

    prompt: str
    answer: str
    row: int = field(default=0, compare=False)


@dataclass(frozen=True)
class TokenizedPair:
    """`ids`: prompt, answer and EOS; the last `answer_tokens` of them are what the likelihood is about."""

    ids: tuple[int, ...]
    answer_tokens: int
    row: int


def load_pairs(
    spec: CalibrationSpec,
    hub: Hub | None = None,
    *,
    allow_local: bool = True,
    cache: Path | None = None,
    path_of: Callable[[str], Path] = lambda text: Path(os.path.expanduser(text)),
) -> tuple[Pair, ...]:
    """The pairs of `spec`; SensitivityError lists the rows that are no pairs, SourceNotFoundError: no such data.

    `cache` is where a Hub dataset is downloaded to (default: the datasets library's own cache). `path_of`: where a file
    of that name lies.
    """
    if not spec.is_file:
        return choose(enumerate(_hub_rows(spec, hub or Hub(), cache), start=1), spec)
    if not allow_local:
        raise SourceNotFoundError("local files cannot be used here", where=spec.label, next_step="Give a Hub id.")
    return choose(_file_rows(path_of(spec.data)), spec)


def digest(pairs: Iterable[Pair]) -> str:
    """sha256 (hex) over the exact texts of the pairs in their order."""
    total = hashlib.sha256()
    for pair in pairs:
        total.update(_framed(pair.prompt) + _framed(pair.answer))
    return total.hexdigest()


def tokens_digest(rows: Iterable[TokenizedPair]) -> str:
    """sha256 (hex) over the rows as tokenized, in their order, each with how many of its tokens are the answer."""
    total = hashlib.sha256()
    for row in rows:
        total.update(b"".join(n.to_bytes(8, "big") for n in (len(row.ids), row.answer_tokens, *row.ids)))
    return total.hexdigest()


def choose(rows: Iterable[tuple[int, Any]], spec: CalibrationSpec) -> tuple[Pair, ...]:
    """The pairs of `spec` among numbered rows; memory holds `max_pairs` of them."""
    problems: list[Problem] = []

    def keyed() -> Iterator[tuple[int, int, Pair]]:
        for number, row in rows:
            if (found := _problem(row, number, spec)) is None:
                pair = Pair(row[spec.prompt], row[spec.answer], number)
                yield _key(pair, spec.seed), number, pair  # equal keys are equal pairs, told apart by their row
                continue
            problems.append(found)
            if len(problems) == PROBLEMS_AT_MOST:
                return

    chosen = heapq.nsmallest(spec.max_pairs, keyed())
    if problems:
        raise SensitivityError("the calibration data has rows that are no pairs", problems=problems)
    if not chosen:
        raise SensitivityError("the calibration data is empty", where=spec.label, expected="at least one pair")
    return tuple(pair for *_, pair in chosen)


def _key(pair: Pair, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(_framed(str(seed)) + _framed(pair.prompt) + _framed(pair.answer)).digest())


def _framed(text: str) -> bytes:
    """UTF-8 with its length in front, so that no two sequences of texts run into the same bytes."""
    raw = text.encode("utf-8")
    return len(raw).to_bytes(8, "big") + raw


def _problem(row: Any, number: int, spec: CalibrationSpec) -> Problem | None:
    def problem(what: str, expected: str, got: str) -> Problem:
        return Problem(SensitivityError.code, what, f"row {number} of {spec.label}", expected, got)

    if not isinstance(row, Mapping):
        return problem("a row that is no table", "columns by name", type(row).__name__)
    if missing := [name for name in (spec.prompt, spec.answer) if name not in row]:
        there = ", ".join(ascii(str(name))[1:-1][:40] for name in list(row)[:10])
        return problem("a column is missing", ", ".join(missing), there or "no columns")
    for name in (spec.prompt, spec.answer):
        if not isinstance(row[name], str):
            return problem(f"column {name!r} is no text", "text", type(row[name]).__name__)
        try:
            row[name].encode("utf-8")
        except UnicodeEncodeError:
            return problem(f"column {name!r} is no valid text", "UTF-8", "half of a surrogate pair")
    return None


def _file_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, parsed line) of a JSONL file; empty lines are passed over."""
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, start=1):
                where = f"row {number} of {path.name}"
                if len(line) > MAX_LINE_BYTES:
                    most = f"at most {MAX_LINE_BYTES} bytes"
                    raise SensitivityError("a row is too long", where=where, expected=most, got="more")
                if line.strip():
                    yield number, parsed(line, where)
    except (OSError, ValueError) as error:  # the latter for a name with a zero byte
        raise SourceNotFoundError(
            "the calibration data cannot be read", where=path.name, got=str(getattr(error, "strerror", None) or error)
        ) from None


def parsed(line: bytes, where: str) -> Any:
    """A line of a JSONL file; SensitivityError for what is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise SensitivityError(
            "a row is not valid JSON", where=where, expected="one JSON object per line", got=ascii(line[:60])[2:-1]
        ) from None


def _hub_rows(spec: CalibrationSpec, hub: Hub, cache: Path | None) -> Sequence[Any]:
    """The rows of a Hub dataset, memory-mapped by the datasets library."""
    if not is_hub_id(spec.data):
        raise SourceNotFoundError(
            "not a dataset id", where=ascii(spec.data)[:120], next_step="A file is written ./data.jsonl."
        )
    import datasets

    if datasets.config.HF_ENDPOINT.rstrip("/") != hub.endpoint.rstrip("/"):
        # the library reads the endpoint once, when it is imported
        raise SourceNotFoundError(
            "the datasets library talks to another Hub",
            where=spec.label,
            expected=hub.endpoint,
            got=datasets.config.HF_ENDPOINT,
            next_step="Set HF_ENDPOINT before hubmerge starts.",
        )
    datasets.disable_progress_bars()
    try:
        rows = load_split(
            spec.data,
            spec.split,
            subset=spec.subset,
            revision=spec.revision,
            token=hub.token,
            cache=cache,
            refused=SensitivityError,
        )
    except HubmergeError:
        raise
    except Exception as error:  # a stranger's files: any error of the library means the same
        told = " ".join(str(error).split())[:300].rstrip(".")
        if of_disk(error) or getattr(error, "errno", None) == errno.EACCES:
            step = "Free some disk, or set HF_HOME to a folder that you may write to."
            raise DiskError("the dataset cannot be kept", where=spec.label, got=told, next_step=step) from error
        where = f"{spec.label}, split {spec.split}"
        step = "Check its id, revision, subset and split, and sign in if it is private."
        raise SourceNotFoundError("the dataset cannot be read", where=where, got=told, next_step=step) from error
    if len(rows) > MAX_ROWS:
        raise SensitivityError(
            "the split has too many rows",
            where=spec.label,
            expected=f"at most {MAX_ROWS}",
            got=str(len(rows)),
            next_step=f"Take a part: --split '{spec.split}[:10000]'.",
        )
    columns = list(dict.fromkeys((spec.prompt, spec.answer)))
    if missing := [name for name in columns if name not in rows.column_names]:
        raise SensitivityError(
            "a column is missing", where=spec.label, expected=", ".join(missing), got=", ".join(rows.column_names)[:200]
        )
    return rows.select_columns(columns)  # type: ignore[no-any-return]  # others may be images, which need decoding


def stage_small_files(model: Model, hub: Hub, folder: Path) -> None:
    """config.json and the tokenizer; SensitivityError for what cannot be differentiated or has no tokenizer."""
    if model.adapter is not None:
        what, step = "an adapter, which is no whole model", "Take what PEFT's merge_and_unload() makes of it."
        raise SensitivityError(what, where=str(model.ref), next_step=step)
    if found := quantized(model.config):
        raise SensitivityError(
            "quantized weights, which have no gradients",
            where=str(model.ref),
            expected=f"no {found[0]}",
            next_step="Use the model before quantization.",
        )
    if not any(map(makes_tokenizer, model.files)):
        raise SensitivityError("no tokenizer", where=str(model.ref), expected="tokenizer.json, tokenizer.model, …")
    stage_settings(model, hub, folder)


def tokenized_in(folder: Path, where: str, pairs: Sequence[Pair], max_tokens: int) -> tuple[TokenizedPair, ...]:
    """The pairs as the tokenizer in `folder` makes them, as long as the config there has positions for.

    `where` names the model. FormatError for a config or tokenizer that transformers does not know or a model without a
    likelihood of answers, and what `tokenize` raises.
    """
    from transformers import AutoConfig, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        unknown = "a model that transformers does not know"
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        said = config.get_text_config()
        unknown = "a tokenizer that transformers cannot read"
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a stranger's files: any error of the libraries means the same
        raise FormatError(unknown, where=where, got=first_line(error)) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise FormatError(
            "a model that has no likelihood of an answer after a prompt",
            where=where,
            expected="an architecture of AutoModelForCausalLM",
            got=config.model_type,
            next_step="Choose a method that needs no sensitivities.",
        )
    sizes = [getattr(said, name, None) for name in ("max_position_embeddings", "vocab_size")]
    context, vocabulary = (size if isinstance(size, int) and size > 0 else None for size in sizes)
    return tokenize(tokenizer, pairs, max_tokens, context, vocabulary)


def tokenize(
    tokenizer: Any, pairs: Sequence[Pair], max_tokens: int, context: int | None, vocabulary: int | None = None
) -> tuple[TokenizedPair, ...]:
    """All pairs as tokens; SensitivityError lists those without an answer, longer than they may be, or with a token
    that the model does not have.

    `context` is the most positions that the model has, `vocabulary` the number of its tokens; None where it does not
    say.
    """
    limit = max_tokens if context is None else min(max_tokens, context)
    reason = "max_tokens" if limit == max_tokens else "the model's context"
    end = tokenizer.eos_token_id
    result: list[TokenizedPair] = []
    problems: list[Problem] = []

    def add(pair: Pair, what: str, expected: str, got: str, next_step: str = "") -> None:
        problems.append(Problem(SensitivityError.code, what, f"row {pair.row}", expected, got, next_step))

    for pair in pairs:
        prompt = _prompt_ids(tokenizer, pair.prompt)
        answer = list(tokenizer(pair.answer, add_special_tokens=False).input_ids)
        with_end = answer + ([end] if end is not None and answer[-1:] != [end] else [])
        length = len(prompt) + len(with_end)
        if not answer or answer == [end]:
            add(pair, "an answer without tokens", "at least one token", repr(pair.answer[:40]))
        elif not prompt:
            add(pair, "a prompt without tokens", "at least one token", repr(pair.prompt[:40]))
        elif length > limit:
            remedy = "Raise max_tokens or leave the row out."
            if context is not None and length > context:
                remedy = "Choose data with shorter rows, or leave this one out: the model cannot see all of it."
            got = f"{length}: prompt {len(prompt)}, answer {len(with_end)}"
            add(pair, "a pair is too long", f"at most {limit} tokens ({reason})", got, remedy)
        elif vocabulary is not None and (strange := max(prompt + with_end)) >= vocabulary:
            remedy = "Take the tokenizer that the model was trained with, or leave the row out."
            add(pair, "a token that the model does not have", f"numbers below {vocabulary}", str(strange), remedy)
        else:
            result.append(TokenizedPair(tuple(prompt + with_end), len(with_end), pair.row))
    if (more := len(problems) - PROBLEMS_AT_MOST) > 0:
        problems[PROBLEMS_AT_MOST:] = [Problem(SensitivityError.code, f"{more} more rows have such problems")]
    if problems:
        raise SensitivityError("pairs that cannot be used", problems=problems)
    return tuple(result)


def _prompt_ids(tokenizer: Any, text: str) -> list[int]:
    ids, written = list(tokenizer(text).input_ids), list(tokenizer(text, add_special_tokens=False).input_ids)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    # some tokenizers close every text with an EOS, which would stand between prompt and answer
    if ids[-1:] == [end] and ids[-1 - len(written) : -1] == written and ids[1:] != written:
        ids.pop()
    # a prompt that a chat template rendered has its own BOS; a second one is another prompt
    if ids == [begin, *written] and written[:1] == [begin]:
        return written
    return ids
