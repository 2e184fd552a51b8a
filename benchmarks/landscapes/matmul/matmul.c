// C = A B for square matrices of 480 rows: MR rows by NV vectors of VL floats held in registers, KC steps at a time.
// What does not divide 480 is not handled: such configurations are wrong, and it is for the check to say so.
#include "../clock.h"

#define N 480
#define NR (NV * VL)
#define STR_(x) #x
#define STR(x) STR_(x)
_Static_assert(MR *NV <= 48, "more accumulators than this are never kept");

typedef float vec __attribute__((vector_size(VL * 4)));
typedef vec vec_u __attribute__((aligned(4)));

static float *a, *b, *c, *want;

static void multiply(void) {
  memset(c, 0, sizeof(float) * N * N);
  for (int k0 = 0; k0 < N; k0 += KC)
    for (int j0 = 0; j0 < N; j0 += NR) {
      const int k1 = k0 + KC < N ? k0 + KC : N;
      const float *panel = b + (size_t)k0 * N + j0;
      int stride = N;
#if PACK
      static float packed[KC * NR] __attribute__((aligned(64)));
      for (int k = k0; k < k1; ++k) memcpy(packed + (k - k0) * NR, b + (size_t)k * N + j0, sizeof(float) * NR);
      panel = packed;
      stride = NR;
#endif
      for (int i0 = 0; i0 < N; i0 += MR) {
        vec acc[MR][NV];
        for (int i = 0; i < MR; ++i)
          for (int j = 0; j < NV; ++j) acc[i][j] = *(const vec_u *)(c + (size_t)(i0 + i) * N + j0 + j * VL);
        _Pragma(STR(GCC unroll UNROLL)) for (int k = 0; k < k1 - k0; ++k) {
          vec row[NV];
          for (int j = 0; j < NV; ++j) row[j] = *(const vec_u *)(panel + (size_t)k * stride + j * VL);
          for (int i = 0; i < MR; ++i)
            for (int j = 0; j < NV; ++j) acc[i][j] += a[(size_t)(i0 + i) * N + k0 + k] * row[j];
        }
        for (int i = 0; i < MR; ++i)
          for (int j = 0; j < NV; ++j) *(vec_u *)(c + (size_t)(i0 + i) * N + j0 + j * VL) = acc[i][j];
      }
    }
}

static void prepare(unsigned seed) {
  a = floats(N * N), b = floats(N * N), c = floats(N * N), want = floats(N * N);
  fill(a, N * N, seed), fill(b, N * N, seed + 1);
}

static int check(unsigned seed) {
  prepare(seed);
  for (int i = 0; i < N * N; ++i) want[i] = 0;
  for (int i = 0; i < N; ++i)
    for (int k = 0; k < N; ++k)
      for (int j = 0; j < N; ++j) want[i * N + j] += a[i * N + k] * b[k * N + j];
  multiply();
  for (int i = 0; i < N * N; ++i)
    if (!(c[i] - want[i] < 1e-3f && want[i] - c[i] < 1e-3f)) return 1;
  return 0;
}

int main(int argc, char **argv) {
  prepare(1);
  return run_cli(argc, argv, check, multiply);
}
