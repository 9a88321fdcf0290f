"""What the figures promise: the same bytes for the same report, and no cut text, whatever the labels."""

from xml.etree import ElementTree

import pytest
from report_helpers import FIGURES, report, report_data, report_of
from svg_reading import SVG, parsed

from hubmerge.output.drawing import CIVIDIS, Shades, ticks
from hubmerge.output.figures import SHARE_COLORS, render_figures, short_label
from hubmerge.output.report import Report


def rects(root: ElementTree.Element, color: str) -> list[float]:
    """The widths of what has that color, from top to bottom."""
    return [float(r.attrib["width"]) for r in root.iter(SVG + "rect") if r.attrib["fill"] == color]


def texts(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(SVG + "text")]


def test_two_renderings_have_the_same_bytes_and_the_names_that_the_card_knows():
    assert render_figures(report()) == render_figures(report())
    assert tuple(render_figures(report())) == FIGURES


@pytest.mark.parametrize(
    "label",
    [
        *("日本語", "a\nb", "\u202egnp", "", "<b>&", "</text><script>", "x" * 500),
    ],
)
def test_a_strange_label_is_shown_as_it_is_written_and_never_read_as_markup(label):
    for svg in render_figures(report_of([label, "other"])).values():
        words = texts(parsed(svg))
        assert any(short_label(label) in text for text in words)
        assert any("other" in text for text in words)


def test_labels_keep_both_ends_and_only_characters_that_are_seen():
    assert short_label("short") == "short"
    assert short_label("Qwen3-4B-agent-number-17") == "Qwen3-4B-a…-number-17"
    assert short_label("a\u202eb\n日") == "a?b?日"


def test_labels_that_differ_where_they_are_cut_are_told_apart_by_their_numbers():
    for svg in render_figures(report_of([f"Qwen2.5-7B-{skill}-grpo-step100" for skill in ("math", "code")])).values():
        assert {"Qwen2.5-7B…po-step100 · 1", "Qwen2.5-7B…po-step100 · 2"} <= {*texts(parsed(svg))}


def test_models_without_layers_or_changes_render():
    cases = [report_of(["a", "b"], layers=0), report_of(["a", "b"], elements=0)]
    data = report_data()
    data["statistics"]["modules"] = {}
    for case in [*cases, Report.from_json(data)]:
        assert [parsed(svg) is not None for svg in render_figures(case).values()] == [True] * 2


def test_a_bar_is_as_long_as_its_share():
    """math changes 5% alone and tool_use 15%; both share 5%."""
    root = parsed(render_figures(report())["figures/overlap.svg"])
    # the colours of the bar of all elements, which comes first, and of its legend
    _, _, math_alone, tool_alone, *_ = rects(root, SHARE_COLORS["private"])
    _, _, math_shared, tool_shared, *_ = rects(root, SHARE_COLORS["overlap"])
    assert tool_alone / math_alone == pytest.approx(3, rel=0.001)
    assert math_shared == tool_shared == pytest.approx(math_alone, rel=0.001)


def test_a_share_of_nearly_all_is_not_called_all():
    data = report_data()
    total = data["statistics"]["total"]
    total["overlap_share"] = [0.9996, 0.0004, 0.0]
    total["shares"] |= {"unchanged": 0.9996, "private": 0.0004, "overlap": 0.0, "conflict": 0.0}
    said = texts(parsed(render_figures(Report.from_json(data))["figures/overlap.svg"]))
    assert {"none: over 99.9%", "agents (nobody: over 99.9%)"} <= {*said}


def test_a_point_lies_as_high_as_its_density():
    """Both layers have 10% for math and 20% for tool_use, and the axis begins at 0."""
    root = parsed(render_figures(report())["figures/density_by_layer.svg"])
    curves = [line for line in root.iter(SVG + "polyline") if line.attrib.get("stroke-width") == "1.6"][:2]
    heights = [[float(point.split(",")[1]) for point in curve.attrib["points"].split()] for curve in curves]
    axes = [line.attrib["points"] for line in root.iter(SVG + "polyline") if line.attrib["stroke"] == "#222222"]
    bottom = max(float(points.split(",")[-1]) for points in axes)
    (a, b), (c, d) = heights
    assert (a, c) == (b, d)
    assert (bottom - c) / (bottom - a) == pytest.approx(2, rel=0.001)


@pytest.mark.parametrize("labels", [["W" * 22] * 6, ["i" * 30] * 32, ["日" * 22]])
def test_any_number_of_agents_with_the_longest_labels_fits_at_card_width(labels):
    for svg in render_figures(report_of([f"{label[:-1]}{k}" for k, label in enumerate(labels)])).values():
        root = parsed(svg)
        assert root.attrib["width"] == "800"
        assert 200 <= float(root.attrib["height"]) <= 1000


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 10, False, [0, 2, 4, 6, 8, 10]),
        (0, 1.05, False, [0, 0.25, 0.5, 0.75, 1]),
        (-1, 1, False, [-1, -0.5, 0, 0.5, 1]),
        (0, 2, True, [0, 1, 2]),
        (0, 125, True, [0, 25, 50, 75, 100, 125]),
        (0, 1e-7, False, [0, 2e-8, 4e-8, 6e-8, 8e-8, 1e-7]),
        (3, 3, True, [3]),
    ],
)
def test_an_axis_has_a_few_round_numbers(low, high, whole, expected):
    assert ticks(low, high, whole=whole) == pytest.approx(expected)


def test_a_shade_lies_between_its_neighbours_and_ends_at_the_ends():
    shades = Shades(CIVIDIS, -1.0, 1.0)
    assert (shades.at(-1), shades.at(0), shades.at(1)) == (CIVIDIS[0], CIVIDIS[4], CIVIDIS[8])
    assert (shades.at(-7), shades.at(7)) == (shades.at(-1), shades.at(1))
    assert Shades(("#000000", "#204060")).at(0.5) == "#102030"
