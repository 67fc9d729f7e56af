"""CPU kernels: matrix products, tree attention, whole forwards and whole rounds in C++, compiled where they run.

They are compiled with the system's C++ compiler on first use, for the processor's instruction set (build.py), and
called through ctypes: abi.py has the C structures; ops.py, `target/cpu.py`, `draft/cpu.py` and
`engine/rounds/native.py` make the calls. One rule holds throughout: every sum runs in one fixed order, so a row's
result never depends on the rows beside it. Read the C++ from the bottom up:

    arithmetic   vectors.h          vectors of 16 numbers: by AVX-512 (vectors_avx512.h), or for AVX2 and NEON by the
                                    compiler's own (vectors_portable.h)
                 vector_math.h      exp, SiLU, RMS norm
                 threads.h          a team of threads: barriers, work stealing
    products     weight.h           weights packed in panels of 32 outputs: their formats
                 gemm.h             the loop over panels and rows
                 tiles_vectors.h    one panel in bf16 times some rows (tiles_amx.h: by AMX tiles)
                 block_bf16.h       its microkernel by AVX-512 bf16 (block_float.h: in float)
                 codes.h            one panel in codes of 4 to 8 bits times some rows, rounded to 8 bits
                 prefetch.h         weights prefetched across the products of a forward
    attention    kv_pages.h         how a page of keys and values lies in memory
                 attention_plan.h   what a row of a tree sees; splits and units of work
                 attention.h        one unit, and merging the splits (softmax.h: its softmax)
    forwards     layer.h            a transformer layer over a batch of rows
                 models.h           target and head as structures, and the calls of their forwards
                 forward.cpp        a forward of the target, and one of the head
    tokens       sampler.h          argmax, top-k, sampling with filters
                 screen.h           a row's token without reading all of the lm_head
                 library.cpp        the other calls: starting, packing, moving KV, sampling, reading
                 abi.cpp            sizes of the structures, checked when the library is loaded
    rounds       round.h            what the call of a round takes and writes
                 round.cpp          draft -> verify -> accept -> extend in one call
                 draft.cpp          draft
                 tree.h             trees on the host, between forwards: tree.cpp, lookup.cpp

docs/lab/kernels.md says what each step brought. tests/native holds what protects them, on other processors' instruction
sets, too.
"""

from fledge.native.build import cache_folder, cpu_flags, library, unavailable_reason

__all__ = ["cache_folder", "cpu_flags", "library", "unavailable_reason"]
