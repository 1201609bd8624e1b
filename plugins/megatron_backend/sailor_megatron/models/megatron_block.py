"""Transformer layers of megatron-core as blocks of a stage.

Modules only: the layers are built from megatron-core's own layer specification with explicit
process groups, and their parameters are the rank's shards. Its schedules, gradient buffers and
optimizer can't express a mixed plan and are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor.model.arch import ModelSpec
from sailor_megatron.layout import Shard
from sailor_megatron.models.attention import Attention
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.models.megatron_import import megatron
from sailor_megatron.models.rotary import rotary_angles
from sailor_megatron.models.tensor_parallel import TensorParallel
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import Parameters
from sailor_megatron.process_groups import ProcessGroups


class MegatronBlocks:
    """Makes the blocks of one rank."""

    def __init__(
        self, params: Parameters, tp: TensorParallel, options: RunOptions, groups: ProcessGroups
    ) -> None:
        self._params, self._options = params, options
        self._spec = params.layout.spec
        self._config = _config(self._spec, tp.size, options, params.dtype)
        self._groups = megatron("process_groups_config").ProcessGroupCollection()
        self._groups.tp = groups.tp or groups.alone
        self._groups.cp = self._groups.pp = groups.alone
        self._rotary = None if self._spec.max_positions else _megatron_angles(options, params)

    def __call__(self, index: int) -> MegatronBlock:
        """Return block `index` of the model."""
        specs = megatron("models.gpt.gpt_layer_specs")
        layers = megatron("transformer.transformer_layer")
        layer_spec = specs.get_gpt_layer_local_spec(normalization=self._config.normalization)
        name = f"blocks.{index}"
        query, key = (
            self._params.shards[f"{name}.attention.{kind}.weight"] for kind in ("query", "key")
        )
        dropout = Dropout(0.0, self._options.seed)
        attention = Attention(self._spec, query, key, dropout, name)
        layer_spec.submodules.self_attention.submodules.core_attention = _core_attention(attention)
        layer = layers.TransformerLayer(
            self._config, layer_spec.submodules, layer_number=1, pg_collection=self._groups
        )
        return MegatronBlock(self._spec, self._params, name, layer, self._rotary)


class MegatronBlock:
    """One layer. Its weights are leaves of the rank's flat buffer, put in place of its own."""

    def __init__(
        self, spec: ModelSpec, params: Parameters, name: str, layer: Any, rotary: Any
    ) -> None:
        self._layer, self._rotary = layer, rotary
        upward = ("gate", "up") if spec.gated_mlp else ("up",)
        kinds = ("weight", "bias") if spec.biases else ("weight",)

        def leaf(kind: str, *parts: str) -> Tensor:
            return params.leaf(*(f"{name}.{part}.{kind}" for part in parts))

        for kind in kinds:
            _place(layer.self_attention.linear_proj, kind, leaf(kind, "attention.output"))
            _place(layer.mlp.linear_fc1, kind, leaf(kind, *(f"mlp.{part}" for part in upward)))
            _place(layer.mlp.linear_fc2, kind, leaf(kind, "mlp.down"))
        for kind in ("weight", "bias") if spec.norm == "layernorm" else ("weight",):
            _place(layer.input_layernorm, kind, leaf(kind, "attention_norm"))
            _place(layer.pre_mlp_layernorm, kind, leaf(kind, "mlp_norm"))
        inward = [f"attention.{part}" for part in ("query", "key", "value")]
        self._qkv = {kind: leaf(kind, *inward) for kind in kinds}
        shards = [params.shards[f"{name}.{part}.weight"] for part in inward[:2]]
        self._order = _grouped_rows(spec.head_dim, *shards).to(params.master.device)

    def __call__(self, x: Tensor, _samples: Sequence[int]) -> Tensor:
        """Return the block's output for x [samples, positions, hidden]."""
        # Its fused product has the rows of each key-value head and its queries side by side.
        for kind, leaf in self._qkv.items():
            _place(self._layer.self_attention.linear_qkv, kind, leaf[self._order])
        out, _ = self._layer(x.transpose(0, 1), attention_mask=None, rotary_pos_emb=self._rotary)
        result: Tensor = out.transpose(0, 1)
        return result


def _place(module: torch.nn.Module, name: str, tensor: Any) -> None:
    module._parameters[name] = tensor


def _grouped_rows(head_dim: int, query: Shard, key: Shard) -> Tensor:
    """Return which of our rows (all queries, all keys, all values) come where in megatron's."""
    queries, keys = query.hi - query.lo, key.hi - key.lo
    groups = keys // head_dim
    each = queries // groups
    rows = torch.arange(queries + 2 * keys)
    parts = (
        rows[:queries].view(groups, each),
        rows[queries : queries + keys].view(groups, head_dim),
        rows[queries + keys :].view(groups, head_dim),
    )
    return torch.cat(parts, dim=1).reshape(-1)


def _core_attention(attention: Attention) -> type[torch.nn.Module]:
    class CoreAttention(torch.nn.Module):
        """Takes and gives what megatron-core's attention does, in our kernels.

        Its own asks for a CUDA device even where tensors are on the CPU.
        """

        def __init__(self, **_settings: Any) -> None:
            super().__init__()

        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, *_mask: Any, **_settings: Any
        ) -> Tensor:
            query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
            mixed = attention(query, key, value, ())
            return mixed.permute(2, 0, 1, 3).flatten(2)

    return CoreAttention


def _megatron_angles(options: RunOptions, params: Parameters) -> tuple[Tensor, Tensor]:
    """Return angles [positions, 1, 1, head_dim] for queries and keys, in megatron's layout."""
    spec = params.layout.spec
    angles = rotary_angles(spec.head_dim, spec.seq_len, options)
    whole = torch.cat((angles, angles), dim=-1)[:, None, None, :]
    # It takes their cosines in the precision that they are given in.
    whole = whole.to(device=params.master.device, dtype=params.master_dtype)
    return whole, whole


def _config(spec: ModelSpec, tp: int, options: RunOptions, dtype: torch.dtype) -> Any:
    activations: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}
    return megatron("transformer").TransformerConfig(
        num_layers=1,
        hidden_size=spec.hidden,
        ffn_hidden_size=spec.ffn,
        num_attention_heads=spec.num_heads,
        num_query_groups=spec.num_kv_heads,
        kv_channels=spec.head_dim,
        tensor_model_parallel_size=tp,
        normalization="RMSNorm" if spec.norm == "rmsnorm" else "LayerNorm",
        layernorm_epsilon=options.norm_epsilon,
        activation_func=F.silu if spec.gated_mlp else activations[options.activation],
        gated_linear_unit=spec.gated_mlp,
        add_bias_linear=spec.biases,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        perform_initialization=False,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
    )
