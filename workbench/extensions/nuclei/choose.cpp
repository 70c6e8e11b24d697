// Which tokens top-p keeps, and which token a uniform number means: what sampling does besides its softmaxes, on one thread.
//
// Exact. A token and a nucleus are decided by running sums of float64 that are made in a given order; where sums in another
// order cannot decide the same for certain, the answer is UNDECIDED, or the sum is made in that order.
//
// A name of a shape in brackets: R rows, V vocabulary, N blocks of it, K tokens of a nucleus.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define COMPRESSES  // the processor can put those numbers of a vector side by side that a mask names
#endif

constexpr int64_t UNDECIDED = -1;
constexpr double ROUNDING = 1e-9;  // of a sum of at most a million probabilities; they are off by 2e-10 at most
constexpr float LEAST[] = {-9.0f, -11.0f, -13.0f, -17.0f, -60.0f};  // log-probabilities: what is below the last one is no more than rounding
constexpr int64_t FEW = 48;                         // tokens that are sorted
constexpr int PIVOTS = 8;

#if defined(__AVX512F__)
constexpr int LANES = 8;
#elif defined(__AVX__)
constexpr int LANES = 4;
#else
constexpr int LANES = 2;
#endif
typedef double Doubles __attribute__((vector_size(LANES * 8)));
typedef int64_t Wholes __attribute__((vector_size(LANES * 8)));
typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Places __attribute__((vector_size(LANES * 4)));

template <class Vector = Doubles, class Number>
static Vector load(const Number* from) {
  Vector numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return numbers;
}

static double sum_of(Doubles parts) {
  double sum = 0;
  for (int i = 0; i < LANES; i++) sum += parts[i];
  return sum;
}

// ------------------------------------------------------------------------------------------ which token

// The first place whose running sum is above u times the sum of all, where `from` has float32 numbers; -> that sum.
struct Place {
  int64_t at;
  double sum, target, total;
};

static Place exactly(const float* from, int64_t count, double u) {
  double total = 0;
  for (int64_t i = 0; i < count; i++) total += from[i];
  const double target = std::min(u * total, std::nextafter(total, 0.0));
  double sum = 0;
  int64_t i = 0;
  for (; i < count; i++) {
    sum += from[i];
    if (sum > target) break;
  }
  return {std::min(i, count - 1), sum, target, total};
}

// The same place, if sums of runs of numbers decide it.
static int64_t by_runs(const float* from, int64_t count, double u, double* total, double* sums) {
  constexpr int64_t RUN = 8 * LANES;
  const int64_t runs = count / RUN;
  *total = 0;
  for (int64_t run = 0; run < runs; run++) {
    Doubles parts{};
    for (const float* next = from + run * RUN; next < from + (run + 1) * RUN; next += LANES)
      parts += __builtin_convertvector(load<Floats>(next), Doubles);
    sums[run] = sum_of(parts);
    *total += sums[run];
  }
  for (int64_t i = runs * RUN; i < count; i++) *total += from[i];
  const double target = u * *total;
  double before = 0;
  int64_t run = 0;
  while (run < runs && before + sums[run] <= target) before += sums[run++];
  const double near = ROUNDING * *total;
  for (int64_t i = run * RUN; i < count; i++) {
    const double after = before + from[i];
    if (after > target)
      return target - before > near && after - target > near ? i : UNDECIDED;
    before = after;
  }
  return UNDECIDED;
}

extern "C" {

// token [R] and total [R] of p [R, K]
void pick(const float* p, int64_t rows, int64_t count, const double* uniform, int64_t* token,
          double* total) {
  std::vector<double> sums(count / LANES + 1);
  for (int64_t row = 0; row < rows; row++, p += count) {
    token[row] = by_runs(p, count, uniform[row], total + row, sums.data());
    if (token[row] != UNDECIDED) continue;
    const Place place = exactly(p, count, uniform[row]);
    token[row] = place.at;
    total[row] = place.total;
  }
}

// The same of p [R, V] by the sums [R, N] of its blocks: first the block, then how far into it.
void pick_of_blocks(const float* p, int64_t rows, int64_t count, const float* sums, int64_t blocks,
                    int64_t block, const double* uniform, int64_t* token, double* total) {
  for (int64_t row = 0; row < rows; row++, p += count, sums += blocks) {
    const Place whole = exactly(sums, blocks, uniform[row]);
    const double share = 1 - (whole.sum - whole.target) / sums[whole.at];
    const int64_t first = std::min(whole.at * block, count - 1);
    const double rest = std::min(std::max(share, 0.0), 1.0);
    token[row] = first + exactly(p + first, std::min(block, count - first), rest).at;
    total[row] = whole.total;
  }
}
}

// ------------------------------------------------------------------------------------------ which tokens are kept

// e to the power of x, x from -60 to 0, within a few units of the last place.
static void exponentials(const double* from, int64_t count, double* to) {
  constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: its last bits are a whole number
  for (int64_t i = 0; i < count; i++) {
    const double shifted = from[i] * 1.4426950408889634 + SHIFT;
    const double twos = shifted - SHIFT;
    const double x = (from[i] - twos * 6.93147180369123816490e-01) - twos * 1.90821492927058770002e-10;
    double sum = 1.0 / 6227020800;
    double factorial = 6227020800;
    for (int k = 13; k > 0; k--) {
      factorial /= k;
      sum = sum * x + 1.0 / factorial;
    }
    int64_t power, bits;
    std::memcpy(&power, &shifted, sizeof power);
    std::memcpy(&bits, &sum, sizeof bits);
    bits += power << 52;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

// Tokens of a row that may be kept, in their order, with their log-probability and probability.
struct Likely {
  std::vector<int32_t> place;
  std::vector<double> logp, p;
  int64_t count = 0;

  void make_room(int64_t tokens) {
    tokens += 4 * LANES;  // numbers are written some at a time, before it is known which of them stay
    place.resize(tokens);
    logp.resize(tokens);
    p.resize(tokens);
  }
};

static void gather(const float* row, int64_t first, int64_t end, float least, Likely& to) {
  int64_t kept = to.count;
  for (int64_t i = first; i < end; i++) {
    to.place[kept] = int32_t(i);
    to.logp[kept] = row[i];
    kept += row[i] >= least;
  }
  to.count = kept;
}

// Those of a row that are no less likely than `least`; -> their sum
static double gather_all(const float* row, int64_t vocabulary, float least, Likely& to) {
  constexpr int64_t RUN = 16;
  to.count = 0;
  int64_t first = 0;
  for (; first + RUN <= vocabulary; first += RUN) {
#if defined(COMPRESSES)
    const __m512 numbers = _mm512_loadu_ps(row + first);
    const __mmask16 mask = _mm512_cmp_ps_mask(numbers, _mm512_set1_ps(least), _CMP_GE_OQ);
    if (!mask) continue;
    const __m512i steps =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_add_epi32(_mm512_set1_epi32(int32_t(first)), steps);
    const __m512 kept = _mm512_maskz_compress_ps(mask, numbers);
    _mm512_storeu_si512(&to.place[to.count], _mm512_maskz_compress_epi32(mask, places));
    _mm512_storeu_pd(&to.logp[to.count], _mm512_cvtps_pd(_mm512_castps512_ps256(kept)));
    _mm512_storeu_pd(&to.logp[to.count + LANES],
                     _mm512_cvtps_pd(_mm512_extractf32x8_ps(kept, 1)));
    to.count += __builtin_popcount(mask);
#else
    int any = 0;
    for (int64_t i = first; i < first + RUN; i++) any |= row[i] >= least;
    if (any) gather(row, first, first + RUN, least, to);
#endif
  }
  gather(row, first, vocabulary, least, to);
  exponentials(to.logp.data(), to.count, to.p.data());
  Doubles parts{};
  int64_t i = 0;
  for (; i + LANES <= to.count; i += LANES) parts += load(&to.p[i]);
  double sum = sum_of(parts);
  for (; i < to.count; i++) sum += to.p[i];
  return sum;
}

// Those of `from` for which keep(log-probabilities, places) has set bits, in their order. `to` may be `from`.
template <class Keep>
static void take(const Likely& from, Likely& to, const Keep& keep) {
  const int64_t all = from.count;
  int64_t kept = 0;
  for (int64_t i = 0; i < all; i += LANES) {
    const Doubles logp = load(&from.logp[i]);
    const Doubles p = load(&from.p[i]);
    const Places place = load<Places>(&from.place[i]);
    Wholes mask = keep(logp, __builtin_convertvector(place, Wholes));
    for (int64_t lane = all - i; lane < LANES; lane++) mask[lane] = 0;
#if defined(COMPRESSES)
    const __mmask8 bits = _mm512_movepi64_mask((__m512i)mask);
    _mm512_storeu_pd(&to.logp[kept], _mm512_maskz_compress_pd(bits, (__m512d)logp));
    _mm512_storeu_pd(&to.p[kept], _mm512_maskz_compress_pd(bits, (__m512d)p));
    _mm256_storeu_si256((__m256i*)&to.place[kept],
                        _mm256_maskz_compress_epi32(bits, (__m256i)place));
    kept += __builtin_popcount(bits);
#else
    for (int lane = 0; lane < LANES; lane++) {
      to.logp[kept] = logp[lane];
      to.p[kept] = p[lane];
      to.place[kept] = place[lane];
      kept += mask[lane] & 1;
    }
#endif
  }
  to.count = kept;
}

// The last token that is kept: of equally likely ones those up to its place are.
struct Edge {
  double logp;
  int32_t place;  // UNDECIDED where it is not certain
};

// Where the running sum over sorted tokens passes top-p; `before`: the sum of those that are more likely than all of these.
static Edge edge_among(const Likely& sorted, double before, double top_p) {
  Edge edge{0, int32_t(UNDECIDED)};
  for (int64_t i = 0; i < sorted.count; i++) {
    if (std::abs(before - top_p) < ROUNDING) return {0, int32_t(UNDECIDED)};
    if (before > top_p) break;
    edge = {sorted.logp[i], sorted.place[i]};
    before += sorted.p[i];
  }
  return edge;
}

// By how likely they are, of equals by their place. There are FEW.
static void sort(Likely& tokens) {
  for (int64_t i = 1; i < tokens.count; i++)
    for (int64_t j = i; j > 0 && tokens.logp[j] > tokens.logp[j - 1]; j--) {
      std::swap(tokens.logp[j], tokens.logp[j - 1]);
      std::swap(tokens.p[j], tokens.p[j - 1]);
      std::swap(tokens.place[j], tokens.place[j - 1]);
    }
}

// Probability of what is at least as likely as each pivot.
static void masses(const Likely& tokens, const double* pivot, double* mass) {
  Doubles parts[PIVOTS] = {};
  int64_t i = 0;
  for (; i + LANES <= tokens.count; i += LANES) {
    const Doubles logp = load(&tokens.logp[i]);
    const Doubles p = load(&tokens.p[i]);
    for (int k = 0; k < PIVOTS; k++) parts[k] += logp >= pivot[k] ? p : Doubles{};
  }
  for (int k = 0; k < PIVOTS; k++) {
    mass[k] = sum_of(parts[k]);
    for (int64_t j = i; j < tokens.count; j++)
      mass[k] += tokens.logp[j] >= pivot[k] ? tokens.p[j] : 0.0;
  }
}

// {least, most} of their log-probabilities
static std::pair<double, double> ends(const Likely& tokens) {
  double least = INFINITY;
  double most = -INFINITY;
  Doubles lows = least - Doubles{};
  Doubles highs = most - Doubles{};
  int64_t i = 0;
  for (; i + LANES <= tokens.count; i += LANES) {
    const Doubles logp = load(&tokens.logp[i]);
    lows = logp < lows ? logp : lows;
    highs = logp > highs ? logp : highs;
  }
  for (; i < tokens.count; i++) {
    least = std::min(least, tokens.logp[i]);
    most = std::max(most, tokens.logp[i]);
  }
  for (int lane = 0; lane < LANES; lane++) {
    least = std::min(least, lows[lane]);
    most = std::max(most, highs[lane]);
  }
  return {least, most};
}

// Narrows down, by eight pivots at a time, between which log-probabilities the running sum over the sorted tokens passes
// top-p. Each sum is above or below it by more than rounding, or the answer is not certain. `left`: room.
static Edge edge_of(const Likely& likely, double top_p, Likely& left) {
  const Likely* tokens = &likely;
  double before = 0;
  while (tokens->count > FEW) {
    const auto [low, high] = ends(*tokens);
    if (low == high) return edge_among(*tokens, before, top_p);  // equals, in their order
    double pivot[PIVOTS], mass[PIVOTS];
    for (int k = 0; k < PIVOTS; k++)
      pivot[k] = low + (high - low) * (PIVOTS - k) / (PIVOTS + 1);
    masses(*tokens, pivot, mass);
    int k = 0;
    while (k < PIVOTS && before + mass[k] < top_p - ROUNDING) k++;
    if (k < PIVOTS && before + mass[k] < top_p + ROUNDING) return {0, int32_t(UNDECIDED)};
    const double above = k < PIVOTS ? pivot[k] : low;
    const double below = k ? pivot[k - 1] : INFINITY;
    take(*tokens, left, [=](Doubles logp, Wholes) { return (logp >= above) & (logp < below); });
    before += k ? mass[k - 1] : 0;
    tokens = &left;
  }
  if (tokens != &left) take(*tokens, left, [](Doubles logp, Wholes) { return logp < INFINITY; });
  sort(left);
  return edge_among(left, before, top_p);
}

// What `nuclei` found, for `lay_out`: tokens, ascending, and their log-probabilities, of one row after the other. Kept from call
// to call, for to get memory takes as long as to fill it.
static thread_local std::vector<int32_t> found_place;
static thread_local std::vector<float> found_logp;

extern "C" {

// kept [R]: how many tokens of each row of logp [R, V] top-p keeps, or UNDECIDED.
void nuclei(const float* logp, int64_t rows, int64_t vocabulary, const double* top_p, int64_t* kept) {
  found_place.clear();
  found_logp.clear();
  static thread_local Likely likely, left;
  likely.make_room(vocabulary);
  left.make_room(vocabulary);
  for (int64_t row = 0; row < rows; row++, logp += vocabulary) {
    kept[row] = UNDECIDED;
    double sum = 0;
    for (const float least : LEAST)
      if (!(sum > top_p[row] + ROUNDING)) sum = gather_all(logp, vocabulary, least, likely);
    if (!(sum > top_p[row] + ROUNDING)) continue;
    const Edge edge = edge_of(likely, top_p[row], left);
    if (edge.place == UNDECIDED) continue;
    take(likely, left, [=](Doubles own, Wholes at) {
      return (own > edge.logp) | ((own == edge.logp) & (at <= edge.place));
    });
    kept[row] = left.count;
    found_place.insert(found_place.end(), left.place.begin(), left.place.begin() + left.count);
    found_logp.insert(found_logp.end(), left.logp.begin(), left.logp.begin() + left.count);
  }
}

// The same laid out as [R, K], after it in the same thread: a shorter row, and one that is UNDECIDED, ends in token 0 at -inf.
void lay_out(const int64_t* kept, int64_t rows, int64_t longest, int64_t* places, float* logps) {
  const int32_t* place = found_place.data();
  const float* chosen = found_logp.data();
  for (int64_t row = 0; row < rows; row++, places += longest, logps += longest) {
    for (int64_t i = 0; i < longest; i++) {
      const bool there = i < kept[row];
      places[i] = there ? place[i] : 0;
      logps[i] = there ? chosen[i] : -INFINITY;
    }
    place += std::max(kept[row], int64_t(0));
    chosen += std::max(kept[row], int64_t(0));
  }
}
}
