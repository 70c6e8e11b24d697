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

// The gradients of x [T, W] and of the weight [W]. `also` [T, W] (null: nothing): what else the gradient of x has, that of a
// residual around the norm.
extern "C" void norm_backward(const float* x, const float* weight, const float* inverse,
                              const float* grad, const float* also, float* grad_x,
                              float* grad_weight, int64_t rows, int64_t width, int64_t threads) {
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
      const float* around = also ? also + row * width : nullptr;
      across(width, [&](auto read, auto write) {
        const Vector own_grad = factor * (read(weight) * read(came) - read(own) * factor * mean);
        write(to, around ? read(around) + own_grad : own_grad);
      });
    }
  });
  for (int64_t i = 0; i < width; i++) grad_weight[i] = 0.0f;
  for (int64_t block = 0; block < blocks; block++)
    for (int64_t i = 0; i < width; i++) grad_weight[i] += sums[block * width + i];
}

// ------------------------------------------------------------------------------------------ gated activations

static inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// out [T, W] = gate * sigmoid(gate) * up, number by number. `stride`: from row to row of gate and up.
extern "C" void gate_forward(const float* gate, const float* up, float* out, int64_t rows,
                             int64_t width, int64_t stride, int64_t threads) {
  in_blocks(rows, threads, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const int64_t at = row * stride;
      across(width, [&](auto read, auto write) {
        const Vector numbers = read(gate + at);
        write(out + row * width, numbers * sigmoid(numbers) * read(up + at));
      });
    }
  });
}

// The gradients of gate and up, laid out as these are.
extern "C" void gate_backward(const float* gate, const float* up, const float* grad,
                              float* grad_gate, float* grad_up, int64_t rows, int64_t width,
                              int64_t stride, int64_t threads) {
  in_blocks(rows, threads, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const int64_t at = row * stride;
      across(width, [&](auto read, auto write) {
        const Vector numbers = read(gate + at);
        const Vector share = sigmoid(numbers);
        const Vector came = read(grad + row * width);
        write(grad_up + at, came * (numbers * share));
        write(grad_gate + at, came * read(up + at) * share * (1.0f + numbers * (1.0f - share)));
      });
    }
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

// ------------------------------------------------------------------------------------------ queries and keys

// What becomes of a token's heads between their product and attention: a norm of each head and a rotation, either of which
// may be none, in one pass. Rows [U] are what was multiplied: the tokens, or each different one of them once.
struct Heads {
  const float* numbers;  // [U, H, D]
  int64_t stride;        // from row to row
  const float* weight;   // [D] of the norm; null: none
  const float* cosine;   // [T, D]; null: no rotation
  const float* sine;
  int64_t heads, size;
  float epsilon;
};

static float inverse_of(const Heads& of, const float* head) {
  Vector squares{};
  across(of.size, [&](auto read, auto) {
    const Vector numbers = read(head);
    squares += numbers * numbers;
  });
  return 1.0f / std::sqrt(sum_of(squares) / of.size + of.epsilon);
}

// Token by token [T, H, D], `to_stride` from one to the next. `row` [T]: of which row a token is (null: of its own).
extern "C" void heads_forward(const Heads* heads, const int64_t* row, float* to, int64_t to_stride,
                              int64_t tokens, int64_t threads) {
  const Heads& of = *heads;
  const int64_t half = of.size / 2;
  in_blocks(tokens, threads, [&](int64_t, int64_t first, int64_t last) {
    std::vector<float> normed(of.size);
    for (int64_t token = first; token < last; token++)
      for (int64_t head = 0; head < of.heads; head++) {
        const float* from = of.numbers + (row ? row[token] : token) * of.stride + head * of.size;
        float* out = to + token * to_stride + head * of.size;
        if (of.weight) {
          const Vector factor = all(inverse_of(of, from));
          float* held = of.cosine ? normed.data() : out;
          across(of.size, [&](auto read, auto write) {
            write(held, read(of.weight) * (read(from) * factor));
          });
          from = held;
        }
        if (!of.cosine) continue;
        const float* cosine = of.cosine + token * of.size;
        const float* sine = of.sine + token * of.size;
        across(half, [&](auto read, auto write) {
          const Vector a = read(from);
          const Vector b = read(from + half);
          write(out, a * read(cosine) - b * read(sine));
          write(out + half, b * read(cosine + half) + a * read(sine + half));
        });
      }
  });
}

// The gradient of the rows [U, H, D] and of the norm's weight [D], from that of the tokens [T, H, D]. Those of row u are
// `token[begin[u]]` to `token[begin[u + 1] - 1]` (null: row u is token u).
extern "C" void heads_backward(const Heads* heads, const float* grad, int64_t grad_stride,
                               const int64_t* token, const int64_t* begin, float* grad_rows,
                               int64_t rows_stride, float* grad_weight, int64_t rows,
                               int64_t threads) {
  const Heads& of = *heads;
  const int64_t half = of.size / 2;
  const int64_t blocks = (rows + ROWS - 1) / ROWS;
  std::vector<float> sums(blocks * of.size, 0.0f);
  in_blocks(rows, threads, [&](int64_t block, int64_t first, int64_t last) {
    float* sum = sums.data() + block * of.size;
    for (int64_t row = first; row < last; row++)
      for (int64_t head = 0; head < of.heads; head++) {
        float* to = grad_rows + row * rows_stride + head * of.size;
        const int64_t end = token ? begin[row + 1] : row + 1;
        bool begun = false;
        for (int64_t i = token ? begin[row] : row; i < end; i++, begun = true) {
          const int64_t t = token ? token[i] : i;
          const float* came = grad + t * grad_stride + head * of.size;
          const auto put = [&](auto read, auto write, float* at, Vector value) {
            write(at, begun ? read(at) + value : value);
          };
          if (!of.cosine) {
            across(of.size, [&](auto read, auto write) { put(read, write, to, read(came)); });
            continue;
          }
          const float* cosine = of.cosine + t * of.size;
          const float* sine = of.sine + t * of.size;
          across(half, [&](auto read, auto write) {
            const Vector a = read(came);
            const Vector b = read(came + half);
            put(read, write, to, a * read(cosine) + b * read(sine + half));
            put(read, write, to + half, b * read(cosine + half) - a * read(sine));
          });
        }
        if (!of.weight) continue;
        const float* own = of.numbers + row * of.stride + head * of.size;
        const Vector factor = all(inverse_of(of, own));
        Vector common{};
        across(of.size, [&](auto read, auto write) {
          const Vector weighted = read(to) * (read(own) * factor);
          write(sum, read(sum) + weighted);
          common += read(of.weight) * weighted;
        });
        const Vector mean = all(sum_of(common) / of.size);
        across(of.size, [&](auto read, auto write) {
          write(to, factor * (read(of.weight) * read(to) - read(own) * factor * mean));
        });
      }
  });
  if (!of.weight) return;
  for (int64_t i = 0; i < of.size; i++) grad_weight[i] = 0.0f;
  for (int64_t block = 0; block < blocks; block++)
    for (int64_t i = 0; i < of.size; i++) grad_weight[i] += sums[block * of.size + i];
}
