"""`hubmerge sign`: signs entries of a results dataset's flags.json with the bot's key.

Without ids it lists the entries and whether a believed key signed them. An id follows from the entry's content alone,
so what is signed is what was listed, even if somebody has changed the file meanwhile.
"""

import argparse
import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from hubmerge.errors import ResultError, SettingsError, printable
from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.hub.client import Hub

_Write = Callable[[Mapping[str, bytes]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="REPO|DIR", help="a results dataset on the Hub, or a folder (./…)")
    parser.add_argument("ids", nargs="*", metavar="ID", help="entries to sign; none: list them")


def run_cli(arguments: Any, settings: Settings, hub: "Hub") -> int:
    """Sign the named entries, then list all."""
    # imported here, since every command builds this one's parser
    from hubmerge.board.files import entries_of, with_signatures
    from hubmerge.board.trust import KEYS, keys_file, named_keys
    from hubmerge.evaluation.signing import public_key

    files, published, write = _opened(arguments.results, hub.datasets)
    trusted = set(published) | named_keys(settings)
    if arguments.ids:
        seed = _seed(settings, published)
        known = {entry.id for data in files.values() for entry in entries_of(data)[0]}
        if missing := sorted(set(arguments.ids) - known):
            raise ResultError(
                "no entry has this id",
                where=arguments.results,
                got=", ".join(missing)[:200],
                next_step="List the entries with `hubmerge sign REPO`; an entry that was changed has another id.",
            )
        signed = {path: with_signatures(data, set(arguments.ids), seed) for path, data in files.items()}
        changed = {path: data for path, data in signed.items() if data != files[path]}
        if not published:  # also where a kill came between the files of a folder
            changed[KEYS] = keys_file([public_key(seed)])
        if changed:
            write(changed)
        files, trusted = signed, trusted | {public_key(seed)}
    listed, refused = [], []
    for path, data in files.items():
        entries, broken = entries_of(data, trusted)
        listed += [{"id": e.id, "file": path, "entry": dict(e.content), "signed": e.provenance} for e in entries]
        refused += [{"where": r.where, "reason": r.reason} for r in broken]
    whole = {"entries": listed, "refused": refused}
    print(json.dumps(whole, indent=2) if arguments.json else _table(listed, refused))  # noqa: T201 - the output
    return 0


def _opened(named: str, hub: "Hub") -> tuple[dict[str, bytes], Collection[str], _Write]:
    """The file of flags, if there is one, the keys that the dataset publishes, and how files are written there."""
    from hubmerge.board.files import FLAGS, MAX_FLAGS_BYTES, results_folder
    from hubmerge.board.trust import KEYS, MAX_KEYS_BYTES, folder_keys, parse_keys

    if (folder := results_folder(named)) is not None:

        def write_here(files: Mapping[str, bytes]) -> None:
            for name, data in files.items():
                partial = folder / f".{name}.partial"
                partial.write_bytes(data)
                partial.replace(folder / name)

        found = [folder / FLAGS] if (folder / FLAGS).is_file() else []
        return {path.name: path.read_bytes() for path in found}, folder_keys(folder), write_here
    sha = hub.head(named)
    tree = hub.tree(named, sha)

    def write_there(files: Mapping[str, bytes]) -> None:
        hub.commit(named, [], files.items(), message="Sign what the keepers say", description="", parent=sha)

    read = {FLAGS: hub.read_file(named, sha, FLAGS, MAX_FLAGS_BYTES)} if FLAGS in tree else {}
    try:
        published = parse_keys(hub.read_file(named, sha, KEYS, MAX_KEYS_BYTES)) if KEYS in tree else ()
    except ValueError as error:
        raise ResultError("the file of keys cannot be read", where=f"{KEYS} in {named}", got=str(error)) from None
    return read, published, write_there


def _seed(settings: Settings, published: Collection[str]) -> bytes:
    """The private key, which must be one that readers of the dataset believe."""
    from hubmerge.evaluation.signing import public_key
    from workflows.jobs.account import KEY_FILE, results_keys

    if not (settings.signing_key or settings.secret or (settings.data_dir / KEY_FILE).is_file()):
        raise SettingsError(
            "there is no key to sign with",
            expected="HUBMERGE_SIGNING_KEY, HUBMERGE_SECRET, or the app's data folder in HUBMERGE_DATA",
            got="none of them",
            next_step="Set what the app signs its results with.",
        )
    seed = results_keys(settings).seed
    if published and public_key(seed) not in published:
        raise SettingsError(
            "readers of the dataset do not believe this key",
            expected=", ".join(sorted(published))[:200],
            got=public_key(seed),
            next_step="Set what the app signs its results with.",
        )
    return seed


def _table(listed: list[dict[str, Any]], refused: list[dict[str, str]]) -> str:
    words = {"signed": "signed", "community": "not signed"}
    lines = [
        f"{line['id']}  {words[line['signed']]:<10}  {line['file']:<13}  "
        + printable(json.dumps(line["entry"], ensure_ascii=False)[:160])
        for line in listed
    ]
    lines += [f"left out: {printable(each['where'][:160])}: {printable(each['reason'][:160])}" for each in refused]
    return "\n".join(lines) or "no entries"
