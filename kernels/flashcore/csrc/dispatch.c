// From a Python call to flashcore_forward without Python in between: kernel(q, k, v) for input layouts seen before.
//
// A Launcher remembers, for each distinct combination of shapes, strides, types, device, mask and scale, the
// flashcore_args that launch.py made when it met the combination first, and the layout of the output. What PyTorch does
// with this thread's calls (autocast, modes, transforms, tracing) is part of the combination. A call then reads three tensors, compares, asks for an output, fills in four addresses and the stream, and calls the kernel's library. (A mask is a fifth.)
// Whatever is not plain (another type of tensor, a gradient, an unseen layout, a misaligned address) goes to the `slow`
// function of launch.py, which decides, refuses with reasons, and calls remember().
//
// No torch headers, so that this compiles in under a second: tensors are read through the table of C functions that
// torch.Tensor.__dlpack_c_exchange_api__ holds (DLPack 1.3; PyTorch 2.10 and later).
//
// Python's lock is held from the lookup to the launch: several threads may share a Launcher. Nothing is kept between
// calls but layouts.

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <string.h>

#include "flashcore.h"

#ifdef Py_GIL_DISABLED
#error "the table of layouts is guarded by Python's lock"
#endif

// ------------------------------------------------------------------------------------------------ DLPack 1.x
typedef struct {
  int32_t type, id;
} DLDevice;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct Exchange {
  struct {
    uint32_t major, minor;
  } version;
  struct Exchange *previous;
  void *allocate, *export_owned, *import_owned;  // not used here
  int (*borrow)(void *tensor, DLTensor *out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} Exchange;

// ------------------------------------------------------------------------------------------------ what is remembered
#define SLOTS 256  // a power of 2; two layouts that share one take turns in it

typedef struct {
  int64_t shape[4], stride[4];
  int32_t device_type, device_id, dtype, present;
} Layout;

typedef struct {
  Layout q, k, v, out, mask;  // out, mask: all zeros if the call makes it, or has none
  double scale;
  int64_t causal, has_scale;
  uint64_t included, excluded, function_mode;  // of this thread: its dispatch keys; whether a TorchFunctionMode is on
} Key;

typedef struct {
  int used;
  Key key;
  flashcore_args args;
  PyObject *size, *stride, *dtype;  // of the output
} Entry;

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  int (*forward)(const flashcore_args *);
  const Exchange *exchange;
  uintptr_t alignment;
  int32_t device_type;
  int release, by_layout;  // give up Python's lock while the kernel's library works; what `allocate` takes
  PyObject *tensor, *requires_grad, *is_neg;  // a class, and of it: an attribute, a method
  PyObject *uint8;  // a type of elements
  PyObject *slow, *failed, *allocate, *current_device;
  Entry *last;
  Entry entries[SLOTS];
} Launcher;

#define ARGUMENTS 7             // q, k, v, causal, scale, out, mask
static PyObject *names_of[4];  // strings, interned: of those that have defaults

// ------------------------------------------------------------------------------------------------ a thread's state
// c10::impl::raw_local_dispatch_key_set, a thread_local of two words: keys included and excluded, beside the default.
static void *c10, *torch_cpu;
static _Bool (*function_mode_enabled)(void);

static const uint64_t *dispatch_keys(void) {
  static __thread const uint64_t *keys;
  if (keys == NULL && c10 != NULL) keys = dlsym(c10, "_ZN3c104impl26raw_local_dispatch_key_setE");  // this thread's
  return keys;
}

static void read_state(Key *key) {
  const uint64_t *keys = dispatch_keys();
  if (keys != NULL) key->included = keys[0], key->excluded = keys[1];
  if (function_mode_enabled != NULL) key->function_mode = function_mode_enabled();
}

// state() -> (included, excluded, function mode) of this thread; None where this PyTorch does not show it.
static PyObject *state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
  Key key = {0};
  if (dispatch_keys() == NULL || function_mode_enabled == NULL) Py_RETURN_NONE;
  read_state(&key);
  return Py_BuildValue("KKK", (unsigned long long)key.included, (unsigned long long)key.excluded,
                       (unsigned long long)key.function_mode);
}

static void find_state(void) {
#ifdef __linux__
  c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  torch_cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch_cpu != NULL) {
    *(void **)&function_mode_enabled = dlsym(torch_cpu, "_ZN2at4impl27torch_function_mode_enabledEv");
  }
#endif
}

static uint64_t hash_of(const Key *key) {
  const uint64_t *words = (const uint64_t *)key;
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof(Key) / 8; ++i) hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  return hash;
}

static Entry *find(Launcher *self, const Key *key) {
  Entry *entry = self->last;
  if (entry && memcmp(&entry->key, key, sizeof(Key)) == 0) return entry;
  entry = &self->entries[hash_of(key) % SLOTS];
  if (!entry->used || memcmp(&entry->key, key, sizeof(Key)) != 0) return NULL;
  return self->last = entry;
}

// Whether what the method of a tensor returns, or its attribute is, is False.
static int is_false(PyObject *found) {
  if (found == NULL) return PyErr_Clear(), 0;
  Py_DECREF(found);
  return found == Py_False;
}

// 1: a plain tensor of four dimensions that wants no gradient, read into *layout and *address. 0: anything else, such as
// a view whose memory holds the negatives of its values.
static int read_tensor(const Launcher *self, PyObject *object, Layout *layout, uintptr_t *address) {
  if ((PyObject *)Py_TYPE(object) != self->tensor) return 0;
  DLTensor tensor;
  if (self->exchange->borrow(object, &tensor) != 0) return PyErr_Clear(), 0;
  if (tensor.ndim != 4 || tensor.strides == NULL || tensor.device.type != self->device_type) return 0;
  PyObject *wants = Py_TYPE(self->requires_grad)->tp_descr_get(self->requires_grad, object, self->tensor);
  if (!is_false(wants) || !is_false(PyObject_CallOneArg(self->is_neg, object))) return 0;
  memcpy(layout->shape, tensor.shape, sizeof layout->shape);
  memcpy(layout->stride, tensor.strides, sizeof layout->stride);
  layout->device_type = tensor.device.type, layout->device_id = tensor.device.id;
  layout->dtype = tensor.dtype.code | tensor.dtype.bits << 8 | tensor.dtype.lanes << 16;
  layout->present = 1;
  *address = (uintptr_t)tensor.data + tensor.byte_offset;
  return 1;
}

// The arguments as a key and addresses, of out and mask 0 if there is none; 0 for what the slow way must judge.
static int read_call(const Launcher *self, PyObject *const *arguments, Key *key, uintptr_t (*address)[5]) {
  memset(key, 0, sizeof *key);
  read_state(key);
  (*address)[3] = (*address)[4] = 0;
  if (!read_tensor(self, arguments[0], &key->q, &(*address)[0])) return 0;
  if (!read_tensor(self, arguments[1], &key->k, &(*address)[1])) return 0;
  if (!read_tensor(self, arguments[2], &key->v, &(*address)[2])) return 0;
  if (arguments[5] != Py_None && !read_tensor(self, arguments[5], &key->out, &(*address)[3])) return 0;
  if (arguments[6] != Py_None && !read_tensor(self, arguments[6], &key->mask, &(*address)[4])) return 0;
  if (!PyLong_Check(arguments[3])) return 0;  // a bool is one
  key->causal = PyLong_AsLong(arguments[3]);
  if (key->causal == -1) return PyErr_Clear(), 0;
  if (arguments[4] == Py_None) return 1;
  if (!PyFloat_CheckExact(arguments[4])) return 0;
  key->scale = PyFloat_AS_DOUBLE(arguments[4]), key->has_scale = 1;
  return 1;
}

static int on_current_device(const Launcher *self, int32_t device) {
  if (self->current_device == Py_None) return 1;  // there is only one
  PyObject *number = PyObject_CallNoArgs(self->current_device);
  if (number == NULL) return PyErr_Clear(), 0;
  const long current = PyLong_AsLong(number);
  Py_DECREF(number);
  return current == device;
}

// A new output. Its description is held meanwhile: Python code that runs during the allocation may replace the entry.
static PyObject *allocate(Launcher *self, const Entry *entry, PyObject *q) {
  if (!self->by_layout) return PyObject_CallOneArg(self->allocate, q);
  PyObject *arguments[3] = {entry->size, entry->stride, entry->dtype};
  for (int i = 0; i < 3; ++i) Py_INCREF(arguments[i]);
  PyObject *out = PyObject_Vectorcall(self->allocate, arguments, 3, NULL);
  for (int i = 0; i < 3; ++i) Py_DECREF(arguments[i]);
  return out;
}

// The memory that a kernel needs while it runs: its size is in args->workspace, and its address takes that place. Freed when
// the caller lets go of it, for who comes later on the stream.
static PyObject *allocate_workspace(Launcher *self, flashcore_args *args) {
  DLTensor made;
  PyObject *workspace = NULL, *size = Py_BuildValue("(n)", (Py_ssize_t)(uintptr_t)args->workspace);
  PyObject *stride = Py_BuildValue("(i)", 1);
  if (size != NULL && stride != NULL)
    workspace = PyObject_CallFunctionObjArgs(self->allocate, size, stride, self->uint8, NULL);
  Py_XDECREF(size);
  Py_XDECREF(stride);
  if (workspace == NULL || self->exchange->borrow(workspace, &made) != 0) return Py_XDECREF(workspace), NULL;
  args->workspace = (char *)made.data + made.byte_offset;
  return workspace;
}

// Arguments as Python passes them, in the order q, k, v, causal, scale, out, mask; the last four have defaults.
static int arrange(PyObject *const *given, Py_ssize_t count, PyObject *names, PyObject *(*arguments)[ARGUMENTS]) {
  PyObject *defaults[ARGUMENTS] = {NULL, NULL, NULL, Py_False, Py_None, Py_None, Py_None};
  const Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
  if (count < 3 || count > ARGUMENTS) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes q, k, v and causal, scale, out, mask");
    return -1;
  }
  for (int i = 0; i < ARGUMENTS; ++i) (*arguments)[i] = i < count ? given[i] : defaults[i];
  for (Py_ssize_t n = 0; n < named; ++n) {
    PyObject *name = PyTuple_GET_ITEM(names, n);
    int at = 0;
    while (at < 4 && name != names_of[at]) ++at;  // names in calls are interned, nearly always
    for (int i = 0; at == 4 && i < 4; ++i)
      if (PyUnicode_Compare(name, names_of[i]) == 0) at = i;
    if (at == 4 || 3 + at < count) {
      PyErr_Format(PyExc_TypeError, at == 4 ? "a kernel has no argument %R" : "argument %R is given twice", name);
      return -1;
    }
    (*arguments)[3 + at] = given[count + n];
  }
  return 0;
}

static PyObject *launch(PyObject *object, PyObject *const *given, size_t flags, PyObject *names) {
  Launcher *self = (Launcher *)object;
  PyObject *arguments[ARGUMENTS];
  if (arrange(given, PyVectorcall_NARGS(flags), names, &arguments) != 0) return NULL;
  if (self->slow == NULL) {
    PyErr_SetString(PyExc_TypeError, "configure() was not called");
    return NULL;
  }
  Key key;
  uintptr_t address[5];
  Entry *entry = NULL;
  if (read_call(self, arguments, &key, &address)) entry = find(self, &key);
  if (entry == NULL || !on_current_device(self, key.q.device_id)) {
    return PyObject_Vectorcall(self->slow, arguments, ARGUMENTS, NULL);
  }
  flashcore_args args = entry->args;
  PyObject *out = arguments[5];
  if (out != Py_None) {
    Py_INCREF(out);
  } else {
    out = allocate(self, entry, arguments[0]);
    DLTensor made;
    if (out == NULL) return NULL;
    if (self->exchange->borrow(out, &made) != 0) return Py_DECREF(out), NULL;
    address[3] = (uintptr_t)made.data + made.byte_offset;
  }
  const uintptr_t all = address[0] | address[1] | address[2] | address[3];
  const int missing = !address[0] || !address[1] || !address[2] || !address[3];
  if (missing || all % self->alignment ||
      self->exchange->current_stream(key.q.device_type, key.q.device_id, &args.stream) != 0) {
    PyErr_Clear();
    Py_DECREF(out);
    return PyObject_Vectorcall(self->slow, arguments, ARGUMENTS, NULL);
  }
  args.q = (const void *)address[0], args.k = (const void *)address[1], args.v = (const void *)address[2];
  args.o = (void *)address[3], args.mask = (const void *)address[4];
  PyObject *workspace = NULL;
  if (args.workspace != NULL && (workspace = allocate_workspace(self, &args)) == NULL) return Py_DECREF(out), NULL;
  int code;
  if (self->release) {
    Py_BEGIN_ALLOW_THREADS code = self->forward(&args);
    Py_END_ALLOW_THREADS
  } else {
    code = self->forward(&args);
  }
  Py_XDECREF(workspace);
  if (code == 0) return out;
  Py_DECREF(out);
  PyObject *number = PyLong_FromLong(code);
  if (number == NULL) return NULL;
  PyObject *raised = PyObject_CallOneArg(self->failed, number);
  Py_DECREF(number);
  if (raised != NULL) {
    Py_DECREF(raised);
    PyErr_Format(PyExc_RuntimeError, "the kernel returned %d", code);
  }
  return NULL;
}

static void forget(Entry *entry) {
  entry->used = 0;
  Py_CLEAR(entry->size);
  Py_CLEAR(entry->stride);
  Py_CLEAR(entry->dtype);
}

// remember((q, k, v, causal, scale, out, mask), args, size, stride, dtype): what the slow way found for this call. True if it
// will be found again, False if it is not of a kind that is remembered.
static PyObject *remember(PyObject *object, PyObject *arguments) {
  Launcher *self = (Launcher *)object;
  PyObject *call, *size, *stride, *dtype;
  Py_buffer args;
  if (!PyArg_ParseTuple(arguments, "O!y*O!O!O", &PyTuple_Type, &call, &args, &PyTuple_Type, &size, &PyTuple_Type,
                        &stride, &dtype)) {
    return NULL;
  }
  Key key;
  uintptr_t address[5];
  PyObject *remembered = Py_False;
  if (args.len == sizeof(flashcore_args) && PyTuple_GET_SIZE(call) == ARGUMENTS &&
      (self->by_layout || ((const flashcore_args *)args.buf)->workspace == NULL) &&
      read_call(self, ((PyTupleObject *)call)->ob_item, &key, &address)) {
    Entry *entry = &self->entries[hash_of(&key) % SLOTS];
    Entry old = *entry;
    Py_INCREF(size);
    Py_INCREF(stride);
    Py_INCREF(dtype);
    entry->used = 1, entry->key = key, entry->size = size, entry->stride = stride, entry->dtype = dtype;
    memcpy(&entry->args, args.buf, sizeof(flashcore_args));
    forget(&old);  // only now: it may run other code
    remembered = Py_True;
  }
  PyBuffer_Release(&args);
  Py_INCREF(remembered);
  return remembered;
}

// configure(forward, device_type, alignment, release, by_layout, tensor, slow, failed, allocate, current_device): once.
static PyObject *configure(PyObject *object, PyObject *arguments) {
  Launcher *self = (Launcher *)object;
  unsigned long long forward;
  int device_type, alignment, release, by_layout;
  PyObject *tensor, *slow, *failed, *allocator, *current_device;
  if (!PyArg_ParseTuple(arguments, "KiippOOOOO", &forward, &device_type, &alignment, &release, &by_layout, &tensor,
                        &slow, &failed, &allocator, &current_device)) {
    return NULL;
  }
  PyObject *capsule = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
  if (capsule == NULL) return NULL;
  const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);  // the table is static in torch
  if (exchange == NULL) return NULL;
  if (self->slow != NULL || exchange->version.major != 1 || exchange->borrow == NULL || alignment <= 0) {
    PyErr_Format(PyExc_ValueError, "configured twice, or DLPack %u.%u, which is not known here",
                 exchange->version.major, exchange->version.minor);
    return NULL;
  }
  self->requires_grad = PyObject_GetAttrString(tensor, "requires_grad");
  self->is_neg = PyObject_GetAttrString(tensor, "is_neg");
  PyObject *torch = PyImport_ImportModule("torch");
  if (torch != NULL) self->uint8 = PyObject_GetAttrString(torch, "uint8"), Py_DECREF(torch);
  if (self->requires_grad == NULL || self->is_neg == NULL || self->uint8 == NULL) return NULL;
  if (Py_TYPE(self->requires_grad)->tp_descr_get == NULL) {
    PyErr_SetString(PyExc_TypeError, "requires_grad of a tensor is no descriptor");
    return NULL;
  }
  self->forward = (int (*)(const flashcore_args *))(uintptr_t)forward;
  self->exchange = exchange;
  self->alignment = (uintptr_t)alignment, self->device_type = device_type;
  self->release = release, self->by_layout = by_layout;
  self->tensor = tensor, self->slow = slow, self->failed = failed, self->allocate = allocator;
  self->current_device = current_device;
  PyObject *held[5] = {tensor, slow, failed, allocator, current_device};
  for (int i = 0; i < 5; ++i) Py_INCREF(held[i]);
  Py_RETURN_NONE;
}

static PyObject *create(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(names)) {
  Launcher *self = (Launcher *)type->tp_alloc(type, 0);
  if (self != NULL) self->call = launch;
  return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
  Launcher *self = (Launcher *)object;
  Py_VISIT(self->tensor);
  Py_VISIT(self->requires_grad);
  Py_VISIT(self->is_neg);
  Py_VISIT(self->uint8);
  Py_VISIT(self->slow);
  Py_VISIT(self->failed);
  Py_VISIT(self->allocate);
  Py_VISIT(self->current_device);
  for (int i = 0; i < SLOTS; ++i) {
    Py_VISIT(self->entries[i].size);
    Py_VISIT(self->entries[i].stride);
    Py_VISIT(self->entries[i].dtype);
  }
  return 0;
}

static int clear(PyObject *object) {
  Launcher *self = (Launcher *)object;
  Py_CLEAR(self->tensor);
  Py_CLEAR(self->requires_grad);
  Py_CLEAR(self->is_neg);
  Py_CLEAR(self->uint8);
  Py_CLEAR(self->slow);
  Py_CLEAR(self->failed);
  Py_CLEAR(self->allocate);
  Py_CLEAR(self->current_device);
  self->last = NULL;
  for (int i = 0; i < SLOTS; ++i) forget(&self->entries[i]);
  return 0;
}

static void destroy(PyObject *object) {  // of a Launcher itself; subclasses written in Python end here, too
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "configure(forward, device_type, alignment, release, by_layout, tensor, "
                                           "slow, failed, allocate, current_device)"},
    {"remember", remember, METH_VARARGS, "remember((q, k, v, causal, scale, out, mask), args, size, stride, dtype) -> bool"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject launcher_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flashcore_dispatch.Launcher",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "launcher(q, k, v, causal=False, scale=None, out=None, mask=None) -> out",
    .tp_new = create,
    .tp_dealloc = destroy,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Launcher, call),
};

static PyMethodDef functions[] = {
    {"state", state, METH_NOARGS, "state() -> (included, excluded, function mode) of this thread, or None"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "flashcore_dispatch", "Calls of kernels without Python in between.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_flashcore_dispatch(void) {
  find_state();
  const char *words[4] = {"causal", "scale", "out", "mask"};
  for (int i = 0; i < 4; ++i)
    if ((names_of[i] = PyUnicode_InternFromString(words[i])) == NULL) return NULL;
  if (PyType_Ready(&launcher_type) < 0) return NULL;
  PyObject *made = PyModule_Create(&module);
  if (made == NULL) return NULL;
  Py_INCREF(&launcher_type);
  if (PyModule_AddObject(made, "Launcher", (PyObject *)&launcher_type) < 0) {
    Py_DECREF(&launcher_type);
    Py_DECREF(made);
    return NULL;
  }
  return made;
}
