"""A labelled corpus of personal data, made on the spot, and what the privacy filter finds in it.

python -m fledge.bench.privacy --records 4000 --half report
"""
