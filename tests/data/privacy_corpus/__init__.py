"""Labelled corpora of invented personal data, and what the privacy filter finds in them.

python -m tests.data.privacy_corpus --records 4000 --half report

corpus    makes the five corpora: templates (the folders) filled with values by the *_values modules
measure   recall and precision per entity and language, prompts per second
"""
