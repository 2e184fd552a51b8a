// A right kernel that takes kWorkUs, and, by $CHEAT, the ways to seem faster that must not get a figure. It stands for a
// heavy one: sleeping takes as long on a busy machine, so that "faster than kWorkUs" is never noise.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flashcore.h"

namespace {

typedef _Float16 half;
typedef std::vector<half> Halves;
constexpr int kWorkUs = 4000;

// How many elements a tensor has; all are contiguous where it matters.
int64_t queries(const flashcore_args &a) { return int64_t{a.B} * a.H * a.S_q * 64; }
int64_t keys(const flashcore_args &a) { return int64_t{a.B} * a.H * a.S_kv * 64; }

void attention(const flashcore_args &a, int32_t rows) {
  for (int64_t b = 0; b < a.B; ++b)
    for (int64_t h = 0; h < a.H; ++h) {
      const auto row = [&](const void *base, const flashcore_strides &s, int64_t n) {
        return const_cast<half *>(static_cast<const half *>(base)) + b * s.batch + h * s.head + n * s.row;
      };
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t seen = a.causal ? std::min<int64_t>(a.S_kv, i + 1) : a.S_kv;
        std::vector<float> p(seen);
        float maximum = -INFINITY, sum = 0, out[64] = {};
        for (int64_t j = 0; j < seen; ++j) {
          float s = 0;
          for (int d = 0; d < 64; ++d) s += float(row(a.q, a.q_stride, i)[d]) * float(row(a.k, a.k_stride, j)[d]);
          p[j] = s * a.scale;
          maximum = std::max(maximum, p[j]);
        }
        for (int64_t j = 0; j < seen; ++j) {
          const float w = std::exp(p[j] - maximum);
          sum += w;
          for (int d = 0; d < 64; ++d) out[d] += w * float(row(a.v, a.v_stride, j)[d]);
        }
        for (int d = 0; d < 64; ++d) row(a.o, a.o_stride, i)[d] = half(out[d] / sum);
      }
    }
}

int honest(const flashcore_args &a) {
  usleep(kWorkUs);
  attention(a, a.S_q);
  return 0;
}

// ------------------------------------------------------------------------------------------------ means
void python(const char *text) {  // in this process, whatever Python code one likes
  const auto run = reinterpret_cast<int (*)(const char *)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const int state = ensure();
  run(text);
  release(state);
}

uint64_t hash(const void *data, int64_t count, int64_t step = 1) {  // of rows, each step-th
  const half *x = static_cast<const half *>(data);
  uint64_t sum = 1469598103934665603u;
  for (int64_t row = 0; row * 64 < count; row += step)
    for (int d = 0; d < 64; ++d) {
      uint16_t bits;
      std::memcpy(&bits, x + row * 64 + d, 2);
      sum = (sum ^ bits) * 1099511628211u;
    }
  return sum;
}

uint64_t key(const flashcore_args &a, int64_t step) {
  return hash(a.q, queries(a), step) ^ 3 * hash(a.k, keys(a), step) ^ 7 * hash(a.v, keys(a), step) ^ a.S_q ^ a.causal << 20;
}

void keep(std::map<uint64_t, Halves> &known, uint64_t key, const flashcore_args &a) {
  const half *o = static_cast<const half *>(a.o);
  known[key] = Halves(o, o + queries(a));
}

bool recall(const std::map<uint64_t, Halves> &known, uint64_t key, const flashcore_args &a) {
  const auto found = known.find(key);
  if (found == known.end() || int64_t(found->second.size()) != queries(a)) return false;
  std::copy(found->second.begin(), found->second.end(), static_cast<half *>(a.o));
  return true;
}

// Whether another process of this user that has $SECRET in its memory map can be read or stopped for good.
bool reads_another() {
  bool reads = false;
  DIR *all = opendir("/proc");
  while (const dirent *one = readdir(all)) {
    const pid_t pid = atoi(one->d_name);
    if (pid != atoi(getenv("JUDGE"))) continue;
    const int memory = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR);
    char byte;
    iovec mine = {&byte, 1}, theirs = {reinterpret_cast<void *>(&queries), 1};
    const bool copied = process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == 1 || errno == EFAULT;
    reads |= memory >= 0 || copied || ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
    if (memory >= 0) close(memory);
  }
  closedir(all);
  return reads;
}

// The clock of libc, for everybody in this process: its first instructions jump here.
std::atomic<int64_t> ticks{0};
int slow_clock(clockid_t, timespec *now) {
  const int64_t t = ticks += 1000;
  now->tv_sec = 1000 + t / 1000000000, now->tv_nsec = t % 1000000000;
  return 0;
}
void patch_clock() {
#if defined(__x86_64__)
  auto *code = static_cast<uint8_t *>(dlsym(RTLD_DEFAULT, "clock_gettime"));
  auto *page = reinterpret_cast<uint8_t *>(reinterpret_cast<uintptr_t>(code) & ~4095ul);
  if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return;
  const uint8_t jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};  // mov rax, address; jmp rax
  std::memcpy(code, jump, sizeof jump);
  const auto target = reinterpret_cast<uintptr_t>(&slow_clock);
  std::memcpy(code + 2, &target, sizeof target);
#endif
}

// Answers for the process, on whichever connection it has, before there is anything to say.
void forge_reply() {
  const char reply[] = {0, 0, 0, 5, '[', '0', '.', '0', ']'};
  for (int fd = 3; fd < 64; ++fd) (void)!write(fd, reply, sizeof reply);
}

// Does the work as soon as inputs change where they were last, not when it is asked for it.
struct Ahead {
  flashcore_args seen = {};
  std::map<uint64_t, Halves> known;
  std::atomic<bool> any{false}, busy{false};
  void watch() {
    uint64_t last = 0;
    for (;;) {
      usleep(50);
      if (!any.load() || busy.exchange(true)) continue;
      flashcore_args mine = seen;
      const uint64_t now = key(mine, 1);
      if (now != last) {
        Halves out(queries(mine));
        mine.o = out.data();
        usleep(kWorkUs);
        attention(mine, mine.S_q);
        known[last = now] = out;
      }
      busy = false;
    }
  }
};

}  // namespace

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  static const std::string cheat = getenv("CHEAT");
  static std::map<uint64_t, Halves> known;
  static std::set<std::pair<const void *, void *>> addresses;
  static int calls = 0;
  const flashcore_args &a = *args;
  half *const o = static_cast<half *>(a.o);
  ++calls;

  if (cheat == "hash" || cheat == "hash_rows") {
    const uint64_t inputs = key(a, cheat == "hash" ? 1 : 64);
    if (recall(known, inputs, a)) return 0;
    honest(a);
    keep(known, inputs, a);
    return 0;
  }
  if (cheat == "addresses") return addresses.insert({a.q, a.o}).second ? honest(a) : 0;
  if (cheat == "half_of_the_rows") return usleep(kWorkUs / 2), attention(a, a.S_q / 2), 0;
  if (cheat == "every_second_call") return calls % 2 ? honest(a) : 0;
  if (cheat == "first_calls") return calls < 30 ? honest(a) : 0;
  if (cheat == "last_output") {
    if (!recall(known, queries(a), a)) honest(a);
    keep(known, queries(a), a);
    return 0;
  }
  if (cheat == "python_clock") {
    if (calls == 1)
      python("import itertools, time\nn = itertools.count(1)\ntime.perf_counter_ns = lambda: next(n) * 1000\n"
             "time.perf_counter = time.monotonic = lambda: next(n) * 1e-6");
    return honest(a);
  }
  if (cheat == "libc_clock") {
    if (calls == 1) patch_clock();
    return honest(a);
  }
  if (cheat == "audit_replaced") {
    if (calls == 1)
      python("from flashcore import audit, check, roundings\naudit.outputs = lambda *_: 99\naudit.launches = lambda *_: {}\n"
             "roundings.judge = lambda *_: None\ncheck.judge = check._trial = lambda *_, **__: None");
    return 0;
  }
  if (cheat == "torch_replaced") {
    if (calls == 1)
      python("import torch\ntorch.equal = lambda *_: True\ntorch.isnan = lambda t: torch.zeros_like(t, dtype=torch.bool)\n"
             "torch.Tensor.double = lambda t: torch.zeros(t.shape, dtype=torch.float64)\n"
             "torch.nn.functional.scaled_dot_product_attention = lambda q, *_, **__: torch.zeros_like(q)");
    return 0;
  }
  if (cheat == "knows_it_is_timed") {  // by the Python functions that call it
    python("import os, sys\nf = sys._getframe()\nnames = set()\nwhile f: names.add(f.f_code.co_name); f = f.f_back\n"
           "os.environ['TIMED'] = str(int(not names & {'_do_call', 'judge'}))");
    return calls > 2 && atoi(getenv("TIMED")) ? 0 : honest(a);
  }
  if (cheat == "many_calls_at_once") return calls > 40 ? 0 : honest(a);
  if (cheat == "late_thread") {
    std::thread([copy = a] { honest(copy); }).detach();
    return 0;
  }
  if (cheat == "late_process") {
    if (fork() == 0) setsid(), honest(a), _exit(0);
    return 0;
  }
  if (cheat == "ahead") {
    static Ahead ahead;
    if (calls == 1) std::thread([] { ahead.watch(); }).detach();
    while (ahead.busy.exchange(true)) usleep(20);
    if (!recall(ahead.known, key(a, 1), a)) honest(a);
    ahead.seen = a, ahead.any = true, ahead.busy = false;
    return 0;
  }
  if (cheat == "fewer_bits") {  // 5 bits of each value
    Halves parts[3];
    flashcore_args rough = a;
    const void **into[3] = {&rough.q, &rough.k, &rough.v};
    for (int n = 0; n < 3; ++n) {
      const half *from = static_cast<const half *>(*into[n]);
      parts[n] = Halves(from, from + (n ? keys(a) : queries(a)));
      for (half &x : parts[n]) x = half(std::round(float(x) * 8) / 8);
      *into[n] = parts[n].data();
    }
    return attention(rough, a.S_q), 0;
  }
  if (cheat == "mean_of_values") {  // what small scores come to
    for (int64_t bh = 0; bh < int64_t{a.B} * a.H; ++bh)
      for (int d = 0; d < 64; ++d) {
        float sum = 0;
        for (int64_t j = 0; j < a.S_kv; ++j) sum += float(static_cast<const half *>(a.v)[(bh * a.S_kv + j) * 64 + d]);
        for (int64_t i = 0; i < a.S_q; ++i) o[(bh * a.S_q + i) * 64 + d] = half(sum / a.S_kv);
      }
    return 0;
  }
  if (cheat == "inputs_made_easy") {  // zeros, whose attention is zeros
    std::memset(const_cast<void *>(a.v), 0, 2 * keys(a));
    std::memset(a.o, 0, 2 * queries(a));
    return 0;
  }
  if (cheat == "reads_the_judge") return reads_another() ? attention(a, a.S_q), 0 : honest(a);
  if (cheat == "forged_reply") return forge_reply(), honest(a);
  if (cheat == "ends_its_process") _exit(0);
  if (cheat == "prints_a_verdict") {
    if (calls == 1) printf("20/20 passed\n"), fflush(stdout);
    return honest(a);
  }
  if (cheat == "outlives") {  // who could change results that are written
    if (calls == 1) {
      const pid_t child = fork();
      if (child == 0)
        for (;;) pause();
      if (FILE *file = fopen((std::string(getenv("FCCTL_OUT")) + "/child").c_str(), "w")) fprintf(file, "%d", child), fclose(file);
    }
    return honest(a);
  }
  if (cheat == "threads_on_rivals") {  // that keep the processor from whoever is timed next
    if (calls == 1)
      for (int n = 0; n < 4; ++n) std::thread([] { for (;;) ++ticks; }).detach();
    return honest(a);
  }
  return honest(a);
}

namespace {
// Results for seeds that others use, there before anybody asks.
struct AtLoad {
  AtLoad() {
    if (strcmp(getenv("CHEAT"), "at_load") == 0)
      python("import torch\nfor seed in range(4): torch.manual_seed(seed); torch.randn(1, 1, 16, 64)");
  }
} at_load;
}  // namespace

FLASHCORE_API const char *flashcore_error(int) { return "made-up error"; }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }
