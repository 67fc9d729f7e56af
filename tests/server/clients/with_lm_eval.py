# /// script
# dependencies = ["lm-eval[api]==0.4.13", "transformers==5.24.0"]
# ///
"""lm-eval through local-completions, on tasks of our own: the same scores with the shipped head and without."""

import json
import sys
from pathlib import Path

from trial import HERE, MODEL, PLAIN_URL, TARGET, URL, output_of, tried

TASKS = HERE / "lm_eval_tasks"


def evaluated(url: str, tasks: str, out: Path) -> tuple[dict[str, dict[str, float]], list[object]]:
    """Scores by task, and each sample's answers."""
    model = f"model={MODEL},base_url={url}/v1/completions,tokenizer={TARGET},num_concurrent=4,max_retries=1"
    output_of(
        sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model,
        "--include_path", str(TASKS), "--tasks", tasks, "--output_path", str(out), "--log_samples", cwd=TASKS,
    )  # fmt: skip
    (results,) = out.rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]
    samples = [
        json.loads(line)["filtered_resps"]
        for file in sorted(out.rglob("samples_*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return scores, samples


def compared(tasks: str, count: int) -> dict[str, dict[str, float]]:
    """The scores, which are the same."""
    with_head, answers = evaluated(URL, tasks, Path(f"{tasks}-head").absolute())
    plain, plain_answers = evaluated(PLAIN_URL, tasks, Path(f"{tasks}-plain").absolute())
    assert with_head == plain
    assert len(answers) == len(plain_answers) == count
    if tasks == "fledge_sentences":
        assert answers == plain_answers  # word for word
    return with_head


@tried("multiple choice, the same scores with the head")
def multiple_choice():
    scores = compared("fledge_facts", 40)["fledge_facts"]
    assert scores["acc,none"] > 0.4  # a quarter is chance


@tried("generation, the same answers with the head")
def generation():
    compared("fledge_sentences", 12)
