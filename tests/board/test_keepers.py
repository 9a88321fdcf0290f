"""What the keepers of a results dataset say of it: signed entries decide, a stranger's are left out."""

import json
from pathlib import Path
from typing import Any

import pytest
from board_helpers import OTHER, SEED, TRUSTED, family, own, rows, written
from datasets_by_hand import publish
from huggingface_hub import HfApi
from processes import Done

from hubmerge.board.files import ResultFiles, entries_of, parse_files, with_signatures
from hubmerge.board.leaderboard import build_board
from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.board.trust import Trust, keys_file
from hubmerge.board.values import Board, Refusal
from hubmerge.evaluation.result import result_path
from hubmerge.evaluation.signing import public_key, signed, signed_entry
from hubmerge.hub.client import Hub
from hubmerge.settings import load_settings
from workflows.app.board_chart import _points
from workflows.app.board_table import _model_cell
from workflows.app.home_page import latest_merges
from workflows.app.model_panels import model_head
from workflows.jobs.account import results_keys
from workflows.jobs.evaluations import RecordedScores

CONTAMINATED = {"kind": "contaminated", "model": "org/math", "reason": "trained on the test"}
NOT_APPLIED = "no trusted key signed it, so it is not applied"


def file(*entries: Any) -> bytes:
    return json.dumps({"flags": entries}).encode()


def read(*entries: Any) -> ResultFiles:
    stored = [(result_path(r), r.to_json().encode()) for r in own()]
    return parse_files([*stored, ("flags.json", file(*entries))], TRUSTED)


def board(*entries: Any) -> Board:
    found = read(*entries)
    return build_board(found.results, found.flags, refused=found.refused, trusted=TRUSTED)


def by(entry: dict[str, Any], seed: bytes = SEED) -> dict[str, Any]:
    return signed_entry("flags", entry, seed)


# --- flags -----------------------------------------------------------------------------------------------


def test_a_flag_that_a_trusted_key_signed_takes_the_rank_of_the_model_and_of_its_merges():
    found = rows(board(by(CONTAMINATED)))
    assert {m: r.rank for m, r in found.items() if r.flags} == {"org/math": None, "org/merge": None}


@pytest.mark.parametrize(
    "entry",
    [
        CONTAMINATED,
        by(CONTAMINATED, OTHER),
        {**CONTAMINATED, "signature": None},
        {**CONTAMINATED, "signature": {"key": 1}},
    ],
    ids=["unsigned", "another key", "no signature", "broken signature"],
)
def test_a_strangers_flag_is_told_and_not_applied(entry):
    built = board(entry)
    assert built.suites == board().suites
    assert built.refused == (Refusal("flags.json, entry 1", NOT_APPLIED),)


@pytest.mark.parametrize(
    "change", [{"model": "org/code"}, {"kind": "withdrawn"}, {"reason": "else"}, {"sha": "c" * 40}]
)
def test_an_edited_flag_with_its_old_signature_is_left_out(change):
    found = read(by(CONTAMINATED) | change, by(CONTAMINATED))
    assert [f.model for f in found.flags] == ["org/math"]
    assert found.refused == (Refusal("flags.json, entry 1", "its signature is not of this content"),)


def test_the_signature_of_an_entry_is_one_of_the_documented_bytes():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = json.dumps(CONTAMINATED, sort_keys=True, separators=(",", ":"))
    signature = by(CONTAMINATED)["signature"]
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
    public.verify(bytes.fromhex(signature["value"]), f"hubmerge flags 1\n{text}".encode())


def test_a_flag_stands_on_the_pages_of_its_model_and_hides_its_merges_from_home_and_chart():
    theirs, without = board(by(CONTAMINATED)), board()
    math = rows(theirs)["org/math"]
    assert "hm-notice hm-bad" in str(model_head(math, "http://hub"))
    assert ">contaminated<" in str(_model_cell(math, True))
    assert [[r.model for r in latest_merges(b)] for b in (without, theirs)] == [["org/merge"], []]
    assert [len(_points(b.suites[0], "math")) for b in (without, theirs)] == [1, 0]


# --- signing ---------------------------------------------------------------------------------------------


def test_an_entry_keeps_its_id_whatever_its_place_and_signature():
    [one] = entries_of(file(CONTAMINATED))[0]
    two = entries_of(file({**CONTAMINATED, "sha": "a" * 40}, by(CONTAMINATED)))[0]
    assert [e.id == one.id for e in two] == [False, True]


def test_signing_touches_the_named_entries_alone():
    half = {"kind": "withdrawn", "model": "org/x", "reason": "\ud800"}
    data = file(half, CONTAMINATED, {**CONTAMINATED, "model": "org/code"})
    entry = entries_of(data)[0][0]
    found = json.loads(with_signatures(data, {entry.id}, SEED))
    assert found == {"flags": [half, by(CONTAMINATED), {**CONTAMINATED, "model": "org/code"}]}
    assert with_signatures(data, {"0" * 12}, SEED) == data
    assert with_signatures(b"{", {entry.id}, SEED) == b"{"


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The environment of somebody who has the app's secret; its private key."""
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HUBMERGE_SECRET", "a long random string of the keeper")
    return results_keys(load_settings()).seed


def listed(done: Done, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(done("sign", *arguments, "--json").out)
    return answer


def test_the_command_lists_entries_and_signs_those_that_are_named(keeper, local_hub, monkeypatch, done):
    monkeypatch.setenv("HF_ENDPOINT", local_hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", local_hub.tokens["ada"])
    repo, api = "ada/kept", HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])
    trust = Trust(frozenset({public_key(keeper)}))
    hub = Hub(local_hub.endpoint, local_hub.tokens["ada"])
    dataset = ResultsDataset(hub, repo, trust=trust)
    for each in family():
        dataset.publish(signed(each, keeper, "ada"))
    stranger = {"kind": "withdrawn", "model": "org/code"}
    publish(api, repo, {"flags.json": file(CONTAMINATED, stranger)})
    models = [("org/math", "c" * 40), ("org/code", "d" * 40)]
    scores = RecordedScores(hub, dataset)
    assert scores.flagged(models) == {}  # a stranger stops no watcher
    answer = listed(done, repo)
    assert [e["signed"] for e in answer["entries"]] == ["community"] * 2
    ids = [e["id"] for e in answer["entries"] if e["entry"] != stranger]
    answer = listed(done, repo, *ids)
    assert [e["signed"] for e in answer["entries"]] == ["signed", "community"]
    loaded = dataset.load()
    assert [f.model for f in loaded.flags] == ["org/math"]
    assert list(scores.flagged(models)) == [("org/math", "c" * 40)]
    head = api.repo_info(repo, repo_type="dataset").sha
    assert listed(done, repo, *ids) == answer  # again: nothing is left to do, and no commit is made
    assert api.repo_info(repo, repo_type="dataset").sha == head
    told = [line.split("  ")[1].strip() for line in done("sign", repo).out.splitlines()]
    assert told == ["signed", "not signed"]


def test_a_folder_is_signed_in_place_and_its_first_key_is_written(keeper, tmp_path, done, monkeypatch):
    """Also where a repo could be called so."""
    folder = written(tmp_path / "org" / "copy", flags=file(CONTAMINATED))
    monkeypatch.chdir(tmp_path)
    [entry] = listed(done, "org/copy")["entries"]
    for _ in ("first", "again, after a kill between the two files"):
        assert listed(done, str(folder), entry["id"])["entries"][0]["signed"] == "signed"
        assert json.loads((folder / "keys.json").read_text()) == {"keys": [public_key(keeper)]}
        (folder / "keys.json").unlink()
    listed(done, str(folder), entry["id"])
    assert sorted(p.name for p in folder.iterdir()) == ["flags.json", "keys.json"]


@pytest.mark.parametrize(
    ("secret", "published", "others", "reason"),
    [
        ("the keeper's secret", [public_key(OTHER)], [], "readers of the dataset do not believe this key"),
        ("the keeper's secret", [], ["0" * 12], "no entry has this id"),
        ("", [], [], "there is no key to sign with"),
    ],
    ids=["another key", "another id", "no secret"],
)
def test_what_cannot_be_signed_is_told_and_no_key_is_made_up(
    tmp_path, monkeypatch, done, refused, secret, published, others, reason
):
    environment = {"HUBMERGE_DATA": str(tmp_path / "data"), "HUBMERGE_SECRET": secret, "HUBMERGE_SIGNING_KEY": ""}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = file(CONTAMINATED)
    [entry] = listed(done, str(written(tmp_path, flags=before, keys=keys_file(published))))["entries"]
    assert reason in refused("sign", tmp_path, entry["id"], *others)
    assert (tmp_path / "flags.json").read_bytes() == before
    assert not (tmp_path / "data").exists()


def test_a_strangers_entry_obeys_no_terminal(tmp_path, done):
    (tmp_path / "flags.json").write_bytes(file({**CONTAMINATED, "reason": "\x1b[2J\u202egone"}))
    out = done("sign", tmp_path).out
    assert "\x1b" not in out
    assert "\u202e" not in out
