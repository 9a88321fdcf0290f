"""Reads result files and the keepers' flags of a results dataset or a folder, and trusts none of their bytes.

    results/MODEL/SHA/SUITE-VERSION-SPLIT.json    one result each, at the path that its content says
    flags.json       {"flags": [{"kind", "model", "sha"?, "reason"?, "signature"?}, …]}

A file or entry that cannot be believed is left out, with the reason.

The keepers of the dataset write the latter by hand. Whoever may write to the dataset can write an entry, so each
is signed by itself (hubmerge/evaluation/signing.py): one that a stranger adds spoils no other. Where a trusted key is
known, an entry that none signed is not applied. Where none is known, all entries count alike.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hubmerge.board.values import FLAG_KINDS, Flag, Refusal
from hubmerge.errors import ResultError
from hubmerge.evaluation.result import CONTROL, MAX_RESULT_BYTES, EvaluationResult, parse_result, result_path
from hubmerge.evaluation.signing import Provenance, entry_provenance, signed_entry
from hubmerge.hub.names import is_hub_id, is_sha

RESULTS = "results/"
MAX_FILES = 200_000
FLAGS = "flags.json"
MAX_FLAGS_BYTES = 4 * 1024 * 1024
MAX_FLAGS = 5000
_KEY = "flags"
_HALF = re.compile("[\ud800-\udfff]")
_LINK = "a link, which is not followed; `hf download --local-dir` writes files"
_NOT_SIGNED = "no trusted key signed it, so it is not applied"


@dataclass(frozen=True)
class ResultFiles:
    """The results and flags that were read, the refusals, and what says whose they are."""

    results: tuple[EvaluationResult, ...]
    flags: tuple[Flag, ...] = ()
    refused: tuple[Refusal, ...] = ()
    trusted: frozenset[str] = frozenset()  # the public keys that are believed


def parse_files(files: Iterable[tuple[str, bytes]], trusted: Collection[str] = ()) -> ResultFiles:
    """Results and flags out of (path, bytes); a path below `results/`, or `flags.json`.

    `trusted`: public keys that are believed, by which the flags are judged. One that does not count is refused by its
    place, and takes no other with it.
    """
    results: list[EvaluationResult] = []
    flags: list[Flag] = []
    refused: list[Refusal] = []
    for path, data in files:
        if path == FLAGS:
            entries, broken = entries_of(data, trusted)
            counting = {e.place: e.flag for e in entries if not trusted or e.provenance == "signed"}
            unsigned = (_entry_refusal(e.place, _NOT_SIGNED) for e in entries if e.place not in counting)
            refused += [*broken, *unsigned]
            flags += counting.values()
            continue
        try:
            result = parse_result(data, where=path)
        except ResultError as error:
            refused.append(_refusal(path, error.problems[0].got or error.what))
            continue
        if (belongs := result_path(result)) != path:
            refused.append(_refusal(path, f"its content belongs at {belongs[:300]}"))
            continue
        results.append(result)
    return ResultFiles(tuple(results), tuple(flags), tuple(refused), frozenset(trusted))


def _refusal(path: str, reason: str) -> Refusal:
    """A file's, whose name may be no UTF-8."""
    return Refusal(path.encode("utf-8", "replace").decode(), reason)


def readable(sizes: Mapping[str, int]) -> tuple[list[str], list[Refusal]]:
    """The files to read of those that there are (path → bytes), the flags first, and what is refused unread."""
    paths: list[str] = []
    refused: list[Refusal] = []
    for path in sorted(sizes, key=lambda path: (path != FLAGS, path)):
        limit = MAX_FLAGS_BYTES if path == FLAGS else MAX_RESULT_BYTES
        if not (path == FLAGS or (path.startswith(RESULTS) and path.endswith(".json"))):
            continue
        if sizes[path] > limit:
            refused.append(_refusal(path, f"{sizes[path]} bytes, at most {limit} are read"))
        elif len(paths) == MAX_FILES:
            refused.append(Refusal(RESULTS, f"more than {MAX_FILES} files"))
            break
        else:
            paths.append(path)
    return paths, refused


def results_folder(named: str) -> Path | None:
    """The folder that a command's argument names, which must be there; None: it names a dataset on the Hub."""
    if not named.startswith((".", "/", "~")) and named.count("/") == 1 and not Path(named).is_dir():
        return None
    folder = Path(os.path.expanduser(named))  # which leaves an unknown user as it is
    if not folder.is_dir():
        raise ResultError("no such folder of results", where=named, next_step="Name another (--results).")
    return folder


def read_folder(folder: Path, trusted: Collection[str] = ()) -> ResultFiles:
    """The results and flags below a local folder; links are not followed, and told."""
    found = [Path(root) / name for root, folders, files in os.walk(folder) for name in (*folders, *files)]
    own = [path for path in found if path.is_file() and not path.is_symlink()]
    paths, refused = readable({_below(folder, path): path.stat().st_size for path in own})
    links = sorted(_below(folder, path) for path in found if path.is_symlink())
    if not (folder / RESULTS).is_dir():
        refused.append(Refusal(RESULTS, f"no such folder in {folder}"))
    refused += [_refusal(p, _LINK) for p in links if p == FLAGS or f"{p}/".startswith(RESULTS)]
    parsed = parse_files(((path, (folder / path).read_bytes()) for path in paths), trusted)
    return replace(parsed, refused=(*parsed.refused, *refused))


def _below(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


# --- the keepers' entries ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One entry as it stands in its file. `id` follows from its content, whatever its place and signature."""

    id: str
    place: int  # in the file, from 0
    content: Mapping[str, Any]  # without the signature
    flag: Flag
    provenance: Provenance


def entries_of(data: bytes, trusted: Collection[str] = ()) -> tuple[list[Entry], list[Refusal]]:
    """The entries of flags.json that can be read and are not forged, with the refusals of the others."""
    entries: list[Entry] = []
    listed, refused = _listed(data)
    for place, raw in enumerate(listed):
        signature = raw.get("signature") if isinstance(raw, dict) else None
        content = {k: v for k, v in raw.items() if k != "signature"} if isinstance(raw, dict) else raw
        flag = _flag(content)
        if isinstance(flag, str):
            refused.append(_entry_refusal(place, flag))
            continue
        provenance = entry_provenance(_KEY, content, signature, trusted)
        if provenance == "forged":
            refused.append(_entry_refusal(place, "its signature is not of this content"))
            continue
        id = hashlib.sha256(json.dumps([_KEY, content], sort_keys=True).encode()).hexdigest()[:12]
        entries.append(Entry(id, place, content, flag, provenance))
    return entries, refused


def with_signatures(data: bytes, ids: Collection[str], seed: bytes) -> bytes:
    """The file with those entries signed by the private key `seed`; the very bytes where none of them is in it."""
    chosen = [entry for entry in entries_of(data)[0] if entry.id in ids]
    if not chosen:
        return data
    document = json.loads(data)
    for entry in chosen:
        document[_KEY][entry.place] = signed_entry(_KEY, entry.content, seed)
    return (json.dumps(document, indent=1) + "\n").encode()


def _listed(data: bytes) -> tuple[list[Any], list[Refusal]]:
    if len(data) > MAX_FLAGS_BYTES:
        return [], [Refusal(FLAGS, f"more than {MAX_FLAGS_BYTES} bytes")]
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return [], [Refusal(FLAGS, str(error)[:200])]
    entries = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_FLAGS:
        return [], [Refusal(FLAGS, f'expected {{"{_KEY}": […]}} with at most {MAX_FLAGS} entries')]
    return entries, []


def _flag(entry: Any) -> Flag | str:
    """The flag, or the reason why it is refused."""
    if not isinstance(entry, dict) or set(entry) - {"kind", "model", "sha", "reason"}:
        return "expected kind, model, and optionally sha and reason"
    kind = next((k for k in FLAG_KINDS if k == entry.get("kind")), None)
    model, sha, reason = entry.get("model"), entry.get("sha"), entry.get("reason", "")
    if kind is None:
        return f"expected kind {' or '.join(FLAG_KINDS)}"
    if not isinstance(model, str) or not is_hub_id(model):
        return "its model is not a repo's name"
    if sha is not None and not (isinstance(sha, str) and is_sha(sha)):
        return "its sha is no full commit"
    if not isinstance(reason, str) or _HALF.search(reason):  # which UTF-8 cannot encode
        return "its reason is no text"
    # not refused, since a keeper's flag counts however its reason is written
    return Flag(kind, model, sha, CONTROL.sub(" ", reason[:500]))


def _entry_refusal(place: int, reason: str) -> Refusal:
    return Refusal(f"{FLAGS}, entry {place + 1}", reason)
