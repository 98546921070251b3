# The kernels of templates/cuda under the emulator, in its three builds.
exec sh tests/cudasim/kernels/run.sh
