"""Which pairs are chosen, every way in which data can be wrong, and where the tokens of an answer begin and end."""

import errno
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from datasets_by_hand import publish
from processes import python
from pydantic import ValidationError
from sensitivity_helpers import PAIRS, llama, write_rows

from hubmerge.errors import DiskError, SensitivityError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.sensitivity import pairs as module
from hubmerge.sensitivity.pairs import Pair, digest, load_pairs, tokenize, tokenized_in

ROWS = [{"q": f"question {n}", "a": f"answer {n % 7}", "other": n} for n in range(40)]


def spec(path: Path | str, **changes) -> CalibrationSpec:
    return CalibrationSpec(**{"data": str(path), "prompt": "q", "answer": "a", **changes})


def texts(pairs) -> list[tuple[str, str]]:
    return [(p.prompt, p.answer) for p in pairs]


def test_the_pairs_are_those_with_the_smallest_hashes_in_that_order_whatever_else_is_there(tmp_path):
    def key(row: dict) -> bytes:
        parts = [text.encode() for text in ("5", row["q"], row["a"])]
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    ordered = sorted(ROWS, key=key)
    expected = [(row["q"], row["a"]) for row in ordered[:10]]
    for rows in (ROWS, ROWS[::-1], ordered[:20], ordered[:10]):
        assert texts(load_pairs(spec(write_rows(tmp_path / "a.jsonl", rows), max_pairs=10, seed=5))) == expected


def test_a_row_that_stands_twice_counts_twice_and_knows_its_place(tmp_path):
    row = json.dumps(ROWS[0])
    (tmp_path / "a.jsonl").write_text(f"\n{row}\n\n{row}\n")
    pairs = load_pairs(spec(tmp_path / "a.jsonl"))
    assert [(pair.prompt, pair.row) for pair in pairs] == [("question 0", 2), ("question 0", 4)]


def test_the_digest_is_over_the_exact_texts_in_their_order():
    framed = b"".join(len(t).to_bytes(8, "big") + t for t in (b"a", b"bc", "ü".encode(), b""))
    assert digest([Pair("a", "bc", 7), Pair("ü", "", 9)]) == hashlib.sha256(framed).hexdigest()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"q": "x"}', "a column is missing in row 2 of a.jsonl: expected a, got q"),
        ('{"q": "x", "a": 3}', "column 'a' is no text in row 2 of a.jsonl: expected text, got int"),
        ('{"q": null, "a": "y"}', "column 'q' is no text in row 2 of a.jsonl: expected text, got NoneType"),
        ('["x", "y"]', "a row that is no table in row 2 of a.jsonl"),
        ('{"q": "x", "a": "\\ud800"}', "column 'a' is no valid text in row 2 of a.jsonl"),
        ('{"q": "x", "a"', "a row is not valid JSON in row 2 of a.jsonl"),
        ("[" * 100_000, "a row is not valid JSON in row 2 of a.jsonl"),
        ('{"q": "x", "a": "' + "y" * 200_001, "a row is too long in row 2 of a.jsonl: expected at most 200000 bytes"),
    ],
)
def test_a_row_that_is_no_pair_is_named(tmp_path, row, message, monkeypatch):
    monkeypatch.setattr("hubmerge.sensitivity.pairs.MAX_LINE_BYTES", 200_000)
    (tmp_path / "a.jsonl").write_text('{"q": "x", "a": "y"}\n' + row + "\n")
    with pytest.raises(SensitivityError) as caught:
        load_pairs(spec(tmp_path / "a.jsonl"))
    assert message in str(caught.value)
    assert caught.value.code == "E_SENSITIVITY"


def test_several_bad_rows_are_listed_together_and_not_without_end(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(SensitivityError, match="the calibration data is empty"):
        load_pairs(spec(tmp_path / "empty.jsonl"))
    with pytest.raises(SensitivityError) as caught:
        load_pairs(spec(write_rows(tmp_path / "a.jsonl", ROWS), answer="nope"))
    assert len(caught.value.problems) == 10
    assert "row 1 of" in str(caught.value)
    assert "row 10 of" in str(caught.value)


def test_a_file_that_is_not_there_and_a_file_that_may_not_be_read_are_told(tmp_path):
    for missing in (tmp_path / "nope.jsonl", "~of-nobody-here/a.jsonl", "./a\0.jsonl"):
        with pytest.raises(SourceNotFoundError, match=r"No such file|null byte"):
            load_pairs(spec(missing))
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(SourceNotFoundError, match="local files cannot be used here"):
        load_pairs(spec(path), allow_local=False)


def test_what_a_text_means_does_not_depend_on_which_files_exist():
    files = ("./data", "/tmp/data", "~/data", "data.jsonl", "folder/data.jsonl", "a/b/c")
    assert [data for data in ("org/data", "data", *files) if spec(data).is_file] == [*files]


def test_what_is_no_dataset_id_or_lies_on_another_hub_than_the_library_talks_to_is_refused_without_a_request():
    asked = {**dict.fromkeys(("https:data", "a/..b", "a b", "-x"), "not a dataset id"), "org/data": "talks to another"}
    for data, reason in asked.items():
        with pytest.raises(SourceNotFoundError, match=reason):
            load_pairs(spec(data), Hub("http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("name", "values"),
    [("max_pairs", (0, 100_001)), ("max_tokens", (1, 1_000_001)), ("seed", (-1,)), ("answer", ("",)), ("new", (True,))],
)
def test_a_spec_that_makes_no_sense_is_refused(name, values):
    for value in values:
        with pytest.raises(ValidationError):
            spec("org/data", **{name: value})


def test_a_cache_that_cannot_be_written_and_being_offline_are_no_fault_of_the_dataset(monkeypatch):
    import datasets
    from huggingface_hub import constants

    for code in (errno.EACCES, errno.ENOSPC):
        monkeypatch.setattr(module, "load_split", Mock(side_effect=OSError(code, "no", "/home")))
        with pytest.raises(DiskError, match="HF_HOME"):
            load_pairs(spec("org/data"), Hub(datasets.config.HF_ENDPOINT))
    monkeypatch.undo()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    away = ConnectionError("Couldn't reach 'org/data' on the Hub (OfflineModeIsEnabled)")  # as the library says it
    monkeypatch.setattr(datasets, "load_dataset_builder", Mock(side_effect=away))
    with pytest.raises(SourceNotFoundError, match="OfflineModeIsEnabled") as caught:
        load_pairs(spec("org/data"), Hub(datasets.config.HF_ENDPOINT))
    assert not caught.value.retryable


def test_a_dataset_of_the_hub_needs_the_columns_and_at_most_so_many_rows(monkeypatch):
    import datasets

    monkeypatch.setattr(module, "load_split", lambda *_, **__: datasets.Dataset.from_list(ROWS))
    monkeypatch.setattr(module, "MAX_ROWS", len(ROWS))
    hub = Hub(datasets.config.HF_ENDPOINT)
    assert len(load_pairs(spec("org/data"), hub)) == len(ROWS)
    with pytest.raises(SensitivityError, match="a column is missing in org/data: expected nope, got q, a, other"):
        load_pairs(spec("org/data", answer="nope"), hub)
    monkeypatch.setattr(module, "MAX_ROWS", len(ROWS) - 1)
    with pytest.raises(SensitivityError, match="the split has too many rows in org/data"):
        load_pairs(spec("org/data"), hub)


# --- tokens --------------------------------------------------------------------------------------------------


class Words:
    """One token per word; 1 is <bos>, 2 is <eos>."""

    def __init__(self, *, bos: bool = False, closes: bool = False, eos: int | None = 2) -> None:
        self.eos_token_id, self.bos_token_id = eos, 1 if bos else None
        self._front, self._back = [1] * bos, [2] * closes

    def __call__(self, text: str, add_special_tokens: bool = True):
        ids = [{"<bos>": 1, "<eos>": 2}.get(word) or int(word) for word in text.split()]
        return SimpleNamespace(input_ids=self._front + ids + self._back if add_special_tokens else ids)


def one(tokenizer, prompt: str, answer: str, max_tokens: int = 32, context: int | None = None):
    (pair,) = tokenize(tokenizer, [Pair(prompt, answer, 7)], max_tokens, context)
    return pair.ids, pair.answer_tokens


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "answer", "expected"),
    [
        pytest.param(Words(), "5 6", "7", ((5, 6, 7, 2), 2), id="an EOS is part of the answer"),
        pytest.param(Words(eos=None), "5 6", "7", ((5, 6, 7), 1), id="a tokenizer without one adds none"),
        pytest.param(Words(), "5 6", "7 <eos>", ((5, 6, 7, 2), 2), id="an answer that ends with it gets no second"),
        pytest.param(Words(bos=True), "5 6", "7", ((1, 5, 6, 7, 2), 2), id="a BOS stands before the prompt alone"),
        pytest.param(Words(bos=True), "", "7", ((1, 7, 2), 2), id="a BOS is a prompt"),
        pytest.param(Words(bos=True), "<bos> 5", "7", ((1, 5, 7, 2), 2), id="a BOS of the prompt gets no second"),
        pytest.param(Words(closes=True), "5 6", "7", ((5, 6, 7, 2), 2), id="an EOS after the prompt is taken away"),
        pytest.param(Words(), "5 <eos>", "7", ((5, 2, 7, 2), 2), id="an EOS of the prompt stays"),
        pytest.param(Words(closes=True), "5 <eos>", "7", ((5, 2, 7, 2), 2), id="an EOS of the prompt gets no second"),
        pytest.param(Words(bos=True, eos=1), "", "7", ((1, 7, 1), 2), id="a BOS is a prompt, also where it is the EOS"),
    ],
)
def test_the_answer_begins_and_ends_where_it_should(tokenizer, prompt, answer, expected):
    assert one(tokenizer, prompt, answer) == expected


@pytest.mark.parametrize(("prompt", "answer"), [("5 6", ""), ("5 6", "  "), ("5 6", "<eos>"), (" ", "7")])
def test_an_answer_or_a_prompt_without_tokens_is_refused(prompt, answer):
    empty = "an answer" if prompt.strip() else "a prompt"
    with pytest.raises(SensitivityError, match=f"{empty} without tokens in row 7"):
        one(Words(), prompt, answer)


@pytest.mark.parametrize(
    ("max_tokens", "context", "reason", "remedy"),
    [(4, 9, "max_tokens", "Raise max_tokens"), (32, 4, "the model's context", "cannot see all of it")],
)
def test_a_pair_that_just_fits_is_taken_and_one_token_more_is_refused(max_tokens, context, reason, remedy):
    assert len(one(Words(), "5 6", "7", max_tokens, context)[0]) == 4
    with pytest.raises(SensitivityError) as caught:
        one(Words(), "5 6 8", "7", max_tokens, context)
    [problem] = caught.value.problems
    assert (problem.what, problem.where) == ("a pair is too long", "row 7")
    assert problem.expected == f"at most 4 tokens ({reason})"
    assert problem.got == "5: prompt 3, answer 2"
    assert remedy in problem.next_step


def test_every_bad_pair_is_listed_up_to_a_limit():
    pairs = [Pair("5", "" if n % 2 else "7", n) for n in range(40)]
    with pytest.raises(SensitivityError) as caught:
        tokenize(Words(), pairs, 32, None)
    assert len(caught.value.problems) == 11
    assert "10 more rows have such problems" in str(caught.value)


def test_the_context_of_a_model_is_known(tmp_path):
    [pair] = tokenized_in(llama(tmp_path / "model"), "the model", PAIRS[:1], 32)
    assert (pair.ids, pair.answer_tokens) == ((3, 4, 5, 6, 7, 2), 3)
    with pytest.raises(
        SensitivityError, match=r"at most 64 tokens \(the model's context\), got 72: prompt 1, answer 71"
    ):
        tokenized_in(tmp_path / "model", "the model", [Pair("w3", "w4 " * 70, 6)], 1000)


_CHILD = """
import json, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
from hubmerge.errors import HubmergeError
from hubmerge.hub.client import Hub
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.sensitivity import pairs as module
from hubmerge.sensitivity.pairs import load_pairs
module.MAX_ROWS = int(sys.argv[4])
out = []
for changes in json.loads(sys.argv[3]):
    spec = CalibrationSpec(**{"prompt": "q", "answer": "a", "max_pairs": 10, **changes})
    try:
        pairs = load_pairs(spec, Hub(sys.argv[1]), cache=Path(sys.argv[2]))
        out.append([[p.prompt, p.answer] for p in pairs])
    except HubmergeError as error:
        out.append(str(error))
print(json.dumps(out))
"""


def test_a_dataset_on_the_hub_gives_the_pairs_of_the_same_rows_in_a_file(local_hub, ada, tmp_path):

    def upload(repo: str, rows: list[dict]) -> str:
        return publish(ada, repo, {"train.jsonl": write_rows(tmp_path / "train.jsonl", rows).read_bytes()})

    first = upload("ada/calibration", ROWS)
    upload("ada/calibration", ROWS[:20])
    upload("ada/calibration-long", [*ROWS, ROWS[0]])
    publish(ada, "ada/calibration-script", {"calibration-script.py": b"", "train.jsonl": b"{}"})
    parts = {f"{name}.jsonl": write_rows(tmp_path / name, ROWS[at:]).read_bytes() for name, at in (("a", 3), ("b", 5))}
    configs = "configs:\n" + "".join(f"- {{config_name: {n[0]}, data_files: {n}}}\n" for n in parts)
    publish(ada, "ada/calibration-parts", {"README.md": f"---\n{configs}---\n".encode(), **parts})
    data, several = {"data": "ada/calibration"}, {"data": "ada/calibration-parts"}
    asked = [
        {**data, "revision": first},
        data,
        {**data, "split": "train[:5]"},
        {**data, "split": "nope"},
        {**data, "answer": "nope"},
        {"data": "ada/not-there"},
        {"data": "ada/calibration-long"},
        {"data": "ada/calibration-script"},
        {**several, "subset": "b"},
        several,
        {**several, "subset": "c"},
    ]
    # the datasets library reads the endpoint when it is imported, hence a process of its own
    words = local_hub.endpoint, str(tmp_path / "cache"), json.dumps(asked), str(len(ROWS))
    child = python("-c", _CHILD, *words, HF_ENDPOINT=local_hub.endpoint, HF_HOME=str(tmp_path / "home"))
    assert child.stderr == ""
    pinned, newest, five, no_split, no_column, nothing, too_long, script, *parted = json.loads(child.stdout)
    subset, no_subset, other_subset = parted
    for found, rows in ((pinned, ROWS), (newest, ROWS[:20]), (subset, ROWS[5:])):
        assert [tuple(p) for p in found] == texts(
            load_pairs(spec(write_rows(tmp_path / "a.jsonl", rows), max_pairs=10))
        )
    assert sorted(map(tuple, five)) == [(row["q"], row["a"]) for row in ROWS[:5]]
    assert no_split.startswith("E_SOURCE: the dataset cannot be read in ada/calibration, split nope")
    assert no_column == "E_SENSITIVITY: a column is missing in ada/calibration: expected nope, got q, a, other."
    assert nothing.startswith("E_SOURCE: the dataset cannot be read in ada/not-there")
    assert script.startswith("E_SOURCE: the dataset cannot be read in ada/calibration-script")
    for said in (no_subset, other_subset):
        assert said.startswith("E_SOURCE: the dataset cannot be read in ada/calibration-parts, split train: got ")
        assert "vailable" in said
        assert "['a', 'b']" in said
        assert "Check its id, revision, subset and split" in said
    assert too_long.startswith("E_SENSITIVITY: the split has too many rows in ada/calibration-long")
