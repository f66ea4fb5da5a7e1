"""Accounting: who has used how much of the GPUs, how sure that is, and whether they are well shared."""

from dashboards.accounting import clients, owners, sharing
from dashboards.board import Board
from dashboards.node import GPUS

ACCOUNTING = Board(
    uid="cuda-mps-accounting",
    title="CUDA MPS / Accounting",
    description="How much of the GPUs each workload has used, how certain that is, and how well the GPUs are shared.",
    variables=(GPUS,),
    rows=(
        owners.WHOLE,
        owners.OWNERS,
        owners.OVER_TIME,
        sharing.SHARING,
        sharing.SHARES,
        clients.CLIENTS,
        clients.NEIGHBOURS,
    ),
    since="now-24h",
)
