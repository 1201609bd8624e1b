"""torch.distributed.checkpoint's files with an index in JSON: nothing is ever unpickled.

The library writes its index with pickle. Here the same records (which piece of which tensor lies
where in which file) are JSON, and tensors are read with `weights_only`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from sailor_megatron.checkpoint_facts import FORMAT_VERSION, INDEX_FILE

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


class JsonIndexWriter(FileSystemWriter):
    """Writes shards as the library does, and the index as JSON."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True)
        self._folder, self._facts = folder, facts

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index; only the coordinating rank is asked."""
        places = {
            (result.index.fqn, tuple(result.index.offset or ())): result.storage_data
            for row in results
            for result in row
        }
        tensors = {}
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise TypeError(f"{name} is not a tensor")
            tensors[name] = {
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "shape": list(entry.size),
                "pieces": [_piece(chunk, places[name, tuple(chunk.offsets)])
                           for chunk in entry.chunks],
            }  # fmt: skip
        index = {"format_version": FORMAT_VERSION, **self._facts, "tensors": tensors}
        (self._folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")


def _piece(chunk: ChunkStorageMetadata, place: _StorageInfo) -> dict[str, Any]:
    return {
        "offsets": list(chunk.offsets),
        "sizes": list(chunk.sizes),
        "file": place.relative_path,
        "start": place.offset,
        "bytes": place.length,
    }


class JsonIndexReader(FileSystemReader):
    """Reads what JsonIndexWriter has written."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        super().__init__(folder)
        self._index = index

    def read_metadata(self, *_arguments: Any, **_options: Any) -> Metadata:
        """Return the library's records."""
        tensors: dict[str, Any] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for name, entry in self._index["tensors"].items():
            chunks = []
            for piece in entry["pieces"]:
                offsets = torch.Size(piece["offsets"])
                chunks.append(ChunkStorageMetadata(offsets, torch.Size(piece["sizes"])))
                places[MetadataIndex(name, offsets)] = _StorageInfo(
                    piece["file"], piece["start"], piece["bytes"]
                )
            properties = TensorProperties(dtype=_DTYPES[entry["dtype"]])
            tensors[name] = TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)
        return Metadata(tensors, storage_data=places, storage_meta=StorageMeta())
