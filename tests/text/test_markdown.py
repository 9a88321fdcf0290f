"""Foreign text in Markdown stays text, readable as it was written; numbers read as a person would write them."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_reading import PARSER, lively, shown, structure, tokens

from hubmerge.text import markdown
from hubmerge.text.markdown import Markdown, code, duration, escape_markdown, factor, fence, percent, size


def test_a_warning_is_readable_and_its_names_are_code():
    assert escape_markdown("org/a: rope_theta in config.json differs (1.0 → 2.0);") == (
        "org/a: `rope_theta` in `config.json` differs (1.0 → 2.0);"
    )


def test_code_spans_hold_backticks_and_pipes_literally():
    assert code("a`b") == "``a`b``"
    assert code("`") == "`` ` ``"
    assert code("a|b") == "`a\\u007cb`"
    assert code("") == code("\n") == "—"
    assert code("\u202e") == "`\\u202e`"


def test_a_fence_is_longer_than_any_run_of_backticks_inside():
    text = fence("a\n````\nb\n", "yaml")
    assert text == "`````yaml\na\n````\nb\n`````"


def test_what_is_put_together_from_safe_parts_is_not_safe():
    template = markdown.environment(Path()).from_string("{{ x | code ~ y }} {{ x | code }}")
    assert not isinstance(code("a") + "b", Markdown)
    assert template.render(x="a", y="<b>") == "`` `a`<b> `` `a`"


foreign = st.text(st.one_of(st.characters(), st.sampled_from("`|<>[]()*_\\\n&!#-:/.@$ ")), max_size=40)


@given(foreign)
@example("a\\")
@example("| |")
@example("http://a.b")
@example("``|``")
def test_any_text_is_inert_in_a_line_a_list_and_a_table(text):
    for made in (escape_markdown(text), code(text)):
        assert lively(f"a {made} b") == []
        assert structure(f"{made}") == ["paragraph_open", "inline", "paragraph_close"]
        assert structure(f"- {made}") == structure("- x")
        assert structure(f"| {made} | {made} |\n|---|---|\n| {made} | {made} |") == structure(
            "| x | x |\n|---|---|\n| x | x |"
        )
        kinds = {t.type for t in tokens(f"a {made} b")}
        assert kinds <= {"paragraph_open", "inline", "paragraph_close", "text", "code_inline", "text_special"}


@given(foreign.filter(lambda t: "|" not in t and t.isprintable() and len(t.split()) > 0))
def test_printable_text_reads_as_it_was_written(text):
    assert shown(f"a {escape_markdown(text)} b") == f"a {' '.join(text.split())} b"
    assert shown(f"a {code(text)} b") == f"a {' '.join(text.split())} b"


@given(foreign)
def test_any_text_stays_in_its_fence(text):
    found = PARSER.parse(f"a\n\n{fence(text)}\n\nb")
    assert [t.type for t in found if t.type == "fence"] == ["fence"]
    assert structure(f"a\n\n{fence(text)}\n\nb") == structure("a\n\n```\nx\n```\n\nb")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (1.0, "100%"), (0.0775, "7.75%"), (0.5, "50.0%"), (0.99999, "over 99.9%"), (1e-9, "under 0.0001%"),
     (0.000123, "0.0123%"), (0.09996, "10.0%"), (0.0009996, "0.100%"), (None, "—")],
)  # fmt: skip
def test_percentages_have_three_digits_and_never_hide_a_rest(share, text):
    assert percent(share) == text


def test_numbers_have_units_for_humans():
    assert [size(v) for v in (0, 999, 999.9, 350456, 999_960, 16_060_000_000)] == [
        "0 B", "999 B", "1.00 kB", "350 kB", "1.00 MB", "16.1 GB",
    ]  # fmt: skip
    assert [duration(v) for v in (0.07, 12.34, 59.97, 252.4, 7380)] == [
        "0.07 s", "12.3 s", "1 min 00 s", "4 min 12 s", "2 h 03 min",
    ]  # fmt: skip
    assert [factor(v) for v in ("inf", None, float("nan"), -0.0001, -1.5)] == ["∞", "—", "—", "0.000", "−1.500"]


def test_a_text_without_end_is_cut():
    assert [len(escape_markdown("x" * size)) for size in (600, 5000)] == [600, 600]
    assert [len(code("x" * size)) for size in (200, 5000)] == [202, 202]
