"""What a merge's license promises: the strictest of the parents', or a question, never a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubmerge.errors import RecipeError
from hubmerge.hub.names import stated_license
from hubmerge.plan.licenses import KNOWN, NO_DERIVATIVES, UNDECIDED, LicenseDecision, choose, covers, option, strictest
from localhub.cards import LICENSES

known = st.sampled_from(KNOWN)
several = st.lists(known, min_size=1, max_size=6)


def summary(decision: LicenseDecision) -> tuple[str, str | None, tuple[str, ...], bool]:
    return decision.id, decision.name, decision.binding, decision.needs_choice


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["apache-2.0"] * 4, "apache-2.0"),
        (["mit", "apache-2.0"], "apache-2.0"),
        (["cc0-1.0", "mit"], "mit"),
        (["MIT ", "mit"], "mit"),
        (["apache-2.0", "cc-by-nc-4.0"], "cc-by-nc-4.0"),
        (["cc-by-nc-4.0", "cc-by-nc-sa-4.0", "mit"], "cc-by-nc-sa-4.0"),
        (["apache-2.0", "gpl-3.0"], "gpl-3.0"),
        (["lgpl-3.0", "gpl-3.0", "agpl-3.0"], "agpl-3.0"),
        (["cc-by-4.0", "cc-by-sa-4.0"], "cc-by-sa-4.0"),
        (["apache-2.0", "llama3.1"], "llama3.1"),
        (["gemma", "mit"], "gemma"),
    ],
)
def test_the_strictest_input_wins(inputs, expected):
    decision = strictest(inputs)
    assert decision.id == expected
    assert not decision.needs_choice
    assert choose(decision, None) is decision


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (["gpl-3.0", "cc-by-sa-4.0"], "gpl-3.0-and-cc-by-sa-4.0"),
        (["gpl-2.0", "gpl-3.0"], "gpl-2.0-and-gpl-3.0"),
        (["apache-2.0", "gpl-2.0"], "apache-2.0-and-gpl-2.0"),
        (["llama3.1", "llama3.2"], "llama3.1-and-llama3.2"),
        (["llama3", "cc-by-nc-4.0", "mit"], "llama3-and-cc-by-nc-4.0"),
        (["openrail++", "openrail"], "openrail-and-openrailpp"),
        (["apache-2.0", "cc-by-4.0"], "apache-2.0-and-cc-by-4.0"),
    ],
)
def test_licenses_that_do_not_include_each_other_become_other_and_are_all_named(inputs, name):
    decision = strictest(inputs)
    assert (decision.id, decision.name) == ("other", name)
    with pytest.raises(RecipeError, match="do not allow"):
        choose(decision, inputs[0])
    for part in name.split("-and-"):
        assert part.replace("pp", "++") in decision.reason


@pytest.mark.parametrize("stated", [None, "", "license", "qwen", "unknown", "other", "cc", "mit\n---\n<script>"])
def test_an_unclear_license_is_a_question_and_never_a_default(stated):
    decision = strictest(["apache-2.0", stated])
    assert decision.needs_choice
    assert decision.id == "unknown"
    assert decision.binding == ("apache-2.0",)
    assert "\n" not in decision.reason
    assert strictest([]).needs_choice
    with pytest.raises(RecipeError, match="must be chosen"):
        choose(decision, None)


@pytest.mark.parametrize("stated", sorted(NO_DERIVATIVES))
def test_a_license_that_forbids_derivatives_is_refused(stated):
    with pytest.raises(RecipeError, match="forbids derivatives"):
        strictest(["mit", stated])
    with pytest.raises(RecipeError, match="forbids derivatives"):
        strictest([stated_license({"license": ["mit", stated]})])
    with pytest.raises(RecipeError, match="forbids derivatives"):
        strictest([stated_license({"license": "other", "license_name": stated})])
    with pytest.raises(RecipeError):
        choose(strictest(["mit"]), stated)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(["MIT"], "mit"), (["apache-2.0", "cc-by-nc-4.0"], "cc-by-nc-4.0"), (["mit", "license"], "unknown")],
)
def test_every_license_that_a_card_lists_binds(listed, expected):
    assert strictest(["mit", stated_license({"license": listed})]).id == expected


def test_a_card_that_lists_thousands_of_names_is_a_short_question():
    decision = strictest([stated_license({"license": ["mit", *map(str, range(10_000))]})])
    assert decision.needs_choice
    assert decision.binding == ("mit",)
    assert decision.reason.count("no license id of the Hub") == 1


@pytest.mark.parametrize("card", [{}, {"license": []}, {"license": [None]}, {"license": 3}, {"license": ""}])
def test_a_card_without_a_license_s_name_states_none(card):
    assert stated_license(card) is None


def test_a_chosen_license_may_be_stricter_but_not_more_permissive_than_the_known_inputs():
    decision = strictest(["cc-by-nc-4.0", "license"])
    assert choose(decision, "cc-by-nc-sa-4.0").id == "cc-by-nc-sa-4.0"
    assert choose(decision, "CC-BY-NC-4.0").id == "cc-by-nc-4.0"
    for too_permissive in ("apache-2.0", "gpl-3.0", "gemma", "cc-by-nc-3.0"):
        with pytest.raises(RecipeError, match=r"cc-by-nc-4\.0"):
            choose(decision, too_permissive)


def test_a_choice_must_name_a_text():
    for nothing in ("unknown", "cc", "license", "my own", ""):
        with pytest.raises(RecipeError, match=r"not a license.*such as apache-2\.0"):
            choose(strictest([None]), nothing)


def test_choosing_other_keeps_the_known_terms_in_its_name():
    assert choose(strictest(["llama3", None]), "other").name == "llama3-and-unstated-terms"
    assert choose(strictest([None]), "other").name == "unstated-terms"
    assert choose(strictest(["mit"]), "other").name == "mit"


def test_a_text_that_a_card_names_itself_is_asked_about_by_its_name_and_keeps_it():
    """As Qwen2.5-3B's card does, and that of a merge whose parents' licenses do not include each other."""
    stated = stated_license({"license": "other", "license_name": "qwen-research"})
    decision = strictest(["apache-2.0", stated, stated])
    assert decision.needs_choice
    assert "other (qwen-research)" in decision.reason
    assert choose(decision, "other").name == "apache-2.0-and-qwen-research"
    assert choose(strictest([stated, None]), "other").name == "qwen-research-and-unstated-terms"
    for name in ("mit) and (x", "<b>", "", 3, None):
        assert stated_license({"license": "other", "license_name": name}) == "other"
    assert stated_license({"license": "mit", "license_name": "x"}) == "mit"
    hostile = strictest(["\x1b[2J other (mit)"])  # a license is a stranger's text
    assert "\x1b" not in hostile.reason
    assert choose(hostile, "other").name == "unstated-terms"


@pytest.mark.parametrize(
    ("name", "binding", "terms"),
    [
        ("llama3", ("llama3",), "llama3"),  # as cards say that are older than the Hub's id
        ("gpl-3.0-and-cc-by-sa-4.0", ("gpl-3.0", "cc-by-sa-4.0"), "gpl-3.0-and-cc-by-sa-4.0"),
        ("openrailpp-and-qwen-research", ("openrail++",), "openrailpp-and-qwen-research"),
        ("llama3-and-unstated-terms", ("llama3",), "llama3-and-unstated-terms"),
        ("terms-and-conditions", (), "terms-and-conditions"),
    ],
)
def test_licenses_within_a_name_of_one_s_own_bind_the_choice(name, binding, terms):
    decision = strictest([stated_license({"license": "other", "license_name": name})])
    assert decision.needs_choice
    assert decision.binding == binding
    for permissive in ("mit", "apache-2.0")[: 2 * len(binding)]:
        with pytest.raises(RecipeError, match="do not allow"):
            choose(decision, permissive)
    assert choose(decision, "other").name == terms


def test_a_choice_keeps_the_reason_for_which_it_was_asked():
    chosen = choose(strictest(["license", "mit"]), "mit")
    assert "chosen by the user" in chosen.reason
    assert "'license'" in chosen.reason
    assert chosen.as_dict() == {"id": "mit", "reason": chosen.reason}
    assert option(chosen.as_dict()) == " --license mit"  # which the command of a card asks for again


def test_every_license_of_the_hub_is_known_refused_or_undecided():
    assert set(KNOWN) | NO_DERIVATIVES | UNDECIDED == LICENSES
    assert not set(KNOWN) & (NO_DERIVATIVES | UNDECIDED)


def test_covering_is_a_partial_order():
    covered = {a: {b for b in KNOWN if covers(a, b)} for a in KNOWN}
    for a in KNOWN:
        assert a in covered[a]
        for b in covered[a] - {a}:
            assert a not in covered[b]
            assert covered[b] <= covered[a]


@pytest.mark.parametrize(
    ("free", "gnu"),
    [
        ("apache-2.0", "gpl-2.0"),
        ("apache-2.0", "lgpl-2.1"),
        ("ecl-2.0", "gpl-2.0"),
        ("afl-3.0", "agpl-3.0"),
        ("bsd", "gpl-3.0"),
    ],
)
def test_what_a_gnu_license_must_not_take_up_stays_beside_it(free, gnu):
    assert not covers(gnu, free)
    assert strictest([free, gnu]).id == "other"


@given(several, st.randoms(use_true_random=False))
def test_the_order_and_number_of_the_inputs_do_not_matter(inputs, random):
    shuffled = list(inputs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summary(strictest(inputs)) == summary(strictest(shuffled)) == summary(strictest(inputs * 2))


@given(several, several)
def test_licenses_may_be_decided_in_groups(first, second):
    grouped = strictest([*strictest(first).binding, *strictest(second).binding])
    assert summary(grouped) == summary(strictest([*first, *second]))


@given(several)
def test_a_decision_is_never_more_permissive_than_any_input(inputs):
    decision = strictest(inputs)
    for stated in inputs:
        if decision.id == "other":
            assert any(covers(b, stated) for b in decision.binding)
        else:
            assert covers(decision.id, stated)
    assert set(decision.binding) <= set(inputs)


@given(several, known)
def test_a_choice_is_never_more_permissive_than_any_input(inputs, chosen):
    try:
        decision = choose(strictest([*inputs, None]), chosen)
    except RecipeError:
        assert not all(covers(chosen, stated) for stated in inputs)
    else:
        assert all(covers(decision.id, stated) for stated in inputs)
