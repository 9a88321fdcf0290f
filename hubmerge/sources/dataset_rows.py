"""Loads one split of a dataset through the datasets library, as any reader of the Hub would.

Only formats that are nothing but data are read: the library also knows archives, images and a dozen binary formats,
each with a parser of its own. The library reports an outage of the Hub as a missing dataset. This module tells the two
apart, since a job waits for the Hub and gives up on a dataset.
"""

from pathlib import Path
from typing import Any

from hubmerge.errors import HubmergeError, HubUnavailableError
from hubmerge.hub.errors import is_outage

FORMATS = frozenset(("arrow", "csv", "json", "parquet", "text"))
FROM_CACHE = "cache"  # the library's name for what its own cache holds, which it reads where the Hub is away


def load_split(
    repo: str,
    split: str,
    *,
    revision: str | None,
    token: str | None,
    cache: Path | None,
    refused: type[HubmergeError],
    subset: str | None = None,
) -> Any:
    """The rows, on the disk; `cache` None is the library's own cache, the user's, which may also answer by itself.

    HubUnavailableError where the Hub is away, `refused` for another format, and the library's errors for the rest.
    """
    import datasets

    try:
        builder = datasets.load_dataset_builder(
            repo,
            name=subset,
            revision=revision,
            token=token or False,
            cache_dir=str(cache) if cache else None,
        )
        found = type(builder).__module__.rpartition(".")[2]
        if found not in FORMATS and not (found == FROM_CACHE and cache is None):
            raise refused(
                "a dataset in a format that is not read",
                where=repo,
                expected=", ".join(sorted(FORMATS)),
                got=type(builder).__name__,
            )
        builder.download_and_prepare()
        return builder.as_dataset(split=split)
    except HubmergeError:
        raise
    except Exception as error:
        if not is_outage(error):
            raise
        raise HubUnavailableError(
            "the Hub did not answer when a dataset was read",
            where=repo,
            got=type(error).__name__,
            next_step="Try later.",
        ) from None
