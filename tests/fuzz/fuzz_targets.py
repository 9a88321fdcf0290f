"""One function per parser of strangers' bytes: it raises nothing, and a refusal that the parser promises ends it.

A target that accepts its bytes goes on to what the program does with them next, and holds a promise about it: a
header is one for safetensors, too, a recipe written out is the same recipe, a result does not take the board down.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import MagicMock

import safetensors
import tokenizers

from hubmerge.board.eval_results import _own_report
from hubmerge.board.export import board_json, board_parquet, suite_csv
from hubmerge.board.files import FLAGS, parse_files
from hubmerge.board.leaderboard import build_board
from hubmerge.board.trust import keys_file, parse_keys
from hubmerge.engine.pins import pins_in
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import HubmergeError, PermissionDeniedError, SensitivityError
from hubmerge.evaluation.facts import model_facts
from hubmerge.evaluation.result import MAX_RESULT_BYTES, EvaluationResult, parse_result, result_path
from hubmerge.hub.client import RepoState
from hubmerge.hub.names import FileInfo
from hubmerge.output.finished import load_report
from hubmerge.output.task import task_of
from hubmerge.plan.compatibility import architecture
from hubmerge.plan.files import united_tokenizer
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.model_name import ModelRef
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.recipe.sweep import is_sweep, sweep_from_dict
from hubmerge.sensitivity.pairs import choose, digest, parsed
from hubmerge.sources.adapter_config import parse_adapter_config
from hubmerge.sources.base import Model, StoredTensor, Views
from hubmerge.sources.config import config_problems, merged_config, without_code
from hubmerge.sources.header import TensorEntry, header_length, parse_header
from hubmerge.sources.open import INDEX, SINGLE, _card_data, _json_object, _read_header, _shards
from hubmerge.sources.remedies import Place
from hubmerge.sources.vocabulary import TOKENIZER, add_rows, token_table
from hubmerge.text.wording import json_file
from localhub import cards
from localhub.http_errors import HubError
from localhub.patterns import check_work, decide, ignore_rules, lfs_rules
from localhub.protocol import parse_json
from workflows.watchers.rules import rule_from_yaml
from workflows.watchers.webhook import pushes

WHERE = "the fuzzer"
REF = ModelRef("hub", "org/model", "a" * 40, "main")
PATHS = ("a", "a.py", "sub/deep/a.bin", "data/train/1.safetensors", "a b", "x" * 200, "é/☃", "a" * 50 + "/" + "b" * 50)
SHOWN: set[Any] = set()  # flags that a board was made with, which takes most of their time
WEIGHTS = FileInfo("model.safetensors", 1000, "c" * 64)
BESIDE = {"config": "tokenizer_config.json", "added": "added_tokens.json"}  # of the base's tokenizer
SHARDS = {name: FileInfo(name, 9) for name in (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))}


V = TypeVar("V")


@dataclass(frozen=True)
class Target:
    """A parser under test; `kind` says how its seeds are damaged: as JSON, YAML, a card, lines, or a header."""

    function: Callable[[bytes], None]
    kind: str

    def run(self, data: bytes) -> None:
        with suppress(_Refused):
            self.function(data)


class _Refused(BaseException):
    """The parser refuses its bytes, and the target is done."""


def _read(parse: Callable[..., V], *given: Any, refusals: tuple[type[Exception], ...] = (HubmergeError,)) -> V:
    """What the parser makes of its bytes. Where it refuses them, the target is done: the refusal can be shown."""
    try:
        return parse(*given)
    except refusals as error:
        str(error).encode()
        if isinstance(error, HubmergeError):
            json.dumps(error.as_dict())
        raise _Refused from None


def _json(data: bytes) -> Any:
    return _read(json.loads, data, refusals=(ValueError, RecursionError))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _utf8(value: Any) -> None:
    """What was accepted can be written: as JSON of plain numbers, in UTF-8."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _place(files: Mapping[str, FileInfo], data: bytes) -> Place:
    """A repo of which every file that is read holds `data`."""
    return Place(WHERE, WHERE, None, files, {}, lambda path, start, end: data[start:end], lambda path, most: data)


def header(data: bytes) -> None:
    files = {SINGLE: FileInfo(SINGLE, len(data))}
    raw = _read(_read_header, _place(files, data), SINGLE)
    assert header_length(raw, WHERE) == len(raw) - 8
    parsed = _read(parse_header, raw[8:], len(data), WHERE)
    theirs = dict(safetensors.deserialize(data))
    assert {t.name for t in parsed.tensors} == theirs.keys()
    for tensor in parsed.tensors:
        assert list(tensor.shape) == theirs[tensor.name]["shape"]
        assert data[tensor.begin : tensor.end] == bytes(theirs[tensor.name]["data"])


def index(data: bytes) -> None:
    files = {**SHARDS, INDEX: FileInfo(INDEX, len(data))}
    shards, weight_map = _read(_shards, _place(files, data))
    assert weight_map
    assert set(shards) == set(weight_map.values()) <= SHARDS.keys()


def config(data: bytes) -> None:
    value = _read(_json_object, data, WHERE, 100_000)
    model = Model(REF, MappingProxyType(value), {}, {})
    for problem in config_problems(model, ()):
        str(problem).encode()
    architecture(model).encode()
    task_of(value).use.encode()
    for dtypes in ([], ["BF16", "F32", "BF16"]):
        merged, left_out = merged_config(value, dtypes)
        again, _ = merged_config(merged, dtypes)
        assert again == merged, "a cleaned config is clean"
        assert json.loads(json_file(merged)) == merged, "it is written as it is"
        "; ".join(left_out).encode()


def adapter_config(data: bytes) -> None:
    parsed = _read(parse_adapter_config, _read(_json_object, data, WHERE, 100_000), WHERE)
    for module in ("model.layers.0.self_attn.q_proj", "", "a" * 300):
        assert abs(parsed.scale_of(module)) <= 1e9
        assert parsed.rank_of(module) >= 1


def local_card(data: bytes) -> None:
    """The card of a local folder, which says nothing where it is broken."""
    assert isinstance(_card_data(data), dict)


def hub_card(data: bytes) -> None:
    """The card of a repo of the embedded Hub, of one kind or another: checked before a commit, read for listings."""
    readme, kind = _text(data), ("model", "dataset", "space")[len(data) % 3]
    errors, warnings = cards.card_problems(readme)
    "; ".join([*errors, *warnings]).encode("utf-8", "replace")
    derived = cards.derive(kind, readme, "", {"a.safetensors": None}, None)
    _utf8([derived.card, derived.tags, derived.library, derived.pipeline_tag])


def hub_config(data: bytes) -> None:
    """The config.json of a repo of the embedded Hub."""
    derived = cards.derive("model", "", _text(data), {}, None)
    assert derived.config.keys() <= {"architectures", "model_type"}
    _utf8([derived.config, derived.tags, derived.library, derived.pipeline_tag])


def hub_body(data: bytes) -> None:
    """A JSON body that the embedded Hub takes."""
    json.dumps(_read(parse_json, data, refusals=(HubError,)), ensure_ascii=False).encode()


def _written_alike(recipe: Recipe) -> None:
    assert recipe_from_yaml(recipe.to_yaml()).to_dict() == recipe.to_dict()
    _utf8(recipe.to_dict())


def recipe(data: bytes) -> None:
    """A recipe as YAML: hubmerge's own, or a mergekit document."""
    _written_alike(_read(recipe_from_yaml, _text(data), WHERE))


def recipe_of_data(data: bytes) -> None:
    """A recipe, or a sweep, as plain data from a caller of the API."""
    value = _json(data)
    if is_sweep(value):
        for _, found in _read(sweep_from_dict, value, WHERE).variants:
            _written_alike(found)
    else:
        _written_alike(_read(recipe_from_dict, value, WHERE))


def result(data: bytes) -> None:
    """A result file of a stranger, by itself and on a board beside a good one."""
    found = _read(partial(parse_result, where=WHERE), data)
    assert len(data) <= MAX_RESULT_BYTES
    assert parse_result(found.to_json().encode(), where=WHERE) == found
    _board(data)


def flags(data: bytes) -> None:
    """flags.json of a stranger, on a board with a good result."""
    _board(data, FLAGS)


def keys(data: bytes) -> None:
    """keys.json of a stranger."""
    found = _read(parse_keys, data, refusals=(ValueError,))
    assert parse_keys(keys_file(found)) == found


def _board(data: bytes, path: str = "") -> None:
    """A file of a stranger, by default at its own place, beside a good result: the board shows that."""
    good, content = _good()
    parsed = parse_files([(path or result_path(parse_result(data, where=WHERE)), data), (result_path(good), content)])
    assert any(r.model == "org/good" for r in parsed.results)
    if path and parsed.flags in SHOWN:
        return
    board = build_board(parsed.results, flags=parsed.flags)
    text = board_json(board)
    text.encode()
    json.loads(text, parse_constant=_no_number)
    for suite in board.suites:
        suite_csv(suite).encode()
    board_parquet(board)
    if path and len(SHOWN) < 100_000:
        SHOWN.add(parsed.flags)


@cache
def _good() -> tuple[EvaluationResult, bytes]:
    from fuzz_seeds import GOOD_RESULT

    return parse_result(GOOD_RESULT, where=WHERE), GOOD_RESULT


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def rule(data: bytes) -> None:
    found = _read(rule_from_yaml, _text(data), WHERE)
    found.target_for("0" * 64, 9).encode()
    found.model_dump_json().encode()


def webhook(data: bytes) -> None:
    value = _json(data)
    if isinstance(value, dict):
        for push in pushes(value):
            assert len(push.sha) == 40
            "".join(push).encode()


def calibration_rows(data: bytes) -> None:
    spec = CalibrationSpec(data="./rows.jsonl", prompt="q", answer="a", max_pairs=3)
    rows = ((n, parsed(line, WHERE)) for n, line in enumerate(data.splitlines(), 1) if line.strip())
    pairs = _read(choose, rows, spec, refusals=(SensitivityError,))
    assert 1 <= len(pairs) <= 3
    assert len(digest(pairs)) == 64


def patterns(data: bytes) -> None:
    """A .gitignore and a .gitattributes, as the embedded Hub is sent them."""
    text = _text(data)
    _read(check_work, text, list(PATHS), refusals=(HubError,))
    for rules in (ignore_rules(text), lfs_rules(text)):
        for path in PATHS:
            assert decide(rules, path) in (True, False)


def companion(data: bytes) -> None:
    """A JSON file that lies beside the weights."""
    clean, left_out = without_code(data)
    "; ".join(left_out).encode()
    if clean is not None:
        again, more = without_code(clean)
        assert again == clean, "a cleaned file is clean"
        assert more == () or clean == data


def tokenizer(data: bytes) -> None:
    """A tokenizer.json whose rows are compared."""
    table = token_table(_read(_json_object, data, WHERE, 4_000_000))
    assert table is None or table.added.keys() <= table.ids.keys()


def _model(rows: int, tokens: Any = None, *files: FileInfo) -> Model:
    """One table of an embedding, of four columns."""
    name = "model.embed_tokens.weight"
    tensors = {name: StoredTensor(WEIGHTS.path, TensorEntry(name, "F32", (rows, 4), 0, rows * 16))}
    table = None if tokens is None else token_table(_read(_json_object, _raw(tokens), WHERE, 100_000))
    listed = {file.path: file for file in (WEIGHTS, *files)}
    return Model(REF, MappingProxyType({"vocab_size": rows}), listed, tensors, tokens=table)


def _raw(value: Any) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else json.dumps(value).encode()


def tokenizer_union(data: bytes) -> None:
    """The tokenizers of a base and two agents that add tokens to it, and the files beside the base's."""
    value = _json(data)
    parts = {name: value.get(name) for name in ("base", "a", "b")} if isinstance(value, dict) else {}
    if not parts or None in parts.values():
        return
    base, *agents = (_model(4 if name == "base" else 8, part) for name, part in parts.items())
    grown = Views(base, agents)
    add_rows(grown)
    for text in (*grown.warnings, *grown.problems):
        str(text).encode()
    if grown.vocabulary is None or not grown.vocabulary.united:
        return
    beside = {name: _raw(value[key]) for key, name in BESIDE.items() if key in value}
    files = {TOKENIZER: _raw(parts["base"]), **beside}
    changed = united_tokenizer(files, grown.vocabulary.united)
    assert base.tokens is not None
    wanted = {**base.tokens.ids, **{t.content: t.id for t in grown.vocabulary.united}}
    after = token_table(json.loads(changed[TOKENIZER]))
    assert after is not None
    assert after.ids == wanted
    theirs = _ids(files[TOKENIZER])
    assert theirs != base.tokens.ids or _ids(changed[TOKENIZER]) == wanted, "the library numbers them alike"


def _ids(content: bytes) -> dict[str, int] | None:
    """Token → id as the tokenizers library reads it; None where it does not."""
    try:
        return tokenizers.Tokenizer.from_buffer(content).get_vocab()
    except Exception:  # it raises nothing else
        return None


def _hub_with(data: bytes) -> Any:
    return SimpleNamespace(endpoint="https://huggingface.co", read_file=lambda *_: data)


def report_facts(data: bytes) -> None:
    """hubmerge.json in a stranger's repo, for the facts of a result."""
    facts = model_facts(_hub_with(data), _model(4, None, FileInfo(MANIFEST, len(data))))
    found = _good()[0].model_copy(update={"facts": facts})
    assert parse_result(found.to_json().encode(), where=WHERE) == found


def report_folder(data: bytes) -> None:
    """hubmerge.json in a folder that is merged into, or published."""
    folder = MagicMock(read_text=data.decode)
    folder.__truediv__.return_value = folder
    for pin in pins_in(folder) or ():
        assert all(isinstance(text, str) for text in pin.values())
    found = _read(load_report, folder)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))


def report(data: bytes) -> None:
    """hubmerge.json in a repo whose card is to get its scores."""
    files = {MANIFEST: FileInfo(MANIFEST, len(data))}
    state = RepoState("org/merge", "a" * 40, files, False, False, None, {})
    found, card = _read(_own_report, _hub_with(data), state, refusals=(PermissionDeniedError,))
    assert card
    json.loads(json_file(found.to_json()), parse_constant=_no_number)


_KINDS: dict[str, tuple[Callable[[bytes], None], ...]] = {
    "header": (header,),
    "card": (local_card, hub_card),
    "yaml": (recipe, rule),
    "lines": (calibration_rows,),
    "text": (patterns,),
    "json": (
        *(index, config, adapter_config, hub_config, hub_body, recipe_of_data, result, flags, keys),
        *(report_facts, report, report_folder, webhook, companion, tokenizer, tokenizer_union),
    ),
}
TARGETS = {function.__name__: Target(function, kind) for kind, given in _KINDS.items() for function in given}
TARGETS["mergekit"] = TARGETS["recipe"]
