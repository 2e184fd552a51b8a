// A 3x3 box sum over an image of 1024 x 1024 floats, in tiles of TX x TY points, ROWS rows of VL floats at a time.
#include "../clock.h"
#include <immintrin.h>

#define W 1024
#define H 1024
#define PITCH (W + 64)
#define STR_(x) #x
#define STR(x) STR_(x)
_Static_assert(TY % ROWS == 0, "a tile has whole blocks of rows");

typedef float vec __attribute__((vector_size(VL * 4)));
typedef vec vec_u __attribute__((aligned(4)));

static float *in, *out, *want;

static void store(float *p, vec v) {
#if STREAM
#if VL == 16
  _mm512_stream_ps(p, (__m512)v);
#elif VL == 8
  _mm256_stream_ps(p, (__m256)v);
#else
  _mm_stream_ps(p, (__m128)v);
#endif
#else
  *(vec_u *)p = v;
#endif
}

static void blur(void) {
  for (int y0 = 0; y0 < H; y0 += TY)
    for (int x0 = 0; x0 < W; x0 += TX)
      for (int y = y0; y < y0 + TY; y += ROWS) {
        _Pragma(STR(GCC unroll UNROLL)) for (int x = x0; x < x0 + TX; x += VL) {
          vec sums[ROWS + 2];
          for (int r = 0; r < ROWS + 2; ++r) {
            const float *p = in + (size_t)(y + r) * PITCH + x;
            sums[r] = *(const vec_u *)p + *(const vec_u *)(p + 1) + *(const vec_u *)(p + 2);
          }
          for (int r = 0; r < ROWS; ++r) store(out + OFFSET + (size_t)(y + r) * PITCH + x, sums[r] + sums[r + 1] + sums[r + 2]);
        }
      }
#if STREAM
  _mm_sfence();
#endif
}

static void prepare(unsigned seed) {
  in = floats((H + 2) * PITCH), out = floats((H + 2) * PITCH), want = floats((H + 2) * PITCH);
  fill(in, (H + 2) * PITCH, seed);
  for (size_t i = 0; i < (H + 2) * PITCH; ++i) out[i] = 0.0f / 0.0f;
}

static int check(unsigned seed) {
  prepare(seed);
  blur();
  for (int y = 0; y < H; ++y)
    for (int x = 0; x < W; ++x) {
      float sum = 0;
      for (int r = 0; r < 3; ++r)
        for (int s = 0; s < 3; ++s) sum += in[(size_t)(y + r) * PITCH + x + s];
      const float got = out[OFFSET + (size_t)y * PITCH + x];
      if (!(got - sum < 1e-4f && sum - got < 1e-4f)) return 1;
    }
  return 0;
}

int main(int argc, char **argv) {
  prepare(1);
  return run_cli(argc, argv, check, blur);
}
