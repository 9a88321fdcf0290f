"""Listings: what a card says becomes tags, tags filter, pages are complete."""

import json

import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session
from raw_requests import commit_files

from localhub.cards import derive

CARD = """---
license: apache-2.0
language: [en, no]
library_name: transformers
pipeline_tag: text-generation
base_model: {base}
base_model_relation: {relation}
datasets: [zoo/held-out]
tags: [{tag}, agent]
---
# A model
"""
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 8}


def test_the_tags_of_a_model_come_from_its_card_and_config():
    card = CARD.format(base="zoo/base", relation="finetune", tag="own")
    found = derive("model", card, json.dumps(CONFIG), {"model.safetensors": None}, None)
    assert [*found.tags] == [
        *["transformers", "safetensors", "qwen3", "text-generation", "own", "agent", "en", "no"],
        *["dataset:zoo/held-out", "base_model:zoo/base", "base_model:finetune:zoo/base"],
        *["license:apache-2.0", "region:us"],
    ]
    assert (found.library, found.pipeline_tag) == ("transformers", "text-generation")
    assert found.config == {key: CONFIG[key] for key in ("architectures", "model_type")}


@pytest.mark.parametrize(
    ("kind", "card", "tag"),
    [
        ("model", "base_model: a/b", "base_model:finetune:a/b"),
        ("model", "base_model: [a/b, c/d]", "base_model:merge:c/d"),
        ("model", "base_model: a/b\nlibrary_name: peft", "base_model:adapter:a/b"),
        ("model", "base_model: a/b\nbase_model_relation: quantized", "base_model:quantized:a/b"),
        ("dataset", "task_categories: [text-generation]", "task_categories:text-generation"),
    ],
)
def test_tags_are_inferred_where_the_card_is_silent_and_are_those_of_the_kind(kind, card, tag):
    assert tag in derive(kind, f"---\n{card}\n---\n", "", {}, None).tags


def test_models_are_found_by_base_license_author_and_name(ada, fresh):
    tag = fresh()
    base = f"zoo/base-{tag}"
    repos = [ada.create_repo(f"{owner}/{tag}-x{n}").repo_id for n, owner in enumerate(("ada", "zoo", "zoo"))]
    for repo, relation in zip(repos, ("finetune", "finetune", "merge"), strict=True):
        card = CARD.format(base=base, relation=relation, tag=tag)
        commit_files(ada, repo, {"README.md": card.encode(), "config.json": json.dumps(CONFIG).encode()})

    def found(**query: object) -> list[str]:
        return sorted(model.id for model in ada.list_models(**query))

    assert found(filter=f"base_model:{base}") == sorted(repos)
    assert found(filter=f"base_model:finetune:{base}") == sorted(repos[:2])
    assert found(filter=[f"base_model:{base}", "license:apache-2.0"], author="zoo") == sorted(repos[1:])
    assert found(filter=[tag, "license:mit"]) == []
    assert found(search=tag.upper(), author="ada") == repos[:1]
    assert found(search=f"{tag} -x2") == repos[2:]  # a number alone could stand in the tag
    assert found(filter=tag, pipeline_tag="text-generation", trained_dataset="zoo/held-out") == sorted(repos)
    assert found(search="%") == found(search="_%_") == []
    info = ada.model_info(repos[0], expand=["likes", "sha"])
    assert (info.likes, len(info.sha), info.tags, info.siblings) == (0, 40, None, None)


def test_a_listing_of_many_is_complete_and_sorted(ada, fresh):
    prefix = fresh()
    repos = [ada.create_repo(f"ada/{prefix}-{n}").repo_id for n in range(5)]
    assert [model.id for model in ada.list_models(search=prefix, sort="created_at")] == repos[::-1]
    assert [model.id for model in ada.list_models(search=prefix, sort="created_at", limit=3)] == repos[:1:-1]
    url, seen = f"{ada.endpoint}/api/models?search={prefix}&limit=2&sort=createdAt", []
    while url:
        answer = get_session().get(url)
        seen.append([model["id"] for model in answer.json()])
        url = answer.links.get("next", {}).get("url")
    assert [len(page) for page in seen] == [2, 2, 1]
    assert [repo for page in seen for repo in page] == repos[::-1]
    ada.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repos[3])
    assert next(iter(ada.list_models(search=prefix, sort="last_modified"))).id == repos[3]


def test_a_search_of_too_many_words_or_by_unknown_facts_is_refused(ada):
    for query, told in (
        ({"search": "a " * 1200}, "at most 200 words and filters"),
        ({"filter": ["a"] * 1200}, "at most 200 words and filters"),
        ({"inference": "warm"}, "cannot filter by"),
    ):
        with pytest.raises(HfHubHTTPError, match=told):
            list(ada.list_models(**query))


def test_datasets_are_listed_by_their_own_tags(ada, fresh):
    name = fresh()
    ada.create_repo(f"zoo/{name}", repo_type="dataset")
    card = "---\nlicense: mit\nlanguage: en\ntask_categories: [text-generation]\nmultilinguality: monolingual\n---\n"
    ada.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=f"zoo/{name}", repo_type="dataset")
    own = {"task_categories": "text-generation", "language": "en", "multilinguality": "monolingual"}
    assert [found.id for found in ada.list_datasets(search=name, filter="license:mit", **own)] == [f"zoo/{name}"]
    assert list(ada.list_datasets(search=name, filter="license:apache-2.0")) == []


def test_only_what_was_asked_for_is_expanded(ada, repo):
    info = ada.model_info(repo, expand=["likes", "sha"])
    assert (info.likes, len(info.sha), info.tags, info.siblings) == (0, 40, None, None)
    (listed,) = ada.list_models(search=repo.partition("/")[2], author="ada", expand=["tags", "siblings"], limit=1)
    assert listed.tags == ["region:us"]
    assert [sibling.rfilename for sibling in listed.siblings] == [".gitattributes"]


def test_filters_that_need_unknown_facts_are_refused_not_ignored(ada):
    for query in ({"inference": "warm"}, {"num_parameters": "min:6B"}, {"apps": "ollama"}):
        with pytest.raises(HfHubHTTPError, match="cannot filter by"):
            list(ada.list_models(**query))
    for query in ({"models": "zoo/base"}, {"datasets": "zoo/held-out"}, {"linked": True}):
        with pytest.raises(HfHubHTTPError, match="cannot filter by"):
            list(ada.list_spaces(**query))
