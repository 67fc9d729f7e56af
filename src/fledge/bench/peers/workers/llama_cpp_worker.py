"""llama.cpp through llama-cpp-python; `model` is a GGUF file of the same precision. Modes: plain, ngram.

Requests go one after the other: the package has no batched generation. Its server has; measure that with
`fledge bench server --server llama=start:...`.
"""

from protocol import serve


def load(config):
    """The model with every thread there is."""
    import os

    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding(num_pred_tokens=4) if config["mode"] == "ngram" else None
    model = llama_cpp.Llama(
        config["model"],
        n_ctx=config["max_context"],
        n_threads=len(os.sched_getaffinity(0)),
        draft_model=draft,
        verbose=False,
    )

    def answer(ids, max_tokens):
        model.reset()
        tokens = []
        for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            if len(tokens) == max_tokens:
                return tokens
        return tokens

    def generate(prompts, max_tokens):
        return [answer(one["ids"], max_tokens) for one in prompts]

    return f"llama-cpp-python {llama_cpp.__version__}", generate


serve(load)
