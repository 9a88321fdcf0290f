"""Listings: what a card says becomes tags, tags filter, pages are complete."""

from __future__ import annotations

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session
from raw_requests import commit_files

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
CONFIG = b'{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 8}'


def publish(api: HfApi, repo: str, card: str) -> None:
    commit_files(api, repo, {"README.md": card.encode(), "config.json": CONFIG})


def test_the_tags_of_a_model_come_from_its_card_and_config(ada: HfApi, repo: str) -> None:
    publish(ada, repo, CARD.format(base="zoo/base", relation="finetune", tag="own"))
    ada.upload_file(path_or_fileobj=b"x", path_in_repo="model.safetensors", repo_id=repo)
    info = ada.model_info(repo)
    assert info.tags == [
        *["transformers", "safetensors", "qwen3", "text-generation", "own", "agent", "en", "no"],
        *["dataset:zoo/held-out", "base_model:zoo/base", "base_model:finetune:zoo/base"],
        *["license:apache-2.0", "region:us"],
    ]
    assert (info.library_name, info.pipeline_tag) == ("transformers", "text-generation")
    assert info.card_data.base_model == "zoo/base"
    assert info.config["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("card", "tag"),
    [
        ("base_model: a/b", "base_model:finetune:a/b"),
        ("base_model: [a/b, c/d]", "base_model:merge:c/d"),
        ("base_model: a/b\nlibrary_name: peft", "base_model:adapter:a/b"),
        ("base_model: a/b\nbase_model_relation: quantized", "base_model:quantized:a/b"),
    ],
)
def test_the_relation_to_the_base_is_inferred_where_the_card_is_silent(
    ada: HfApi, repo: str, card: str, tag: str
) -> None:
    publish(ada, repo, f"---\n{card}\n---\n")
    assert tag in ada.model_info(repo).tags


def test_models_are_found_by_base_license_author_and_name(ada: HfApi, fresh) -> None:
    tag = fresh()
    base = f"zoo/base-{tag}"
    repos = [ada.create_repo(f"{owner}/{tag}-x{n}").repo_id for n, owner in enumerate(("ada", "zoo", "zoo"))]
    for repo, relation in zip(repos, ("finetune", "finetune", "merge"), strict=True):
        publish(ada, repo, CARD.format(base=base, relation=relation, tag=tag))

    def found(**query: object) -> list[str]:
        return sorted(model.id for model in ada.list_models(**query))

    assert found(filter=f"base_model:{base}") == sorted(repos)
    assert found(filter=f"base_model:finetune:{base}") == sorted(repos[:2])
    assert found(filter=[f"base_model:{base}", "license:apache-2.0"], author="zoo") == sorted(repos[1:])
    assert found(filter=[tag, "license:mit"]) == []
    assert found(search=tag.upper(), author="ada") == repos[:1]
    assert found(search=f"{tag} -x2") == repos[2:]  # a number alone could stand in the tag
    assert found(filter=tag, pipeline_tag="text-generation") == sorted(repos)
    assert found(filter=tag, trained_dataset="zoo/held-out") == sorted(repos)
    assert found(search="%") == found(search="_%_") == []


def test_a_listing_of_many_is_complete_and_sorted(ada: HfApi, fresh) -> None:
    prefix = fresh()
    repos = [ada.create_repo(f"ada/{prefix}-{n}").repo_id for n in range(7)]
    newest_first = [model.id for model in ada.list_models(search=prefix, sort="created_at")]
    assert newest_first == repos[::-1]
    assert [model.id for model in ada.list_models(search=prefix, sort="created_at", limit=3)] == repos[:3:-1]
    url, seen = f"{ada.endpoint}/api/models?search={prefix}&limit=2&sort=createdAt", []
    while url:
        answer = get_session().get(url)
        seen.append([model["id"] for model in answer.json()])
        url = answer.links.get("next", {}).get("url")
    assert [len(page) for page in seen] == [2, 2, 2, 1]
    assert [repo for page in seen for repo in page] == repos[::-1]
    ada.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repos[3])
    assert next(iter(ada.list_models(search=prefix, sort="last_modified"))).id == repos[3]


def test_a_fetch_of_the_config_counts_as_a_download(ada: HfApi, repo: str, tmp_path) -> None:
    publish(ada, repo, "---\nlicense: mit\n---\n")
    for number in range(2):
        ada.hf_hub_download(repo, "config.json", cache_dir=tmp_path / str(number))
        ada.hf_hub_download(repo, "README.md", cache_dir=tmp_path / str(number))
    assert ada.model_info(repo).downloads == 2


def test_datasets_are_listed_by_their_own_tags(ada: HfApi, fresh) -> None:
    name = fresh()
    ada.create_repo(f"zoo/{name}", repo_type="dataset")
    card = "---\nlicense: mit\nlanguage: en\ntask_categories: [text-generation]\nmultilinguality: monolingual\n---\n"
    ada.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=f"zoo/{name}", repo_type="dataset")
    own = {"task_categories": "text-generation", "language": "en", "multilinguality": "monolingual"}
    assert [found.id for found in ada.list_datasets(search=name, filter="license:mit", **own)] == [f"zoo/{name}"]
    assert list(ada.list_datasets(search=name, filter="license:apache-2.0")) == []


def test_only_what_was_asked_for_is_expanded(ada: HfApi, repo: str) -> None:
    info = ada.model_info(repo, expand=["likes", "sha"])
    assert (info.likes, len(info.sha), info.tags, info.siblings) == (0, 40, None, None)
    (listed,) = ada.list_models(search=repo.partition("/")[2], author="ada", expand=["tags", "siblings"], limit=1)
    assert listed.tags == ["region:us"]
    assert [sibling.rfilename for sibling in listed.siblings] == [".gitattributes"]


def test_a_search_of_too_many_words_is_refused(ada: HfApi) -> None:
    for query in ({"search": "a " * 1200}, {"filter": ["a"] * 1200}):
        with pytest.raises(HfHubHTTPError, match="at most 200 words and filters"):
            list(ada.list_models(**query))


def test_filters_that_need_unknown_facts_are_refused_not_ignored(ada: HfApi) -> None:
    for query in ({"inference": "warm"}, {"num_parameters": "min:6B"}, {"apps": "ollama"}):
        with pytest.raises(HfHubHTTPError, match="cannot filter by"):
            list(ada.list_models(**query))
    for query in ({"models": "zoo/base"}, {"datasets": "zoo/held-out"}, {"linked": True}):
        with pytest.raises(HfHubHTTPError, match="cannot filter by"):
            list(ada.list_spaces(**query))
