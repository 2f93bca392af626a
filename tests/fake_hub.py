"""The Hugging Face Hub as a dictionary: what is uploaded where, without a network."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitInfo, HfApi, ModelCard, RepoUrl
from huggingface_hub.errors import LocalEntryNotFoundError


class FakeHub:
    """Repositories by name, and their files by path."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commits = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let huggingface_hub, and all that uses it, write here."""
        monkeypatch.setattr(HfApi, "create_repo", lambda api, *given, **named: self._create(*given, **named))
        monkeypatch.setattr(HfApi, "create_branch", lambda api, *given, **named: None)
        monkeypatch.setattr(HfApi, "create_commit", lambda api, *given, **named: self._commit(*given, **named))
        monkeypatch.setattr(ModelCard, "load", staticmethod(self._card))

    def download(self, name: str, folder: Path) -> Path:
        """Write the files of a repository to a folder."""
        for path, content in self.repositories[name].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder

    def _create(self, repo_id: str, **_: Any) -> RepoUrl:
        name = repo_id if "/" in repo_id else f"me/{repo_id}"
        self.repositories.setdefault(name, {})
        return RepoUrl(f"https://huggingface.co/{name}", endpoint="https://huggingface.co")

    def _commit(self, repo_id: str, operations: Any, **_: Any) -> CommitInfo:
        self.commits += 1
        for operation in operations:
            with operation.as_file() as file:
                self.repositories[repo_id][operation.path_in_repo] = file.read()
        return CommitInfo(f"https://huggingface.co/{repo_id}/commit/1", "", "", "1")

    def _card(self, repo_id: str, **_: Any) -> ModelCard:
        if "README.md" not in self.repositories.get(repo_id, {}):
            raise LocalEntryNotFoundError(repo_id)
        return ModelCard(self.repositories[repo_id]["README.md"].decode())
