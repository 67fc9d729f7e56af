"""From chats and a GGUF file to a head by one command, whose every sentence is true."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

from fledge.base.memory import peak_memory
from fledge.bench import Summary
from fledge.data import read_prompts
from fledge.heads import Head
from tests.commands.command import Fledge
from tests.data.sources.test_exports import chatgpt, lm_studio, open_webui
from tests.run.small_run import write_small_recipe
from tests.sources.tiny_gguf import write_gguf

SUBJECTS = ("bread", "chess", "rivers", "glass", "storms", "bees", "maps", "tea", "clocks", "violins", "paint", "salt",
            "bridges", "foxes", "islands", "candles", "tunnels", "lemons", "kites", "ships", "owls", "snow", "wool",
            "coins", "drums", "ferns", "lamps", "goats")  # fmt: skip
LOG = [
    *({"messages": [{"role": "user", "content": f"Tell me how people first learned about {subject} and why"},
                    {"role": "assistant", "content": "ANSWERTEXT"}]} for subject in SUBJECTS),
    {"messages": [{"role": "user", "content": f"Tell me how people first learned about {SUBJECTS[0]} and why"}]},
    {"messages": [{"role": "user", "content": "Hi"}]},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a target and chats; no hub is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_gguf(tiny_target_folder, tmp_path / "my.gguf")
    nobody = chatgpt(mapping={"1": {"message": None, "parent": None, "children": []}}, current_node="1")
    (tmp_path / "conversations.json").write_text(json.dumps([of("kites", chatgpt()), nobody]))
    (tmp_path / "webui.json").write_text(json.dumps([of("trams", open_webui())]))
    (tmp_path / "lmstudio").mkdir()
    (tmp_path / "lmstudio" / "1.conversation.json").write_text(json.dumps(of("coats", lm_studio()), indent=1))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    return tmp_path


def of(subject: str, row: dict[str, Any]) -> Any:
    """An export's conversation about something else."""
    return json.loads(json.dumps(row).replace("boats float", f"{subject} weigh so little"))


def small(folder: Path) -> list[str]:
    """Settings that take a tiny target through a run in seconds."""
    recipe = yaml.safe_load(write_small_recipe(folder / "small.yaml", folder).read_text())
    del (
        recipe["target"],
        recipe["prompts"]["count"],
        recipe["bench"]["own_prompts"],
        recipe["bench"]["concurrency"],
    )
    return [
        f"{part}.{key}={json.dumps(value)}"
        for part, values in recipe.items()
        for key, value in values.items()
    ]


CHATS = ("--from", "conversations.json", "--from", "webui.json", "--from", "lmstudio", "--from", "log.jsonl")


def test_what_it_says_is_true_and_a_run_of_its_recipe_is_the_same(fledge: Fledge, folder: Path) -> None:
    arguments = ("make-head", "my.gguf", *CHATS, "--prompts", "40", *small(folder))
    said = fledge(*arguments)
    for line in (
        "conversations.json: 1 conversation with 2 turns usable, 1 left out (1 no_user_turn)",
        "webui.json: 1 conversation with 2 turns usable\n",
        "lmstudio: 1 conversation with 2 turns usable\n",
        "log.jsonl: 28 conversations with 28 turns usable, 2 left out (1 repeat, 1 too_short (prompts.min_words is 4))",
        "too little by itself: the full demo's head is made of 1,200 turns",
        "The target writes 9 prompts of its own, up to --prompts 40.",
        "40 prompts in all are fewer than the full demo's 1,200",
    ):
        assert line in said
    told_of_memory = re.search(r"memory: about ([\d.]+) ([MG])B\n", said)
    assert told_of_memory
    assert float(told_of_memory[1]) * {"M": 1e6, "G": 1e9}[told_of_memory[2]] > 0.9 * peak_memory()
    run = folder / "runs" / "my"
    found = Counter(prompt.source for prompt in read_prompts(str(run / "prompts")))
    assert found == {"conversations.json": 1, "webui.json": 1, "lmstudio": 1, "log.jsonl": 28, "self": 9}
    assert {prompt.licence for prompt in read_prompts(str(run / "prompts"))} == {
        "own",
        "own output of the target",
    }
    told = yaml.safe_load((run / "recipe.yaml").read_text())
    assert [source["path"] for source in told["prompts"]["sources"]] == [*CHATS[1::2], ""]

    ending = said[said.index("report: ") :]
    evaluation = json.loads((run / "evaluation.json").read_text())
    summary = Summary.load(str(run / "summary.json"))
    assert f"acceptance: {evaluation['overall']['tau']:.2f} tokens per verify (tau) in chains of 3" in ending
    assert f"on {evaluation['conversations']} held-out conversations" in ending
    measured, alone = summary.workloads["held-out"], summary.without_lookup
    assert alone is not None
    assert f"one request: {measured.speedup:.2f}×, without prompt lookup " in ending
    assert f"{alone.workloads['held-out'].speedup:.2f}× (held-out, {measured.prompts} prompt" in ending
    assert "pay" in ending
    depths = evaluation["by_temperature"]["0"]["by_depth"]
    assert f"(of 2: tau about {1 + depths[0] + depths[1]:.2f} on those conversations)" in ending
    assert "fledge serve my.gguf --head runs/my/head\n" in ending
    assert (
        "llama-server -m my.gguf -md runs/my/head.gguf --spec-type draft-eagle3 --spec-draft-n-max 2"
        in ending
    )
    (export,) = re.findall(r"  fledge (export .*)", ending)
    fledge(*export.split())
    assert Head.load("runs/my/head.gguf").config == Head.load("runs/my/head").config

    assert "ANSWERTEXT" not in (run / "report.html").read_text()
    again = fledge(*arguments)
    assert again.count("done before") == 6
    assert said[: said.index("head: MLP")] in again
    assert fledge("run", "runs/my/recipe.yaml", "--run-dir", run).count("done before") == 6
    assert "runs/my/prompts was made from other inputs" in fledge.error(*arguments, "--prompts", "41")


def test_without_chats_the_target_writes_all_prompts(fledge: Fledge, folder: Path) -> None:
    said = fledge("make-head", "my.gguf", "--prompts", "30", "--run-dir", "own", *small(folder))
    assert said.startswith(
        "The target writes all 30 prompts itself: no chats are named (--from).\n30 prompts in all"
    )
    assert {prompt.source for prompt in read_prompts(str(folder / "own" / "prompts"))} == {"self"}
    measured = Summary.load(str(folder / "own" / "summary.json")).workloads["held-out self"]
    assert f"(held-out self, {measured.prompts} prompts)" in said


def test_chats_that_suffice_leave_the_target_nothing_to_write(fledge: Fledge, folder: Path) -> None:
    said = fledge("make-head", "my.gguf", "--from", "log.jsonl", "--prompts", "20", *small(folder))
    assert "20 of 28 conversations are drawn, as --prompts says." in said
    found = Counter(prompt.source for prompt in read_prompts(str(folder / "runs" / "my" / "prompts")))
    assert found == {"log.jsonl": 20}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("my.gguf", "--from", "conversation.json"),
            "has no files: there is nothing of that name; did you mean conversations.json?",
        ),
        (("my.gguf", "--from", "empty.json"), "source empty.json is empty"),
        (
            ("my.gguf", "--from", "silent.json"),
            "no turn of a user is in silent.json: 1 no_user_turn; name other chats",
        ),
        (
            ("my.gguf", "--from", "short.jsonl"),
            "0 conversations with 0 turns usable, 1 left out (1 too_short",
        ),
        (("my.gguf", "--from", "picture.png"), "can't tell the format of"),
        (("log.jsonl", "--from", "log.jsonl"), "log.jsonl"),
        (("absent.gguf", "--from", "log.jsonl"), "absent.gguf"),
        (("my.gguf", "log.jsonl"), "'log.jsonl' is not a setting; name chats with --from log.jsonl"),
        (("my.gguf", "--from", "log.jsonl", "train.minuts=1"), "did you mean train.minutes?"),
        (("my.gguf", "--from", "log.jsonl", "--from", "log.jsonl"), "two sources are called log.jsonl"),
    ],
)
def test_what_cannot_work_ends_in_one_line(
    fledge: Fledge, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    (folder / "empty.json").write_text("[]")
    (folder / "silent.json").write_text(
        json.dumps([{"messages": [{"role": "assistant", "content": "Hello"}]}])
    )
    (folder / "short.jsonl").write_text(json.dumps(LOG[-1]))
    (folder / "picture.png").write_bytes(b"PNG")
    assert message in fledge.error("make-head", *arguments)
    kept = "short.jsonl" in arguments  # its words were read, so that the error says what to delete
    assert (folder / "runs").exists() is kept


def test_one_prompt_is_too_few(fledge: Fledge, folder: Path) -> None:
    assert "--prompts" in fledge("make-head", "my.gguf", "--prompts", "1", expect=2)
