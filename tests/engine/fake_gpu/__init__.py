"""The real engine on a GPU that isn't there: torch's FakeTensors know devices and shapes, and no values.

    guard.cpp    lets a CPU build of torch have CUDA devices in name
    audit.py     what each operation would be on a GPU: launches, waits of the host, pageable copies, wrong devices
    device.py    what torch's own CUDA part would do: streams, pinned memory, indexing, the present device
    __main__.py  engines of an 8B-shaped target serve requests of all kinds; prints what was noted, as JSON

It runs in a process of its own, for it changes torch itself: `python -m tests.engine.fake_gpu`.
"""
