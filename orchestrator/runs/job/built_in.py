"""Jobs of the wheel that work in any workspace. Its others belong to FlashCore's kernels."""

BUILT_IN = ("preflight",)
