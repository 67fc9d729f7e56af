"""fledge itself, with the same protocol as its peers. Modes: plain, eagle3."""

from protocol import serve


def load(config):
    """The engine in bf16."""
    import fledge

    target = fledge.Target.load(config["model"])
    head = fledge.Head.load(config["head"]) if config["mode"] == "eagle3" else None
    engine = fledge.Engine(
        target, head, max_batch=config["max_batch"], max_context=config["max_context"], prefix_cache=False
    )

    def generate(prompts, max_tokens):
        done = engine.generate([one["ids"] for one in prompts], max_tokens=max_tokens, ignore_eos=True)
        return [answer.token_ids for answer in done]

    return f"fledge {fledge.__version__}", generate


if __name__ == "__main__":  # engines may import this script again in processes they spawn
    serve(load)
