"""The profilers that ship: `torch` times units on this machine's device, `counted` counts bytes.

Their work needs torch, which is imported when they do it: planning needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from importlib.util import find_spec

from sailor.errors import InputError
from sailor.interfaces import ProfileAnswer, Profiler, ProfileRequest, Progress
from sailor.profiling.store import ProfileStore

OWN_FIGURES = "own figures, no licence of others"

_OnProgress = Callable[[Progress], None]


class TorchProfiler:
    """Times of units on the device at hand, CPU or CUDA."""

    name = "torch"

    def unsupported(self, request: ProfileRequest) -> Sequence[str]:
        """Return why the request can't be measured; empty means it can."""
        return unbuildable(request)

    def profile(self, request: ProfileRequest, on_progress: _OnProgress) -> ProfileAnswer:
        """Return measured times; sizes that don't fit into memory are in the remarks."""
        need_torch("to time a model")
        from sailor.profiling.measure import measure

        return measure(request, on_progress)


class CountedProfiler:
    """Bytes that units keep, counted on shapes; any model, no GPU, seconds."""

    name = "counted"

    def unsupported(self, request: ProfileRequest) -> Sequence[str]:
        """Return why the request can't be counted; empty means it can."""
        return unbuildable(request)

    def profile(self, request: ProfileRequest, on_progress: _OnProgress) -> ProfileAnswer:
        """Return a footprint for each tp."""
        need_torch("to count a model's bytes")
        from sailor.profiling.counted import count_footprint

        on_progress(Progress(f"bytes of {request.model.name}"))
        return ProfileAnswer(
            footprints=tuple(
                count_footprint(request.model, tp, request.precision, request.style)
                for tp in request.tps
            )
        )


def profiled(
    request: ProfileRequest, profilers: Iterable[Profiler], on_progress: _OnProgress
) -> ProfileStore:
    """Return what the profilers find, as a store. Raises InputError for what none can take."""
    answers = []
    for profiler in profilers:
        reasons = profiler.unsupported(request)
        if reasons:
            raise InputError(
                f"the profiler {profiler.name!r} can't take {request.model.name}: "
                + ", and ".join(reasons),
                hint="see docs/profiling.md for what can be profiled",
            )
        answers.append(profiler.profile(request, on_progress))
    return ProfileStore(
        source=f"sailor profile measure of {request.model.name} on {request.gpu}",
        licence=OWN_FIGURES,
        as_of=datetime.now().astimezone().date(),
        remarks=tuple(remark for answer in answers for remark in answer.remarks),
        models=(request.model,),
        profiles=tuple(row for answer in answers for row in answer.profiles),
        footprints=tuple(row for answer in answers for row in answer.footprints),
    )


def device_name(device: str) -> str:
    """Return the name of a device for profiles: "cpu", or what the driver calls it."""
    need_torch("to time a model")
    from sailor.profiling.measure import default_gpu_name, open_device

    return default_gpu_name(open_device(device))


def unbuildable(request: ProfileRequest) -> Sequence[str]:
    """Return why a model's units can't be built as torch modules at the degrees asked for."""
    model = request.model
    reasons = [
        f"tp {tp} doesn't divide its {model.num_heads} heads and {model.num_kv_heads} key-value "
        "heads"
        for tp in request.tps
        if not model.allows_tp(tp)
    ]
    if model.experts is not None:
        reasons.append("it has experts, and the modules that are run are dense")
    if model.max_positions and model.seq_len > model.max_positions:
        reasons.append(
            f"seq_len {model.seq_len} is longer than its {model.max_positions} learned positions"
        )
    if not model.max_positions and model.head_dim % 2:
        reasons.append(
            f"a rotary embedding turns pairs, and head_dim {model.head_dim} is odd "
            "(learned positions are said by max_positions)"
        )
    return reasons


def need_torch(purpose: str) -> None:
    """Raise InputError where torch isn't installed; `purpose` says what it is needed for."""
    if find_spec("torch") is None:
        raise InputError(
            f"torch is needed {purpose}, and it is not installed",
            hint="install it beside sailor: pip install torch",
        )
