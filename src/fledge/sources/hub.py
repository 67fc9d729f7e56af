"""Targets on the Hugging Face hub, without long waits if the network is down."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from fledge.base.errors import TargetError, first_line
from fledge.sources.files import weight_files

logger = logging.getLogger("fledge")

_ANSWER_SECONDS = 3.0  # per request to the hub
_GIVE_UP_SECONDS = 5.0  # in total, including name resolution, which has no timeout
WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt"]
UNWANTED = ["*/*", "consolidated*"]  # other formats' folders, and Mistral's second copy of the weights


class HubUnreachableError(TargetError):
    """The hub doesn't respond and the model isn't in its local cache."""

    def __init__(self, repo_id: str, reason: str) -> None:
        super().__init__(
            f"{reason} and {repo_id} isn't in its local cache: connect, or give a local folder or GGUF file"
        )
        self.reason = reason


def hub_folder(repo_id: str, also: Sequence[str] = ()) -> Path:
    """The local snapshot of a hub model: downloaded, or from an earlier download if the hub is unreachable.

    `also`: patterns of weight files needed in addition to a target's.
    """
    patterns = [*WANTED, *also]
    reason = unreachable_reason(repo_id)
    with _explained(repo_id, reason):
        if not reason:
            return Path(snapshot_download(repo_id, allow_patterns=patterns, ignore_patterns=UNWANTED))
        folder = Path(snapshot_download(repo_id, allow_patterns=patterns, local_files_only=True))
    if not weight_files(folder) and not any((folder / name).exists() for name in also):
        raise HubUnreachableError(repo_id, reason)
    logger.info("%s: %s; using the copy downloaded earlier", repo_id, reason)
    return folder


def hub_config(repo_id: str) -> Path:
    """A hub model's config.json, without its weights; raises the same errors as `hub_folder`."""
    reason = unreachable_reason(repo_id)
    with _explained(repo_id, reason):
        return Path(hf_hub_download(repo_id, "config.json", local_files_only=bool(reason)))


@contextmanager
def _explained(repo_id: str, reason: str) -> Iterator[None]:
    """Turn the errors of a download into TargetErrors; `reason`: why only the local cache is used, or empty."""
    try:
        yield
    except GatedRepoError as error:
        raise TargetError(
            f"{repo_id} requires accepting a licence: do so at {constants.ENDPOINT}/{repo_id}, then run `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        raise HubUnreachableError(repo_id, reason or first_line(error)) from error
    except EntryNotFoundError as error:
        raise TargetError(f"{repo_id} has no config.json: name a decoder's repository") from error
    except Exception as error:  # whichever HTTP client the hub's library uses has its own types
        raise TargetError(
            f"the download of {repo_id} failed ({first_line(error)}): fix the cause and run the same command "
            "again, which downloads only what is missing"
        ) from error


def unreachable_reason(repo_id: str) -> str:
    """Why the model can't be requested from the hub; empty if it can."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            HfApi().model_info(repo_id, timeout=_ANSWER_SECONDS)
            outcome.append(None)
        except Exception as error:  # whichever HTTP client the hub's library uses has its own types
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_GIVE_UP_SECONDS)
    if not outcome:
        return f"{constants.ENDPOINT} doesn't respond within {_GIVE_UP_SECONDS:.0f} seconds"
    error = outcome[0]
    if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
        raise TargetError(
            f"{constants.ENDPOINT} has no model {repo_id!r}, or not for you: check the spelling, or run `hf auth login`"
        ) from error
    if error is None or isinstance(error, GatedRepoError):
        return ""
    return f"{constants.ENDPOINT} can't be reached ({first_line(error)})"
