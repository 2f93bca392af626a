"""Shards of predictions by Ray Data: one task reads rows, and actors write shards wherever there are cores or GPUs."""

import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Ray reads these when it is imported. It would tell its authors how it is used. And what it starts here for the address
# "" would listen on the network, not on 127.0.0.1 alone, as outside of Linux.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import pandas as pd
import ray
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.util.annotations import RayDeprecationWarning

from longspan.errors import UserError, first_line, sentence_of
from longspan.machine.limits import cores
from longspan.verbs.predictor import Predictor
from longspan.verbs.shards import ATTEMPTS, often_killed, prepare_process, read_shards, write_shard

_KILLED = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError)


def by_ray(
    predictor: Predictor,
    paths: Sequence[Path | str],
    folder: Path,
    finished: Mapping[int, Mapping[str, Any]],
    jobs: int | None,
    *,
    address: str = "",
) -> Iterator[dict[str, Any]]:
    """Write shards by actors of Ray; yield the line of each as it is complete: an `Engine` of `predict_shards`.

    Args:
        predictor, paths, folder, finished: As of `longspan.verbs.shards.read_shards` and `write_shard`.
        jobs: Number of actors; None for as many as the cluster has GPUs, or else cores.
        address: Address of the cluster, whose machines see the same files; "" for one on this machine that ends with
            the call.

    Raises:
        UserError: The cluster cannot be reached, or the source not read. Or actors end again and again.
    """
    _connect(address)
    try:
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        actors = jobs or gpus or int(resources.get("CPU", 1))
        source = _Shards(predictor, paths, dict(finished))
        found = ray.data.read_datasource(source, num_cpus=0, concurrency=1, override_num_blocks=1)
        with warnings.catch_warnings():
            # Restarts have no end by default, and before Ray 2.64 their limits are given here.
            warnings.simplefilter("ignore", RayDeprecationWarning)
            found = found.map_batches(
                _Writer,
                fn_constructor_args=(predictor, folder.absolute(), Path.cwd()),
                batch_size=1,
                batch_format="pandas",
                compute=ActorPoolStrategy(size=actors),
                num_cpus=0 if gpus else 1,
                num_gpus=1 if gpus else None,
                max_restarts=ATTEMPTS - 1,
                max_task_retries=ATTEMPTS - 1,
            )
        yield from found.iter_rows()
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error.__cause__
        sentence = sentence_of(cause)
        if sentence is not None:
            raise UserError(sentence) from error
        if isinstance(error, _KILLED):
            raise often_killed(actors) from error
        raise
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    """Connect to a cluster, or start one on this machine for the address ""."""
    place = re.search(r"([\w.-]+|\[[^]]+\]):(\d+)/?$", address)
    try:
        if place is not None:
            # Ray would try for minutes, and end the process.
            socket.create_connection((place[1].strip("[]"), int(place[2])), timeout=10).close()
        options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": "error"}
        if not address:
            options |= {"num_cpus": cores(), "include_dashboard": False}
        ray.init(**options)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"expected a cluster of Ray at {address or 'local'!r}, got an error ({first_line(error)}); check that it "
            "runs, and its address."
        ) from error
    # The bar over rows says how far it is.
    DataContext.get_current().enable_progress_bars = False
    # Each shard is a block of its own, so that any actor can have it.
    DataContext.get_current().target_max_block_size = 1
    # Errors are raised too.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


class _Shards(Datasource):
    """The shards of a source, read by one task, a block each."""

    def __init__(self, predictor: Predictor, paths: Sequence[Path | str], finished: dict[int, Any]) -> None:
        super().__init__()
        self._arguments, self._folder = (predictor, paths, finished), Path.cwd()

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
        arguments, folder = self._arguments, self._folder

        def blocks() -> Iterator[pd.DataFrame]:
            os.chdir(folder)
            for shard in read_shards(*arguments):
                yield pd.DataFrame({"shard": [shard]})

        return [ReadTask(blocks, BlockMetadata(None, None, None))]


class _Writer:
    """Writes a shard for each batch of one."""

    def __init__(self, predictor: Predictor, folder: Path, current: Path) -> None:
        os.chdir(current)
        prepare_process(predictor)
        self._predictor, self._folder = predictor, folder

    def __call__(self, batch: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame([write_shard(self._predictor, self._folder, shard) for shard in batch["shard"]])
