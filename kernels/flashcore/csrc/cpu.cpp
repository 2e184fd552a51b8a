// cpu: the same attention on a processor, so that the whole loop of build, check and bench is real without a GPU.
//
// The idea: blocked online softmax with everything transposed. Query rows lie along the vector lanes, so that scores
// are S^T = K Q^T and the output O^T = V^T P^T: maximum, sum and correction of a row are then plain lane-wise operations
// with no horizontal reduction, K and V need no transposing, and both products are the same register-blocked loop.
// A task is one head's chunk of query rows; each thread widens a block of keys and values to FP32 and keeps it in cache.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "flashcore.h"

#ifndef ROWS  // query rows per task
#define ROWS 128
#endif
#ifndef KEYS  // keys per block
#define KEYS 128
#endif

namespace {

// ------------------------------------------------------------------------------------------------ vectors of FP32
#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 8;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kLanes = 8, kTileRows = 4;  // 16 registers: 8 sums, 2 loads, the broadcasts
#elif defined(__aarch64__)
constexpr int kLanes = 4, kTileRows = 8;
#else
constexpr int kLanes = 4, kTileRows = 4;
#endif
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

constexpr int kHeadDim = 64;
constexpr int kTileVectors = 2;                       // a register tile: kTileRows x kTileVectors sums
constexpr int kStrip = kTileVectors * kLanes;         // query rows that are worked on together
constexpr float kMasked = -1e30f;                     // below any score of FP16 inputs, yet finite: no inf - inf
static_assert(ROWS % 32 == 0 && KEYS % 8 == 0 && 32 % kStrip == 0, "tiles divide the chunk and the block");

inline Floats broadcast(float x) { return x - Floats{}; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// 2^x for x <= 0, to 2 units in the last place; 2^-126 for anything below, NaN for NaN.
inline Floats exp2(Floats x) {
  x = x < -126.f ? broadcast(-126.f) : x;
  const Floats shifted = x + 12582912.f;  // 1.5 * 2^23: the sum's low bits are x rounded to an integer
  const Floats f = x - (shifted - 12582912.f);
  Floats p = broadcast(1.3333558e-3f);
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.f;
  Ints power;
  std::memcpy(&power, &shifted, sizeof power);
  power = (power << 23) + (127 << 23);
  Floats scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

// ------------------------------------------------------------------------------------------------ FP16 <-> FP32
[[maybe_unused]] float widen(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {
    bits = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;  // infinity, NaN
  } else if (magnitude >= 0x400u) {
    bits = sign | ((magnitude << 13) + (112u << 23));
  } else {  // subnormal: exact as a float
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

[[maybe_unused]] uint16_t narrow(float x) {  // rounds to nearest even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (bits < 0x38800000u) {                        // subnormal: let the FP32 adder round at bit 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return sign | static_cast<uint16_t>(bits - 0x3f000000u);
  }
  return sign | static_cast<uint16_t>((bits + 0xfffu + (bits >> 13 & 1u) - (112u << 23)) >> 13);
}

void widen_row(const uint16_t *from, float *to) {
  for (int i = 0; i < kHeadDim; i += 8) {
#if defined(__F16C__)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i))));
#elif defined(__aarch64__)
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(from + i));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(h)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(h));
#else
    for (int j = i; j < i + 8; ++j) to[j] = widen(from[j]);
#endif
  }
}

void narrow_row(const float *from, uint16_t *to) {
  for (int i = 0; i < kHeadDim; i += 8) {
#if defined(__F16C__)
    const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i), h);
#elif defined(__aarch64__)
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    vst1q_u16(to + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(from + i + 4))));
#else
    for (int j = i; j < i + 8; ++j) to[j] = narrow(from[j]);
#endif
  }
}

// ------------------------------------------------------------------------------------------------ one chunk
struct alignas(64) Scratch {
  float k[KEYS][kHeadDim], v[KEYS][kHeadDim];  // this block, widened
  float q[kHeadDim][ROWS];                     // the chunk, transposed, times scale * log2(e)
  float o[kHeadDim][ROWS];
  float p[KEYS][kStrip];                       // scores, then weights, of one strip
  float maximum[ROWS], sum[ROWS];
  float row[ROWS][kHeadDim];
};

inline Floats load(const float *p) { return *reinterpret_cast<const Floats *>(p); }
inline void store(float *p, Floats x) { *reinterpret_cast<Floats *>(p) = x; }

// sum[r][c] += over i < n of a[r * row_step + i * step] * b[i * b_step + c * kLanes]: operands of A are broadcast, so A
// may lie transposed or not, and B's rows are contiguous.
inline void multiply(const float *a, int row_step, int step, const float *b, int b_step, int n,
                     Floats (&sum)[kTileRows][kTileVectors]) {
  for (int i = 0; i < n; ++i) {
    Floats x[kTileVectors];
    for (int c = 0; c < kTileVectors; ++c) x[c] = load(b + i * b_step + c * kLanes);
    for (int r = 0; r < kTileRows; ++r) {
      const float y = a[r * row_step + i * step];
      for (int c = 0; c < kTileVectors; ++c) sum[r][c] += y * x[c];
    }
  }
}

// Scores of `keys` keys for the strip's rows, into s.p; -1e30 where the mask hides the key.
void scores(Scratch &s, int strip, int keys, int first_key, int first_row, bool causal) {
  for (int j = 0; j < keys; j += kTileRows) {
    Floats sum[kTileRows][kTileVectors] = {};
    multiply(s.k[j], kHeadDim, 1, &s.q[0][strip], ROWS, kHeadDim, sum);
    for (int r = 0; r < kTileRows; ++r)
      for (int c = 0; c < kTileVectors; ++c) store(&s.p[j + r][c * kLanes], sum[r][c]);
  }
  if (causal && first_key + keys > first_row + strip)
    for (int j = 0; j < keys; ++j)
      for (int r = 0; r < kStrip && first_row + strip + r < first_key + j; ++r) s.p[j][r] = kMasked;
}

// Scores to weights in place, the running maximum and sum brought up to date; returns what the output so far is worth.
void soften(Scratch &s, int strip, int keys, Floats (&correction)[kTileVectors]) {
  for (int c = 0; c < kTileVectors; ++c) {
    float *p = &s.p[0][c * kLanes], *kept_maximum = &s.maximum[strip + c * kLanes], *kept_sum = &s.sum[strip + c * kLanes];
    Floats maximum = load(kept_maximum), sum = {};
    for (int j = 0; j < keys; ++j) maximum = larger(load(p + j * kStrip), maximum);
    for (int j = 0; j < keys; ++j) {
      const Floats weight = exp2(load(p + j * kStrip) - maximum);
      store(p + j * kStrip, weight);
      sum += weight;
    }
    correction[c] = exp2(load(kept_maximum) - maximum);
    store(kept_maximum, maximum);
    store(kept_sum, load(kept_sum) * correction[c] + sum);
  }
}

void accumulate(Scratch &s, int strip, int keys, const Floats (&correction)[kTileVectors]) {
  for (int d = 0; d < kHeadDim; d += kTileRows) {
    Floats sum[kTileRows][kTileVectors];
    for (int r = 0; r < kTileRows; ++r)
      for (int c = 0; c < kTileVectors; ++c) sum[r][c] = load(&s.o[d + r][strip + c * kLanes]) * correction[c];
    multiply(&s.v[0][d], 1, kHeadDim, s.p[0], kStrip, keys, sum);
    for (int r = 0; r < kTileRows; ++r)
      for (int c = 0; c < kTileVectors; ++c) store(&s.o[d + r][strip + c * kLanes], sum[r][c]);
  }
}

struct Head {
  const uint16_t *q, *k, *v;
  uint16_t *o;
};

Head head_of(const flashcore_args &a, int64_t index) {
  const int64_t b = index / a.H, h = index % a.H;
  const auto at = [&](const void *base, const flashcore_strides &stride) {
    return static_cast<const uint16_t *>(base) + b * stride.batch + h * stride.head;
  };
  return {at(a.q, a.q_stride), at(a.k, a.k_stride), at(a.v, a.v_stride), const_cast<uint16_t *>(at(a.o, a.o_stride))};
}

// Output rows first_row .. first_row + rows of one head.
void chunk(const flashcore_args &a, const Head &head, int first_row, int rows, Scratch &s) {
  const int padded = (rows + kStrip - 1) / kStrip * kStrip;  // rows past the end are zeros, computed and dropped
  const float scale = a.scale * 1.4426950408889634f;
  for (int r = 0; r < padded; ++r) {
    if (r < rows) widen_row(head.q + (first_row + r) * a.q_stride.row, s.row[r]);
    for (int d = 0; d < kHeadDim; ++d) s.q[d][r] = r < rows ? s.row[r][d] * scale : 0.f;
    s.maximum[r] = kMasked;
    s.sum[r] = 0.f;
  }
  for (int d = 0; d < kHeadDim; ++d) std::fill_n(s.o[d], padded, 0.f);

  const int last_key = a.causal ? std::min(a.S_kv, first_row + rows) : a.S_kv;
  for (int first_key = 0; first_key < last_key; first_key += KEYS) {
    const int keys = std::min(KEYS, last_key - first_key);
    for (int j = 0; j < keys; ++j) {
      widen_row(head.k + (first_key + j) * a.k_stride.row, s.k[j]);
      widen_row(head.v + (first_key + j) * a.v_stride.row, s.v[j]);
    }
    // The last tile's missing keys: any finite scores do, for they are never read.
    for (int j = keys; j < (keys + kTileRows - 1) / kTileRows * kTileRows; ++j) std::fill_n(s.k[j], kHeadDim, 0.f);
    for (int strip = 0; strip < padded; strip += kStrip) {
      Floats correction[kTileVectors];
      scores(s, strip, keys, first_key, first_row, a.causal);
      soften(s, strip, keys, correction);
      accumulate(s, strip, keys, correction);
    }
  }

  for (int d = 0; d < kHeadDim; ++d)
    for (int r = 0; r < rows; ++r) s.row[r][d] = s.o[d][r] / s.sum[r];
  for (int r = 0; r < rows; ++r) narrow_row(s.row[r], head.o + (first_row + r) * a.o_stride.row);
}

// ------------------------------------------------------------------------------------------------ threads
// Workers wait a little by spinning, since the next call often comes at once, then sleep.
class Pool {
 public:
  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      stopping_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread &t : workers_) t.join();
  }

  // Calls work() once on each of `threads` threads, this one among them, and returns when all have returned.
  void run(int threads, const std::function<void()> &work) {
    std::lock_guard<std::mutex> one_call_at_a_time(calls_);
    while (static_cast<int>(workers_.size()) < threads - 1) workers_.emplace_back([this, seen = generation_.load()] { serve(seen); });
    pending_.store(static_cast<int>(workers_.size()));
    {
      std::lock_guard<std::mutex> hold(mutex_);
      work_ = &work;
      seats_.store(threads - 1);
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    work();
    while (pending_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

 private:
  void serve(uint64_t seen) {
    for (;;) {
      const auto patience = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
      while (generation_.load() == seen && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
      {
        std::unique_lock<std::mutex> hold(mutex_);
        wake_.wait(hold, [&] { return generation_.load() != seen; });
        seen = generation_.load();
        if (stopping_) return;
      }
      if (seats_.fetch_sub(1) > 0) (*work_)();
      pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex calls_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> pending_{0}, seats_{0};
  const std::function<void()> *work_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

void forward(const flashcore_args &a) {
  const int64_t heads = static_cast<int64_t>(a.B) * a.H;
  const int64_t chunks = (static_cast<int64_t>(a.S_q) + ROWS - 1) / ROWS, tasks = heads * chunks;
  const int available = a.threads > 0 ? a.threads : std::max(1u, std::thread::hardware_concurrency());
  const int threads = static_cast<int>(std::min<int64_t>(available, tasks));
  std::atomic<int64_t> next{0};
  const std::function<void()> work = [&] {
    static thread_local Scratch scratch;
    for (int64_t task; (task = next.fetch_add(1)) < tasks;) {
      const int first_row = static_cast<int>(task % chunks) * ROWS;
      chunk(a, head_of(a, task / chunks), first_row, std::min(ROWS, a.S_q - first_row), scratch);
    }
  };
  static Pool pool;
  if (threads == 1) {
    work();
  } else {
    pool.run(threads, work);
  }
}

}  // namespace

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const bool positive = args->B > 0 && args->H > 0 && args->S_q > 0 && args->S_kv > 0;
  if (!positive || args->D != kHeadDim) return 1;
  forward(*args);
  return 0;
}

FLASHCORE_API const char *flashcore_error(int code) { return code == 0 ? "success" : "invalid value"; }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }
