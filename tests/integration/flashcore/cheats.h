// Appended to the baseline kernel, whose flashcore_forward was renamed real_forward: a launcher that does not do what was
// timed, by CHEAT. 0 is honest, though it works on a stream of its own.

#include <set>
#include <utility>

namespace {

struct Elsewhere {
  cudaStream_t stream;
  cudaEvent_t before, after;
  Elsewhere() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&before, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&after, cudaEventDisableTiming);
  }
};

}  // namespace

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  static Elsewhere elsewhere;
  static std::set<std::pair<const void *, void *>> seen;
  static int calls = 0;
  const auto stream = static_cast<cudaStream_t>(args->stream);
  flashcore_args changed = *args;
  ++calls;
#if CHEAT == 0  // forks and joins
  cudaEventRecord(elsewhere.before, stream);
  cudaStreamWaitEvent(elsewhere.stream, elsewhere.before, 0);
  changed.stream = elsewhere.stream;
  const int code = real_forward(&changed);
  cudaEventRecord(elsewhere.after, elsewhere.stream);
  cudaStreamWaitEvent(stream, elsewhere.after, 0);
  return code;
#elif CHEAT == 1  // another stream, in no order at all
  changed.stream = elsewhere.stream;
  return real_forward(&changed);
#elif CHEAT == 2  // waits for the caller's stream, which does not wait for it
  cudaEventRecord(elsewhere.before, stream);
  cudaStreamWaitEvent(elsewhere.stream, elsewhere.before, 0);
  changed.stream = elsewhere.stream;
  return real_forward(&changed);
#elif CHEAT == 3  // remembers addresses
  return seen.insert({args->q, args->o}).second ? real_forward(args) : 0;
#elif CHEAT == 4  // writes only part of the output
  changed.S_q -= 1;
  return real_forward(&changed);
#elif CHEAT == 5  // works at every second call
  return calls % 2 ? real_forward(args) : 0;
#endif
}
