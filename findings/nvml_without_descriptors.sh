#!/usr/bin/env bash
# Software: nvidia-ml-py 13.595.45 (PyPI), CPython 3.11, glibc 2.36. Needs gcc, no GPU.
# Guess: if a process has no free file descriptor, nvmlInit() raises OSError with EMFILE. NVMLError_LibraryNotFound means
#   that the library is missing, so a monitor may report that the driver was removed.
# Behaviour: it raises NVMLError_LibraryNotFound beside a complete library. The text of the dynamic linker, with the true
#   cause, is only in __context__. __cause__ is None, and no error number is left. As soon as a descriptor is free,
#   nvmlInit() succeeds: the failed load is not remembered.
# Output seen:
#   with free descriptors: ok
#   without: NVMLError_LibraryNotFound | cause None | context ends with 'Too many open files'
#   again with free descriptors: ok
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q nvidia-ml-py==13.595.45 2>/dev/null
printf 'int nvmlInit_v2(void) { return 0; }\nint nvmlInitWithFlags(unsigned flags) { return 0; }\n' >library.c
gcc -shared -fPIC -o libnvidia-ml.so.1 library.c
cat >observe.py <<'PY'
import os
import resource

import pynvml

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
try:
    pynvml.nvmlInit()
    print("without: ok")
except Exception as error:
    text = str(error.__context__)
    end = "Too many open files" if text.endswith("Too many open files") else text
    print(f"without: {type(error).__name__} | cause {error.__cause__} | context ends with {end!r}")
for descriptor in held:
    os.close(descriptor)
pynvml.nvmlInit()
print("again with free descriptors: ok")
PY
export LD_LIBRARY_PATH=$folder
{
    venv/bin/python -c 'import pynvml; pynvml.nvmlInit(); print("with free descriptors: ok")'
    venv/bin/python observe.py
} | tee seen
diff seen - <<'SEEN'
with free descriptors: ok
without: NVMLError_LibraryNotFound | cause None | context ends with 'Too many open files'
again with free descriptors: ok
SEEN
