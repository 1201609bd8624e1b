"""Bytes counted on fake tensors: published counts and formulas, to the byte."""

from __future__ import annotations

import pytest

from sailor.interfaces import UnitStyle
from sailor.model.arch import ModelSpec
from sailor.model.presets import preset
from sailor.model.profile import Provenance
from sailor.sources.embedded import embedded_store

torch = pytest.importorskip("torch")
counted = pytest.importorskip("sailor.profiling.counted")

OPT = preset("opt-350m")
PUBLISHED_STYLE = UnitStyle(attention="eager", activation="relu")
# One sample through OPT-350M: s b h, a s^2 and the rows of the two norms, in elements.
SBH, ASS, ROWS = 2048 * 1024, 16 * 2048**2, 2 * 2048

LLAMA = ModelSpec(
    name="tiny-llama", num_layers=2, hidden=64, ffn=96, num_heads=8, num_kv_heads=4, head_dim=8,
    vocab=500, seq_len=32, gated_mlp=True, biases=False, norm="rmsnorm",
)  # fmt: skip
GPT = ModelSpec(
    name="tiny-gpt", num_layers=2, hidden=64, ffn=256, num_heads=8, num_kv_heads=8, head_dim=8,
    vocab=500, seq_len=32, max_positions=40,
)  # fmt: skip


def count(model=OPT, tp=1, precision="fp32", style=PUBLISHED_STYLE, **more):
    return counted.count_footprint(model, tp, precision, style, **more)


@pytest.mark.parametrize(
    ("tp", "floats"), [(1, 90_181_632), (2, 48_238_592), (4, 27_267_072), (8, 16_781_312)]
)
def test_the_published_counts_of_a_block_come_out_exactly(tp: int, floats: int) -> None:
    """SOSP'25 artifact, act_mem_floats of OPT-350M's block; its norms keep their output."""
    found = count(tp=tp, norm_keeps="output")
    assert found.block.activation_bytes == 4 * floats
    published = embedded_store().footprint("opt-350m", tp, "fp32")
    assert published is not None
    assert found.block == published.block
    assert found.embedding == published.embedding
    assert found.head.params == published.head.params
    # The artifact read the head off the allocator, which rounds: 1 KiB at tp 8, 2 MiB below.
    away = published.head.activation_bytes - found.head.activation_bytes
    assert 0 < away < 2.1 * 2**20
    assert published.head.output_bytes - found.head.output_bytes == 4  # and it counts the loss
    assert found.provenance is Provenance.COUNTED


@pytest.mark.parametrize(
    ("style", "elements", "flat_bytes"),
    [
        # Korthikanti et al. 2022, equation 2: s b h (34 + 5 a s / h) bytes
        (UnitStyle("eager", "gelu", 0.1), 0, 34 * SBH + 5 * ASS),
        # without attention's matrices, with a fp32 statistic for each row and head
        (UnitStyle("sdpa", "gelu", 0.1), 0, 34 * SBH + 4 * 16 * 2048),
        # relu keeps its output only, which the next product keeps anyway
        (UnitStyle("sdpa", "relu"), 12 * SBH, 4 * 16 * 2048),
        (UnitStyle("sdpa", "gelu"), 16 * SBH, 4 * 16 * 2048),
    ],
)
def test_a_block_in_16_bit_keeps_what_the_formulas_say(
    style: UnitStyle, elements: int, flat_bytes: int
) -> None:
    norms = 2 * 4 * ROWS  # mean and deviation of each row, fp32
    found = count(precision="fp16", style=style)
    assert found.block.activation_bytes == 2 * elements + flat_bytes + norms
    assert found.block.output_bytes == 2 * SBH
    assert count(precision="bf16", style=style).block == found.block


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_are_linear_in_the_microbatch(precision: str) -> None:
    one, three = (count(GPT, 2, precision, microbatch=size) for size in (1, 3))
    assert three.block.activation_bytes == 3 * one.block.activation_bytes
    assert three.embedding.activation_bytes == 3 * one.embedding.activation_bytes


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", ["opt-350m", "llama-3-8b", "llama-3-8b-sosp25", "gpt-neo-2.7b"])
def test_the_modules_have_the_parameters_of_the_spec(name: str, tp: int) -> None:
    model = preset(name)
    found = count(model, tp, "bf16", UnitStyle())
    for kind in ("embedding", "first_block", "block", "head"):
        assert found.unit(kind).params == model.unit_params(kind, tp), kind


def test_a_llama_block_keeps_grouped_keys_and_a_gate() -> None:
    """t h: two norms' outputs, the middle, the end; q and attention's output; k, v; 4 t f."""
    tokens, hidden, heads = 32, 64, 8
    elements = tokens * (4 * hidden + 2 * hidden + 2 * hidden // 2 + 4 * 96)
    statistics = 4 * tokens * (2 + heads)  # one a norm and row, one a row and head
    found = count(LLAMA, 1, "bf16", UnitStyle())
    assert found.block.activation_bytes == 2 * elements + statistics
    rank = tokens * (4 * hidden + hidden + hidden // 2 + 4 * 48)
    assert count(LLAMA, 2, "bf16", UnitStyle()).block.activation_bytes == (
        2 * rank + 4 * tokens * (2 + heads // 2)
    )


def test_units_add_up_to_what_a_real_pass_keeps() -> None:
    """Independent of fake tensors: a whole GPT runs, and everything it saves is added up."""
    from sailor.profiling.blocks import Block, Build, Embedding, Head, Kernels

    style = UnitStyle("eager", "gelu", 0.1)
    build = Build(GPT, 1, "fp32", style, torch.device("cpu"), Kernels())
    units = (Embedding(build), Block(build), Block(build), Head(build))
    tokens = torch.randint(500, (32, 2))
    own = {p.untyped_storage().data_ptr() for u in units for p in (*u.parameters(), *u.buffers())}
    own.add(tokens.untyped_storage().data_ptr())
    saved, held = {}, []

    def keep(tensor):
        held.append(tensor)  # so that no storage's place is used twice
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        x = tokens
        for unit in units[:-1]:
            x = unit(x)
        units[-1](x, tokens)
    found = count(GPT, 1, "fp32", style, microbatch=2)
    kept = found.embedding.activation_bytes + 2 * found.block.activation_bytes
    kept += found.head.activation_bytes - found.head.output_bytes  # the pass drops the logits
    assert sum(saved.values()) == kept
