"""OpenVINO GenAI; `model` (and for eagle3 `head`) are folders exported by optimum-intel. Modes: plain, eagle3."""

from protocol import serve


def load(config):
    """Continuous batching on the CPU, bf16."""
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_seqs = config["max_batch"]
    extra = {"INFERENCE_PRECISION_HINT": "bf16"}
    if config["mode"] == "eagle3":
        extra["draft_model"] = openvino_genai.draft_model(config["head"], "CPU")
    pipeline = openvino_genai.ContinuousBatchingPipeline(config["model"], scheduler, "CPU", extra)

    def generate(prompts, max_tokens):
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = max_tokens
        settings.ignore_eos = True
        if config["mode"] == "eagle3":
            settings.num_assistant_tokens = 3
        ids = [openvino.Tensor(numpy.array([one["ids"]], dtype=numpy.int64)) for one in prompts]
        answers = pipeline.generate(ids, [settings] * len(prompts))
        return [answer.m_generation_ids[0] for answer in answers]

    return f"openvino-genai {openvino_genai.__version__}", generate


if __name__ == "__main__":  # engines may import this script again in processes they spawn
    serve(load)
