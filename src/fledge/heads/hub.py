"""Heads on a model hub: pushes a folder in one commit. To pull: `Head.load("org/name")`."""

from __future__ import annotations

from huggingface_hub import HfApi

from fledge.base.errors import HeadError, first_line


def push_folder(folder: str, repository: str) -> str:
    """Create the repository if needed (private) and upload the folder's files; returns the commit's URL."""
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="model", private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            repo_type="model",
            folder_path=folder,
            commit_message="Add an EAGLE-3 draft head (written by fledge)",
        )
    except Exception as error:  # whichever HTTP client the hub's library uses has its own types
        raise HeadError(
            f"can't push to {repository} ({first_line(error)}): run `hf auth login` with a token with write access"
        ) from error
    return str(commit.commit_url)
