"""What speculation costs and brings: `python -m benchmarks.ratios`.

parts.py  what is measured      kv_reads.py  its part about a GPU's attention      line.py  a line of the table
"""
