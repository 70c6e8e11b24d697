// What stands between the matrix products of a decoder layer, forward and backward, in float32: root mean square norms,
// rotations of queries and keys, gated activations. Each reads its numbers once and writes them once, where torch makes an
// array of every step between.
//
// Threads share out blocks of rows, and sums over rows are made block by block: the order of every sum is the same whatever
// their number.
//
// A name of a shape in brackets: T rows, W numbers of a row, H heads, D numbers of a head.

#include <cmath>
#include <cstdint>
#include <vector>

#include "threads.h"
#include "vectors.h"

constexpr int64_t ROWS = 128;  // of a block

template <typename Task>
static void in_blocks(int64_t rows, int64_t threads, Task task) {
  share_out((rows + ROWS - 1) / ROWS, threads, [&](int64_t block) {
    task(block, block * ROWS, std::min(rows, (block + 1) * ROWS));
  });
}

// The first numbers of a vector, those from `at` to `count`.
static inline void store_some(float* to, int64_t at, int64_t count, Vector value) {
  float numbers[WIDTH];
  store(numbers, value);
  for (int64_t i = at; i < count; i++) to[i] = numbers[i - at];
}

// Call `task(at, load, store)` for each vector of a row, the last one in parts where the row ends within it.
template <typename Task>
static inline void across(int64_t width, Task task) {
  int64_t at = 0;
  for (; at + WIDTH <= width; at += WIDTH)
    task(
        [at](const float* from) { return load(from + at); },
        [at](float* to, Vector value) { store(to + at, value); });
  if (at < width)
    task([at, width](const float* from) { return some(from, at, width); },
         [at, width](float* to, Vector value) { store_some(to, at, width, value); });
}

// ------------------------------------------------------------------------------------------ norms

// out = weight * x / sqrt(mean(x * x) + epsilon) [T, W]; `inverse` [T]: one over the root.
extern "C" void norm_forward(const float* x, const float* weight, float* out, float* inverse,
                             int64_t rows, int64_t width, float epsilon, int64_t threads) {
  in_blocks(rows, threads, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const float* own = x + row * width;
      Vector squares{};
      across(width, [&](auto read, auto) {
        const Vector numbers = read(own);
        squares += numbers * numbers;
      });
      inverse[row] = 1.0f / std::sqrt(sum_of(squares) / width + epsilon);
      const Vector factor = all(inverse[row]);
      float* to = out + row * width;
      across(width, [&](auto read, auto write) { write(to, read(weight) * (read(own) * factor)); });
    }
  });
}

// The gradients of x [T, W] and of the weight [W].
extern "C" void norm_backward(const float* x, const float* weight, const float* inverse,
                              const float* grad, float* grad_x, float* grad_weight, int64_t rows,
                              int64_t width, int64_t threads) {
  const int64_t blocks = (rows + ROWS - 1) / ROWS;
  std::vector<float> sums(blocks * width, 0.0f);
  in_blocks(rows, threads, [&](int64_t block, int64_t first, int64_t last) {
    float* sum = sums.data() + block * width;
    for (int64_t row = first; row < last; row++) {
      const float* own = x + row * width;
      const float* came = grad + row * width;
      const Vector factor = all(inverse[row]);
      Vector common{};
      across(width, [&](auto read, auto write) {
        const Vector unit = read(own) * factor;
        const Vector weighted = read(came) * unit;
        write(sum, read(sum) + weighted);
        common += read(weight) * weighted;
      });
      const Vector mean = all(sum_of(common) / width);
      float* to = grad_x + row * width;
      across(width, [&](auto read, auto write) {
        write(to, factor * (read(weight) * read(came) - read(own) * factor * mean));
      });
    }
  });
  for (int64_t i = 0; i < width; i++) grad_weight[i] = 0.0f;
  for (int64_t block = 0; block < blocks; block++)
    for (int64_t i = 0; i < width; i++) grad_weight[i] += sums[block * width + i];
}

// ------------------------------------------------------------------------------------------ gated activations

static inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// out = gate * sigmoid(gate) * up, number by number.
extern "C" void gate_forward(const float* gate, const float* up, float* out, int64_t rows,
                             int64_t width, int64_t threads) {
  in_blocks(rows, threads, [&](int64_t, int64_t first, int64_t last) {
    const int64_t at = first * width;
    across((last - first) * width, [&](auto read, auto write) {
      const Vector numbers = read(gate + at);
      write(out + at, numbers * sigmoid(numbers) * read(up + at));
    });
  });
}

extern "C" void gate_backward(const float* gate, const float* up, const float* grad,
                              float* grad_gate, float* grad_up, int64_t rows, int64_t width,
                              int64_t threads) {
  in_blocks(rows, threads, [&](int64_t, int64_t first, int64_t last) {
    const int64_t at = first * width;
    across((last - first) * width, [&](auto read, auto write) {
      const Vector numbers = read(gate + at);
      const Vector share = sigmoid(numbers);
      const Vector came = read(grad + at);
      write(grad_up + at, came * (numbers * share));
      write(grad_gate + at, came * read(up + at) * share * (1.0f + numbers * (1.0f - share)));
    });
  });
}

// ------------------------------------------------------------------------------------------ rotations

// Each head [D] of each token is rotated: its first half with its second one, by the token's cosines and sines [T, D];
// `back`: the other way, as the gradient is. Of `from` and `to` the strides of heads and tokens are given.
extern "C" void rotate(const float* from, float* to, const float* cosine, const float* sine,
                       int64_t heads, int64_t tokens, int64_t size, int64_t from_head,
                       int64_t from_token, int64_t to_head, int64_t to_token, int64_t back,
                       int64_t threads) {
  const int64_t half = size / 2;
  in_blocks(tokens, threads, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++)
      for (int64_t head = 0; head < heads; head++) {
        const float* left = from + head * from_head + token * from_token;
        const float* right = left + half;
        float* to_left = to + head * to_head + token * to_token;
        float* to_right = to_left + half;
        const float* cosines = cosine + token * size;
        const float* sines = sine + token * size;
        across(half, [&](auto read, auto write) {
          const Vector a = read(left);
          const Vector b = read(right);
          if (back) {
            write(to_left, a * read(cosines) + b * read(sines + half));
            write(to_right, b * read(cosines + half) - a * read(sines));
          } else {
            write(to_left, a * read(cosines) - b * read(sines));
            write(to_right, b * read(cosines + half) + a * read(sines + half));
          }
        });
      }
  });
}
