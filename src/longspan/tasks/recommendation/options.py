"""Options of recommendation."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.options import Range, option
from longspan.tasks.base import options
from longspan.tasks.base.options import EvaluationOptions

__all__ = ["EvaluationOptions", "RecommendationData", "TrainingOptions"]


@dataclass(frozen=True)
class TrainingOptions(options.TrainingOptions):
    """Training options of recommendation."""

    batch_clicks: int = option(
        16384, "maximum number of clicks and candidates in a batch, padding included; 0 means no limit", Range(0)
    )


@dataclass(frozen=True)
class RecommendationData(DataConfig):
    """Impressions shown to users, and their clicks."""

    # A share of the impressions would leave gaps in the histories.
    samples = False

    path: str = option(
        "",
        "folder of MIND, unpacked (https://msnews.github.io): one with news.tsv and behaviors.tsv, or one whose "
        "sub-folders have them. Sub-folders are called train, valid or dev, and test, or end so, such as "
        'MINDsmall_dev. Or a table (csv, tsv, jsonl, parquet, or "hub:NAME") with a row for each impression and the '
        "columns of behaviors.tsv; its news are those of `news`. Or a click log: a table with a row for each item "
        "that a user was shown, with user, text, whether it was clicked and, if known, when. A .txt file is a log "
        "without header, whose fields are separated by tabs. Text formats may be compressed: .gz, .xz, .zst or .zip.",
    )
    text_column: str = option("title", "column with the text of an item: its title")
    tokens: str = "words"
    news: str = option(
        "",
        "table of news (or other items) for a table of impressions, with identifiers and titles: news.tsv of MIND, or "
        "csv, tsv, jsonl or parquet with a header. A file called news next to the impressions is read without being "
        "named. For a click log, the items of its identifiers, instead of the columns of its rows.",
    )
    user_column: str = option("user", "column with the user")
    clicked_column: str = option("clicked", "column of a click log that says whether the item was clicked, 1 or 0")
    time_column: str = option(
        "time",
        "column with the time, if any. Times are numbers, or text in ISO 8601 or MIND's format, such as `2019-11-11 "
        "09:05:58` or `11/11/2019 9:05:58 AM`. It orders the rows of each user. Without it, the history of a row of a "
        "log has all other clicks of its user in training.",
    )
    impression_column: str = option(
        "impression",
        "column with the identifier of an impression, if there is one. Rows of a click log with the same user and "
        "impression were shown together; so, without it, were those with the same user and time.",
    )
    item_column: str = option(
        "item",
        "column with the identifier of an item, which tables of news need. Without it, items of a click log are "
        "identified by their texts.",
    )
    history_column: str = option(
        "history",
        "column of a table of impressions with the items clicked before, oldest first: identifiers in a list, or "
        "separated by spaces",
    )
    candidates_column: str = option(
        "candidates",
        "column of a table of impressions with the items shown, as in `history_column`, each followed by -1 if it was "
        "clicked and by -0 if not",
    )
    category_column: str = option("category", "column with the category of an item, if there is one")
    subcategory_column: str = option("subcategory", "column with its subcategory, if there is one")
    abstract_column: str = option("abstract", "column with its abstract, if there is one")
    entities_column: str = option(
        "entities",
        "column with the entities in it, if there is one: a list of identifiers; MIND's list of objects with "
        '"WikidataId"; or text such as "331:Bruce Springsteen;36136:Tautog", of which the numbers count',
    )
    entity_vectors: str = option(
        "",
        "file with a vector for each entity, its identifier first (entity_embedding.vec of MIND); empty for none. Of "
        "a folder, all files of this name are read.",
    )
    history: int = option(50, "number of clicks of a user that count, the most recent ones; 0 is all", Range(0))
    negatives: int = option(
        4, "items shown but not clicked that training compares with each clicked item", Range(1), advice="4 is usual"
    )
    max_length: int = option(30, "maximum number of tokens of a title; 0 keeps all")
    max_abstract_length: int = option(0, "maximum number of tokens of an abstract; 0 leaves abstracts out", Range(0))
    max_entities: int = option(5, "maximum number of entities of an item; 0 leaves entities out", Range(0))
