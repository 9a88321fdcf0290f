"""The results dataset on the Hub, which holds the result of every evaluation; anyone can rebuild the board from it.

docs/leaderboard.md lists its files. Loading lists the tree of one commit and takes each result file by its git blob id
from memory, out of data/results.parquet (whose lines are believed only where content and blob id fit), and only then
by a request of its own. Publishing writes result, details and both rebuilt tables in one commit on the commit that was
read; when main has moved meanwhile everything is read and rebuilt again, so nothing that others wrote is dropped. A
lost answer to a commit shows as a result that is already there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hubmerge.board.export import board_parquet, read_results_parquet, results_parquet
from hubmerge.board.files import FLAGS, MAX_FLAGS_BYTES, RESULTS, ResultFiles, parse_files, readable
from hubmerge.board.leaderboard import board_of
from hubmerge.board.trust import KEYS, MAX_KEYS_BYTES, Trust, keys_file, parse_keys
from hubmerge.board.values import Refusal
from hubmerge.errors import (
    EvaluationError,
    FormatError,
    HubUnavailableError,
    ResultError,
    SourceNotFoundError,
)
from hubmerge.evaluation.result import MAX_RESULT_BYTES, EvaluationResult, Split, parse_result, result_path
from hubmerge.evaluation.signing import provenance
from hubmerge.hub.client import Hub, TreeFile
from hubmerge.hub.names import RepoState, blob_id
from hubmerge.text.plain_yaml import dump_plain_yaml

DETAILS = "details/"
BOARD_TABLE = "data/board.parquet"
RESULTS_TABLE = "data/results.parquet"
CARD = "README.md"
MAX_TABLE_BYTES = 512 * 1024 * 1024
_WORTH_THE_TABLE = 8  # missing files from which on the table is fetched instead
# of the card: the configurations that `datasets.load_dataset` reads, and the text
CONFIGS: tuple[dict[str, Any], ...] = (
    {"config_name": "board", "data_files": "data/board.parquet", "default": True},
    {"config_name": "results", "data_files": "data/results.parquet"},
    {"config_name": "details", "data_files": "details/**/*.parquet"},
)
_TEXT = """\
# Evaluation results

Scores of models and of merges of them, measured with hubmerge.

- `results/MODEL/SHA/SUITE-VERSION-SPLIT.json`: one run each. These files are the truth; the tables are made from them.
- `details/…/*.parquet`: what was asked, answered and scored, sample by sample.
- `data/board.parquet`: the leaderboard, a line per model and suite, with 95% intervals.
- `data/results.parquet`: all result files in one table, with their git blob ids.
- `flags.json`, where there is one: models that are contaminated or withdrawn; every merge of them inherits the flag.

```python
from datasets import load_dataset

board = load_dataset("REPO", "board", split="train")
```

`hubmerge leaderboard --results REPO` builds the same board from the result files.

A failed run has a status and an error but no scores, which is not a zero. A score counts only for the commit that it
names.
"""


@dataclass(frozen=True, kw_only=True)
class LoadedResults(ResultFiles):
    """The dataset at one commit."""

    sha: str
    contents: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)  # path → (blob id, bytes)
    tree: Mapping[str, TreeFile] = field(default_factory=dict)
    published: tuple[str, ...] = ()  # public keys in keys.json, which anyone who may write there can change

    @cached_property
    def believed(self) -> tuple[EvaluationResult, ...]:
        """The results that may decide something: those signed by a trusted key, where there is one."""
        return tuple(r for r in self.results if not self.trusted or provenance(r, self.trusted) == "signed")


class ResultsDataset:
    """A results dataset on a Hub. `trust`: whose signatures are believed; without it all results count alike."""

    def __init__(self, hub: Hub, repo: str, *, trust: Trust | None = None) -> None:
        self._hub = hub.datasets
        self.repo = repo
        self._trust = trust or Trust()
        self._loaded: LoadedResults | None = None

    @property
    def url(self) -> str:
        return self._hub.url(self.repo)

    def url_in(self, repo: RepoState) -> str:
        """The address as a file in `repo` may tell it: none where that is public and the dataset is not."""
        return self.url if repo.private or not self._hub.repo_state(self.repo).private else ""

    def load(self) -> LoadedResults:
        """The results at the head of main; while the head has not moved, nothing else is asked for."""
        sha = self._hub.head(self.repo)
        if self._loaded is None or self._loaded.sha != sha:
            self._loaded = self._load_at(sha)
        return self._loaded

    def publish(
        self, result: EvaluationResult, details: Mapping[str, Path] | None = None, *, private: bool = False
    ) -> bool:
        """Add a result and its details (`details_of`) in one commit; False where it is not needed.

        A run that is done in the dataset is kept; a failed one is replaced by one that is done, or by a later one. What
        a trusted key signed replaces what none did, and is replaced by signed results only. `private` counts for a
        dataset that does not exist yet.
        """
        path, data = result_path(result), result.to_json().encode()
        parse_result(data, where=path)  # what is written must be readable
        if self._missing():
            self._hub.create_repo(self.repo, private=private)
        operations = [self._hub.preupload(self.repo, file, place) for place, file in (details or {}).items()]

        def prepare() -> Callable[[], bool] | None:
            loaded = self.load()

            def commit() -> bool:
                files = self._files(loaded, path, data).items()
                title = f"{result.suite} on {result.model}@{result.sha[:12]}"
                self._hub.commit(self.repo, operations, files, message=title, description="", parent=loaded.sha)
                return True

            return commit if self._replaces(data, loaded.contents.get(path), path, loaded.trusted) else None

        return self._hub.patience.on_head(prepare) or False

    def find(self, model: str, sha: str, suite: str, version: str, split: Split) -> EvaluationResult | None:
        """The recorded and believed run of a model at a commit under a suite at its version; None: there is none."""
        if self._missing():
            return None
        loaded = self.load()
        return next((r for r in loaded.believed if r.run_key == (model, sha, suite, version, split)), None)

    def refuse_to_expose(self, model: str, private: bool, *, made_private: bool = False) -> None:
        """EvaluationError where the answers of a private model, which stand in the details, would become public.

        `made_private`: how `publish` is told to make a dataset that does not exist yet.
        """
        if private and not (made_private if self._missing() else self._hub.repo_state(self.repo).private):
            raise EvaluationError(
                "a private model's answers would become public",
                where=model,
                expected="a private results dataset",
                got=self.repo,
                next_step="Evaluate it with `hubmerge evaluate`, or name a private dataset.",
            )

    def _missing(self) -> bool:
        try:
            self._hub.head(self.repo)
        except SourceNotFoundError:
            return True
        return False

    @staticmethod
    def _replaces(new: bytes, old: tuple[str, bytes] | None, path: str, trusted: frozenset[str]) -> bool:
        if old is None:
            return True
        if old[1] == new:
            return False
        try:
            known = parse_result(old[1], where=path)
        except ResultError:
            return True  # what cannot be read is no result
        own = parse_result(new, where=path)
        mine, theirs = (provenance(r, trusted) == "signed" for r in (own, known))
        if mine != theirs:
            return mine
        return known.status == "failed" and (own.status == "done" or own.created > known.created)

    def _files(self, loaded: LoadedResults, path: str, data: bytes) -> dict[str, bytes]:
        """The commit's small files: the result, both tables rebuilt, and the card where there is none."""
        contents = {**loaded.contents, path: (blob_id(data), data)}
        parsed = parse_files((place, known) for place, (_, known) in contents.items())
        read = replace(loaded, results=parsed.results)
        files = {path: data}
        if self._trust.keys - set(loaded.published):
            files[KEYS] = keys_file({*loaded.published, *self._trust.keys})
        files[RESULTS_TABLE] = results_parquet(contents)
        files[BOARD_TABLE] = board_parquet(board_of(read), board_of(read, split="dev"))
        if CARD not in loaded.tree:
            header = dump_plain_yaml({"tags": ["hubmerge", "evaluation"], "configs": list(CONFIGS)})
            files[CARD] = f"---\n{header}---\n\n{_TEXT}".encode()
        return files

    # --- loading -----------------------------------------------------------------------------------------

    def _load_at(self, sha: str) -> LoadedResults:
        tree = self._hub.tree(self.repo, sha)
        paths, refused = readable({path: file.size for path, file in tree.items()})
        contents = self._contents(sha, tree, [tree[p] for p in paths if p != FLAGS], refused)
        files = [(path, data) for path, (_, data) in contents.items()]
        if FLAGS in paths and (data := self._small(sha, FLAGS, MAX_FLAGS_BYTES, refused)) is not None:
            files.append((FLAGS, data))
        published: tuple[str, ...] = ()
        if KEYS in tree and (data := self._small(sha, KEYS, MAX_KEYS_BYTES, refused)) is not None:
            try:
                published = parse_keys(data)
            except ValueError as error:
                refused.append(Refusal(KEYS, str(error)))
        trusted = self._trust.of(published)
        if trusted and (foreign := sorted(set(published) - trusted)):
            refused.append(Refusal(KEYS, f"not believed here: {', '.join(foreign)}"[:500]))
        read = parse_files(files, trusted)
        found = {**vars(read), "refused": (*read.refused, *refused)}
        return LoadedResults(**found, sha=sha, contents=contents, tree=tree, published=published)

    def _contents(
        self, sha: str, tree: Mapping[str, TreeFile], wanted: Sequence[TreeFile], refused: list[Refusal]
    ) -> dict[str, tuple[str, bytes]]:
        """Every result file's bytes, each from the nearest place that has them."""
        known = dict(self._loaded.contents.values()) if self._loaded else {}
        missing = [f for f in wanted if f.oid not in known]
        if len(missing) >= _WORTH_THE_TABLE and RESULTS_TABLE in tree:
            known |= self._from_table(sha, {f.oid for f in missing})
            missing = [f for f in missing if f.oid not in known]
        for file in missing:
            data = self._small(sha, file.path, MAX_RESULT_BYTES, refused)
            if data is None:
                continue
            if file.sha256 is None and blob_id(data) != file.oid:
                raise HubUnavailableError(
                    "the Hub sends another file than it lists", where=f"{file.path} in {self.repo}@{sha[:12]}"
                )
            known[file.oid] = data
        return {file.path: (file.oid, known[file.oid]) for file in wanted if file.oid in known}

    def _from_table(self, sha: str, oids: set[str]) -> dict[str, bytes]:
        try:
            packed = self._hub.read_file(self.repo, sha, RESULTS_TABLE, MAX_TABLE_BYTES)
            table = read_results_parquet(packed, MAX_TABLE_BYTES)
        except (FormatError, ValueError):
            return {}  # a broken table costs requests, nothing else
        return {oid: data for oid, data in table.values() if oid in oids and blob_id(data) == oid}

    def _small(self, sha: str, path: str, limit: int, refused: list[Refusal]) -> bytes | None:
        """A file's content; None where it is refused unread."""
        try:
            return self._hub.read_file(self.repo, sha, path, limit)
        except FormatError as error:
            refused.append(Refusal(path, error.what))
            return None


def details_folder(result: EvaluationResult) -> str:
    """Where the parquet files of a result's samples lie, with a slash at the end."""
    return DETAILS + result_path(result).removeprefix(RESULTS).removesuffix(".json") + "/"


def details_of(result: EvaluationResult, workdir: Path) -> dict[str, Path]:
    """A run's details as `publish` takes them; `workdir` is the folder that it was made in."""
    if result.status != "done":
        return {}
    return {details_folder(result) + path.name: path for path in sorted((workdir / "details").glob("*.parquet"))}
