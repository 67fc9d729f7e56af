"""A run from its recipe to its report.

recipe.py reads what is wanted (recipes/ has those that ship), folder.py says what a run has done, stages.py has one
function per stage, pipeline.py runs them in order, estimate.py says beforehand what that takes, and closing.py ends it.
"""
