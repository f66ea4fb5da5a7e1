"""A client that prints what CUDA gives it on each device, then waits: python3 client.py [NAME=VALUE]...

The arguments are variables that it sets inside the process, before it uses CUDA. It needs no compiler.
"""

import ctypes
import json
import os
import sys
import time

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    result = getattr(library, name)(*arguments)
    if result:
        raise SystemExit(f"{name}: error {result}")


def main() -> None:
    """Create a context on each visible device, print a line, and wait."""
    for name, _, value in (word.partition("=") for word in sys.argv[1:]):
        os.environ[name] = value
    cuda, devices, count = ctypes.CDLL("libcuda.so.1"), {}, ctypes.c_int()
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    for number in range(count.value):
        device, sms, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        uuid, free, total = (ctypes.c_ubyte * 16)(), ctypes.c_size_t(), ctypes.c_size_t()
        _call(cuda, "cuDeviceGet", ctypes.byref(device), number)
        _call(cuda, "cuDeviceGetUuid", uuid, device)
        _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call(cuda, "cuCtxSetCurrent", context)
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(sms), MULTIPROCESSORS, device)
        _call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        text = bytes(uuid).hex()
        name = "-".join(("GPU", text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        devices[name] = {"number": number, "sms": sms.value, "free": free.value, "total": total.value}
    print(json.dumps(devices), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
