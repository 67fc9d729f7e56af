"""SGLang on a GPU. Modes: plain, ngram, eagle3 (with SGLang's own choice of steps and tree)."""

from protocol import serve


def load(config):
    """The offline engine in bf16."""
    import sglang

    speculative = {
        "plain": {},
        "ngram": {"speculative_algorithm": "NGRAM"},
        "eagle3": {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": config["head"]},
    }[config["mode"]]
    engine = sglang.Engine(
        model_path=config["model"],
        dtype="bfloat16",
        context_length=config["max_context"],
        max_running_requests=config["max_batch"],
        disable_radix_cache=True,  # prompts are repeated here
        **speculative,
    )

    def generate(prompts, max_tokens):
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
        answers = engine.generate(input_ids=[one["ids"] for one in prompts], sampling_params=params)
        return [answer["output_ids"] for answer in answers]

    return f"sglang {sglang.__version__}", generate


if __name__ == "__main__":  # SGLang imports this script again in the processes it spawns
    serve(load)
