"""What NVML's errors mean: for a value, for a GPU, for the driver."""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

Value = TypeVar("Value")

CANNOT_TELL = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
)
"""This GPU, driver or user has no such value; the rest of the reading stands."""

DRIVER_LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""NVML must be opened anew: the driver was unloaded or upgraded."""

GPU_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
"""Nothing that this GPU tells counts any more."""


def told(function: Callable[..., Value], *arguments: Any) -> Value | None:
    """A value, or None where it cannot be told; any other error is the GPU's."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in CANNOT_TELL:
            return None
        raise


def sensed(function: Callable[..., Value], *arguments: Any) -> Value | None:
    """A value that others do without: None where it could not be read, unless GPU or driver are lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in (*DRIVER_LOST, *GPU_LOST):
            raise
        return None


def first_there(*names: str) -> Callable[..., Any]:
    """The first of these functions that nvidia-ml-py and the driver both have, found anew at each call."""

    def call(*arguments: Any) -> Any:
        for name in names:
            function = getattr(pynvml, name, None)
            try:
                if function is not None:
                    return function(*arguments)
            except pynvml.NVMLError_FunctionNotFound:
                continue
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    return call
