"""The variables by which MPS' programs are told what to do (NVIDIA's MPS guide), as far as they matter here."""

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
ACTIVE_THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (NVIDIA's choice, not ours)
DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"
"""Where a daemon is that was not told otherwise (NVIDIA's MPS guide)."""
