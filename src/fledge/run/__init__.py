"""A run from its recipe to its report.

recipe.py reads the recipe (recipes/ has those that ship), folder.py records what a run has done, stages.py has one
function per stage, pipeline.py runs them in order, estimate.py predicts their cost, and closing.py writes the report.
"""
