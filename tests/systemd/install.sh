#!/bin/sh
# Installs the exporter and the stand-in daemon below ./root, with this Python's prefix, this repository, and the directories of
# the packages that the exporter needs.
set -eu
python=$1 repository=$2
shift 2

# The exporter where its unit has it, and the stand-in in NVIDIA's place, both for users to whom this checkout is closed.
home=root/opt/cuda-mps-exporter
rm -rf $home
mkdir -p root/opt/python $home/bin $home/lib/tests
mount --bind "$python" root/opt/python
cp -rL "$repository/exporter" $home/lib
cp -r "$repository/tests/__init__.py" "$repository/tests/standin" "$repository/tests/program.py" $home/lib/tests
packages=/opt/cuda-mps-exporter/lib
for package in "$@"; do
    packages=$packages:/opt/cuda-mps-exporter/packages/$#
    mkdir -p "$home/packages/$#"
    mount --bind -o ro "$package" "$home/packages/$#"
    shift
done
program() {
    {
        echo "#!/bin/sh"
        echo "export PYTHONHOME=/opt/python PYTHONPATH=$packages LD_LIBRARY_PATH=/opt/python/lib"
        echo "exec /opt/python/bin/python3 $2 \"\$@\""
    } >"$1"
    chmod 755 "$1"
}
program $home/bin/python ""
# Shorter intervals than a node has, so that tests need not wait long.
rules='{"hung_after": 5, "restarts": 20, "backoff": 0.1, "longest_backoff": 0.1}'
constants="{\"intervals\": {\"liveness\": 1}, \"rules\": $rules}"
program $home/bin/cuda-mps-exporter "-m tests.program '$constants'"
program root/usr/bin/nvidia-cuda-mps-control "/opt/cuda-mps-exporter/lib/tests/standin/bin/nvidia-cuda-mps-control"

# So that what is started often starts quickly.
chroot root /opt/cuda-mps-exporter/bin/python -m compileall -q /opt/cuda-mps-exporter/lib >/dev/null &
