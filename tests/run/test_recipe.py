"""Recipes: YAML, settings, and errors that name the key."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

from fledge.base.errors import RecipeError
from fledge.run.recipe import Recipe, load_recipe, option_keys, shipped_recipes


def test_every_shipped_recipe_is_valid() -> None:
    assert "demo" in shipped_recipes()
    for name in shipped_recipes():
        load_recipe(name)


def test_a_recipe_survives_the_way_through_yaml(tmp_path: Path) -> None:
    recipe = load_recipe("demo", ["respond.temperatures={0.0: 0.25, 0.8: 0.75}", "prompts.mix={code: 2}"])
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(str(path)) == recipe


def test_settings_are_applied_in_order_and_typed() -> None:
    recipe = load_recipe(
        "demo",
        [
            "train.epochs=1",
            "train.epochs=2.5",
            "train.learning_rate=1e-4",
            "bench.concurrency=[1, 4]",
            "bench.own_prompts=null",
        ],
    )
    assert recipe.train.epochs == 2.5
    assert recipe.train.learning_rate == 1e-4
    assert recipe.bench.concurrency == (1, 4)
    assert recipe.bench.own_prompts is None


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert load_recipe(str(path)) == Recipe()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=3", "did you mean train.epochs?"),
        ("trian.epochs=3", "did you mean train?"),
        ("max_new_tokens=3", "did you mean respond.max_new_tokens?"),
        ("train.max_new_tokens=3", "did you mean respond.max_new_tokens?"),
        ("xyzzy=3", "use one of target, prompts"),
        ("train.epochs=-1", "train.epochs = -1 is refused"),
        ("train.epochs", "write key=value"),
        ("train.epochs=[1", "not valid YAML"),
        ("train.head={num_heads: 1, num_kv_heads: 1, num_heads: 2}", "the key num_heads occurs twice"),
        (
            "prompts.openings=[{category: x, texxt: y}]",
            "unknown key prompts.openings.0.texxt; did you mean prompts.openings.0.text?",
        ),
        (
            "prompts.sources=[{path: x, license: mit}]",
            "sources.0.license; did you mean prompts.sources.0.licence?",
        ),
        ("prompts.traffic=x.jsonl", "write a list: prompts.traffic=[...]"),
        ("prompts.traffic=[x.jsonl]", "write a mapping with keys such as kind, path, name"),
        ("privacy.cloud_dlp={projekt: x}", "did you mean privacy.cloud_dlp.project?"),
        ("prompts.languages=[en, german]", "german isn't a language's code; use codes such as en, de, fr"),
        ("train=3", "train = 3 is refused"),
        ("train.epochs=.inf", "train.epochs = inf is refused"),
        ("train.epochs=inf", "train.epochs = inf is refused"),
        (
            "privacy.patterns=[{entity: A, regex: x, score: nan}]",
            "privacy.patterns.0.score = 'nan' is refused",
        ),
        ("respond.temperatures={.nan: 1.0}", "respond.temperatures = nan is refused"),
        ("evaluate.shapes=[[4, 4, 200]]", "evaluate.shapes = [[4, 4, 200]] is refused"),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("demo", [setting])
    assert message in str(caught.value)


def test_a_fault_is_blamed_on_the_setting_or_on_the_recipe_it_is_in(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("train: {epochs: -1}")
    for settings, blamed in [
        (["bench.repeats=1"], f"recipe {path}: train.epochs = -1"),
        (
            ["train.epochs=2", "train.epochs=0", "bench.repeats=1"],
            "setting 'train.epochs=0': train.epochs = 0",
        ),
        (["train.epochs=.inf"], "setting 'train.epochs=.inf': train.epochs = inf"),
        (["trian.epochs=2"], "setting 'trian.epochs=2' has an unknown key trian"),
        (["train={epoch: 2}"], "setting 'train={epoch: 2}' has an unknown key train.epoch"),
    ]:
        with pytest.raises(RecipeError) as caught:
            load_recipe(str(path), settings)
        assert str(caught.value).startswith(blamed)


def test_a_bad_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    for text, message in [
        ("a: [", "not valid YAML"),
        ("- 1", "must be a mapping"),
        (
            "train: {epochs: 2}\ntarget: {}\ntrain: {seed: 1}",
            "the key train occurs twice.*line 3.*correct it",
        ),
        ("train: {epoch: 2}", "train.epochs"),
    ]:
        path.write_text(text)
        with pytest.raises(RecipeError, match=message):
            load_recipe(str(path))
    with pytest.raises(RecipeError, match="no recipe"):
        load_recipe(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    "name", ["chats.jsonl", "chats.jsonl.gz", "chats.csv", "chats.parquet", "conversations.json"]
)
def test_a_log_in_the_place_of_a_recipe_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for text in ('[{"mapping": {}}]', '{"messages": []}\n{"messages": []}', '{"messages": []}'):
        path.write_text(text)
        with pytest.raises(RecipeError, match="a recipe is expected here") as caught:
            load_recipe(str(path))
        option = re.search(r'"(prompts\.sources=.*)"$', str(caught.value))
        assert option is not None
        assert load_recipe("demo", [option[1]]).prompts.sources[0].path == str(path)
    with pytest.raises(RecipeError, match=re.escape(f"prompts.sources=[{{path: {tmp_path}, licence: own}}]")):
        load_recipe(str(tmp_path))


def test_a_recipe_may_be_json(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"train": {"epochs": 2}}')
    assert load_recipe(str(tmp_path / "mine.json")).train.epochs == 2


def test_option_keys_are_those_of_the_yaml() -> None:
    recipe = yaml.safe_load(Recipe().to_yaml())
    keys = [
        f"{part}.{key}" for part, options in recipe.items() if isinstance(options, dict) for key in options
    ]
    keys.remove("train.head")
    keys += ["note", *(f"train.head.{key}" for key in recipe["train"]["head"])]
    assert sorted(option_keys()) == sorted(keys)


def test_the_recipe_reference_is_up_to_date() -> None:
    """A failure here means that an option changed: run `make docs`."""
    folder = Path(__file__).parents[2] / "docs"
    script = runpy.run_path(str(folder / "recipe_reference.py"))
    assert (folder / "recipe.md").read_text("utf-8") == script["reference"]()
    page = (folder / "reference.md").read_text("utf-8")
    assert script["with_engine_options"](page) == page
