"""How fast a step of training is, beside a plain loop and speculators: `python -m benchmarks.training_speed`."""
