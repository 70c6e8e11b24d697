// Logprobs and entropies of chosen tokens from their logits, forward and backward, in float32: logits are read twice and
// their gradients are written in their place, where torch makes an array of that size for every step between.
//
// Threads share out rows, and every sum is made within one row: its order is the same whatever their number.
//
// A name of a shape in brackets: R rows, V numbers of a row.

#include <cmath>
#include <cstdint>

#include "threads.h"
#include "vectors.h"

constexpr float LOWEST = -87.0f;  // e to the power of it is the smallest normal number, nearly

// Call `task(at, numbers)` for each vector of a row; lanes behind its end hold `rest`.
template <typename Task>
static inline void across(const float* row, int64_t width, float rest, Task task) {
  int64_t at = 0;
  for (; at + WIDTH <= width; at += WIDTH) task(load(row + at));
  if (at == width) return;
  Vector last = all(rest);
  for (int64_t i = at; i < width; i++) last[i - at] = row[i];
  task(last);
}

// Of each row of logits [R, V] and its token: the logarithm of the sum of exponentials `log_sum` [R], the token's logprob
// `logp` [R] and the entropy of the softmax `entropy` [R], in nats. A logit of minus infinity has no part in either.
extern "C" void score_forward(const float* logits, const int64_t* ids, float* log_sum, float* logp,
                              float* entropy, int64_t rows, int64_t width, int64_t threads) {
  share_out(rows, threads, [&](int64_t r) {
    const float* row = logits + r * width;
    Vector high = all(-INFINITY);
    across(row, width, -INFINITY, [&](Vector numbers) { high = numbers > high ? numbers : high; });
    float most = -INFINITY;
    for (int i = 0; i < WIDTH; i++) most = high[i] > most ? high[i] : most;
    Vector sum{};
    Vector product{};
    across(row, width, -INFINITY, [&](Vector numbers) {
      Vector below = numbers - most;
      below = below < LOWEST ? all(LOWEST) : below;
      const Vector power = exponential_of_small(below);
      sum += power;
      product += power * below;
    });
    const float total = sum_of(sum);
    const float logarithm = std::log(total);
    log_sum[r] = most + logarithm;
    logp[r] = (row[ids[r]] - most) - logarithm;
    entropy[r] = logarithm - sum_of(product) / total;
  });
}

// The gradient of the logits [R, V], in their place: of `of_logp` times a row's logprob and `of_entropy` times its entropy.
extern "C" void score_backward(float* logits, const int64_t* ids, const float* log_sum,
                               const float* entropy, const float* of_logp, const float* of_entropy,
                               int64_t rows, int64_t width, int64_t threads) {
  share_out(rows, threads, [&](int64_t r) {
    float* row = logits + r * width;
    const auto gradient = [&](Vector numbers) {
      Vector logp = numbers - log_sum[r];
      logp = logp < LOWEST ? all(LOWEST) : logp;
      return exponential_of_small(logp) * (-of_logp[r] - of_entropy[r] * (logp + entropy[r]));
    };
    int64_t at = 0;
    for (; at + WIDTH <= width; at += WIDTH) store(row + at, gradient(load(row + at)));
    if (at < width) {
      const Vector last = gradient(some(row, at, width));
      for (int64_t i = at; i < width; i++) row[i] = last[i - at];
    }
    row[ids[r]] += of_logp[r];
  });
}
