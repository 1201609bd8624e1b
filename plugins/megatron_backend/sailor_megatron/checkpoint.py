"""Checkpoints of a run: saved while training goes on, loaded under any plan of the same model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sailor_megatron.checkpoint_facts import check_same_model, facts_of, read_index
from sailor_megatron.checkpoint_format import JsonIndexReader, JsonIndexWriter
from sailor_megatron.engine import Engine
from sailor_megatron.layout import Shard
from sailor_megatron.position import Position

PARAMETER = "parameter"


class _Pieces:
    """Pieces of one tensor in a rank's flat buffer, in the form that the library asks for."""

    def __init__(self, shape: Sequence[int], pieces: dict[tuple[int, ...], Tensor]) -> None:
        self._shape = torch.Size(shape)
        self._pieces = pieces

    # The name by which the library's save planner finds out that an object has pieces.
    def __create_write_items__(self, name: str, _object: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(offsets), piece.size()),
                    properties=TensorProperties.create_from_tensor(piece),
                    size=self._shape,
                ),
            )
            for offsets, piece in self._pieces.items()
        ]

    def chunks(self) -> list[ChunkStorageMetadata]:
        """Return where the pieces lie in the whole tensor."""
        return [
            ChunkStorageMetadata(torch.Size(offsets), piece.size())
            for offsets, piece in self._pieces.items()
        ]

    def at(self, index: MetadataIndex) -> Tensor:
        """Return the piece at an offset."""
        return self._pieces[tuple(index.offset or ())]


class _SavePlanner(DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> Tensor:
        pieces: _Pieces = self.state_dict[index.fqn]
        return pieces.at(index)


class _LoadPlanner(DefaultLoadPlanner):
    def __init__(self, wanted: dict[str, _Pieces]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._wanted = wanted

    def create_local_plan(self) -> LoadPlan:
        saved = {} if self.metadata is None else self.metadata.state_dict_metadata
        requests = []
        for name, pieces in self._wanted.items():
            entry = saved[name]
            if not isinstance(entry, TensorStorageMetadata):
                raise TypeError(f"{name} is not a tensor")
            requests += create_read_items_for_chunk_list(name, entry, pieces.chunks())
        return LoadPlan(requests)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._wanted[index.fqn].at(index)


class Checkpoints:
    """Saves and loads the state of one engine. Every rank calls every method."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._folder, self._engine = folder, engine
        self._group: dist.ProcessGroup | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None

    def save(self) -> None:
        """Start saving the present state to `step-N`; training may go on at once.

        The folder gets its name when everything is in it, so that one with that name is whole.
        """
        self.finish()
        if self._group is None:
            # Of its own, so that the saving thread's messages never meet those of training.
            self._group = dist.new_group(backend="gloo")
        engine = self._engine
        target = self._folder / f"step-{engine.iteration}"
        draft = target.with_name(f".{target.name}.tmp")
        if engine.worker.rank == 0:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        dist.barrier(group=self._group)
        facts = {
            **facts_of(engine.layout.spec, engine.options),
            **asdict(engine.position),
        }
        self._saving = self._thread.submit(
            self._write, self._written(), JsonIndexWriter(draft, facts), draft, target
        )

    def _write(
        self, state: dict[str, Any], writer: JsonIndexWriter, draft: Path, target: Path
    ) -> None:
        save(
            state,
            storage_writer=writer,
            planner=_SavePlanner(flatten_state_dict=False),
            process_group=self._group,
        )
        # On rank 0, which coordinates, save() returns after every rank has written its files.
        if self._engine.worker.rank == 0:
            if target.exists():
                shutil.rmtree(target)
            draft.rename(target)
            descriptor = os.open(target.parent, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def finish(self) -> None:
        """Wait until the last save is whole on the disk."""
        if self._saving is not None:
            self._saving.result()
            self._saving = None

    def load(self, folder: Path) -> None:
        """Set the engine to the state in `folder`, saved under this or another plan."""
        engine = self._engine
        index = read_index(folder)
        check_same_model(index, engine.layout.spec, engine.options.optimizer, folder)
        moments = engine.optimizer.moments()
        buffers = {PARAMETER: engine.params.master, **moments}
        wanted = {
            f"{kind}.{name}": _Pieces(
                engine.layout.tensors[name].shape,
                {self._offsets(shard): engine.params.view(buffer, name)},
            )
            for kind, buffer in buffers.items()
            for name, shard in engine.params.shards.items()
        }
        load({}, storage_reader=JsonIndexReader(folder, index), planner=_LoadPlanner(wanted))
        engine.params.refresh_compute()
        engine.position = Position(**{field.name: index[field.name] for field in fields(Position)})
        engine.optimizer.load_moments(moments, engine.num_updates)

    def _written(self) -> dict[str, Any]:
        """Return what this rank writes: the pieces of the sync groups that it leads."""
        engine = self._engine
        params = engine.params
        buffers = {PARAMETER: params.master, **engine.optimizer.moments()}
        found: dict[str, Any] = {}
        for kind, buffer in buffers.items():
            pieces: dict[str, dict[tuple[int, ...], Tensor]] = {}
            for group in engine.packed:
                for atom in group.atoms if group.leads else ():
                    piece = params.piece(buffer, atom)
                    pieces.setdefault(atom.name, {})[self._offsets(atom)] = piece
            for name, held in pieces.items():
                shape = engine.layout.tensors[name].shape
                # Copies: training goes on while they are written.
                copies = {offsets: piece.detach().cpu().clone() for offsets, piece in held.items()}
                found[f"{kind}.{name}"] = _Pieces(shape, copies)
        return found

    def _offsets(self, piece: Shard) -> tuple[int, ...]:
        tensor = self._engine.layout.tensors[piece.name]
        return tuple(
            piece.lo if dim == (tensor.dim or 0) else 0 for dim in range(len(tensor.shape))
        )
