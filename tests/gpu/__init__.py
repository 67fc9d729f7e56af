"""What only a GPU can show, in one time-boxed command: `make gpu`. docs/gpu.md says what it proves.

    __main__.py   the command; record.py: cases, and the lines they leave
    script.py     a target of any size in memory, whose answers are known, and a head that knows most of them
    parts         device.py, kernels.py, answers.py, training.py, reads.py, speed.py, smollm2.py

Without a GPU the same functions run at tiny sizes, with the kernels in Triton's interpreter: a rehearsal.
"""
