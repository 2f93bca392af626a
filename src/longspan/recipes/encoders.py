"""What a recipe takes from the pretrained encoder that reads for its model: `give_way` and `complete`.

`model.encoder` names it. It reads its own tokens, which replace those in a recipe's file where it is given as an
override, together with the file's keys for their vectors.
"""

from longspan.data.text import encoders
from longspan.errors import UserError
from longspan.models.embeddings.tokens import TokenSettings
from longspan.recipes.starting import TOKENS, Tables

_VECTORS = (*TokenSettings.settings(), "scale_embeddings", "embedding_dim")


def give_way(tables: Tables) -> None:
    """Take out of a recipe's tables what would be the tokens and word vectors of a new model."""
    for table, keys in (("model", _VECTORS), ("data", (*TOKENS, "tokenizer_from"))):
        tables[table] = {key: value for key, value in tables.get(table, {}).items() if key not in keys}


def complete(tables: Tables) -> None:
    """Fill in the tokens of the encoder that a recipe names, if it names one.

    Raises:
        UserError: The recipe has other tokens.
    """
    model, data = tables["model"], tables["data"]
    encoder = model.get("encoder")
    if not encoder:
        return
    for where, run in {
        "model.start_from": model.get("start_from"),
        "data.tokenizer_from": data.get("tokenizer_from"),
    }.items():
        if run:
            raise UserError(
                f"expected the tokens of the encoder {encoder!r}, got those of the run {run!r} ({where}); leave one of "
                "them out."
            )
    data.setdefault("tokens", encoder)
    encoders.check_tokens(encoder, data["tokens"])
