"""Instruments of the project itself, run from a clone: `python -m benchmarks.NAME --help`. The package needs none.

peers      other engines beside fledge          ratios     what speculation costs and brings under load
privacy    the filter on a labelled corpus      ablation   what each choice of a recipe is worth in tau
learning   how soon a server that learns is faster         overhead   what HTTP adds to a stream
"""
