"""vLLM, for CPU or GPU. Modes: plain, ngram, eagle3 (a chain of three drafts)."""

import os

from protocol import serve


def load(config):
    """The offline engine in bf16."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the default is a share of all memory
    cores = sorted(os.sched_getaffinity(0))  # all of them: by default it leaves one idle
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    import vllm

    speculative = {
        "plain": None,
        "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4},
        "eagle3": {"method": "eagle3", "model": config["head"], "num_speculative_tokens": 3},
    }[config["mode"]]
    engine = vllm.LLM(
        model=config["model"],
        dtype="bfloat16",
        max_num_seqs=config["max_batch"],
        max_model_len=config["max_context"],
        speculative_config=speculative,
        enable_prefix_caching=False,  # prompts are repeated here
    )

    def generate(prompts, max_tokens):
        params = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        inputs = [{"prompt_token_ids": one["ids"]} for one in prompts]
        return [
            list(answer.outputs[0].token_ids) for answer in engine.generate(inputs, params, use_tqdm=False)
        ]

    return f"vllm {vllm.__version__}", generate


if __name__ == "__main__":  # engines may import this script again in processes they spawn
    serve(load)
