// Vectors of the compiler's own (GCC's vector extension), as wide as the processor's, and functions of their numbers.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int WIDTH = 16;  // numbers of a vector
constexpr int ACROSS = 4;  // vectors of outputs that one block of a product has
#elif defined(__AVX__)
constexpr int WIDTH = 8;
constexpr int ACROSS = 2;
#else
constexpr int WIDTH = 4;
constexpr int ACROSS = 2;
#endif

typedef float Vector __attribute__((vector_size(WIDTH * 4)));
typedef int32_t Whole __attribute__((vector_size(WIDTH * 4)));
typedef float Loose __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

static inline Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
static inline void store(float* to, Vector value) { *reinterpret_cast<Loose*>(to) = value; }
static inline Vector all(float value) { return value - Vector{}; }

// e to the power of x, x at most 88, within two units of the last place; NaN stays NaN. Polynomial: Cephes, expf.
static inline Vector exponential_of_small(Vector x) {
  x = x < -87.0f ? all(-87.0f) : x;
  const Vector rounder = all(12582912.0f);
  const Vector twos = (x * 1.44269504088896341f + rounder) - rounder;
  const Vector rest = (x - twos * 0.693359375f) + twos * 2.12194440e-4f;
  Vector sum = all(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  const Whole power = (__builtin_convertvector(twos, Whole) + 127) << 23;
  Vector factor;
  std::memcpy(&factor, &power, sizeof factor);
  return sum * factor;
}

// The same of any x.
static inline Vector exponential(Vector x) {
  return exponential_of_small(x > 88.0f ? all(88.0f) : x);
}

static inline Vector swap(Vector a, Vector b, Whole from) {
#if defined(__GNUC__) && !defined(__clang__)
  return __builtin_shuffle(a, b, from);
#else
  Vector mixed;
  for (int i = 0; i < WIDTH; i++) mixed[i] = from[i] < WIDTH ? a[from[i]] : b[from[i] - WIDTH];
  return mixed;
#endif
}

template <int HALF>
static inline Whole side(bool right) {
  Whole from;
  for (int i = 0; i < WIDTH; i++)
    from[i] = ((i & HALF) ? WIDTH : 0) + (right ? (i | HALF) : (i & ~HALF));
  return from;
}

// Number i of the result is the sum of vector i.
template <int HALF = WIDTH / 2>
static inline Vector sums(Vector* parts) {
  const Whole left = side<HALF>(false);
  const Whole right = side<HALF>(true);
  for (int i = 0; i < HALF; i++)
    parts[i] = swap(parts[i], parts[i + HALF], left) + swap(parts[i], parts[i + HALF], right);
  if constexpr (HALF > 1)
    return sums<HALF / 2>(parts);
  else
    return parts[0];
}

static inline float sum_of(Vector parts) {
  float numbers[WIDTH];
  store(numbers, parts);
  for (int half = WIDTH / 2; half; half /= 2)
    for (int i = 0; i < half; i++) numbers[i] += numbers[i + half];
  return numbers[0];
}
