"""Hugging Face transformers. Modes: plain (dynamic cache), ngram (prompt lookup; one request at a time only)."""

from protocol import serve


def load(config):
    """The model in bf16, with scaled dot product attention."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        config["model"], dtype=torch.bfloat16, trust_remote_code=False
    )
    model.eval()
    lookup = {"prompt_lookup_num_tokens": 4} if config["mode"] == "ngram" else {}

    def generate(prompts, max_tokens):
        if lookup:  # prompt lookup doesn't support batches
            return [one for prompt in prompts for one in batch([prompt], max_tokens)]
        return batch(prompts, max_tokens)

    def batch(prompts, max_tokens):
        longest = max(len(one["ids"]) for one in prompts)
        ids = torch.tensor([[0] * (longest - len(one["ids"])) + one["ids"] for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one["ids"])) + [1] * len(one["ids"]) for one in prompts])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
                **lookup,
            )
        return output[:, longest:].tolist()

    return f"transformers {transformers.__version__}", generate


if __name__ == "__main__":  # engines may import this script again in processes they spawn
    serve(load)
