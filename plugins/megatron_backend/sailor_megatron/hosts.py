"""Hosts: which ranks lie on which node, in the order in which Megatron-LM numbers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sailor.model.plan import Plan, Replica


@dataclass(frozen=True)
class Host:
    """One node to start torchrun on; it holds ranks [first_rank, first_rank + num_ranks)."""

    node_rank: int
    zone: str
    node_type: str
    market: str
    gpu: str
    first_rank: int
    num_ranks: int


def pack(plan: Plan, gpus_of_nodes: Mapping[str, int]) -> Sequence[Host]:
    """Return the hosts of a plan, by node rank.

    Ranks are numbered tensor-parallel first, then context-parallel, data-parallel, and by stage
    (Megatron-LM, torchtitan and sailor's own runtime alike), and torchrun gives each host
    consecutive ranks: a host takes the next replicas as long as they are of its kind and it has
    GPUs left.
    """
    hosts: list[Host] = []
    for replica in _in_rank_order(plan):
        last = hosts[-1] if hosts else None
        if last is not None and _joins(last, replica, plan.cp, gpus_of_nodes[replica.node_type]):
            hosts[-1] = Host(
                last.node_rank, last.zone, last.node_type, last.market, last.gpu,
                last.first_rank, last.num_ranks + replica.tp * plan.cp,
            )  # fmt: skip
        else:
            first_rank = last.first_rank + last.num_ranks if last else 0
            hosts.append(
                Host(
                    len(hosts), replica.zone, replica.node_type, str(replica.market),
                    replica.gpu, first_rank, replica.tp * plan.cp,
                )
            )  # fmt: skip
    return hosts


def spread_reasons(
    plan: Plan, hosts: Sequence[Host], gpus_of_nodes: Mapping[str, int], trainer: str
) -> Iterator[str]:
    """Yield a reason for each kind of node of which rank order needs more than packing would.

    For plans of one tp.
    """
    replicas = Counter(_kind(replica) for replica in _in_rank_order(plan))
    needed = Counter((host.zone, host.node_type, host.market) for host in hosts)
    tp = plan.stages[0].replicas[0].tp
    for kind, count in sorted(replicas.items()):
        zone, node_type, market = kind
        fitting = gpus_of_nodes[node_type] // (tp * plan.cp)
        if fitting == 0:
            num_gpus = gpus_of_nodes[node_type]
            degrees = f"tp {tp}" if plan.cp == 1 else f"tp {tp} times cp {plan.cp}"
            yield f"{degrees} is more than the {num_gpus} GPUs of one node {node_type}"
            continue
        packed = -(-count // fitting)
        if needed[kind] > packed:
            yield (
                f"{trainer} numbers ranks stage by stage, and in that order the replicas take "
                f"{needed[kind]} nodes {node_type} ({market}, {zone}) where the plan rents {packed}"
            )


def _in_rank_order(plan: Plan) -> Iterator[Replica]:
    for stage in plan.ranks:
        yield from stage.replicas


def _kind(replica: Replica) -> tuple[str, str, str]:
    return (replica.zone, replica.node_type, str(replica.market))


def _joins(host: Host, replica: Replica, cp: int, num_gpus: int) -> bool:
    same = (host.zone, host.node_type, host.market) == _kind(replica)
    return same and host.num_ranks + replica.tp * cp <= num_gpus
