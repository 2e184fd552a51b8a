"""The jobs that work in any workspace: the wheel has them. Others belong to FlashCore's kernels."""

BUILT_IN = ("preflight",)
