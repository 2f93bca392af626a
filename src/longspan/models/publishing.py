"""Cards of models on the Hugging Face Hub: what `push_to_hub` uploads with the weights."""

import re
import shutil
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

LIBRARY = "longspan"
#: A repository that is not known yet.
REPOSITORY = "OWNER/NAME"
#: Source that code in a card loads: in the run folder itself the folder, on the Hub the repository.
NAME = f'name = "."  # this folder; from the Hugging Face Hub, "{REPOSITORY}"'

_TEMPLATE = "This model card has been automatically generated."
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)/\\:]+\.png)\)")


def addressed(card: str, repository: str) -> str:
    """Return a card whose code loads from `repository` of the Hub."""
    return card.replace(NAME, f'name = "{repository}"').replace(REPOSITORY, repository)


def put_card(model: PreTrainedModel, folder: Path, repository: str) -> None:
    """Replace transformers' template in `folder`, which is to be uploaded to `repository`, by the card of `model`.

    That is the card of the run folder which the model was loaded from, with the figures that it shows, or else a short
    one. A card that somebody wrote or uploaded before is kept.
    """
    readme = folder / "README.md"
    written = readme.read_text(encoding="utf-8") if readme.is_file() else _TEMPLATE
    if _TEMPLATE not in written:
        return
    source = Path(model.name_or_path or "none")
    text = (source / "README.md").read_text(encoding="utf-8") if (source / "README.md").is_file() else ""
    if is_ours(text):
        for picture in _PICTURE.findall(text):
            if (source / picture).is_file():
                shutil.copyfile(source / picture, folder / picture)
    else:
        text = short_card(model)
    card = ModelCard(addressed(text, repository))
    # What `push_to_hub(tags=...)` was given.
    asked = ModelCard(written).data.get("tags") if readme.is_file() else None
    card.data["tags"] = list(dict.fromkeys([*(card.data.get("tags") or []), *(asked or [])]))
    card.save(readme)


def is_ours(card: str) -> bool:
    """Say whether a card was written by longspan."""
    return re.match(rf"---\n(?:(?!---\n).+\n)*library_name: {LIBRARY}\n", card) is not None


def short_card(model: PreTrainedModel) -> str:
    """Return the card of a model that comes from no run folder."""
    mixers = list(dict.fromkeys(model.config.mixers))
    head = ModelCardData(library_name=LIBRARY, tags=[LIBRARY, *mixers]).to_yaml()
    return _SHORT.format(
        head=head,
        mixers=", ".join(mixers),
        parameters=f"{model.num_parameters():,}",
        kind=type(model).__name__,
        name=NAME,
    )


_SHORT = """\
---
{head}
---

# {kind}

A model of longspan: {mixers}, {parameters} parameters.

## Use

With the package `longspan` installed:

```python
from longspan import {kind}

{name}
model = {kind}.from_pretrained(name)
```
"""
