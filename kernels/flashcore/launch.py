"""From tensors to a kernel launch: check what the kernel takes, fill one C struct, call, look at the return code.

A :class:`Kernel` is a loaded library. ``kernel(q, k, v)`` is the public call: inputs are validated once per
distinct combination of shapes, strides, dtype and device; after that a call costs a dictionary lookup and 4 addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from flashcore.build import Built
from flashcore.errors import LaunchFailed, Unavailable, Unsupported
from flashcore.registry import Variant

#: Distinct input layouts remembered per kernel; a service with ever-changing lengths must not grow without end.
MAX_TEMPLATES = 1024


class Strides(ctypes.Structure):
    _fields_ = (("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64))


class Args(ctypes.Structure):
    """``flashcore_args`` of csrc/flashcore.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o")),
        *((name + "_stride", Strides) for name in ("q", "k", "v", "o")),
        *((name, ctypes.c_int32) for name in ("B", "H", "S_q", "S_kv", "D")),
        ("scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("H_kv", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Kernel:
    """One built variant, ready to run.

    Raises:
        Unavailable: a CUDA variant where torch sees no GPU, or a library that does not load.
    """

    def __init__(self, built: Built) -> None:
        self.variant: Variant = built.variant
        self.built = built
        cuda = self.variant.device == "cuda"
        if cuda and not torch.cuda.is_available():
            raise Unavailable(
                f"{self.variant.name} runs on a GPU and torch sees none",
                cause=f"torch {torch.__version__}, built for CUDA {torch.version.cuda}",
                hint="python -m flashcore list   shows the variants for this machine",
            )
        # A GPU launch returns in microseconds: keeping Python's lock is cheaper than giving it up. A CPU kernel works.
        library = _load(built, ctypes.PyDLL if cuda else ctypes.CDLL)
        self._forward = library.flashcore_forward
        self._forward.argtypes = [ctypes.POINTER(Args)]
        self._error = library.flashcore_error
        self._error.restype = ctypes.c_char_p
        self._templates: dict[Any, Args] = {}
        self._stream: Callable[[int], int] = _current_stream if cuda else _no_stream

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of ``q`` [B, H, S_q, D] over ``k`` and ``v`` [B, H, S_kv, D], FP16, on torch's current stream.

        Any strides with a contiguous last dimension; ``scale`` defaults to D ** -0.5. Forward only.

        Raises:
            Unsupported: before anything runs, if the kernel does not take these inputs.
            LaunchFailed: the library returned an error code.
        """
        if out is None:
            out = torch.empty_like(q)
        args = self.prepare(q, k, v, out, causal=causal, scale=scale)
        self.launch(args, q.device)
        return out

    def prepare(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Args:
        """The argument struct of one launch; it holds addresses, so the tensors must outlive it."""
        key = (
            q.shape, k.shape, v.shape, out.shape, q.stride(), k.stride(), v.stride(), out.stride(),
            q.dtype, k.dtype, v.dtype, out.dtype, q.device, k.device, v.device, out.device,
            q.requires_grad or k.requires_grad or v.requires_grad, causal, scale,
        )  # fmt: skip
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._template(q, k, v, out, causal, scale)
        args = Args.from_buffer_copy(template)
        args.q, args.k, args.v, args.o = addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        alignment = self.variant.alignment
        if any(a % alignment for a in addresses):
            raise Unsupported(
                f"{self.variant.name} needs tensors that start at a multiple of {alignment} bytes",
                hint="pass x.clone() of a view that starts inside another tensor",
            )
        return args

    def launch(self, args: Args, device: torch.device) -> None:
        """One call of the library, on ``device`` and its current stream."""
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.launch(args, device)
        args.stream = self._stream(device.index)
        code = self._forward(args)
        if code != 0:
            name = self._error(code).decode()
            raise LaunchFailed(
                f"{self.variant.name} failed to launch: {name} ({code})",
                cause="an earlier kernel may have failed: CUDA reports errors late" if code != 1 else None,
                hint="rerun with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer" if code != 1 else None,
            )
        return None

    def _template(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        causal: bool,
        scale: float | None,
    ) -> Args:
        _refuse_unsupported(self.variant, {"q": q, "k": k, "v": v, "out": out}, causal)
        B, H, S_q, D = q.shape
        args = Args(B=B, H=H, S_q=S_q, S_kv=k.shape[2], D=D)
        for name, tensor in (("q", q), ("k", k), ("v", v), ("o", out)):
            setattr(args, name + "_stride", Strides(*tensor.stride()[:3]))
        args.scale = D**-0.5 if scale is None else scale
        args.causal = int(causal)
        args.threads = torch.get_num_threads()
        return args


def _load(built: Built, loader: Callable[[str], Any]) -> Any:
    try:
        library = loader(str(built.library))
        library.flashcore_args_bytes.restype = ctypes.c_size_t
    except (OSError, AttributeError) as e:
        raise Unavailable(f"cannot load {built.library}", cause=str(e), hint=f"rm -r {built.library.parent}") from e
    if library.flashcore_args_bytes() != ctypes.sizeof(Args):
        raise Unavailable(
            f"{built.library} was built for another version of flashcore_args",
            hint="launch.Args and csrc/flashcore.h must list the same fields",
        )
    return library


def _current_stream(device: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device))  # noqa: SLF001 (what torch's own code generators call)


def _no_stream(_device: int | None) -> int:
    return 0


def _refuse_unsupported(variant: Variant, tensors: dict[str, torch.Tensor], causal: bool) -> None:
    for name, tensor in tensors.items():
        _refuse_tensor(variant, name, tensor)
    q, k, v, out = (tensors[n] for n in ("q", "k", "v", "out"))
    if any(t.requires_grad for t in (q, k, v)):
        raise Unsupported(
            f"{variant.name} has no backward pass", hint="call it under torch.no_grad() on detached inputs"
        )
    if len({t.device for t in tensors.values()}) > 1:
        raise Unsupported(
            "q, k, v and out are on different devices", cause=f"{[str(t.device) for t in tensors.values()]}"
        )
    if any(stride == 0 and size > 1 for size, stride in zip(out.shape, out.stride())):  # noqa: B905 (Python 3.9)
        raise Unsupported(
            "out overlaps itself", cause=f"strides {out.stride()}", hint="pass a tensor that is not expanded"
        )
    B, H, _, D = q.shape
    if tuple(k.shape) != (B, H, k.shape[2], D) or v.shape != k.shape or out.shape != q.shape:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in tensors.items())
        raise Unsupported("the shapes do not fit together", cause=shapes, hint="q, out [B,H,S_q,D]; k, v [B,H,S_kv,D]")
    if 0 in q.shape or 0 in k.shape:
        raise Unsupported("an empty tensor has no attention", cause=f"q {tuple(q.shape)}, k {tuple(k.shape)}")
    if D not in variant.head_dims:
        raise Unsupported(
            f"{variant.name} does not take head dimension {D}", hint=f"it takes {list(variant.head_dims)}"
        )
    if causal and not variant.causal:
        raise Unsupported(f"{variant.name} has no causal mask", hint="python -m flashcore list")


def _refuse_tensor(variant: Variant, name: str, tensor: torch.Tensor) -> None:
    dtype = str(tensor.dtype).replace("torch.", "")
    if tensor.device.type != variant.device:
        raise Unsupported(f"{name} is on {tensor.device}; {variant.name} runs on {variant.device}")
    if dtype not in variant.dtypes:
        raise Unsupported(f"{name} is {dtype}; {variant.name} takes {', '.join(variant.dtypes)}", hint="x.half()")
    if tensor.dim() != 4:
        raise Unsupported(f"{name} has {tensor.dim()} dimensions", hint="kernels take [B, H, S, D]")
    if tensor.stride(3) != 1:
        raise Unsupported(
            f"{name}'s last dimension is not contiguous", cause=f"strides {tensor.stride()}", hint="x.contiguous()"
        )
    unit = variant.alignment // tensor.element_size()
    if any(s % unit for n, s in zip(tensor.shape[:3], tensor.stride()[:3]) if n > 1):  # noqa: B905 (Python 3.9)
        raise Unsupported(
            f"{name}'s rows do not start at multiples of {variant.alignment} bytes",
            cause=f"strides {tensor.stride()}",
            hint="x.contiguous()",
        )
