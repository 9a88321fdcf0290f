"""A difference in words and numbers: facts and tables, which terminal and page both show."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hubmerge.errors import printable
from hubmerge.output.diff import Change, Diff, Measure, Side
from hubmerge.text.markdown import count, factor, percent, short_count

TOP_TITLES: Mapping[Measure, str] = {
    "density": "Tensors with the largest share of changed elements",
    "relative_l2": "Tensors with the largest relative change",
}
NOTHING_CHANGED = "Nothing changed: every parameter has the base's very value."
RELATIVE = "relative change"
_WIDTH = 100  # of running text on a terminal
_NARROW = 14  # a first column no wider than this stands first on a terminal, too


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column names the subject of each row."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def compared(diff: Diff) -> str:
    tensors = f"{diff.tensor_count:,} tensor{'s' * (diff.tensor_count != 1)}"
    return f"{diff.architecture}: {short_count(diff.total.elements)} parameters in {tensors} compared"


def verdict(diff: Diff) -> str:
    """How much changed, and where in the layers most of it; for a diff in which something did."""
    said = f"{percent(diff.total.density)} of the parameters changed"
    cells = {(depth, name): cell["density"] or 0.0 for depth, row in diff.grid.items() for name, cell in row.items()}
    if not any(cells.values()):
        return f"{said}."
    depth, name = max(cells, key=lambda at: cells[at])
    return f"{said}; among the layers, most of all {name} in layer {depth}, with {percent(cells[depth, name])}."


def side(model: Side) -> str:
    """The model's name, where it is pinned, and how its weights are stored."""
    dtypes = ", ".join(model.dtypes)
    stored = dtypes if model.weights == "weights" else f"{model.weights}, {dtypes}"
    return f"{model.id} at {model.sha[:12]} ({stored})"


def facts(diff: Diff) -> list[tuple[str, str]]:
    """Facts about the whole update, as name and value."""
    total, epsilon = diff.total, plain(diff.epsilon)
    known = [
        (f"changed by more than {epsilon}", f"{percent(total.density)} ({count(total.changed)} parameters)"),
        (f"changed by {epsilon} at most", percent(total.slightly_changed_share)),
        ("exactly the base's value", f"{percent(total.identical_share)} ({count(total.identical)} parameters)"),
    ]
    if total.l2 == 0:
        return known
    return [
        *known,
        (
            "length of the update, ‖δ‖ (L2)",
            f"{number(total.l2)}, {percent(total.relative_l2)} of the base's {number(total.base_l2)}",
        ),
        ("sum of all |δ| (L1)", f"{number(total.l1)}, {number(total.mean)} per parameter"),
        ("largest single |δ|", number(total.max)),
        (
            "the 1% largest |δ| hold",
            f"{percent(total.top_1_mass)} of the sum; the 5% largest {percent(total.top_5_mass)}",
        ),
        ("Gini coefficient of |δ|", f"{factor(total.gini)} (0: all alike, 1: all in one parameter)"),
        ("excess kurtosis of δ", f"{number(total.kurtosis)} (0: as a normal distribution's)"),
        ("small beside the largest |δ|", f"{percent(total.l0_sparsity)} are below a hundredth of it (L0 sparsity)"),
    ]


def thresholds(diff: Diff) -> str:
    """Why two figures about small updates need not agree."""
    return (
        f"“Changed” means |δ| above {plain(diff.epsilon)}, the same for every model; “small beside the largest” means "
        "below a hundredth of this very update's largest |δ|: a parameter may well be both, or neither."
    )


def module_table(diff: Diff) -> Table:
    return _table("By module type", "module type", diff.modules.items())


def layer_table(diff: Diff) -> Table:
    """Every layer, and the changed share of each module type in it."""
    names = [name for name in diff.modules if any(name in row for row in diff.grid.values())]
    head = ("layer", "parameters", "changed", *(f"in {name}" for name in names), RELATIVE, "largest |δ|")
    rows = []
    for depth, change in diff.layers.items():
        cells = [diff.grid.get(depth, {}).get(name) for name in names]
        shares = [percent(cell["density"]) if cell else "" for cell in cells]
        rows.append((str(depth), short_count(change.elements), percent(change.density), *shares, *_sizes(change)))
    return Table("By layer", head, tuple(rows))


def top_table(diff: Diff, by: Measure, top: int) -> Table:
    return _table(TOP_TITLES[by], "tensor", ((name, diff.tensors[name]) for name in diff.top(by, top)))


def in_words(diff: Diff, top: int) -> str:
    """All of it, for a terminal."""
    lines = [f"base   {printable(side(diff.base))}", f"agent  {printable(side(diff.agent))}", compared(diff) + "."]
    lines += [f"warning: {printable(text)}" for text in diff.warnings]
    lines.append("")
    if diff.nothing_changed:
        return "\n".join([*lines, NOTHING_CHANGED]) + "\n"
    known = facts(diff)
    width = max(len(name) for name, _ in known)
    lines += [f"{name:>{width}}  {value}" for name, value in known]
    lines += ["", *textwrap.wrap(thresholds(diff), _WIDTH)]
    tables = [module_table(diff), *([layer_table(diff)] if diff.layers else [])]
    tables += [top_table(diff, by, top) for by in TOP_TITLES]
    for table in tables:
        lines += ["", table.title, *_columns(table)]
    return "\n".join(lines) + "\n"


def _table(title: str, of: str, changes: Iterable[tuple[str, Change]]) -> Table:
    rows = tuple(
        (name, short_count(c.elements), percent(c.density), percent(c.identical_share), *_sizes(c))
        for name, c in changes
    )
    return Table(title, (of, "parameters", "changed", "same value", RELATIVE, "largest |δ|"), rows)


def _sizes(change: Change) -> tuple[str, str]:
    return percent(change.relative_l2), number(change.max)


def _columns(table: Table) -> list[str]:
    """Lines of a table, numbers to the right. Long names stand at the end, where their length disturbs nothing."""
    rows = [(printable(first), *rest) for first, *rest in (table.head, *table.rows)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(table.head))]
    narrow = widths[0] <= _NARROW
    lines = []
    for first, *rest in rows:
        numbers = [f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *numbers] if narrow else [*numbers, first]))
    return lines


def number(value: float | None) -> str:
    """Three digits, of large numbers all before the point."""
    if value is None:
        return "—"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("-", "−")


def plain(value: float) -> str:
    """0.00001 rather than 1e-05."""
    return f"{value:.12f}".rstrip("0").rstrip(".") if value >= 1e-9 else number(value)
