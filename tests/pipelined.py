"""A small pipeline that trains on the CPU with gloo, as torchrun starts it: STEPS [SCHEDULE]."""

import sys

import torch
from torch import distributed, nn
from torch.distributed import pipelining

STAGES, MICROBATCHES = 2, 4


def main() -> None:
    """Train: ranks are stages of a pipeline, and of further ones beside it."""
    steps, name = int(sys.argv[1]), (sys.argv[2:] or ["Schedule1F1B"])[0]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    pipelines = [
        distributed.new_group(list(range(first, first + STAGES)))
        for first in range(0, world, STAGES)
    ]
    places = [distributed.new_group(list(range(at, world, STAGES))) for at in range(STAGES)]
    replica, at = divmod(rank, STAGES)
    torch.manual_seed(at)
    model = nn.Linear(8, 8)
    stage = pipelining.PipelineStage(
        model, at, STAGES, torch.device("cpu"), group=pipelines[replica]
    )
    schedule = getattr(pipelining, name)(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batch = torch.ones(4 * MICROBATCHES, 8)
    for _ in range(steps):
        if at == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        if world > STAGES:
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad, group=places[at])
        optimizer.step()
        optimizer.zero_grad()
    sys.stdout.write(f"rank {rank} of {world} trained\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
