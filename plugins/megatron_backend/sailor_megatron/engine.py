"""One rank's training loop: pipeline, gradient sums, clipping, optimizer step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_megatron.layout import PlanLayout
from sailor_megatron.loss_scale import LossScale
from sailor_megatron.models.stage import TorchStage
from sailor_megatron.models.tensor_parallel import TensorParallel
from sailor_megatron.optimizer import Optimizer
from sailor_megatron.options import RunOptions
from sailor_megatron.packing import packed_groups, sum_gradients
from sailor_megatron.parameters import Parameters
from sailor_megatron.point_to_point import Inlet, Outlet
from sailor_megatron.process_groups import Place, build_groups
from sailor_megatron.schedule import Action, actions
from sailor_megatron.sync_groups import sync_groups

FORWARD_TAG, BACKWARD_TAG = 1, 2

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
    ) -> None:
        self.layout, self.options = layout, options
        self.worker = layout.workers[rank]
        sync = sync_groups(layout)
        self.groups = build_groups(layout, sync, rank, place)
        self.params = Parameters(layout, sync, rank, options, place.device)
        self.params.initialise(options.seed)
        tp = TensorParallel(self.groups.tp, self.groups.tp_rank, self.groups.tp_size)
        self.stage = TorchStage(self.params, self.worker, tp, options)
        self.packed = packed_groups(self.params, sync, self.groups)
        self.optimizer = Optimizer(self.params, self.packed, options)
        self.loss_scale = LossScale(options.loss_scale, dynamic=options.precision == "fp16")
        self.iteration = 0
        self.next_sample = 0  # the first one of the next iteration
        self.num_updates = 0
        self._read_samples = read_samples
        self._replica = layout.plan.stages[self.worker.stage].replicas[self.worker.replica]
        self._actions = actions(
            options.schedule, self.worker.stage, layout.plan.pp, self._replica.num_microbatches
        )
        self._global_tokens = layout.plan.samples * layout.spec.seq_len
        self._connect()

    def _connect(self) -> None:
        """Make the ends of the connections to the stages before and after."""
        spec, worker, groups = self.layout.spec, self.worker, self.groups
        shape = (self._replica.microbatch, spec.seq_len, spec.hidden)
        size = math.prod(shape)
        here = self.layout.replica_ranks[worker.stage, worker.replica]
        before = self.layout.replica_ranks.get((worker.stage - 1, worker.replica))
        after = self.layout.replica_ranks.get((worker.stage + 1, worker.replica))
        dtype, rank = self.params.dtype, worker.rank
        self._activation_in = self._gradient_in = None
        self._activation_out = self._gradient_out = None
        if before is not None:
            self._activation_in = Inlet(
                before, here, shape, dtype, groups, groups.forward, FORWARD_TAG
            )
            self._gradient_out = Outlet(here, before, size, rank, groups.backward, BACKWARD_TAG)
        if after is not None:
            self._gradient_in = Inlet(
                after, here, shape, dtype, groups, groups.backward, BACKWARD_TAG
            )
            self._activation_out = Outlet(here, after, size, rank, groups.forward, FORWARD_TAG)

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
        )

    def accumulate(self) -> Tensor:
        """Run the pipeline; gradients of this rank's tokens are in `params.grad` afterwards.

        Returns the summed loss of this rank's tokens, 0 where another rank counts them.
        """
        self.params.grad.zero_()
        losses: list[Tensor] = []
        in_flight: dict[int, tuple[Tensor, Tensor]] = {}
        posted = 0
        for index, action in enumerate(self._actions):
            while posted < min(index + POSTED_ACTIONS, len(self._actions)):
                self._post(self._actions[posted])
                posted += 1
            if action.forward:
                x, out = self._forward(action.microbatch)
                if self.stage.last and self.worker.tp_rank == 0:
                    losses.append(out.detach())
                in_flight[action.microbatch] = (x, out)
            else:
                self._backward(*in_flight.pop(action.microbatch))
        for outlet in (self._activation_out, self._gradient_out):
            if outlet is not None:
                outlet.finish()
        if not losses:
            return torch.zeros((), dtype=torch.float64, device=self.groups.place.device)
        return torch.stack(losses).double().sum()

    def _post(self, action: Action) -> None:
        inlet = self._activation_in if action.forward else self._gradient_in
        if inlet is not None:
            inlet.post()

    def _forward(self, microbatch: int) -> tuple[Tensor, Tensor]:
        size = self._replica.microbatch
        first = self.next_sample + self.layout.first_sample(self.worker.replica)
        first += microbatch * size
        samples = range(first, first + size)
        x = targets = None
        if self.stage.first or self.stage.last:
            windows = self._read_samples(samples).to(self.groups.place.device)
            x, targets = windows[:, :-1], windows[:, 1:]
        if self._activation_in is not None:
            x = self._activation_in.take().requires_grad_()
        if x is None:
            raise RuntimeError("a stage without input")
        out = self.stage(x, targets, samples)
        if self._activation_out is not None:
            self._activation_out.send(out.detach())
        return x, out

    def _backward(self, x: Tensor, out: Tensor) -> None:
        if self._gradient_in is not None:
            torch.autograd.backward(out, self._gradient_in.take())
        else:
            share = self.loss_scale.value / self._global_tokens
            torch.autograd.backward(out, out.new_full((), share))
        if self._gradient_out is not None:
            if x.grad is None:
                raise RuntimeError("a stage without gradient")
            self._gradient_out.send(x.grad)

    def reduce(self, loss_sum: Tensor) -> tuple[float, float]:
        """Sum gradients and loss over the ranks; return mean loss and gradient norm."""
        if self.loss_scale.value != 1.0:
            self.params.grad.mul_(1.0 / self.loss_scale.value)
        squares = sum_gradients(self.packed, self.params.grad)
        totals = torch.stack((loss_sum, torch.full_like(loss_sum, squares)))
        if len(self.layout.workers) > 1:
            dist.all_reduce(totals)
        loss, norm_square = totals.tolist()
        return loss / self._global_tokens, math.sqrt(norm_square)

    def _clip(self, norm: float) -> None:
        limit = self.options.clip_norm
        if limit is not None and norm > limit:
            self.params.grad.mul_(limit / norm)

    def _learning_rate(self) -> float:
        warmup = self.options.warmup_steps
        progress = 1.0 if warmup == 0 else min((self.num_updates + 1) / warmup, 1.0)
        return self.options.learning_rate * progress
