"""Layers of megatron-core under the same engine, where it is installed, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")

from layout_strategies import replica
from proof import compare

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Stage
from sailor_megatron.models import factory, megatron_import
from sailor_megatron.options import RunOptions

SPECS = {
    "gpt": ModelSpec(
        name="gpt", num_layers=3, hidden=16, ffn=24, num_heads=4, num_kv_heads=4, head_dim=4,
        vocab=31, seq_len=8, max_positions=8, tied_embeddings=True,
    ),
    "llama": ModelSpec(
        name="llama", num_layers=3, hidden=16, ffn=12, num_heads=4, num_kv_heads=2, head_dim=4,
        vocab=31, seq_len=8, biases=False, norm="rmsnorm", gated_mlp=True,
    ),
}  # fmt: skip


def mixed(name: str) -> Plan:
    return Plan(
        model=name, num_units=5, global_batch=8,
        stages=(
            Stage(start=0, stop=2, replicas=(replica(2, 2, 3), replica(1, 1, 2))),
            Stage(start=2, stop=5, replicas=(replica(1, 2, 3), replica(2, 1, 2))),
        ),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SPECS))
def test_megatron_layers_have_the_gradients_of_a_single_process(name: str) -> None:
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    options = RunOptions(stages="megatron", precision="fp32", recompute=name == "gpt", zero1=True)
    found = compare(SPECS[name], mixed(name), options, limit_s=110)
    assert found.replicas_agree
    assert found.gradient < 1e-6
    assert found.loss < 1e-5
    assert found.moment < 1e-5


def test_the_choice_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "import_obstacle", lambda: None)
    spec, plan = SPECS["gpt"], mixed("gpt")

    def chosen(**options: object) -> tuple[str, str]:
        return factory.chosen_stages(spec, plan, RunOptions.model_validate(options))

    assert chosen() == ("torch", "asked for")
    assert chosen(stages="auto") == ("megatron", "megatron-core can")
    assert chosen(stages="auto", dropout=0.1) == ("torch", "its dropout depends on the plan")
    with pytest.raises(PluginError, match="its norms without Transformer Engine don't split"):
        chosen(stages="megatron", sequence_parallel=True)
    odd = spec.model_copy(update={"ffn": 25})
    assert factory.megatron_obstacle(odd, plan, RunOptions()) == (
        "tp 2 does not divide 4 heads, 4 key-value heads and 25 feed-forward columns"
    )
    absent = "megatron-core is not installed"
    monkeypatch.setattr(factory, "import_obstacle", lambda: absent)
    assert chosen(stages="auto") == ("torch", absent)
    with pytest.raises(PluginError, match="can't run this: megatron-core is not installed"):
        chosen(stages="megatron")


def test_the_import_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Callable[[str], object]:
        def fail(_module: str) -> object:
            raise ModuleNotFoundError(name=name)

        return fail

    for name, said in (
        ("megatron", "megatron-core is not installed"),
        ("megatron.core", "megatron-core is not installed"),
        ("triton", "megatron-core can't be imported without triton"),
    ):
        monkeypatch.setattr(megatron_import, "megatron", without(name))
        megatron_import.import_obstacle.cache_clear()
        assert megatron_import.import_obstacle() == said
    megatron_import.import_obstacle.cache_clear()
