"""Who committed a result that no trusted key signed: read from the Hub's history, told, and decisive for nothing."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from board_helpers import SEED, TRUSTED, family, own, result, rows, strange
from datasets_by_hand import publish
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from hubmerge.board import results_dataset
from hubmerge.board.export import suite_csv
from hubmerge.board.leaderboard import build_board
from hubmerge.board.results_dataset import BOARD_TABLE, ResultsDataset
from hubmerge.board.source import DatasetBoard
from hubmerge.board.standing import Committed
from hubmerge.board.trust import Trust
from hubmerge.board.values import Row
from hubmerge.evaluation.result import EvaluationResult, result_path
from hubmerge.evaluation.signing import signed
from hubmerge.hub import client
from hubmerge.hub.client import Hub
from localhub.fault_rules import FaultSwitch, Observe, Status
from localhub.process import LocalHubProcess
from localhub.users import Org, default_users
from workflows.app.board_table import columns
from workflows.app.model_panels import model_head

TRUST = Trust(TRUSTED)
COMMITS = r"/api/datasets/{}/commits/"
INFOS = r"/api/datasets/{}/paths-info/"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    """A Hub where ada and bob may both write to what belongs to `lab`."""
    folder: Path = tmp_path_factory.mktemp("lab")
    users = default_users()
    shared = Org(name="lab", fullname="Lab", members={"ada": "admin", "bob": "write"})
    path = folder / "users.json"
    path.write_text(users.model_copy(update={"orgs": (*users.orgs, shared)}).model_dump_json())
    with LocalHubProcess(folder / "data", users=path, options=("--faults",)) as hub:
        yield hub


@pytest.fixture
def faults(lab: LocalHubProcess) -> Iterator[FaultSwitch]:
    with FaultSwitch(lab.endpoint) as switch:
        yield switch


def opened(lab: LocalHubProcess, repo: str, trust: Trust = TRUST) -> ResultsDataset:
    return ResultsDataset(Hub(lab.endpoint, lab.tokens["ada"]), repo, trust=trust)


def add(lab: LocalHubProcess, user: str, repo: str, *results: EvaluationResult) -> None:
    """Commit result files by hand, as anybody may who can write there."""
    api = HfApi(lab.endpoint, token=lab.tokens[user])
    publish(api, repo, {result_path(r): r.to_json().encode() for r in results})


def shown(dataset: ResultsDataset) -> dict[str, Row]:
    return rows(DatasetBoard(dataset).board())


def told(dataset: ResultsDataset) -> dict[str, tuple[str, str | None]]:
    return {model: (row.run_by, row.committed_by) for model, row in shown(dataset).items()}


def test_a_row_that_neither_the_bots_key_signed_nor_its_account_committed_is_the_communitys_and_names_who_did(
    lab: LocalHubProcess,
) -> None:
    opened(lab, "lab/results").publish(own("carol"))
    add(lab, "bob", "lab/results", strange("evil/x"))
    add(lab, "ada", "lab/results", strange("evil/y"))
    found = told(opened(lab, "lab/results"))
    assert (found["evil/x"], found["evil/y"]) == (("community", "bob"), ("community", "ada"))
    assert {found[r.model] for r in family()} == {("carol", None)}


def test_what_the_datasets_owner_committed_without_a_signature_is_unsigned_and_has_no_rank_either(
    lab: LocalHubProcess,
) -> None:
    add(lab, "ada", "ada/early", strange("org/early", value=1.0))
    opened(lab, "ada/early").publish(own("carol"))
    row = shown(opened(lab, "ada/early"))["org/early"]
    assert (row.run_by, row.committed_by, row.signed, row.rank) == ("unsigned", "ada", False, None)


def test_a_file_that_was_replaced_while_the_app_ran_has_its_new_committer(lab: LocalHubProcess) -> None:
    dataset = opened(lab, "lab/running")
    add(lab, "ada", "lab/running", strange("org/x"))
    assert told(dataset) == {"org/x": ("community", "ada")}
    add(lab, "bob", "lab/running", strange("org/x", value=0.9))
    assert told(dataset) == {"org/x": ("community", "bob")}


def test_a_look_takes_one_listing_and_another_one_nothing_while_nothing_has_changed(
    lab: LocalHubProcess, faults: FaultSwitch
) -> None:
    add(lab, "bob", "lab/cheap", *(strange(f"org/{k}") for k in range(20)))
    rules = [faults.add(p.format("lab/cheap"), Observe(), times=None) for p in (COMMITS, INFOS)]
    dataset = opened(lab, "lab/cheap")
    dataset.load()
    dataset.load()
    assert [faults.state(rule).seen for rule in rules] == [1, 1]
    add(lab, "bob", "lab/cheap", strange("org/new"))
    assert told(dataset)["org/new"] == ("community", "bob")
    assert [faults.state(rule).seen for rule in rules] == [2, 2]


def test_a_dataset_of_signed_rows_asks_for_no_history(lab: LocalHubProcess, faults: FaultSwitch) -> None:
    opened(lab, "lab/signed").publish(own("carol"))
    rules = [faults.add(p.format("lab/signed"), Observe(), times=None) for p in (COMMITS, INFOS)]
    opened(lab, "lab/signed").load()
    assert [faults.state(rule).seen for rule in rules] == [0, 0]


@pytest.mark.usefixtures("client_pauses")
@pytest.mark.parametrize("path", [COMMITS, INFOS])
@pytest.mark.parametrize("status", [403, 500])
def test_a_hub_that_does_not_tell_costs_the_names_alone_and_is_asked_again(
    lab: LocalHubProcess, faults: FaultSwitch, caplog: pytest.LogCaptureFixture, path: str, status: int
) -> None:
    repo = f"lab/away-{status}-{len(path)}"
    add(lab, "bob", repo, strange("org/x"))
    faults.add(path.format(repo), Status(status=status), times=None)
    dataset = opened(lab, repo)
    board = DatasetBoard(dataset, clock=count(0, 60).__next__)  # a minute passes between two looks
    with caplog.at_level(logging.INFO, results_dataset.__name__):
        row = rows(board.board())["org/x"]
    assert (row.run_by, row.committed_by, row.rank) == ("community", None, 1)
    assert "is not known" in caplog.text
    faults.clear()
    assert rows(board.board())["org/x"].committed_by == "bob"  # though the head has not moved


def test_of_many_unsigned_rows_each_look_asks_for_some(lab: LocalHubProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_dataset, "MAX_FILES_A_LOOK", 2)
    add(lab, "bob", "lab/many", *(strange(f"org/{k}") for k in range(5)))
    dataset = opened(lab, "lab/many")
    known = [len(dataset.load().committed.accounts) for _ in range(4)]
    assert known == [2, 4, 5, 5]


def test_a_commit_too_far_back_has_no_name(lab: LocalHubProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_COMMITS", 2)
    for k in range(3):
        add(lab, "bob", "lab/long", strange(f"org/{k}"))
    assert told(opened(lab, "lab/long")) == {
        "org/0": ("community", None),
        "org/1": ("community", "bob"),
        "org/2": ("community", "bob"),
    }


def test_the_history_is_read_in_pages_until_every_commit_is_found(lab: LocalHubProcess) -> None:
    add(lab, "bob", "lab/pages", strange("org/x"))
    api = HfApi(lab.endpoint, token=lab.tokens["ada"])
    for k in range(60):  # a page of the Hub has 50
        change = CommitOperationAdd("n", b"n") if k % 2 == 0 else CommitOperationDelete("n")
        api.create_commit("lab/pages", [change], commit_message=f"results/org/x {k}", repo_type="dataset")
    assert told(opened(lab, "lab/pages")) == {"org/x": ("community", "bob")}


def test_an_author_is_any_text_and_arrives_without_what_a_terminal_obeys() -> None:
    assert client._account("Eve\x1b[2J\u202e" + "x" * 200) == "Eve?[2J?" + "x" * 92


def test_an_author_is_escaped_on_the_page_and_in_tables() -> None:
    hostile = strange("org/x")
    committed = Committed({result_path(hostile): ("=HYPERLINK(1)", "<img src=x>")}, "org")
    board = build_board([hostile], committed=committed)
    page = str(model_head(board.suites[0].rows[0], "http://hub"))
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page
    assert ",'=HYPERLINK(1)," not in suite_csv(board.suites[0])
    assert '"\'=HYPERLINK(1), <img src=x>"' in suite_csv(board.suites[0])


def test_a_signed_row_names_no_committer_even_if_a_stranger_s_file_counts_as_the_same_run() -> None:
    [real] = [signed(r, SEED, "carol") for r in family()[:1]]
    committed = Committed({result_path(real): ("eve",)}, "org")
    row = rows(build_board([real], trusted=TRUST.keys, committed=committed))["org/base"]
    assert (row.run_by, row.committed_by) == ("carol", None)


def test_the_table_marks_rows_without_a_signature_where_others_have_one() -> None:
    def marked(*results: EvaluationResult) -> dict[str, bool]:
        committed = Committed({result_path(strange("org/early")): ("org",)}, "org")
        [suite] = build_board(results, trusted=TRUST.keys, committed=committed).suites
        cell = columns(suite)["model"].text
        return {row.model: f">{row.run_by}<" in str(cell(row)) for row in suite.rows}

    signed_ones = own("carol")
    others = [strange("evil/x"), strange("org/early")]
    assert marked(*signed_ones, *others) == {
        "evil/x": True,
        "org/early": True,
        **{r.model: False for r in signed_ones},
    }
    assert set(marked(*others).values()) == {False}


def test_several_authors_are_not_the_owner_alone() -> None:
    one = strange("org/x")
    for names, said in {
        ("ada",): "unsigned",
        ("ada", "bob"): "community",
        (): "community",
        ("Ada",): "community",
    }.items():
        assert rows(build_board([one], committed=Committed({result_path(one): names}, "ada")))["org/x"].run_by == said


def test_the_published_table_names_the_committer_and_nobody_for_a_result_that_is_replaced_with_it(
    lab: LocalHubProcess,
) -> None:
    """Its committer is known once it is committed; it is not the one of the result before."""
    dataset, failed = opened(lab, "lab/tables", Trust()), result("org/x", "f", created="2026-01-01T00:00:00+00:00")
    add(lab, "bob", "lab/tables", strange("evil/x"), failed)
    dataset.publish([strange("org/x"), strange("org/y")])
    table = dataset._hub.read_file("lab/tables", dataset._hub.head("lab/tables"), BOARD_TABLE)
    told = {line["model"]: line["committed_by"] for line in pq.read_table(io.BytesIO(table)).to_pylist()}
    assert told == {"evil/x": "bob", "org/x": None, "org/y": None}
