// Timing shared by the kernels here: the least of some repetitions, in microseconds, as a flat JSON document.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static float *floats(size_t count) {
  float *p = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
  if (!p) exit(3);
  return p;
}

// The same numbers for the same seed, in [-1, 1).
static void fill(float *p, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    p[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

// `PROGRAM --check SEED` exits 0 or 1; `PROGRAM --bench REPEATS` prints {"us": TIME}.
static int run_cli(int argc, char **argv, int (*check)(unsigned), void (*once)(void)) {
  if (argc == 3 && !strcmp(argv[1], "--check")) return check((unsigned)atoi(argv[2]));
  if (argc != 3 || strcmp(argv[1], "--bench")) return 2;
  const int repeats = atoi(argv[2]);
  once();
  double least = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = now_us();
    once();
    const double took = now_us() - start;
    if (took < least) least = took;
  }
  printf("{\"us\": %.2f}\n", least);
  return 0;
}
