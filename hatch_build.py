"""Build hook: a wheel that is built where there is a C++ compiler contains the CPU kernels.

There are two libraries, one for training, for each instruction set that this kind of processor may have. A file's
name ends in its checksum, which is checked before it is loaded (`fledge.native.build.prebuilt`). Without a compiler the
wheel has none of them and runs anywhere; the kernels are then compiled where it is installed, or PyTorch does the work.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltKernels(BuildHookInterface[Any]):
    """Compiles the kernels into a folder of their own, from which they go into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel, and the platform to its tag."""
        package = Path(self.root) / "src" / "fledge"
        self.settings = settings = runpy.run_path(str(package / "native" / "instruction_sets.py"))
        compiler = settings["find_compiler"]()
        if version == "editable" or platform.system() != "Linux" or not compiler:
            return
        self.folder = tempfile.TemporaryDirectory()
        jobs = [
            (f"{name}-{isa}", package / room, (*flags, *wanted.flags))
            for isa, wanted in settings["INSTRUCTION_SETS"].items()
            if wanted.machine == platform.machine()
            for name, room, flags in (
                ("fledge", "native", settings["FLAGS"]),
                ("train", "train", settings["TRAIN_FLAGS"]),
            )
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            libraries = [path for path in pool.map(lambda job: self._compile(compiler, *job), jobs) if path]
        if libraries:
            places = {str(path): f"fledge/native/prebuilt/{path.name}" for path in libraries}
            build_data["force_include"].update(places)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder of libraries."""
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _compile(self, compiler: str, name: str, sources: Path, flags: tuple[str, ...]) -> Path | None:
        built = Path(self.folder.name) / f"{name}.so"
        units = sorted(map(str, sources.glob("*.cpp")))
        command = self.settings["compiler_command"](compiler, flags, units, built)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            self.app.display_warning(f"{name} is left out: {compiler} can't compile it\n{ended.stderr[:500]}")
            return None
        return built.rename(built.with_name(self.settings["named"](name, built)))
