"""The SOSP'25 artifact's memory file: {MODEL: {TP: {LAYER: {params_floats, act_mem_floats, ...}}}}.

Figures count fp32 values of one sample on one rank; `act_mem_floats` is what the layer keeps from
forward to backward, its output included.
"""

from __future__ import annotations

from sailor.model.arch import ModelSpec
from sailor.model.presets import preset
from sailor.model.profile import LayerFootprint, Provenance, UnitBytes
from sailor.profiling.sosp25_tables import (
    PRECISION,
    TRAILING_UNITS,
    bad,
    count,
    items,
    layer_rows,
    model_name,
)


def read_footprints(
    document: object, where: str, source: str
) -> dict[tuple[str, int], LayerFootprint]:
    """Return the measured footprints by (our model name, tp)."""
    found: dict[tuple[str, int], LayerFootprint] = {}
    for model_key, by_tp in items(document, where):
        model = preset(model_name(model_key, where))
        for tp_text, layers in items(by_tp, f"{where}: {model_key}"):
            place = f"{where}: {model_key}, tp {tp_text}"
            tp = count(tp_text, place)
            found[model.name, tp] = _footprint(layers, model, tp, source, place)
    return found


def _footprint(
    layers: object, model: ModelSpec, tp: int, source: str, where: str
) -> LayerFootprint:
    rows = [_unit_bytes(row, where) for _, row in layer_rows(layers, model, where)]
    trailing = TRAILING_UNITS.get(model.name, 1)
    blocks, last = rows[2:-trailing], rows[-trailing:]
    if any(block != blocks[0] for block in blocks):
        raise bad("blocks 2 to the last differ; they are one measurement in the artifact", where)
    head = UnitBytes(
        params=sum(row.params for row in last),
        activation_bytes=sum(row.activation_bytes for row in last),
        output_bytes=last[-1].output_bytes,
    )
    text = f"{source}: bytes measured in fp32 at one sample, unfused attention"
    if head.params < model.vocab * model.hidden // tp:
        text += "; the head's parameters are the final norm only (no output table of its own)"
    return LayerFootprint(
        model=model.name,
        tp=tp,
        precision=PRECISION,
        embedding=rows[0],
        first_block=rows[1],
        block=blocks[0],
        head=head,
        provenance=Provenance.MEASURED,
        source=text,
    )


def footprint_at(
    model: ModelSpec,
    tp: int,
    footprints: dict[tuple[str, int], LayerFootprint],
    where: str,
    source: str,
) -> LayerFootprint:
    """Return the bytes at `tp`, worked out from half and a quarter of it if not measured."""
    if (model.name, tp) not in footprints:
        half, quarter = (footprints.get((model.name, part)) for part in (tp // 2, tp // 4))
        if half is None or quarter is None:
            raise bad(f"the memory file has no bytes for {model.name} at tp {tp}", where)
        footprints[model.name, tp] = _at_twice(half, quarter, source)
    return footprints[model.name, tp]


def _at_twice(half: LayerFootprint, quarter: LayerFootprint, source: str) -> LayerFootprint:
    """Return the bytes at twice half's tp.

    A figure is a + b / tp (a replicated, b divided), so f(2t) = f(t) - (f(t / 2) - f(t)) / 2. On
    OPT-350M this gives tp 8 from 2 and 4 to the byte, but for the head (its vocabulary is padded).
    """

    def unit(kind: str) -> UnitBytes:
        near, far = getattr(half, kind), getattr(quarter, kind)
        return UnitBytes(
            params=near.params - (far.params - near.params) // 2,
            activation_bytes=near.activation_bytes
            - (far.activation_bytes - near.activation_bytes) / 2,
            output_bytes=near.output_bytes - (far.output_bytes - near.output_bytes) / 2,
        )

    tp = 2 * half.tp
    return half.model_copy(
        update={
            "tp": tp,
            **{kind: unit(kind) for kind in ("embedding", "first_block", "block", "head")},
            "provenance": Provenance.MODELLED,
            "source": f"{source}: bytes at tp {tp} worked out from those measured at tp "
            f"{quarter.tp} and {half.tp}",
        }
    )


def _unit_bytes(row: object, where: str) -> UnitBytes:
    if not isinstance(row, dict):
        raise bad(f"a layer is {row!r}, not its figures", where)
    figures = []
    for key in ("params_floats", "act_mem_floats", "act_output_floats"):
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise bad(f"{key} of a layer is {value!r}, not a whole number", where)
        figures.append(value)
    params, activation, output = figures
    return UnitBytes(params=params, activation_bytes=4 * activation, output_bytes=4 * output)
