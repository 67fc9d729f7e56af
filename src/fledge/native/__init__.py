"""CPU kernels: matrix products, tree attention and whole-layer forwards in C++, compiled where they run."""

from fledge.native.build import cache_folder, cpu_flags, library, unavailable_reason

__all__ = ["cache_folder", "cpu_flags", "library", "unavailable_reason"]
