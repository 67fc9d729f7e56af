"""Instruments of the project itself, run from a clone: `python -m benchmarks.NAME --help`. The package needs none.

peers               other engines beside fledge             ratios          what speculation costs and brings under load
privacy             the filter on a labelled corpus         overhead        what HTTP adds to a stream
first_token         short prompts beside long ones          screen_cost     choosing tokens without making logits
ablation            what a recipe's choices are worth       codec_cost      what features in 8 bits cost in tau
predicted           tau as predicted and as served      training_speed  a step beside other trainers' steps
training_memory     peak memory of training                 selection_memory    and of choosing prompts
learning            how soon a server that learns is faster
learning_latency, learning_steady, learning_swaps, learning_poisoned    what that costs

readme_numbers      keeps README's numbers and charts equal to results/; drawing and command are what they share
"""
