"""The LLM being accelerated: finding it, its weights, its decoder and its chat template."""
