"""From tensors to a kernel launch: check what the kernel takes, fill one C struct, call, look at the return code.

A :class:`Kernel` is a loaded library. ``kernel(q, k, v)`` is the public call: inputs are validated once per
distinct combination of shapes, strides, dtype and device. After that a call is made in C (:mod:`flashcore.dispatch`),
or, where that is not to be had, costs a dictionary lookup and 4 addresses.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashcore import dispatch
from flashcore.build import Built
from flashcore.errors import LaunchFailed, Unavailable, Unsupported
from flashcore.extras import LOWER_RIGHT, Extra, with_pages
from flashcore.library import Args, Strides, load
from flashcore.registry import VARIANTS
from flashcore.shapes import Shape
from flashcore.variant import Variant

#: Distinct input layouts remembered per kernel; a service with ever-changing lengths must not grow without end.
MAX_TEMPLATES = 1024


#: q, k, v, causal, scale, out, mask
Call = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, int, "float | None", "torch.Tensor | None", "torch.Tensor | None"
]
Slow = Callable[..., torch.Tensor]  # of a Call's elements

#: By their number in flashcore_args.
DTYPES = (torch.float16, torch.bfloat16)


class Kernel:
    """One built variant, ready to run.

    Raises:
        Unavailable: a CUDA variant where torch sees no GPU, or a library that does not load.
    """

    def __new__(cls, _built: Built) -> Kernel:
        module, _ = dispatch.load()
        made: Kernel = object.__new__(cls) if module is None else module.Launcher.__new__(_in_c(cls, module.Launcher))
        return made

    def __init__(self, built: Built) -> None:
        self.variant: Variant = built.variant
        self.built = built
        cuda = self.variant.device == "cuda"
        if cuda and not torch.cuda.is_available():
            raise Unavailable(
                f"{self.variant.name} needs a GPU, and torch finds none",
                cause=f"torch {torch.__version__}, built for CUDA {torch.version.cuda}",
                hint="see the variants for this machine: python -m flashcore list",
            )
        # A GPU launch returns in microseconds: keeping Python's lock is cheaper than giving it up. A CPU kernel works.
        library = load(built, ctypes.PyDLL if cuda else ctypes.CDLL)
        self._forward = library.flashcore_forward
        self._forward.argtypes = [ctypes.POINTER(Args)]
        self._error = library.flashcore_error
        self._templates: dict[Any, Args] = {}
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream if cuda else _no_stream  # noqa: SLF001
        self._many_devices = cuda and torch.cuda.device_count() > 1
        self._alignment = self.variant.alignment
        self._tiling = 0
        self._workspace_bytes = _workspace(library)
        #: Empty if calls are made in C; else why they are not.
        _, self.dispatch_missing = dispatch.load()
        if not self.dispatch_missing:
            self._configure(self, self._call_from_python)

    @property
    def label(self) -> str:
        return self.built.label

    def for_shape(self, _shape: Shape) -> Kernel:
        """Itself: one library for every shape, where :class:`flashcore.tuned.Tuned` has several."""
        return self

    def forced(self, tiling: int) -> Kernel:
        """The same library, which runs the tiling of this number (``Variant.tilings``, from 1 on) for every shape. Its
        calls raise LaunchFailed where the tiling is not for their type, head dimension or GPU."""
        made = Kernel(self.built)
        made._tiling = tiling
        return made

    def kernels(self) -> list[Kernel]:
        return [self]

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: int = False,
        scale: float | None = None,
        out: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of ``q`` [B, H, S_q, D] over ``k`` and ``v`` [B, H, S_kv, D], on torch's current stream.

        Any strides with a contiguous last dimension; ``scale`` defaults to D ** -0.5. Forward only. ``causal`` is
        False, True or :data:`LOWER_RIGHT`. ``mask`` is boolean, [B, H, S_q, S_kv] where each but the last may be 1;
        False hides a key. A query that sees none gives zeros.

        Raises:
            Unsupported: before anything runs, if the kernel does not take these inputs.
            LaunchFailed: the library returned an error code.
        """
        return self._call_from_python(q, k, v, causal, scale, out, mask)

    def extended(
        self, extras: tuple[Extra, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: int = False,
        scale: float | None = None, out: torch.Tensor | None = None, mask: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """A call with ``extras``, which the variant must take; else as any. Raises: as :meth:`__call__`."""
        return self._call_from_python(q, k, v, causal, scale, out, mask, extras)

    def launcher(self, slow: Slow) -> Any:
        """Calls this kernel in C for layouts that :meth:`teach` told it in the same state of the thread (autocast,
        mode, transform), else ``slow`` with the elements of a :data:`Call`. None where calls cannot be made in C, see
        :attr:`dispatch_missing`, or this PyTorch does not show that state."""
        module, _ = dispatch.load()
        if module is None or not dispatch.sees_modes(module):
            return None
        made = module.Launcher()
        self._configure(made, slow)
        return made

    def _configure(self, launcher: Any, slow: Slow) -> None:
        device = self.variant.device
        allocate, by_layout = dispatch.allocator(device)
        current_device = torch._C._cuda_getDevice if self._many_devices else None  # noqa: SLF001
        launcher.configure(
            ctypes.cast(self._forward, ctypes.c_void_p).value, dispatch.DEVICE_TYPES[device], self._alignment,
            device == "cpu", by_layout, torch.Tensor, slow, self._failed, allocate, current_device,
        )  # fmt: skip

    def teach(self, launcher: Any, call: Call, out: torch.Tensor) -> None:
        """Tell ``launcher`` what this kernel does for ``call``, which gave ``out``.

        Raises:
            Unsupported: the kernel does not take these inputs.
        """
        q, k, v, causal, scale, _, mask = call
        template = self._template(q, k, v, out, causal, scale, mask)
        _tell(launcher, call, template, out)

    def _call_from_python(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: int,
        scale: float | None,
        out: torch.Tensor | None,
        mask: torch.Tensor | None,
        extras: tuple[Extra, ...] = (),
    ) -> torch.Tensor:
        q, k, v = self._resolved(q, k, v, out)
        extras = with_pages(extras, k, v) if self.variant.pages else extras
        asked = (q, k, v, causal, scale, out, mask)
        if out is None:
            out = torch.empty_like(q)
            layout = None  # of the output: follows from that of q
        else:
            layout = (out.shape, out.stride(), out.dtype, out.get_device(), out.requires_grad)
        device = q.get_device()
        # Everything that decides whether and how the kernel runs, but for the addresses.
        key = (
            q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
            device, k.get_device(), v.get_device(), q.requires_grad, k.requires_grad, v.requires_grad,
            causal, scale, layout, mask is not None and (mask.shape, mask.stride(), mask.dtype, mask.get_device()),
            *(extra.key for extra in extras),
        )  # fmt: skip
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._template(q, k, v, out, causal, scale, mask, extras)
        if not self.dispatch_missing and not extras:
            _tell(self, asked, template, out)
        if template.workspace:  # freed at the end of this call, for who comes later on this stream
            workspace = torch.empty(template.workspace, dtype=torch.uint8, device=q.device)
        args = Args.from_buffer_copy(template)  # a copy: other threads may be between here and the launch, too
        args.q = at_q = q.data_ptr()
        args.k = at_k = k.data_ptr()
        args.v = at_v = v.data_ptr()
        args.o = at_o = out.data_ptr()
        args.mask = mask.data_ptr() if mask is not None else None
        if template.workspace:
            args.workspace = workspace.data_ptr()
        _point(extras, args)
        if not (at_q and at_k and at_v and at_o):  # a tensor without memory: get_device() of meta is that of cpu
            _refuse_unsupported(self.variant, {"q": q, "k": k, "v": v, "out": out}, causal, mask)
        if (at_q | at_k | at_v | at_o) % self._alignment:
            raise Unsupported(
                f"{self.variant.name} needs tensors that start at a multiple of {self._alignment} bytes",
                hint="for a view that starts inside another tensor, pass x.clone()",
            )
        if self._many_devices and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(args, device)
        else:
            self._launch(args, device)
        return out

    def _resolved(self, q: Any, k: Any, v: Any, out: Any) -> Any:
        """The inputs, copied where their memory holds the negatives of their values. Raises: Unsupported, if ``out``'s
        does."""
        if out is not None and out.is_neg():
            raise Unsupported(f"{self.variant.name} cannot write an output with the negative bit set")
        return q.resolve_neg(), k.resolve_neg(), v.resolve_neg()

    def _launch(self, args: Args, device: int) -> None:
        """One call of the library, on torch's current stream of ``device``, which is the current device."""
        args.stream = self._stream(device)
        code = self._forward(args)
        if code != 0:
            self._failed(code)

    def _failed(self, code: int) -> None:
        name = self._error(code).decode()
        if name == "cudaErrorNotSupported":
            raise LaunchFailed(
                f"{self.variant.name} does not support this GPU",
                cause=f"its library checked this GPU, and a required property is missing ({name})",
                hint="see the other variants: python -m flashcore list",
            )
        raise LaunchFailed(
            f"{self.variant.name} failed to launch: {name} ({code})",
            cause="an earlier kernel may have failed: CUDA reports errors late" if code != 1 else None,
            hint="run again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer" if code != 1 else None,
        )

    def _template(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        causal: int,
        scale: float | None,
        mask: torch.Tensor | None,
        extras: tuple[Extra, ...] = (),
    ) -> Args:
        """All but the addresses; in place of the workspace's is its size in bytes."""
        _refuse_unsupported(self.variant, {"q": q, "k": k, "v": v, "out": out}, causal, mask)
        for extra in extras:
            if not getattr(self.variant, needed := extra.needs(causal)):
                raise Unsupported(f"{self.variant.name} does not support {needed}", hint=_takers(needed))
        B, H, S_q, D = q.shape
        args = Args(B=B, H=H, S_q=S_q, S_kv=k.shape[2], D=D)
        for name, tensor in (("q", q), ("k", k), ("v", v), ("o", out)):
            setattr(args, name + "_stride", Strides(*tensor.stride()[:3]))
        args.scale = D**-0.5 if scale is None else scale
        args.causal = int(causal)
        args.threads = torch.get_num_threads()
        args.H_kv = k.shape[1]
        args.dtype = DTYPES.index(q.dtype)
        args.tiling = self._tiling
        if mask is not None:
            args.mask_stride = Strides(*(s if n > 1 else 0 for n, s in zip(mask.shape[:3], mask.stride())))  # noqa: B905
        for extra in extras:
            extra.fill(args)
        if self._workspace_bytes is not None:
            with torch.cuda.device_of(q):  # a library that chooses does so for the current device
                args.workspace = self._workspace_bytes(args)
        return args


@functools.cache
def _in_c(cls: type[Kernel], launcher: Any) -> Any:
    """``cls`` whose calls are the Launcher's: no Python function stands between a call and the kernel."""
    return type(cls.__name__, (cls, launcher), {"__call__": launcher.__call__, "__doc__": cls.__doc__})


def _tell(launcher: Any, call: Call, template: Args, out: torch.Tensor) -> None:
    launcher.remember(call, bytes(template), tuple(out.shape), out.stride(), out.dtype)


def _workspace(library: Any) -> Callable[[Args], int] | None:
    """The library's function that says how many bytes of workspace a launch needs; None, if it has none."""
    function = getattr(library, "flashcore_workspace_bytes", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.POINTER(Args)], ctypes.c_size_t
    return function


def _point(extras: tuple[Extra, ...], args: Args) -> None:
    for extra in extras:
        extra.point(args)


def _no_stream(_device: int) -> int:
    return 0


def _refuse_unsupported(
    variant: Variant, tensors: dict[str, torch.Tensor], causal: int, mask: torch.Tensor | None
) -> None:
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
            "elements of out share memory", cause=f"strides {out.stride()}", hint="pass a tensor that is not expanded"
        )
    B, H, _, D = q.shape
    if 0 in q.shape or 0 in k.shape:
        raise Unsupported("attention needs tensors that are not empty", cause=f"q {tuple(q.shape)}, k {tuple(k.shape)}")
    heads_fit = H % k.shape[1] == 0 if variant.grouped_heads else k.shape[1] == H
    keys = (k.shape[0] if variant.pages else B, k.shape[1], k.shape[2], D)
    if tuple(k.shape) != keys or not heads_fit or v.shape != k.shape or out.shape != q.shape:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in tensors.items())
        few = "; H of k and v must divide H of q" if variant.grouped_heads else ""
        hint = f"q, out [B,H,S_q,D]; k, v [B,H,S_kv,D]{few}"
        raise Unsupported("the shapes do not match", cause=shapes, hint=hint)
    if len({t.dtype for t in tensors.values()}) > 1:
        raise Unsupported("q, k, v and out differ in type", cause=f"{[str(t.dtype) for t in tensors.values()]}")
    if D not in variant.head_dims:
        raise Unsupported(
            f"{variant.name} does not support head dimension {D}", hint=f"it supports {list(variant.head_dims)}"
        )
    _refuse_masks(variant, causal, mask, (B, H, q.shape[2], k.shape[2]), D, q.device)


def _takers(what: str) -> str:
    """The variants that take it, for a hint."""
    return "supported by: " + ", ".join(v.name for v in VARIANTS.values() if getattr(v, what))


def _refuse_masks(
    variant: Variant, causal: int, mask: torch.Tensor | None, full: tuple[int, ...], D: int, device: torch.device
) -> None:
    if causal == 1 and not variant.causal:
        raise Unsupported(f"{variant.name} does not support a causal mask", hint=_takers("causal"))
    if causal not in (0, 1, LOWER_RIGHT) or (causal == LOWER_RIGHT and D not in variant.lower_right):
        raise Unsupported(
            f"{variant.name} does not support causal={causal} at head dimension {D}",
            hint=f"causal is False or True, or, at head dimensions {list(variant.lower_right)}, 2",
        )
    if mask is None:
        return
    if D not in variant.masks:
        raise Unsupported(
            f"{variant.name} does not support a mask at head dimension {D}",
            hint=f"it does at head dimensions {list(variant.masks)}" if variant.masks else _takers("masks"),
        )
    if not mask_fits(mask, full) or mask.device != device:
        raise Unsupported(
            f"{variant.name} does not support this mask",
            cause=f"{mask.dtype} {tuple(mask.shape)}, strides {mask.stride()}, on {mask.device}",
            hint=f"a mask is boolean, [B, H, S_q, S_kv] = {list(full)} where each but the last may be 1, its last "
            f"dimension contiguous, on {device}",
        )


def mask_fits(mask: torch.Tensor, full: Sequence[int]) -> bool:
    """Whether kernels read ``mask`` as one for [B, H, S_q, S_kv] = ``full``."""
    if mask.dtype is not torch.bool or mask.dim() != 4 or mask.shape[3] != full[3] or mask.stride(3) != 1:
        return False
    return all(n in (1, size) for n, size in zip(mask.shape, full))  # noqa: B905 (Python 3.9)


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
