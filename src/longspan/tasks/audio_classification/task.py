"""Audio classification: `AudioClassification`."""

from collections.abc import Mapping
from typing import ClassVar

from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.encoding import encoded
from longspan.data.columns.kept import Carried
from longspan.data.processor import Processor
from longspan.data.signals.processor import RecordingProcessor
from longspan.models import LongspanConfig, LongspanForAudioClassification
from longspan.models.embeddings.frames import FrameSettings
from longspan.report import count
from longspan.tasks.audio_classification import baselines
from longspan.tasks.audio_classification.options import AudioData
from longspan.tasks.audio_classification.trainer import AudioTrainer
from longspan.tasks.base import Baseline, Recipe
from longspan.tasks.baselines import baselines_in
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.classes import ClassTask
from longspan.tasks.examples import Facts
from longspan.tasks.options import LengthTrainingOptions
from longspan.tasks.prepared import Prepared
from longspan.training.lengths import LengthTrainer


class AudioClassification(ClassTask[AudioData]):
    """One label for each recording, of any length."""

    data_config = AudioData
    processor = RecordingProcessor
    embeddings = (FrameSettings,)
    model_class = LongspanForAudioClassification
    trainer_class = AudioTrainer
    example = "a recording"
    data_hint = (
        "data.path=FOLDER (a folder with one sub-folder of audio files per class, or a csv, tsv, jsonl or parquet file "
        "with paths), or data.train=FILE"
    )
    facts: ClassVar[Facts] = {
        "documents": ("recordings", count),
        "tokens": ("frames", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
        "cut_documents": ("cut recordings", count),
        "removed_tokens": ("frames cut off", count),
    }

    def make_trainer(
        self,
        recipe: Recipe[AudioData, LengthTrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> LengthTrainer:
        trainer = super().make_trainer(recipe, model, arguments, prepared)
        assert isinstance(trainer, AudioTrainer)
        assert isinstance(prepared.processor, RecordingProcessor)
        trainer.augment(prepared.processor, recipe.data)
        return trainer

    def baselines(self) -> Mapping[str, type[Baseline[ClassificationScores]]]:
        return baselines_in(baselines)

    def _encoded(
        self, examples: Dataset, processor: Processor, data: AudioData, config: LongspanConfig, name: str
    ) -> Dataset:
        keep = {"labels": self.target(config)}
        if name == "train" and data.augmentation:
            # Training decodes them again in each epoch.
            keep["recording"] = Carried("recording")
        return encoded(examples, processor, data, f"{processor.work} {name}", keep=keep)
