"""Triton kernels of the CUDA backend; each file says the arithmetic it fixes. They also run in Triton's interpreter on the CPU."""
