"""What a model was made from is read from its report, its card, or not at all; a stranger's report is bounded."""

import json
from typing import Any

import pytest
from source_helpers import on_hub

from hubmerge.hub.client import Hub
from hubmerge.hub.names import FileInfo
from hubmerge.sources.ancestry import MAX_ANCESTORS, MAX_GENERATIONS, Ancestor, ancestors_in, stated_ancestors

CARD = {"base_model": ["org/base", "org/one"]}
PARENTS = [
    {"role": "base", "id": "org/base", "sha": "a" * 40, "license": "mit", "kind": "hub"},
    {"role": "agent", "id": "org/one", "sha": "b" * 40, "weight": 0.5, "made_from": [{"id": "org/two"}, "org/base"]},
]
READ = (
    Ancestor("org/base", "base", "a" * 40, "mit"),
    Ancestor("org/one", "agent", "b" * 40, weight=0.5, made_from=(Ancestor("org/two"), Ancestor("org/base"))),
)
FROM_THE_CARD = (Ancestor("org/base"), Ancestor("org/one"))


@pytest.mark.parametrize(
    ("card", "report", "wanted"),
    [
        (CARD, json.dumps({"parents": PARENTS}), READ),
        (CARD, None, FROM_THE_CARD),
        (CARD, "no JSON", FROM_THE_CARD),
        (CARD, json.dumps({"parents": {"id": "org/base"}}), FROM_THE_CARD),
        (CARD, "[" * 100_000, FROM_THE_CARD),
        (CARD, "[" + "0," * 600_000 + "0]", FROM_THE_CARD),
        (CARD, json.dumps({"parents": PARENTS, "more": "x" * 4_000_000}), FROM_THE_CARD),
        ({"base_model": "org/base"}, json.dumps({"parents": PARENTS}), (Ancestor("org/base"),)),
        ({"license": "mit"}, json.dumps({"parents": PARENTS}), ()),
    ],
)
def test_a_model_s_ancestors_are_its_report_s_else_its_card_s(card, report, wanted):
    content = (report or "").encode()
    files = {} if report is None else {"hubmerge.json": FileInfo("hubmerge.json", len(content))}
    assert stated_ancestors(card, files, lambda path, most: content[:most]) == wanted


def test_a_public_model_names_its_ancestors_and_a_private_one_none(local_hub, ada, folder):
    (folder / "README.md").write_text("---\nbase_model: [org/base, org/one]\nbase_model_relation: merge\n---\n")
    (folder / "hubmerge.json").write_text(json.dumps({"parents": PARENTS}))
    ada.create_repo("ada/made")
    ada.upload_folder(repo_id="ada/made", folder_path=folder)
    for private, wanted in ((False, READ), (True, ())):
        ada.update_repo_settings("ada/made", private=private)
        assert on_hub(Hub(local_hub.endpoint, local_hub.tokens["ada"]), "ada/made").made_from == wanted


def test_what_names_no_model_and_values_that_are_none_are_left_out():
    odd: list[Any] = [None, 7, [], {}, {"id": 3}, {"id": ""}, {"kind": "local", "id": "/x"}]
    for stated in (None, "org/base", {"id": "x"}, odd):
        assert ancestors_in(stated) == ()
    for weight in (float("inf"), float("nan"), 10**400, "1", None):
        values = {"id": "org/x", "role": "king", "sha": 3, "license": [], "weight": weight, "made_from": 1}
        assert ancestors_in([values]) == (Ancestor("org/x"),)


def test_generations_and_models_are_bounded():
    deep: Any = []
    for _ in range(500):
        deep = [{"id": "org/deep", "made_from": deep}]
    generations, found = 0, ancestors_in(deep)
    while found:
        generations, found = generations + 1, found[0].made_from
    assert generations == MAX_GENERATIONS

    def count(found: tuple[Ancestor, ...]) -> int:
        return sum(1 + count(a.made_from) for a in found)

    wide: Any = ["org/leaf"] * 20
    for _ in range(4):
        wide = [{"id": "org/wide", "made_from": wide}] * 20
    assert count(ancestors_in(wide)) == MAX_ANCESTORS
    assert len(ancestors_in(["x" * 10_000])[0].id) == 200
