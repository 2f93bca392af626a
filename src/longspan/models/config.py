"""The configuration of every longspan model."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from longspan.errors import UserError, check_choice
from longspan.models import recommenders
from longspan.models.backbone import ACTIVATIONS
from longspan.models.checks import (
    check_clusters,
    check_encoder,
    check_ngrams,
    check_recommendation,
    check_targets,
    check_values,
    check_words,
)

#: What the embeddings and the layers are made of; the other settings are those of heads, losses and training.
SHAPE = (
    *("dim", "depth", "heads", "feed_forward_dim", "mixers", "mixer_options", "causal", "forget", "rotary"),
    *("short_convolution", "ngrams", "ngram_buckets", "position", "position_combine", "max_positions"),
    *("position_period", "embedding_dim", "cutoffs", "div_val", "scale_embeddings", "embedding_norm", "norm"),
    *("residual", "share_layers", "activation", "word_characters", "word_neighbours"),
    "word_buckets",
)
POOLINGS = ("attention", "mean", "max", "mean+max", "first")
QUESTIONS = ("context", "front")


@strict
class LongspanConfig(PreTrainedConfig):
    """Shape of a longspan model; the names that other models of transformers use for it work too (`attribute_map`).

    Args:
        vocab_size: number of token ids.
        dim: width of the model.
        depth: number of layers.
        heads: number of heads of each mixer that has heads.
        feed_forward_dim: hidden width of the feed-forward networks; None means 4 * dim, 0 means none.
        mixers: names of the mixers, repeated over the depth, such as ["additive", "softmax"] for a hybrid; None means
            ["additive"].
        mixer_options: options per mixer, {"additive": {"sharing": "none"}}.
        cross_mixers: names of mixers with cross attention (additive, linear, messages, softmax), repeated over the
            depth, through which each layer attends to another sequence, the context, after its own mixer; None or an
            empty list means none. `mixer_options` counts for them too.
        question: how models that read a question with a document do so: "context", by cross attention in every layer
            (if cross_mixers is None, through those of mixers that have it), or "front", in front of the document.
        part_depth: number of layers over the parts of a document, in models that find those which answer a question.
        lexical_match: whether such models are told how the words of a question occur in each part.
        causal: whether positions see only themselves and earlier positions.
        forget: how each head of a causal mixer that forgets does so: "none", "fixed", "learned" or "input" (see
            `longspan show additive`). Other mixers ignore it, but one of the model must know it.
        rotary: whether mixers that can (`softmax`, `local`, `linear`) rotate queries and keys by their position. Other
            mixers ignore it, but one of the model must know it.
        short_convolution: how many neighbouring positions a depthwise convolution in front of every mixer sees, such as
            4: the position itself and those before it, or with causal=false those around it; 0 means none.
        ngrams: sizes of n-grams of tokens, such as [2, 3], whose hashed embeddings are added to that of the token they
            end at; None or an empty list means none.
        ngram_buckets: number of vectors for n-grams; those with the same hash share one.
        word_characters: whether what a word looks like is added to the embeddings of its tokens: its first and its last
            1 to 5 characters, itself, and its shape, hashed. Not with causal=True, as a word's first token would show
            the others.
        word_neighbours: number of words on either side whose hashes are added, too, as pairs with the word for the next
            ones.
        feature_neighbours: number of words on either side whose further feature (`features`) is hashed, too, alone and
            with those next to it.
        word_buckets: number of vectors for these; those with the same hash share one.
        position: "sinusoidal", "learned", "fourier" or "none".
        position_combine: "add" or "concat".
        max_positions: largest number of tokens with learned positions; the scale of fourier positions.
        position_period: number of tokens after which position numbers restart at 0, for endless streams; None means
            never.
        embedding_dim: width of the word vectors if it is not that of the model (a linear map connects the two). None
            means dim, or dim / 2 if positions are concatenated, and with a `recommender` from a paper the paper's.
        cutoffs: first tokens of the clusters of rarer tokens, for adaptive embeddings and softmax; [] means a single
            cluster, None plain embeddings and softmax.
        div_val: factor by which each cluster's word vectors are narrower than those of the previous cluster.
        tie_word_embeddings: whether language models use the word vectors as output weights too.
        tie_projections: per cluster, whether the softmax shares the embeddings' projection; None means all but the
            first, as published.
        scale_embeddings: whether word vectors are multiplied by the square root of dim.
        embedding_norm: whether the embeddings are normalised; None means only with norm="post", as in BERT.
        norm: "pre", "post" or "none".
        residual: whether blocks add their input to their output.
        share_layers: whether layers share their weights.
        activation: activation of the feed-forward networks, "gelu" or "relu".
        feed_forward_dropout: whether the feed-forward networks also apply dropout after the activation.
        dropout: dropout of the embeddings, the mixers and the feed-forward networks.
        token_dropout: probability of zeroing a whole token in training, before positions are added; with
            word_characters, of the token and of the word as a whole, but not of its characters.
        classifier_dropout: dropout before the classifier, or before a language model's softmax; None means `dropout`.
        crf: whether a token classifier scores whole sequences of labels, with a score for each label after each other
            one: a linear-chain conditional random field (Lafferty et al. 2001).
        features: number of values of a further feature of words that a token classifier reads; 0 for none.
        feature_values: the values of that feature, from 1 on; the model does not read them.
        label_scheme: the scheme of the labels that a token classifier was trained with ("plain", "IOB1", "IOB2" or
            "IOBES"); those it gives are in IOB2 unless they are plain. The model does not read it.
        pooling: how a document becomes one vector: "attention" (additive pooling), "mean", "max", "mean+max" (both, one
            after the other) or "first".
        wide: whether a classifier adds the logits of a linear model over n-grams of 1 to 3 tokens, fitted to the
            training documents before the rest is trained, which reads what n-grams say of each class beside its tokens;
            what each part counts for is chosen on the validation split.
        wide_buckets: places in the hash table of these n-grams; where two meet, the more frequent one stays. None means
            enough for the training documents, at most 2^20, and 2^22 for all classes together.
        wide_characters: whether these are also n-grams of 2 to 5 characters within a token, so that what is said of a
            word is said in part of words that look like it. None means where training documents are few, and training
            documents held out are predicted better with them; in a model that is built without training, no.
        label_smoothing: share of the target spread evenly over all classes in the classification loss.
        class_weights: the weight of each class in the classification loss in training; None means 1.
        thresholds: the probability from which each of several labels is given; None means 0.5. The model does not
            apply them.
        target_mean: what is added to, and `target_scale` what multiplies, the outputs of regression; the loss is that
            of targets without them.
        target_scale: see `target_mean`.
        longest_answer: the most tokens of a document that answer a question.
        answer_threshold: log-odds, against that there is none, from which an answer to a question is given; None means
            that one always is. The model does not apply it.
        recommender: what reads items and users in models that recommend: "longspan", "fastformer", "nrms", "naml",
            "lstur", "npa", or a dotted path. `dim`, `depth`, `mixers` and what else shapes layers is for the first
            alone: the others have the sizes of their papers.
        recommender_options: options of the recommender, such as {"combination": "con"} for lstur.
        recommendation_loss: "softmax" (each clicked candidate against those of its impression that were not clicked),
            "binary" (each candidate for itself) or "pairwise" (each clicked one against each that was not).
        user_mixers: names of mixers over the clicks of a user, repeated over `user_depth`; None means `mixers`.
        user_depth: number of layers over the clicks.
        user_causal: whether clicks see only earlier ones, so that a user's vector is updated click by click.
        user_position: how clicks are numbered, counting back from the newest: "none", "sinusoidal", "learned" or
            "fourier"; from `max_positions` on all are equally far with "learned".
        users: number of known users, 1 to `users`; 0 is one who is not known, as for the next three.
        categories: number of categories of items.
        subcategories: number of subcategories.
        entities: number of entities that items name.
        user_names: what known users are called, from 1 on; the model does not read names. So the next three.
        category_names: see `user_names`.
        subcategory_names: see `user_names`.
        entity_names: see `user_names`.
        entity_dim: width of the vectors of entities.
        abstracts: whether items have abstracts.
        use_cache: whether a causal model also returns states from whole sequences, if the call does not say and outside
            training; None means no, though `generate` uses states.
        encoder: name on the Hugging Face Hub, or folder, of a pretrained model (`AutoModel`) whose outputs replace word
            vectors. It reads documents in overlapping windows of its own tokens; a linear map connects its width and
            `embedding_dim`. None means none.
        encoder_window: tokens in a window, special tokens included; None means as many as the encoder can read.
        encoder_overlap: tokens that neighbouring windows share at least; each token is taken from the window in which
            it is farther from the ends. None means a quarter of a window.
        train_encoder: whether the encoder is trained, too; if not, its outputs are computed once and kept on disk.
        encoder_config: the settings of the encoder's own configuration, found when it is read.
        encoder_special_ids: the ids of the special tokens that it expects before and after a text, found likewise.
        initializer_range: standard deviation of new weights.
        pad_token_id: the id of padding, whose embedding stays zero (unless it is also an output weight); None if every
            id is a token.

    Raises:
        UserError: for an unknown pooling or activation, impossible sizes, cutoffs or ties, or two names of one setting
            with different values.
    """

    model_type = "longspan"
    # BERT's names, which most tools read, then GPT-2's and T5's.
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "feed_forward_dim",
        "max_position_embeddings": "max_positions",
        "embedding_size": "embedding_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "n_embd": "dim",
        "n_layer": "depth",
        "n_head": "heads",
        "n_inner": "feed_forward_dim",
        "n_positions": "max_positions",
        "d_model": "dim",
        "num_layers": "depth",
        "num_heads": "heads",
        "d_ff": "feed_forward_dim",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "losses", "user_vectors", "history_weights"]

    vocab_size: int = 16000
    dim: int = 256
    depth: int = 2
    heads: int = 16
    feed_forward_dim: int | None = None
    mixers: list[str] | None = None
    mixer_options: dict[str, dict[str, Any]] | None = None
    cross_mixers: list[str] | None = None
    question: str = "context"
    part_depth: int = 2
    lexical_match: bool = True
    causal: bool = False
    forget: str = "none"
    rotary: bool = False
    short_convolution: int = 0
    ngrams: list[int] | None = None
    ngram_buckets: int = 1 << 16
    word_characters: bool = False
    word_neighbours: int = 0
    feature_neighbours: int = 0
    word_buckets: int = 1 << 17
    position: str = "sinusoidal"
    position_combine: str = "add"
    max_positions: int = 4096
    position_period: int | None = None
    embedding_dim: int | None = None
    cutoffs: list[int] | None = None
    div_val: int = 1
    tie_word_embeddings: bool = True
    tie_projections: list[bool] | None = None
    scale_embeddings: bool = False
    embedding_norm: bool | None = None
    norm: str = "pre"
    residual: bool = True
    share_layers: bool = False
    activation: str = "gelu"
    feed_forward_dropout: bool = False
    dropout: float | int = 0.1
    token_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    crf: bool = False
    features: int = 0
    feature_values: list[str] | None = None
    label_scheme: str = "plain"
    pooling: str = "attention"
    wide: bool = False
    wide_buckets: int | None = None
    wide_characters: bool | None = None
    label_smoothing: float | int = 0.0
    class_weights: list[float] | None = None
    thresholds: list[float] | None = None
    target_mean: float | int = 0.0
    target_scale: float | int = 1.0
    longest_answer: int = 30
    answer_threshold: float | int | None = None
    recommender: str = "longspan"
    recommender_options: dict[str, Any] | None = None
    recommendation_loss: str = "softmax"
    user_mixers: list[str] | None = None
    user_depth: int = 1
    user_causal: bool = False
    user_position: str = "none"
    users: int = 0
    categories: int = 0
    subcategories: int = 0
    entities: int = 0
    user_names: list[str] | None = None
    category_names: list[str] | None = None
    subcategory_names: list[str] | None = None
    entity_names: list[str] | None = None
    entity_dim: int = 0
    abstracts: bool = False
    use_cache: bool | None = None
    encoder: str | None = None
    encoder_window: int | None = None
    encoder_overlap: int | None = None
    train_encoder: bool = False
    encoder_config: dict[str, Any] | None = None
    encoder_special_ids: list[list[int]] | None = None
    initializer_range: float = 0.02
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        self._take_usual_names(kwargs)
        self.mixers = ["additive"] if self.mixers is None else self.mixers
        self.mixer_options = {} if self.mixer_options is None else self.mixer_options
        if self.feed_forward_dim is None:
            self.feed_forward_dim = 4 * self.dim
        if self.embedding_dim is None:
            own = recommenders.word_dim(self.recommender)
            self.embedding_dim = own or (self.dim // 2 if self.position_combine == "concat" else self.dim)
        if self.embedding_norm is None:
            self.embedding_norm = self.norm == "post"
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("question", self.question, QUESTIONS)
        check_choice("activation", self.activation, ACTIVATIONS)
        if self.wide_characters and not self.wide:
            raise UserError(
                "wide_characters needs a wide part, got wide_characters=True with wide=False; set model.wide=true or "
                "leave it out."
            )
        check_values(self)
        check_words(self)
        check_clusters(self)
        check_ngrams(self)
        check_encoder(self)
        check_recommendation(self)
        super().__post_init__(**kwargs)
        check_targets(self)

    def _take_usual_names(self, given: dict[str, Any]) -> None:
        """Move what is given by the names of `attribute_map` to its own fields, before others are derived from them."""
        taken: dict[str, str] = {}
        for alias in [name for name in given if name in self.attribute_map]:
            name, value = self.attribute_map[alias], given.pop(alias)
            # A default cannot be told from the same value given.
            known = getattr(self, name)
            if value != known and (name in taken or known != getattr(type(self), name)):
                raise UserError(
                    f"expected one value of {name}, got {known!r} as {taken.get(name, name)} and {value!r} as "
                    f"{alias}; leave one of them out."
                )
            setattr(self, name, value)
            taken[name] = alias
