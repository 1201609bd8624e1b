"""One rank's training loop: pipeline, gradient sums, clipping, optimizer step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from sailor.model.plan import Plan
from sailor_megatron.layout import PlanLayout
from sailor_megatron.loss_scale import LossScale
from sailor_megatron.model_chunks import ModelChunk, model_chunks
from sailor_megatron.models.contract import Stage
from sailor_megatron.models.factory import chosen_stages, stage_maker
from sailor_megatron.models.tensor_parallel import TensorParallel
from sailor_megatron.optimizer import Optimizer
from sailor_megatron.options import RunOptions
from sailor_megatron.packing import packed_groups, sum_gradients
from sailor_megatron.parameters import Parameters
from sailor_megatron.position import Position
from sailor_megatron.process_groups import Place, build_groups
from sailor_megatron.schedule import Action, actions
from sailor_megatron.sync_groups import sync_groups

# Receives are posted for an action and the two after it, which under 1F1B are one of each
# direction: what they wait for travels meanwhile, and gloo busies a core over messages that
# nobody has posted a receive for.
POSTED_ACTIONS = 3

# Token windows [samples, seq_len + 1] of the samples with these indices, on the CPU.
ReadSamples = Callable[[Sequence[int]], Tensor]


@dataclass(frozen=True)
class StepReport:
    """One iteration: mean loss in nats a token, gradient norm before clipping, seconds."""

    iteration: int
    loss: float
    gradient_norm: float
    skipped: bool  # an overflow in fp16: no step was taken
    pipeline_s: float
    sync_s: float
    update_s: float
    pauses: bool = False  # some rank had asked for it: `Engine.asks_to_pause`

    @property
    def total_s(self) -> float:
        """Return the seconds of the iteration on this rank."""
        return self.pipeline_s + self.sync_s + self.update_s


class Engine:
    """Trains one rank's part of a plan."""

    def __init__(
        self,
        layout: PlanLayout,
        rank: int,
        options: RunOptions,
        place: Place,
        read_samples: ReadSamples,
        *,
        params: Parameters | None = None,
    ) -> None:
        """`params` None: fresh ones; else shards of this rank that have their values."""
        self.layout, self.options = layout, as_planned(options, layout.plan)
        self.worker = layout.workers[rank]
        sync = sync_groups(layout)
        kind, _ = chosen_stages(layout.spec, layout.plan, self.options)
        self.groups = build_groups(layout, sync, rank, place, alone=kind == "megatron")
        self.params = params or Parameters(layout, sync, rank, options, place.device)
        if params is None:
            self.params.initialise(options.seed)
        self.tp = TensorParallel(
            self.groups.tp,
            self.groups.tp_rank,
            self.groups.tp_size,
            split=self.options.sequence_parallel,
            positions=layout.spec.seq_len,
        )
        self.packed = packed_groups(self.params, sync, self.groups, split=self.tp.split)
        self.optimizer = Optimizer(self.params, self.packed, self.options)
        self.loss_scale = LossScale(options.loss_scale, dynamic=options.precision == "fp16")
        self.iteration = 0
        self.next_sample = 0  # the first one of the next iteration
        self.num_updates = 0
        self.asks_to_pause = False  # set on any rank: all learn of it after the next step
        self._pauses = False
        self._read_samples = read_samples
        self._replica = layout.plan.stages[self.worker.stage].replicas[self.worker.replica]
        self.chunks = model_chunks(
            layout,
            self.groups,
            self.tp,
            self.params.dtype,
            stage_maker(self.params, self.tp, self.options, self.groups),
        )
        plan, count = layout.plan, self._replica.num_microbatches
        self._actions = actions(plan.schedule, self.worker.stage, plan.pp, count, plan.vpp)
        self._first_sample = layout.first_sample(self.worker.replica)
        self._global_tokens = layout.plan.samples * layout.spec.seq_len

    @property
    def position(self) -> Position:
        """Return how far the run is."""
        scale = self.loss_scale.value
        return Position(self.iteration, self.next_sample, self.num_updates, scale)

    @position.setter
    def position(self, position: Position) -> None:
        self.iteration = position.iteration
        self.next_sample = position.next_sample
        self.num_updates = position.num_updates
        self.loss_scale.value = position.loss_scale

    def wrap_stages(self, wrap: Callable[[Stage], Stage]) -> None:
        """Put something between this rank's chunks and the engine (timing, for example)."""
        for chunk in self.chunks:
            chunk.stage = wrap(chunk.stage)

    def step(self) -> StepReport:
        """Run one iteration: all microbatches, the sums, one optimizer step."""
        begin = time.perf_counter()
        loss_sum = self.accumulate()
        piped = time.perf_counter()
        loss, norm = self.reduce(loss_sum)
        synced = time.perf_counter()
        skipped = not math.isfinite(norm)
        if not skipped:
            self._clip(norm)
            self.optimizer.step(self._learning_rate())
            self.num_updates += 1
        self.loss_scale.update(overflowed=skipped)
        self.iteration += 1
        self.next_sample += self.layout.plan.samples
        updated = time.perf_counter()
        return StepReport(
            iteration=self.iteration,
            loss=loss,
            gradient_norm=norm,
            skipped=skipped,
            pipeline_s=piped - begin,
            sync_s=synced - piped,
            update_s=updated - synced,
            pauses=self._pauses,
        )

    def accumulate(self) -> Tensor:
        """Run the pipeline; gradients of this rank's tokens are in `params.grad` afterwards.

        Returns the summed loss of this rank's tokens, 0 where another rank counts them.
        """
        self.params.grad.zero_()
        losses: list[Tensor] = []
        in_flight: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        posted = 0
        for index, action in enumerate(self._actions):
            while posted < min(index + POSTED_ACTIONS, len(self._actions)):
                self._post(self._actions[posted])
                posted += 1
            chunk, key = self.chunks[action.chunk], (action.microbatch, action.chunk)
            if action.forward:
                x, out = self._forward(chunk, action.microbatch)
                if chunk.stage.last and self.worker.tp_rank == 0:
                    losses.append(out.detach())
                in_flight[key] = (x, out)
            else:
                self._backward(chunk, *in_flight.pop(key))
        for chunk in self.chunks:
            chunk.finish()
        if not losses:
            return torch.zeros((), dtype=torch.float64, device=self.groups.place.device)
        return torch.stack(losses).double().sum()

    def _post(self, action: Action) -> None:
        chunk = self.chunks[action.chunk]
        inlet = chunk.activation_in if action.forward else chunk.gradient_in
        if inlet is not None:
            inlet.post()

    def _forward(self, chunk: ModelChunk, microbatch: int) -> tuple[Tensor, Tensor]:
        size, stage = self._replica.microbatch, chunk.stage
        first = self.next_sample + self._first_sample + microbatch * size
        samples = range(first, first + size)
        x = targets = None
        if stage.first or stage.last:
            windows = self._read_samples(samples).to(self.groups.place.device)
            x = windows[:, :-1] if stage.first else None
            targets = windows[:, 1:] if stage.last else None
        if chunk.activation_in is not None:
            x = chunk.activation_in.take().requires_grad_()
        if x is None:
            raise RuntimeError("a stage without input")
        out = stage(x, targets, samples)
        if chunk.activation_out is not None:
            chunk.activation_out.send(out.detach())
        return x, out

    def _backward(self, chunk: ModelChunk, x: Tensor, out: Tensor) -> None:
        if chunk.gradient_in is not None:
            _run_backward(out, chunk.gradient_in.take())
        else:
            share = self.loss_scale.value / self._global_tokens
            _run_backward(out, out.new_full((), share))
        if chunk.gradient_out is not None:
            if x.grad is None:
                raise RuntimeError("a stage without gradient")
            chunk.gradient_out.send(x.grad)

    def reduce(self, loss_sum: Tensor) -> tuple[float, float]:
        """Sum gradients and loss over the ranks; return mean loss and gradient norm."""
        if self.loss_scale.value != 1.0:
            self.params.grad.mul_(1.0 / self.loss_scale.value)
        squares = sum_gradients(self.packed, self.params.grad)
        totals = loss_sum.new_tensor((0.0, squares, float(self.asks_to_pause)))
        totals[0] = loss_sum
        if len(self.layout.workers) > 1:
            dist.all_reduce(totals)
        loss, norm_square, asking = totals.tolist()
        self._pauses = asking > 0
        return loss / self._global_tokens, math.sqrt(norm_square)

    def _clip(self, norm: float) -> None:
        limit = self.options.clip_norm
        if limit is not None and norm > limit:
            self.params.grad.mul_(limit / norm)

    def _learning_rate(self) -> float:
        warmup = self.options.warmup_steps
        progress = 1.0 if warmup == 0 else min((self.num_updates + 1) / warmup, 1.0)
        return self.options.learning_rate * progress


def _run_backward(out: Tensor, gradient: Tensor) -> None:
    """Run torch.autograd.backward without its checks of shapes, which take half of its time."""
    _engine_run_backward(
        (out,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def as_planned(options: RunOptions, plan: Plan) -> RunOptions:
    """Return the options with what the plan says about recomputation and ZeRO."""
    said: dict[str, bool] = {}
    if plan.zero is not None:
        said["zero1"] = plan.zero == 1
    if plan.recompute is not None:
        said["recompute"] = plan.recompute == "full"
        said["recompute_attention"] = plan.recompute == "selective"
    return options.model_copy(update=said)
