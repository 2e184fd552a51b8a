"""FlashCore: attention kernels for one GPU at a time, with their build, check, bench and profile.

The kernels are plain shared libraries behind the C interface of ``csrc/flashcore.h``; Python compiles them, binds them
with ctypes and measures them against PyTorch. Needs torch and numpy; runs on Python >= 3.9.
"""
