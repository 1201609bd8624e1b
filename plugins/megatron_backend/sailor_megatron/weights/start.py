"""What a run starts from: fresh weights, a Hugging Face folder, or a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from sailor.errors import PluginError
from sailor.model.job import HuggingFaceModel, Job
from sailor_megatron.checkpoint_facts import computation_of
from sailor_megatron.options import RunOptions
from sailor_megatron.run_folder import RunSpec, model_of
from sailor_megatron.weights.huggingface_config import RUNNABLE, computation, read_config


def as_stored(
    options: RunOptions, job: Job, *, init_from: Path | None, load: Path | None
) -> RunOptions:
    """Return the options with how the weights that a run starts from are computed with.

    That is what a checkpoint or the folder's config.json says, else the job's own config.json.
    """
    if init_from is not None and load is not None:
        raise PluginError(
            "the weights can't come from two places",
            where="--init-from, --load",
            hint="leave one of them out",
        )
    if load is not None:
        fixed = computation_of(load)
    elif init_from is not None:
        fixed = computation(
            read_config(init_from), str(init_from / "config.json"), seq_len=model_of(job).seq_len
        )
    elif isinstance(job.model, HuggingFaceModel):
        path = Path(job.model.huggingface)
        config = read_config(path.parent, path.name)
        fixed = {}
        if config.get("model_type") in RUNNABLE:
            fixed = computation(config, str(path), seq_len=model_of(job).seq_len)
    else:
        fixed = {}
    return RunOptions.model_validate({**options.model_dump(), **fixed})


def check_ends(run: RunSpec) -> None:
    """Refuse weights that can't be read, or a folder that can't be written."""
    if run.init_from is not None:
        from sailor_megatron.weights.load import check_weights

        check_weights(Path(run.init_from), run.spec, run.options)
    if run.export is not None:
        from sailor_megatron.weights.huggingface_config import family_of

        folder = Path(run.export)
        family_of(run.spec, run.options.activation)
        if folder.exists():
            raise PluginError(
                "exists already", where=str(folder), hint="name a new folder with --export"
            )
        above = next(path for path in folder.parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise PluginError(
                f"can't be made: {above} is no folder that may be written to",
                where=str(folder),
                hint="name another folder with --export",
            )
