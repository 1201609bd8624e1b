"""What a platform adds to the figures of profiles and links: named constants with their source.

Each constant has a meaning that can be measured on a cluster in minutes; none belongs to a model
or to a single run. Where a platform was not measured the default says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from sailor.model.base import Record
from sailor.model.execution import Framework
from sailor.model.hardware import Name
from sailor.sim.frameworks import framework_facts

MEGATRON_DEEPSPEED: Framework = "megatron-deepspeed"

_RUNS = "SOSP'25 artifact runs of OPT-350M"


class Figure(Record):
    """One constant; `assumed` where it was measured on another platform, or not at all."""

    value: float = Field(ge=0)
    source: str = Field(min_length=1)
    assumed: bool = False


class Platform(Record):
    """One GPU type under one framework.

    `link_efficiency`: share of the links' measured point-to-point bandwidth that training traffic
    reaches. `transport_buffer_bytes`: a pair's message up to this size is sent without waiting for
    the receiver. `host_s_per_message`: host work on a received tensor, in which the launch queue
    drains. `hook_s_per_pass`: what the profiler's hooks add to one pass of a layer that is bound
    by launches. `launch_s_per_tensor`: flattening and unflattening one gradient tensor.
    `base_memory_bytes`: driver context, communicators and libraries of an empty job.
    """

    gpu: Name
    framework: Framework
    schedule: Name
    link_efficiency: Figure
    transport_buffer_bytes: Figure
    host_s_per_message: Figure
    hook_s_per_pass: Figure
    launch_s_per_tensor: Figure
    base_memory_bytes: Figure

    def assumptions(self) -> tuple[str, ...]:
        """Return one sentence for every figure that is assumed."""
        figures = {name: getattr(self, name) for name in type(self).model_fields}
        return tuple(
            f"{self.gpu}: {name} {figure.value:g} assumed ({figure.source})"
            for name, figure in figures.items()
            if isinstance(figure, Figure) and figure.assumed
        )


# DeepSpeed's engine waits for its neighbours in an order of its own.
_SCHEDULES = {MEGATRON_DEEPSPEED: "1f1b_deepspeed"}
_BUFFER = Figure(value=4194304, source="NCCL's default buffer of one channel, NCCL_BUFFSIZE")
_HOST = 1.5e-3
_LAUNCH = 31e-6

_GH200 = Platform(
    gpu="GH200-96GB",
    framework=MEGATRON_DEEPSPEED,
    schedule="1f1b_deepspeed",
    link_efficiency=Figure(
        value=0.63, source=f"{_RUNS} on GH200: gradient all-reduce of two replicas over the links' "
        "point-to-point curve"
    ),
    transport_buffer_bytes=_BUFFER,
    host_s_per_message=Figure(value=_HOST, source=f"{_RUNS} on GH200 with more than one stage"),
    hook_s_per_pass=Figure(value=0.2e-3, source=f"{_RUNS} on one GH200 node against the profile"),
    launch_s_per_tensor=Figure(
        value=_LAUNCH, source=f"{_RUNS} on GH200 with one replica: time in the gradient reduction"
    ),
    base_memory_bytes=Figure(value=4.7e9, source=f"{_RUNS} on GH200: total less the counted parts"),
)  # fmt: skip


def _like_gh200(figure: Figure, value: float | None = None) -> Figure:
    return Figure(
        value=figure.value if value is None else value,
        source=f"not measured here; {figure.source}",
        assumed=True,
    )


def _rtx(gpu: str) -> Platform:
    return Platform(
        gpu=gpu,
        framework=MEGATRON_DEEPSPEED,
        schedule="1f1b_deepspeed",
        link_efficiency=Figure(
            value=1.0, source=f"{_RUNS} on RTX nodes: the gradient all-reduce over Ethernet "
            "reaches the links' point-to-point curve"
        ),
        transport_buffer_bytes=_BUFFER,
        host_s_per_message=_like_gh200(_GH200.host_s_per_message),
        hook_s_per_pass=Figure(
            value=0.0, source="layer times double with the microbatch: these GPUs are the "
            "bottleneck, not the launches"
        ),
        launch_s_per_tensor=_like_gh200(_GH200.launch_s_per_tensor),
        base_memory_bytes=Figure(
            value=0.7e9, source=f"{_RUNS} on RTX nodes, the earlier campaign: total less the "
            "counted parts"
        ),
    )  # fmt: skip


def _unmeasured(gpu: str, framework: Framework) -> Platform:
    return Platform(
        gpu=gpu,
        framework=framework,
        schedule=_SCHEDULES.get(framework, "1f1b"),
        link_efficiency=Figure(
            value=1.0, source="not measured: the links' curves are taken as they are", assumed=True
        ),
        transport_buffer_bytes=_BUFFER,
        host_s_per_message=_like_gh200(_GH200.host_s_per_message),
        hook_s_per_pass=Figure(
            value=0.0, source="not measured: layer times are taken as they are", assumed=True
        ),
        launch_s_per_tensor=_like_gh200(_GH200.launch_s_per_tensor),
        base_memory_bytes=Figure(
            value=framework_facts("megatron-lm").outside_bytes,
            source="not measured: fitted to published A100 runs of Megatron-LM",
            assumed=True,
        ),
    )  # fmt: skip


PLATFORMS: Mapping[tuple[str, str], Platform] = MappingProxyType(
    {
        (platform.framework, platform.gpu): platform
        for platform in (
            _GH200, _rtx("TitanRTX-24GB"), _rtx("RTX2080Ti-11GB"), _rtx("RTX3090-24GB"),
        )
    }
)  # fmt: skip


def platform_of(gpu: str, framework: Framework = MEGATRON_DEEPSPEED) -> Platform:
    """Return a GPU type's platform; defaults, marked as assumed, where it was not measured."""
    measured = PLATFORMS.get((MEGATRON_DEEPSPEED, gpu))
    if measured is None:
        return _unmeasured(gpu, framework)
    if framework == MEGATRON_DEEPSPEED:
        return measured
    own = {"framework": framework, "schedule": _SCHEDULES.get(framework, "1f1b")}
    return measured.model_copy(update=own)
