"""The results dataset on the embedded Hub: one commit per publication, nothing lost, read by `datasets`."""

import io
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from board_helpers import HOSTILE, KEY, SEED, TRUSTED, family, result, strange
from datasets_by_hand import publish
from huggingface_hub import HfApi
from processes import printed_by

from hubmerge.board.export import read_results_parquet, results_parquet
from hubmerge.board.results_dataset import BOARD_TABLE, CARD, CONFIGS, RESULTS_TABLE, ResultsDataset, details_folder
from hubmerge.board.trust import KEYS, Trust, keys_file, reader_trust
from hubmerge.board.values import Refusal
from hubmerge.errors import HubUnavailableError
from hubmerge.evaluation.result import EvaluationResult, result_path
from hubmerge.evaluation.signing import public_key, signed
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import BranchMovedError
from hubmerge.hub.names import blob_id
from hubmerge.settings import Settings
from localhub.process import LocalHubProcess

DOCS = Path(__file__).resolve().parents[2] / "docs" / "leaderboard.md"
NAMES = iter(range(1000))
TRUST = Trust(TRUSTED)
READER = """
import json, sys
from datasets import load_dataset
names = ("board", "results", "details")
print(json.dumps({n: load_dataset(sys.argv[1], n, split="train", token=sys.argv[2]).to_list() for n in names}))
"""


class Kept(ResultsDataset):
    """A dataset of ada's, on which a test can look and to which it can write by hand."""

    def __init__(self, process: LocalHubProcess, repo: str = "", trust: Trust | None = None) -> None:
        self.process, self.api = process, HfApi(process.endpoint, token=process.tokens["ada"])
        hub = Hub(process.endpoint, process.tokens["ada"])
        super().__init__(hub, repo or f"ada/results-{next(NAMES)}", trust=trust)

    def opened(self, trust: Trust | None = None) -> "Kept":
        """By somebody who has read nothing of it yet."""
        return Kept(self.process, self.repo, trust)

    def add(self, files: dict[str, bytes]) -> None:
        publish(self.api, self.repo, files)

    def fill(self, results: list[EvaluationResult]) -> None:
        """The last one is published, by which the tables are made of all."""
        self.add({result_path(each): each.to_json().encode() for each in results[:-1]})
        self.publish(results[-1])

    def files(self) -> set[str]:
        return set(self.api.list_repo_files(self.repo, repo_type="dataset"))

    def commits(self) -> int:
        return len(self.api.list_repo_commits(self.repo, repo_type="dataset"))

    def content(self, path: str) -> bytes:
        return Path(self.api.hf_hub_download(self.repo, path, repo_type="dataset")).read_bytes()

    def board_table(self) -> list[dict[str, Any]]:
        return pq.read_table(io.BytesIO(self.content(BOARD_TABLE))).to_pylist()


@pytest.fixture
def dataset(local_hub: LocalHubProcess) -> Kept:
    return Kept(local_hub)


def details(folder: Path) -> Path:
    path = folder / "math_task.parquet"
    pq.write_table(pa.table({"task": ["math_task"], "prompt": ["1+1"], "answer": ["2"], "score": [1.0]}), path)
    return path


def test_a_result_its_details_and_both_tables_arrive_in_one_commit(dataset, tmp_path):
    one = family()[0]
    place = details_folder(one) + "math_task.parquet"
    assert dataset.publish(one, {place: details(tmp_path)}, private=True)
    assert dataset.api.dataset_info(dataset.repo).private
    files = dataset.files()
    assert files == {".gitattributes", CARD, BOARD_TABLE, RESULTS_TABLE, result_path(one), place}
    assert dataset.commits() == 2  # the Hub's own first one and ours
    assert dataset.load().results == (one,)


FAILED = result("org/base", "b")
DONE = result("org/base", "b", {"math": 0.2}, created="2026-01-03T00:00:00+00:00")
LATER = result("org/base", "b", {"math": 0.3}, created="2026-05-01T00:00:00+00:00")
AHEAD = result("org/base", "b", created="2099-01-01T00:00:00+00:00")  # by a clock that was wrong


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        *((DONE, DONE, True), (DONE, LATER, True), (DONE, AHEAD, True)),
        *((FAILED, DONE, False), (AHEAD, DONE, False), (AHEAD, FAILED, True)),
    ],
)
def test_a_run_that_is_done_is_kept_without_a_commit_and_a_failed_one_gives_way(dataset, old, new, is_kept):
    dataset.publish(old)
    assert dataset.publish(new) is not is_kept
    assert dataset.load().results == (old if is_kept else new,)
    assert dataset.commits() == (2 if is_kept else 3)


def test_two_writers_lose_nothing(dataset, monkeypatch):
    one, two, *_ = family()
    dataset.publish(one)
    build, moved = ResultsDataset._files, []

    def overtaken(self: ResultsDataset, *arguments: Any) -> Any:
        if not moved:  # after the dataset was read, before the commit
            moved.append(1)
            theirs = family()[3]
            dataset.add({"notes/ours.txt": b"kept", result_path(theirs): theirs.to_json().encode()})
        return build(self, *arguments)

    monkeypatch.setattr(ResultsDataset, "_files", overtaken)
    dataset.publish(two)
    assert {r.model for r in dataset.load().results} == {"org/base", "org/math", "org/merge"}
    assert "notes/ours.txt" in dataset.files()
    assert {line["model"] for line in dataset.board_table()} == {"org/base", "org/math", "org/merge"}


def test_a_branch_that_never_rests_is_given_up_after_five_tries(dataset, monkeypatch):
    dataset.publish(family()[0])
    tries: list[int] = []

    def moved(*_: Any, **__: Any) -> str:
        tries.append(1)
        raise BranchMovedError("moved")

    monkeypatch.setattr(Hub, "commit", moved)
    with pytest.raises(HubUnavailableError):
        dataset.publish(family()[1])
    assert len(tries) == 5


def test_a_lost_answer_makes_no_second_commit(dataset, monkeypatch):
    dataset.publish(family()[0])
    commit = Hub.commit

    def lost(self: Hub, *arguments: Any, **options: Any) -> str:
        commit(self, *arguments, **options)
        monkeypatch.setattr(Hub, "commit", commit)
        raise BranchMovedError("the answer was lost")

    monkeypatch.setattr(Hub, "commit", lost)
    dataset.publish(family()[1])
    assert dataset.commits() == 3


def test_hostile_files_of_others_are_left_out_and_left_there(dataset):
    dataset.publish(family()[0])
    wrong = f"results/evil/x/{'9' * 40}/trio-1-test.json"
    odd = {
        "results/giant.json": b" " * (1024 * 1024 + 1),
        "results/empty.json": b"",
        "results/a\\b.json": b"{",  # which is read from no Hub
        "flags.json": b"{",
    }
    dataset.add({wrong: family()[1].to_json().encode(), **odd})
    dataset.publish(family()[2])
    loaded = dataset.load()
    assert sorted(r.where for r in loaded.refused) == sorted([wrong, *odd])
    assert {r.model for r in loaded.results} == {"org/base", "org/code"}
    assert wrong in dataset.files()


@pytest.mark.slow
def test_the_tables_are_read_by_datasets(dataset, tmp_path):
    odd = strange("org/odd", "9", facts={"author": HOSTILE})
    results = [*family(), odd, result("org/failed", "8")]
    place = details_folder(results[0]) + "math_task.parquet"
    dataset.fill(results[1:])
    dataset.publish(results[0], {place: details(tmp_path)})
    where = {"HF_ENDPOINT": dataset.process.endpoint, "HF_HOME": str(tmp_path / "home")}
    tables = json.loads(printed_by(READER, dataset.repo, dataset.process.tokens["ada"], **where))
    board = {line["model"]: line for line in tables["board"]}
    assert board["org/failed"]["status"] == "failed"
    assert board["org/failed"]["overall"] is None
    assert board["org/merge"]["skills"]["skills"][0]["value"] == pytest.approx(1.15)
    assert json.loads(board["org/merge"]["method_parameters"]) == {"r": 0.1}
    assert board["org/odd"]["author"] == HOSTILE
    assert len(tables["results"]) == len(results)
    assert tables["details"][0]["answer"] == "2"


def test_many_results_are_read_with_one_request_and_unchanged_ones_with_none(dataset, monkeypatch):
    dataset.fill([result(f"org/m{k}", "a", {"math": k / 40}) for k in range(40)])
    asked = Mock(wraps=dataset.opened()._hub.read_file)
    fresh = dataset.opened()
    monkeypatch.setattr(fresh._hub, "read_file", asked)
    assert len(fresh.load().results) == 40
    assert [call.args[2] for call in asked.call_args_list] == [RESULTS_TABLE]
    assert len(fresh.load().results) == 40
    assert asked.call_count == 1
    dataset.publish(result("org/new", "a", {"math": 0.9}))
    assert len(fresh.load().results) == 41
    assert asked.call_count == 2


def test_a_table_that_lies_is_not_believed_and_one_without_measure_not_read(dataset, monkeypatch):
    many = [result(f"org/m{k}", "a", {"math": 0.1}) for k in range(10)]
    dataset.fill(many)
    better = [result(f"org/m{k}", "a", {"math": 1.0}) for k in range(10)]
    lies = {
        result_path(b): (blob_id(m.to_json().encode()), b.to_json().encode()) for m, b in zip(many, better, strict=True)
    }
    dataset.add({RESULTS_TABLE: results_parquet(lies)})
    assert {t.value for r in dataset.opened().load().results for t in r.tasks} == {0.1}
    monkeypatch.setattr("hubmerge.board.results_dataset.MAX_TABLE_BYTES", 10)
    assert len(dataset.opened().load().results) == 10
    monkeypatch.undo()
    dataset.add({RESULTS_TABLE: b"no parquet"})
    assert len(dataset.opened().load().results) == 10


def test_a_table_of_kilobytes_that_says_the_same_again_and_again_is_not_unpacked():
    lines = pa.table({name: pa.array(["x" * 100_000]).take([0] * 200) for name in ("path", "oid", "json")})
    packed = io.BytesIO()
    pq.write_table(lines, packed, compression="zstd")
    assert packed.tell() < 10_000
    with pytest.raises(ValueError, match="unpacks to more than a table may have"):
        read_results_parquet(packed.getvalue(), 50_000_000)
    few = {"results/a.json": ("0" * 40, b"{}")}
    assert read_results_parquet(results_parquet(few), 56) == few
    with pytest.raises(ValueError, match="unpacks to more"):
        read_results_parquet(results_parquet(few), 55)


def test_a_card_that_somebody_edited_is_kept_and_the_docs_say_what_it_needs(dataset):
    dataset.publish(family()[0])
    card = b"---\nlicense: mit\n---\n# Mine\n"
    dataset.add({CARD: card})
    dataset.publish(family()[1])
    assert dataset.content(CARD) == card
    told = re.findall("```yaml\n(configs:.*?)```", DOCS.read_text(), re.DOTALL)
    assert [yaml.safe_load(text) for text in told] == [{"configs": list(CONFIGS)}]


# --- whose results are believed --------------------------------------------------------------------------


def test_a_forged_result_is_not_found_and_gives_way_to_the_signed_run(dataset):
    forged = result("org/a", "1", {"math": 1.0})
    dataset.publish(forged)
    bot = dataset.opened(TRUST)
    assert bot.find("org/a", "1" * 40, "trio", "1", "test") is None
    real = signed(result("org/a", "1", {"math": 0.5}), SEED, "ada")
    assert bot.publish(real)
    assert bot.find("org/a", "1" * 40, "trio", "1", "test") == real
    later = result("org/a", "1", {"math": 1.0}, created="2027-01-01T00:00:00+00:00")
    assert not bot.publish(later)
    assert bot.load().results == (real,)
    assert [(r["run_by"], r["signed"]) for r in dataset.board_table()] == [("ada", True)]


def test_the_bot_publishes_its_key_and_a_reader_keeps_the_first_that_was_published(dataset, tmp_path):
    real = signed(result("org/a", "1", {"math": 0.5}), SEED, "ada")
    dataset.opened(TRUST).publish(real)
    repo, endpoint = dataset.repo, dataset.process.endpoint
    trust = reader_trust(Settings(endpoint=endpoint, data_dir=tmp_path), repo)
    reader = ResultsDataset(Hub(endpoint, None), repo, trust=trust)
    assert reader.load().trusted == {KEY}
    other = public_key(bytes(32))
    dataset.add({KEYS: keys_file([other])})
    loaded = reader.load()
    assert loaded.trusted == {KEY}
    assert Refusal(KEYS, f"not believed here: {other}") in loaded.refused
    assert loaded.believed == (real,)


def test_a_broken_file_of_keys_is_told_of_and_repaired(dataset):
    dataset.add({KEYS: b"{"})
    bot = dataset.opened(TRUST)
    assert [r.where for r in bot.load().refused] == [KEYS]
    bot.publish(signed(result("org/a", "1", {"math": 0.5}), SEED, "ada"))
    assert bot.load().published == (KEY,)
    assert bot.load().refused == ()
