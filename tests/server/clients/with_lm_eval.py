# /// script
# dependencies = [
#     "aiohttp==3.14.5", "datasets==5.2.0", "dill==0.4.1", "evaluate==0.4.6", "jinja2==3.1.6", "more-itertools==11.2.1",
#     "pytablewriter==1.2.1", "requests==2.34.2", "sacrebleu==2.6.0", "scikit-learn==1.9.1", "tenacity==9.2.1",
#     "tiktoken==0.14.0", "transformers==5.24.0",
# ]
#
# [tool.clients]
# without-dependencies = ["lm-eval==0.4.13"] # three of them have no wheels, and are for other tasks than these
# ///
"""lm-eval through local-completions, on tasks of our own: the same scores with the shipped head and without."""

import json
import sys
from pathlib import Path

from trial import HERE, MODEL, PLAIN_URL, TARGET, URL, output_of, tried

TASKS = HERE / "lm_eval_tasks"


FACTS, SENTENCES = "fledge_facts", "fledge_sentences"


def evaluated(url: str, out: Path) -> tuple[dict[str, dict[str, float]], dict[str, list[object]]]:
    """Scores and each sample's answers, by task."""
    model = f"model={MODEL},base_url={url}/v1/completions,tokenizer={TARGET},num_concurrent=4,max_retries=1"
    output_of(
        sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model,
        "--include_path", str(TASKS), "--tasks", FACTS, SENTENCES, "--output_path", str(out), "--log_samples",
        cwd=TASKS,
    )  # fmt: skip
    (results,) = out.rglob("results_*.json")
    answers = {}
    for task in (FACTS, SENTENCES):
        (samples,) = out.rglob(f"samples_{task}_*.jsonl")
        answers[task] = [json.loads(line)["filtered_resps"] for line in samples.read_text().splitlines()]
    return json.loads(results.read_text())["results"], answers


with_head = evaluated(URL, Path("head").absolute())
plain = evaluated(PLAIN_URL, Path("plain").absolute())


@tried("multiple choice, same scores with the head")
def multiple_choice():
    assert with_head[0][FACTS] == plain[0][FACTS]
    assert len(with_head[1][FACTS]) == len(plain[1][FACTS]) == 40
    assert with_head[0][FACTS]["acc,none"] > 0.4  # a quarter is chance


@tried("generation, same answers with the head")
def generation():
    assert with_head[1][SENTENCES] == plain[1][SENTENCES]
    assert len(with_head[1][SENTENCES]) == 12
