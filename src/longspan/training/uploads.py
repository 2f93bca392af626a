"""Uploads of run folders to the Hugging Face Hub."""

from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

from longspan.data.text.pairs import TARGET
from longspan.errors import UserError, first_line
from longspan.models.publishing import addressed

#: Suffixes of files that other tools read or people look at; never a pickle, no checkpoint, no log.
_KINDS = (".json", ".jsonl", ".md", ".model", ".png", ".safetensors", ".toml", ".txt")


def push_run(
    folder: Path,
    repository: str,
    *,
    message: str,
    token: str | None = None,
    revision: str | None = None,
    private: bool | None = None,
) -> CommitInfo:
    """Upload the files of a finished run, but for its checkpoints, with its card as the repository's.

    Raises:
        UserError: the run is unfinished, or the Hub refuses or cannot be reached.
    """
    if not (folder / "metrics.json").is_file():
        raise UserError(f"expected a finished run to push, got {str(folder)!r}; finish its training first.")
    api = HfApi(token=token)
    try:
        repository = api.create_repo(repository, private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        every = sorted([*folder.iterdir(), *(folder / TARGET).glob("*")])
        files = {
            path.relative_to(folder).as_posix(): path for path in every if path.suffix in _KINDS and path.is_file()
        }
        card = addressed((folder / "README.md").read_text(encoding="utf-8"), repository).encode()
        operations = [CommitOperationAdd(name, card if name == "README.md" else path) for name, path in files.items()]
        return api.create_commit(repository, operations, commit_message=message, revision=revision)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise refused(repository, error) from error


def refused(repository: str | None, error: Exception) -> UserError:
    """Error with the answer of the Hub, or why it gave none."""
    return UserError(
        f"expected to write to {repository!r} on the Hugging Face Hub, got an error ({first_line(error)}); log in with "
        "`hf auth login`, check training.hub_model_id and the connection, or leave training.push_to_hub out."
    )
