"""docs/architectures.md: what becomes of every architecture, its tables written from a sweep.

python tests/architectures/architectures_page.py          writes the tables, in some minutes
python tests/architectures/architectures_page.py llama    measures these families anew
"""

import re
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
COMPARED = "configuration, modules, weights"  # where no inputs were found

_COUNTED = re.compile(r"\d+ families of\ntransformers [\w.]+\.(?= )")
_BUILT = "| family | class | merged | loaded | same outputs for |\n|---|---|---|---|---|"
_NOT_BUILT = "| family | class | why |\n|---|---|---|"
_ROW = re.compile(r"\| `(\w+)` \| `(\w+)` \| (.*) \|")


def recorded() -> dict[str, tuple[str, str]]:
    """Family → class, and the last column of the page's tables."""
    return {m[1]: (m[2], m[3]) for m in map(_ROW.fullmatch, PAGE.read_text(encoding="utf-8").splitlines()) if m}


def as_row(compared: str) -> str:
    inputs = ", ".join(f"`{name}`" for name in compared.split(", ")) if compared else COMPARED
    return f"yes | yes | {inputs}"


def page(rows: dict[str, tuple[str, str]], version: str) -> str:
    """The page with these rows in its two tables, and how many architectures of which transformers were built."""
    built = {family: row for family, row in rows.items() if row[1].startswith("yes")}
    text = PAGE.read_text(encoding="utf-8")
    text = _COUNTED.sub(f"{len(built)} families of\ntransformers {version}.", text)
    for head, found in ((_BUILT, built), (_NOT_BUILT, {f: row for f, row in rows.items() if f not in built})):
        lines = "".join(f"| `{family}` | `{name}` | {result} |\n" for family, (name, result) in sorted(found.items()))
        text = re.sub(rf"({re.escape(head)}\n)(\|.*\n)*", lambda at: at[1] + lines, text)  # noqa: B023
    return text


def main(only: list[str]) -> None:
    import transformers
    from sweep import FAMILIES, swept
    from tiny_exceptions import NOT_BUILT

    rows = {f: (FAMILIES[f].name, why) for f, why in NOT_BUILT.items()}
    if only:
        rows |= {f: row for f, row in recorded().items() if f in FAMILIES and f not in NOT_BUILT}
    for family in only or [f for f in FAMILIES if f not in NOT_BUILT]:
        with tempfile.TemporaryDirectory() as folder:
            rows[family] = (FAMILIES[family].name, as_row(swept(FAMILIES[family], Path(folder))))
    PAGE.write_text(page(rows, transformers.__version__), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
