// Vectors of the compiler's own (GCC's vector extension), as wide as the processor's, and functions of their numbers.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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

// 2 to the power of x, x at most 126, within two units of the last place, and what is below -126 as that; NaN stays NaN.
// Polynomial: Cephes, exp2f.
static inline Vector power_of_two(Vector x) {
#if defined(__AVX512F__)
  const __m512 bounded = _mm512_max_ps((__m512)all(-126.0f), (__m512)x);  // of NaN the second
  const Vector twos = (Vector)_mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT);
  const Vector rest = (Vector)bounded - twos;
#else
  x = x < -126.0f ? all(-126.0f) : x;
  const Vector rounder = all(12582912.0f);
  const Vector twos = (x + rounder) - rounder;
  const Vector rest = x - twos;
#endif
  Vector sum = all(1.535336188319500e-4f);
  sum = sum * rest + 1.339887440266574e-3f;
  sum = sum * rest + 9.618437357674640e-3f;
  sum = sum * rest + 5.550332471162809e-2f;
  sum = sum * rest + 2.402264791363012e-1f;
  sum = sum * rest + 6.931472028550421e-1f;
  sum = sum * rest + 1.0f;
#if defined(__AVX512F__)
  return (Vector)_mm512_scalef_ps((__m512)sum, (__m512)twos);
#else
  const Whole power = (__builtin_convertvector(twos, Whole) + 127) << 23;
  Vector factor;
  std::memcpy(&factor, &power, sizeof factor);
  return sum * factor;
#endif
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

// The numbers from `at` on, up to `count`; zeros behind them.
static inline Vector some(const float* from, int64_t at, int64_t count) {
  if (at + WIDTH <= count) return load(from + at);
  float numbers[WIDTH] = {};
  for (int64_t i = at; i < count; i++) numbers[i - at] = from[i];
  return load(numbers);
}

// Number i of vector j becomes number j of vector i.
template <int HALF = WIDTH / 2>
static inline void transpose(Vector* square) {
  const Whole left = side<HALF>(false);
  const Whole right = side<HALF>(true);
  for (int i = 0; i < WIDTH; i++)
    if (!(i & HALF)) {
      const Vector one = square[i];
      const Vector other = square[i + HALF];
      square[i] = swap(one, other, left);
      square[i + HALF] = swap(one, other, right);
    }
  if constexpr (HALF > 1) transpose<HALF / 2>(square);
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

// ------------------------------------------------------------------------------------------ bfloat16

// The upper half of a float32.
struct Half {
  uint16_t bits;
};

static inline float widened(float number) { return number; }
static inline float widened(Half half) {
  const uint32_t bits = uint32_t(half.bits) << 16;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// To the nearest, of two equally near ones to the even one; NaN stays NaN.
static inline Half rounded(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {uint16_t(number == number ? nearest : bits >> 16 | 0x40)};
}

// Sums of products of bfloat16, in float32: by the processor's own instruction where it has one (it adds two products to
// each sum at once), else by widening.
#if defined(__AVX512BF16__)
constexpr int64_t HALVES = 2 * WIDTH;  // inputs of one step
typedef __m512bh Halves;
static inline Halves load(const Half* from) { return (Halves)_mm512_loadu_si512(from); }
static inline Vector plus(Vector sum, Halves a, Halves b) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, a, b);
}
#else
constexpr int64_t HALVES = WIDTH;
typedef Vector Halves;
static inline Halves load(const Half* from) {
  typedef uint16_t Narrow __attribute__((vector_size(WIDTH * 2)));
  typedef uint32_t Wide __attribute__((vector_size(WIDTH * 4)));
  Narrow bits;
  std::memcpy(&bits, from, sizeof bits);
  const Wide wide = __builtin_convertvector(bits, Wide) << 16;
  Vector numbers;
  std::memcpy(&numbers, &wide, sizeof numbers);
  return numbers;
}
#endif
static inline Vector plus(Vector sum, Vector a, Vector b) { return sum + a * b; }
