"""The keys of `[data]` of tasks that read graphs."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import SourceData
from longspan.errors import UserError
from longspan.options import Range, option


@dataclass(frozen=True)
class GraphData(SourceData):
    """One graph, whose nodes have features and labels."""

    samples = False

    path: str = option(
        "",
        "npz file: as of Planetoid (`feature_row`, `feature_col`, `feature_value`, `shape`, `label`, `edges`, "
        "`train`, `valid`, `test`), or with matrices in CSR form (`adj_indices`, `attr_data`, ..., `labels`), as "
        "PyG's raw files of Amazon and Coauthor. A csv file with a row for each node, with `edges`. A .graphml or "
        ".graphml.gz file. Files of pickles, such as Planetoid's ind.NAME.graph, are refused: they can execute code.",
    )
    edges: str = option("", "csv file with a row for each edge, where `path` is one of nodes")
    node_column: str = option("node", "column with the names of nodes")
    label_column: str = option(
        "label", "column of nodes, or their attribute, with the classes; empty where a label is unknown"
    )
    split_column: str = option(
        "split",
        'column of nodes, or their attribute, with "train", "validation" or "test". Without it, splits are drawn.',
    )
    source_column: str = option("source", "column of edges with the node that an edge begins at")
    target_column: str = option("target", "column of edges with the node that it ends at")
    edge_feature_columns: list[str] | None = option(
        None, "columns of edges, or their attributes, with numbers that the model adds to its scores"
    )
    directed: Literal["auto", "yes", "no"] = option(
        "auto",
        'whether a node sees only the nodes that have edges to it; otherwise edges lead both ways. "auto" means as '
        "the file says, and both ways where it does not.",
    )
    self_loops: bool = option(True, "whether each node has an edge to itself")
    normalize: Literal["auto", "rows", "columns", "none"] = option(
        "auto",
        'scaling of features: each node\'s to a sum of 1 ("rows"), each feature to mean 0 and spread 1 '
        '("columns"), or not at all ("none"). "auto" means rows for 16 or more features of which none is negative and '
        "most are 0, as counts of words, and columns otherwise. Features of edges have mean 0 and spread 1, unless "
        '"none".',
    )
    walk_positions: int = option(
        0, "steps of a random walk, for each of which a node has its probability of return as a feature", Range(0, 256)
    )
    eigenvector_positions: int = option(
        0,
        "eigenvectors of the Laplacian of the undirected graph, those with the smallest eigenvalues that are not 0, "
        "whose entries are features. Needs scipy.",
        Range(0, 1024),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = next((name for name in ("train", "validation", "test") if getattr(self, name)), None)
        if given is not None:
            raise UserError(
                f"expected one graph in data.path, got data.{given}={getattr(self, given)!r}; name the split of each "
                "node in a column instead (data.split_column)."
            )
